"""The fewest rows of a table with which every size of a range has a Config that loses little: exact, for each rule.

Sizes come in Sections, which nothing tells apart. A Config that loses no more than allowed in some Sections that follow
each other can serve these with one row. For readers that take the next key above or below that is interval cover, which
going as far as possible each time solves. A reader that takes the nearest key has its boundaries in the middle between
two keys, so that rows may be needed as guards: there, all places that a last key can have after n rows are followed,
for n = 1, 2, …, until one of them reaches the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Generic, TypeAlias, TypeVar

from tunesmith.errors import BadInput, unknown
from tunesmith.tables.policy import RULES, Ladder, Rule, rule

T = TypeVar("T")
Places: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Section(Generic[T]):
    """Sizes `first`…`last`, and what each decision loses there to the best: 0.03 for 3 %. Who is missing is unknown.

    Attributes:
        doubt: so much more may be lost here than elsewhere, as losses that were not measured are no surer.
    """

    first: int
    last: int
    losses: Mapping[T, float]
    doubt: float = 0.0

    def allows(self, decision: T, max_loss: float) -> bool:
        """Whether a decision may serve these sizes; an unknown one may not."""
        return self.losses.get(decision, math.inf) <= max_loss + self.doubt


@dataclass(frozen=True)
class Cover(Generic[T]):
    """A table.

    Attributes:
        rows: key → decision, in rising order.
        worst: the most that any size loses beyond doubt.
    """

    rows: Mapping[int, T]
    worst: float


@dataclass(frozen=True)
class Stretch(Generic[T]):
    """Sections that one decision can serve, as many as follow each other: sizes `first`…`last`."""

    first: int
    last: int
    decision: T


#: Rules that a table can be made for.
COVERED = tuple(
    name for name, one in RULES.items()
    if (one.kind in ("floor", "ceil") or (one.kind == "nearest" and one.reach is None)
        or (one.kind == "padded" and len(one.paddings) == 1 and not one.itself))
)  # fmt: skip


def cover(sections: Sequence[Section[T]], by: str, max_loss: float) -> Cover[T]:
    """The smallest table with which no size loses more than `max_loss`.

    Args:
        sections: one after the other, without gaps.
        by: the reader's rule, one of `COVERED`.

    Raises:
        BadInput: for another rule, for gaps, and where no table can do it, naming the sizes.
    """
    if by not in COVERED:
        raise BadInput(f"a table can't be distilled: {unknown('look-up rule', by, COVERED)}")
    if not sections:
        raise BadInput("a table of no sizes: give at least one")
    for one, other in pairwise(sections):
        if one.first > one.last or other.first != one.last + 1:
            raise BadInput(f"sizes {one.first}…{one.last}, then {other.first}…: give sizes that follow each other")
    how = rule(by)
    if how.kind == "padded":
        rows = _padded(sections, how, max_loss)
    else:
        _check(sections, max_loss)
        rows = _nearest(sections, max_loss) if how.kind == "nearest" else _one_sided(sections, how, max_loss)
    rows = dict(sorted(rows.items()))
    if how.kind in ("nearest", "padded"):
        rows = _gentler(sections, how, rows, max_loss)
    return Cover(rows, worst(sections, how, rows))


def _gentler(sections: Sequence[Section[T]], how: Rule, rows: Mapping[int, T], max_loss: float) -> dict[int, T]:
    """The same keys, each with the decision that loses least where it serves."""
    most: dict[int, dict[T, float]] = {}
    for first, last, key in Ladder(how, rows).runs(sections[-1].last):
        if key is None:
            continue
        for section in sections:
            if section.first <= last and section.last >= first:
                known, here = most.get(key), section.losses
                left = here if known is None else {d: max(loss, here[d]) for d, loss in known.items() if d in here}
                most[key] = {d: loss for d, loss in left.items() if section.allows(d, max_loss)}
    found = {key: min(left, key=lambda decision: left[decision]) for key, left in most.items()}
    return {key: found.get(key, decision) for key, decision in rows.items()}


def worst(sections: Sequence[Section[T]], how: Rule, rows: Mapping[int, T]) -> float:
    """The most that a size loses, beyond doubt, with the row that this rule finds; infinite without a row, or for an
    unknown loss."""
    found = 0.0
    for first, last, decision in served(how, rows, sections[-1].last):
        for section in sections:
            if section.first <= last and section.last >= first:
                loss = math.inf if decision is None else section.losses.get(decision, math.inf)
                found = max(found, loss - section.doubt)
    return found


def served(how: Rule, rows: Mapping[int, T], upto: int) -> Iterator[tuple[int, int, T | None]]:
    """(first, last, decision) of the sizes 1…upto that one row serves, as its reader finds it."""
    for first, last, key in Ladder(how, rows).runs(upto):
        yield first, last, None if key is None else rows[key]


def _check(sections: Sequence[Section[T]], max_loss: float) -> None:
    for one in sections:
        if not any(one.allows(decision, max_loss) for decision in one.losses):
            raise BadInput(
                f"no Config is known that loses at most {max_loss:.1%} at sizes {one.first}…{one.last}; tune them, or "
                "allow more"
            )


# --- the next key above or below ---------------------------------------------------------------------


def _one_sided(sections: Sequence[Section[T]], how: Rule, max_loss: float) -> dict[int, T]:
    """Of the ways with the fewest rows the one that loses least in all, and what is in doubt counts as expected."""
    #: from each Section to the end: (rows, what is lost, the last Section of the first row, its decision)
    ways: list[tuple[int, float, int, T | None]] = [(0, 0.0, -1, None)]
    for start in reversed(range(len(sections))):
        after = [
            (end, decision, lost, ways[-1 - (end - start)])
            for end, decision, lost in _rows_from(sections, start, max_loss)
        ]
        ways.append(
            min(((rest[0] + 1, rest[1] + lost, end, decision) for end, decision, lost, rest in after), key=_cost)
        )
    rows: dict[int, T] = {}
    i = 0
    while i < len(sections):
        _, _, end, decision = ways[len(sections) - i]
        assert decision is not None
        rows[sections[end].last if how.kind == "ceil" else sections[i].first] = decision
        i = end + 1
    return rows


def _cost(way: tuple[int, float, int, object]) -> tuple[int, float]:
    return way[:2]


def _rows_from(sections: Sequence[Section[T]], start: int, max_loss: float) -> Iterator[tuple[int, T, float]]:
    """(last Section, decision, what it loses there in all) of each row that could begin at a Section: the best for
    each. Sizes count by their doublings."""
    alive = dict.fromkeys(sections[start].losses, 0.0)
    for end in range(start, len(sections)):
        here, weight = sections[end].losses, math.log2((sections[end].last + 1) / max(1, sections[end].first))
        alive = {
            d: lost + weight * here[d] for d, lost in alive.items() if sections[end].allows(d, max_loss)
        }  # fmt: skip
        if not alive:
            return
        decision = min(alive, key=lambda one: alive[one])
        yield end, decision, alive[decision]


# --- the key that a size is padded to ------------------------------------------------------------------


def _padded(sections: Sequence[Section[T]], how: Rule, max_loss: float) -> dict[int, T]:
    """A row for each key that some size is padded to: none can be left out, and no size can choose another."""
    alive: dict[int, dict[T, float]] = {}
    at = 0
    for first, last, key in how.padded_runs(sections[0].first, sections[-1].last):
        while sections[at].last < first:
            at += 1
        for section in takewhile(lambda one, last=last: one.first <= last, sections[at:]):
            known, losses = alive.get(key), section.losses
            here = losses if known is None else {d: max(most, losses[d]) for d, most in known.items() if d in losses}
            alive[key] = {d: loss for d, loss in here.items() if section.allows(d, max_loss)}
    for key, left in alive.items():
        if not left:
            raise BadInput(
                f"no Config is known that loses at most {max_loss:.1%} at all sizes that rule {how.name} looks for in "
                f"row {key}; allow more, or take another rule: {', '.join(COVERED)}"
            )
    return {key: min(left, key=lambda decision: left[decision]) for key, left in alive.items()}


# --- the nearest key -----------------------------------------------------------------------------------


def stretches(sections: Sequence[Section[T]], max_loss: float) -> list[Stretch[T]]:
    """The longest stretches that one decision can serve, none within another, in rising order."""
    found: list[tuple[int, int, float, T]] = []
    decisions = dict.fromkeys(d for one in sections for d in one.losses)
    for decision in decisions:
        start: int | None = None
        for i in range(len(sections) + 1):
            fits = i < len(sections) and sections[i].allows(decision, max_loss)
            if fits and start is None:
                start = i
            if not fits and start is not None:
                most = max(one.losses[decision] for one in sections[start:i])
                found.append((sections[start].first, sections[i - 1].last, most, decision))
                start = None
    found.sort(key=lambda one: (one[0], -one[1], one[2]))
    kept: list[Stretch[T]] = []
    for first, last, _, decision in found:
        if not kept or last > kept[-1].last:
            kept.append(Stretch(first, last, decision))
    return kept


def _nearest(sections: Sequence[Section[T]], max_loss: float) -> dict[int, T]:
    """All places of the n-th key are followed, a stretch of places for each Stretch and each way to come there."""
    known = stretches(sections, max_loss)
    begin, end = sections[0].first, sections[-1].last
    #: of each number of keys: Stretch → [(places of the key, the Stretch before, which of its places)]
    layers: list[dict[int, list[tuple[Places, int, int]]]] = [
        {i: [((one.first, one.last), -1, -1)] for i, one in enumerate(known) if one.first <= begin}
    ]
    while not any(known[i].last >= end for i in layers[-1]):
        layers.append(_step(known, layers[-1]))
    last = next(i for i in layers[-1] if known[i].last >= end)
    return _walked_back(known, layers, last)


def _step(
    known: Sequence[Stretch[T]], layer: Mapping[int, list[tuple[Places, int, int]]]
) -> dict[int, list[tuple[Places, int, int]]]:
    """Where one more key can be."""
    found: dict[int, list[tuple[Places, int, int]]] = {}
    for i, ways in layer.items():
        for at, (places, _, _) in enumerate(ways):
            for j, other in enumerate(known):
                reached = _next_places(known[i], places, other)
                if reached is not None and not any(
                    have[0] <= reached[0] and reached[1] <= have[1] for have, _, _ in found.get(j, ())
                ):
                    found.setdefault(j, []).append((reached, i, at))
    return found


def _next_places(one: Stretch[T], places: Places, other: Stretch[T]) -> Places | None:
    """Where the next key can be, of `other`, when the one before is at one of these places: the middle between them is
    the last size that goes to the smaller."""
    if other.first > one.last + 1:
        return None
    low = max(places[0], 2 * (other.first - 1) - other.last)
    high = min(places[1], other.last - 1, one.last)
    if low > high:
        return None
    turn = min(max(other.first - 1, low), high)  # of all places the one with the lowest next key
    lowest = min(max(k + 1, 2 * (other.first - 1) - k) for k in {turn, max(low, turn - 1), min(high, turn + 1)})
    highest = min(other.last, 2 * one.last + 1 - low)
    return (max(lowest, other.first), highest) if max(lowest, other.first) <= highest else None


def _walked_back(
    known: Sequence[Stretch[T]], layers: Sequence[Mapping[int, list[tuple[Places, int, int]]]], last: int
) -> dict[int, T]:
    """One key for each layer, from the last to the first."""
    rows: dict[int, T] = {}
    places, before, at = layers[-1][last][0]
    key, here = places[1], last
    for number in range(len(layers) - 1, -1, -1):
        rows[key] = known[here].decision
        if number == 0:
            break
        places, earlier, where = layers[number - 1][before][at]
        key = _key_before(known[before], places, known[here], key)
        here, before, at = before, earlier, where
    return rows


def _key_before(one: Stretch[T], places: Places, other: Stretch[T], key: int) -> int:
    """A place of the key before this one: the middle of the two is in reach of both."""
    low = max(places[0], 2 * (other.first - 1) - key)
    high = min(places[1], 2 * one.last + 1 - key, key - 1)
    assert low <= high, "each place was reached from one"
    return high
