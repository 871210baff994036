"""The smallest table is the smallest: no table is smaller, and with it every size is within the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.distill.cover import COVERED, Section, cover, served, stretches
from tunesmith.errors import BadInput
from tunesmith.tables.policy import rule

LIMIT = 0.03
ONE_SIDED = [name for name in COVERED if rule(name).kind != "padded"]


def sections_of(
    losses: Sequence[Mapping[str, float]], widths: Sequence[int], doubts: Sequence[float] = ()
) -> list[Section[str]]:
    found, first = list[Section[str]](), 1
    for one, width, doubt in zip(losses, widths, doubts or [0.0] * len(losses), strict=True):
        found.append(Section(first, first + width - 1, dict(one), doubt))
        first += width
    return found


@st.composite
def some_sections(draw: st.DrawFn) -> list[Section[str]]:
    """Up to 14 sizes in up to 6 sections, some only expected; of each, one decision of three at least is good."""
    count = draw(st.integers(1, 6))
    widths = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    loss = st.sampled_from([0.0, 0.02, 0.04, 0.2, math.inf])
    doubts = draw(st.lists(st.sampled_from([0.0, 0.02]), min_size=count, max_size=count))
    found = list[dict[str, float]]()
    for _ in range(count):
        one = {name: draw(loss) for name in "abc"}
        one[draw(st.sampled_from("abc"))] = 0.0
        found.append({name: value for name, value in one.items() if value < math.inf})
    return sections_of(found, widths, doubts)


def allowed(sections: Sequence[Section[str]]) -> dict[int, set[str]]:
    return {
        size: {name for name, loss in one.losses.items() if loss <= LIMIT + one.doubt}
        for one in sections
        for size in range(one.first, one.last + 1)
    }


def brute(sections: Sequence[Section[str]], by: str) -> int:
    """The fewest rows, of all sets of keys: a set will do if each key has a decision that all its sizes allow."""
    good, upto = allowed(sections), sections[-1].last
    for count in range(1, upto + 1):
        for keys in combinations(range(1, upto + 1), count):
            left: dict[int, set[str]] = {}
            for first, last, key in served(rule(by), {key: key for key in keys}, upto):
                if key is None:
                    break
                for size in range(first, last + 1):
                    left[key] = left.get(key, good[size]) & good[size]
            else:
                if all(left.values()):
                    return count
    raise AssertionError("a key for each size always will do")


def lost(sections: Sequence[Section[str]], rows: Sequence[tuple[int, int, str]]) -> float:
    """What is lost in all, a doubling of the sizes counting as one, by rows (first section, last section, decision)."""
    return sum(
        math.log2((one.last + 1) / one.first) * one.losses[decision]
        for first, last, decision in rows
        for one in sections[first : last + 1]
    )


@pytest.mark.parametrize("by", ["ceil", "floor"])
@given(sections=some_sections())
@settings(max_examples=30, deadline=None)
def test_of_the_smallest_tables_it_loses_least(sections: list[Section[str]], by: str) -> None:
    found = cover(sections, by, LIMIT)
    n, ways = len(sections), list[float]()
    for ends in combinations(range(n - 1), len(found.rows) - 1):
        rows: list[tuple[int, int, str]] = []
        for first, last in pairwise([-1, *ends, n - 1]):
            fits = [d for d in "abc" if all(s.allows(d, LIMIT) for s in sections[first + 1 : last + 1])]
            if not fits:
                break
            rows.append(min(((first + 1, last, d) for d in fits), key=lambda row: lost(sections, [row])))
        else:
            ways.append(lost(sections, rows))
    mine, upto = 0.0, sections[-1].last
    for first, last, decision in served(rule(by), found.rows, upto):
        assert decision is not None
        within = [i for i, one in enumerate(sections) if first <= one.first and one.last <= last]
        mine += lost(sections, [(within[0], within[-1], decision)])
    assert mine == pytest.approx(min(ways))


@pytest.mark.parametrize("by", ONE_SIDED)
@given(sections=some_sections())
@settings(max_examples=30, deadline=None)
def test_no_table_is_smaller(by: str, sections: list[Section[str]]) -> None:
    found = cover(sections, by, LIMIT)
    assert len(found.rows) == brute(sections, by)
    assert found.worst <= LIMIT


@st.composite
def many_sections(draw: st.DrawFn) -> list[Section[str]]:
    """Up to 40 sections of up to 200 sizes; in each something loses at most 3 %."""
    count = draw(st.integers(1, 40))
    some = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 0.06))
    losses = [{**draw(some), draw(st.sampled_from("abcdefgh")): 0.01} for _ in range(count)]
    return sections_of(losses, [draw(st.integers(1, 200)) for _ in range(count)])


@pytest.mark.parametrize("by", ONE_SIDED)
@given(sections=many_sections())
@settings(max_examples=20, deadline=None)
def test_every_size_is_within_the_bound_by_its_readers_rule(by: str, sections: list[Section[str]]) -> None:
    found = cover(sections, by, LIMIT)
    at = {one.last: one for one in sections}
    ends = sorted(at)
    for first, last, decision in served(rule(by), found.rows, sections[-1].last):
        assert decision is not None
        for end in ends:
            if first <= end and at[end].first <= last:
                assert at[end].losses[decision] <= found.worst <= LIMIT
    assert len(found.rows) <= (2 if by.startswith("nearest") else 1) * len(sections)


def test_where_to_spend_guards_is_chosen_for_the_fewest_rows() -> None:
    """Between long ranges a boundary near one side needs a guard; a range that may end earlier saves it."""
    strict = sections_of([{"a": 0.0}, {"b": 0.0}, {"c": 0.0}], [10, 990, 100])
    assert len(cover(strict, "nearest-stock", LIMIT).rows) == 4
    loose = sections_of([{"a": 0.0}, {"b": 0.0}, {"b": 0.0, "c": 0.02}, {"c": 0.0}], [10, 490, 500, 100])
    assert len(cover(loose, "nearest-stock", LIMIT).rows) == 3
    assert len(cover(loose, "ceil", LIMIT).rows) == 3


def test_a_reader_that_pads_needs_each_of_its_rows_and_may_not_manage() -> None:
    good = sections_of([{"a": 0.0, "b": 0.02}, {"b": 0.0}], [3, 61])
    found = cover(good, "pow2", LIMIT)
    assert list(found.rows) == [1, 2, 4, 8, 16, 32, 64]
    assert set(found.rows.values()) == {"a", "b"}
    bad = sections_of([{"a": 0.0}, {"b": 0.0}], [3, 61])
    with pytest.raises(BadInput, match="rule pow2 looks for in row 4; allow more, or take another rule: nearest-stock"):
        cover(bad, "pow2", LIMIT)


@pytest.mark.parametrize("by", COVERED)
def test_a_table_up_to_any_size_takes_no_longer_than_its_rows(by: str) -> None:
    top = 2**31
    sections = [Section(1, 2**20, {"a": 0.0, "b": 0.02}), Section(2**20 + 1, top, {"b": 0.0, "a": 0.5})]
    found = cover(sections, by, LIMIT)
    assert len(found.rows) <= 45
    assert found.worst <= LIMIT
    assert {decision for _, last, decision in served(rule(by), found.rows, top) if last > 2**20} == {"b"}


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(BadInput, match=r"no Config is known that loses at most 3\.0% at sizes 6…7; tune them"):
        cover(sections_of([{"a": 0.0}, {"a": 0.2}], [5, 2]), "ceil", LIMIT)
    with pytest.raises(BadInput, match="look-up rule"):
        cover(sections_of([{"a": 0.0}], [5]), "exact", LIMIT)
    with pytest.raises(BadInput, match="at least one"):
        cover([], "ceil", LIMIT)
    with pytest.raises(BadInput, match=r"1…5, then 7…: give sizes that follow each other"):
        cover([Section(1, 5, {"a": 0.0}), Section(7, 9, {"a": 0.0})], "ceil", LIMIT)


def test_of_as_few_rows_those_that_lose_least() -> None:
    found = cover(sections_of([{"a": 0.02, "b": 0.0}, {"a": 0.02, "b": 0.01}], [8, 8]), "ceil", LIMIT)
    assert (dict(found.rows), found.worst) == ({16: "b"}, 0.01)


@pytest.mark.parametrize("by", ["ceil", "floor", "nearest-stock"])
def test_what_is_only_expected_may_lose_as_much_more_as_is_in_doubt(by: str) -> None:
    losses = [{"a": 0.01, "b": 0.031}, {"a": 0.045, "b": 0.0, "c": 0.0}]
    assert len(cover(sections_of(losses, [8, 8]), by, LIMIT).rows) == 2
    found = cover(sections_of(losses, [8, 8], [0.0, 0.02]), by, LIMIT)
    assert list(found.rows.values()) == ["a"]  # b never loses as much as a, but more than allowed where it was measured
    assert found.worst == pytest.approx(0.025)


def test_of_as_few_rows_what_is_expected_tells_which_is_better() -> None:
    losses = [{"a": 0.0, "b": 0.01}, {"a": 0.02, "b": 0.0}, {"c": 0.0}]
    for widths, better in (([8, 8, 8], "a"), ([1, 8, 8], "b")):
        found = cover(sections_of(losses, widths, [0.0, 0.02, 0.0]), "ceil", LIMIT)
        assert list(found.rows.values()) == [better, "c"]


def test_the_stretches_are_the_longest() -> None:
    found = stretches(sections_of([{"a": 0, "b": 0}, {"a": 0}, {"a": 0, "b": 0}], [1, 1, 1]), LIMIT)
    assert [(one.first, one.last, one.decision) for one in found] == [(1, 3, "a")]
