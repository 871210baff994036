"""The order of compilation and where a stated bound ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.core.model import Prediction, queue, rank
from tunesmith.errors import BadInput


def saying(seconds: float, cut: str = "") -> Prediction:
    return Prediction(seconds, "memory", 0, seconds, 0, 1, 1, 1, 1.0, "threads", 1, 1, cut)


#: few values, so that there are groups of equals; and Configs of which the model says nothing
PREDICTED = st.lists(st.one_of(st.none(), st.integers(1, 6).map(lambda n: saying(n * 1e-6)))).map(
    lambda found: dict(enumerate(found))
)


@given(PREDICTED, st.integers(1, 60))
def test_nothing_is_lost_and_nothing_comes_twice(predicted: dict[int, Prediction | None], bound: int) -> None:
    found = queue(predicted, bound)
    assert sorted([*found.tried, *found.untried]) == sorted(predicted)
    assert len(found.tried) >= min(bound, len(predicted))


@given(PREDICTED, st.integers(1, 60))
def test_the_bound_never_falls_inside_a_group(predicted: dict[int, Prediction | None], bound: int) -> None:
    found = queue(predicted, bound)
    groups = [set(group) for group in rank(predicted)]
    best = bound - bound // 10
    before = 0
    for group in groups:  # whoever starts before the bound is whole; the tenth may pick single ones of the others
        if before < best:
            assert group <= set(found.tried)
        before += len(group)


@given(PREDICTED, st.integers(1, 60))
def test_beside_its_tenth_and_the_last_group_the_bound_is_kept(
    predicted: dict[int, Prediction | None], bound: int
) -> None:
    largest = max(map(len, rank(predicted)), default=0)
    assert len(queue(predicted, bound).tried) < bound + max(1, largest)


def test_a_tenth_goes_to_configs_ranked_low_and_is_spread_over_the_search() -> None:
    predicted: dict[int, Prediction | None] = {i: saying((i + 1) * 1e-6) for i in range(480)}
    found = queue(predicted, 50)
    assert len(found.tried) == 50
    low = [i for i in found.tried if i >= 45]
    assert low == [88, 175, 262, 349, 436]  # the middles of five equal parts of the rest
    assert [found.tried.index(i) for i in low] == [9, 19, 29, 39, 49]
    assert [i for i in found.tried if i < 45] == list(range(45))


def test_without_a_bound_all_are_tried_best_first() -> None:
    found = queue({"slow": saying(3e-6), "fast": saying(1e-6), "unknown": None, "middle": saying(2e-6)})
    assert found.tried == ("unknown", "fast", "middle", "slow")
    assert found.untried == ()


def test_equals_keep_the_spaces_order_and_a_rounding_error_does_not_part_them() -> None:
    almost = 1e-6 * (1 + 1e-15)
    assert rank({"b": saying(almost), "a": saying(1e-6), "c": saying(2e-6)}) == [["a", "b"], ["c"]]
    assert queue({"b": saying(almost), "a": saying(1e-6), "c": saying(2e-6)}, 1).tried == ("a", "b")


def test_what_is_cut_is_neither_tried_nor_untried() -> None:
    found = queue({"cut": saying(1e-6, "shared memory: …"), "runs": saying(2e-6), "too": saying(3e-6)}, 1)
    assert (found.tried, found.untried) == (("runs",), ("too",))


def test_a_bound_is_at_least_one() -> None:
    with pytest.raises(BadInput, match="a bound of 0 Configs"):
        queue({"one": saying(1e-6)}, 0)
