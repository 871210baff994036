"""From ranges of sizes to the keys of a table whose reader takes the nearest key.

Such a reader has no ranges: a row serves all sizes up to the middle between its key and the next. So a range needs keys
whose middles fall on its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from tunesmith.errors import BadInput

T = TypeVar("T")
Interval: TypeAlias = tuple[int, int]


def ranges(decide: Callable[[int], T], upto: int) -> list[tuple[int, int, T]]:
    """(first, last, decision) of the sizes 1…upto."""
    found: list[tuple[int, int, T]] = []
    for size in range(1, upto + 1):
        decision = decide(size)
        if found and found[-1][2] == decision:
            found[-1] = (found[-1][0], size, decision)
        else:
            found.append((size, size, decision))
    return found


def guarded(wanted: Sequence[tuple[int, int, T]], prefer: Iterable[int] = ()) -> dict[int, T]:
    """The fewest keys with which the nearest key decides as wanted, in rising order.

    Of two keys equally far the smaller must win, as it does for readers that take the first in a sorted file.

    Args:
        wanted: (first, last, decision) without gaps; the last one also holds for larger sizes.
        prefer: keys to take where there is a choice (sizes that were measured).

    Raises:
        BadInput: for ranges with a gap between them, or one that ends before it begins.
    """
    _check(wanted)
    entries: list[Interval] = []  # where the first key of each range may lie
    exits: list[Interval] = []  # where the last one may: the same interval for a range of one key
    split: list[bool] = []  # whether a range needs a second key, so that the next is met at its first size
    for i, (first, last, _) in enumerate(wanted):
        entry = (first, last) if not i else _reflected(exits[-1], wanted[i - 1][1], (first, last))
        if entry is None:
            split[-1], exits[-1] = True, (entries[-1][0], wanted[i - 1][1])
            entry = _reflected(exits[-1], wanted[i - 1][1], (first, last))
            assert entry is not None, "a key on each side of the boundary always meets"
        entries.append(entry)
        exits.append(entry)
        split.append(False)
    return _chosen(wanted, entries, exits, split, sorted(prefer))


def _reflected(keys: Interval, last: int, into: Interval) -> Interval | None:
    """Where the next range's key may lie, given where this one's does and the last size this one serves."""
    low, high = max(2 * last - keys[1], into[0]), min(2 * last + 1 - keys[0], into[1])
    return (low, high) if low <= high else None


def _chosen(
    wanted: Sequence[tuple[int, int, T]], entries: Sequence[Interval], exits: Sequence[Interval], split: Sequence[bool],
    prefer: Sequence[int],
) -> dict[int, T]:  # fmt: skip
    keys: list[tuple[int, T]] = []
    after: int | None = None  # the key chosen behind the range
    for i in reversed(range(len(wanted))):
        _, last, decision = wanted[i]
        options = exits[i]
        if after is not None:
            options = (max(options[0], 2 * last - after), min(options[1], 2 * last + 1 - after))
        key = _preferred(options, prefer)
        keys.append((key, decision))
        if split[i]:
            low, high = entries[i]
            key = _preferred((low, min(high, key)), prefer)
            keys.append((key, decision))
        after = key
    return dict(reversed(keys))


def _preferred(options: Interval, prefer: Sequence[int]) -> int:
    return next((key for key in prefer if options[0] <= key <= options[1]), options[0])


def _check(wanted: Sequence[tuple[int, int, object]]) -> None:
    for i, (first, last, _) in enumerate(wanted):
        if first > last or (i and first != wanted[i - 1][1] + 1):
            raise BadInput(f"range {first}…{last}: give ranges that follow each other, each from its first to its last")


def admitted(
    tuned: Mapping[int, T], gains: Mapping[int, float], default: Callable[[int], T], margin: float
) -> dict[int, T]:
    """What a table should hold at each tuned size: the tuned value where it gains enough, else the default's.

    A nearest-key reader cannot leave a size out: a row must stand there either way.

    Args:
        gains: part of the default's time that is saved, 0.277 for a quarter; 0 where not given.
        margin: the least gain that counts.
    """
    return {size: value if gains.get(size, 0.0) >= margin else default(size) for size, value in tuned.items()}
