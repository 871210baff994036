"""Axes: the values that one knob can take, in order or not, listed or made one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast, overload

from tunesmith.core.config import Config, KnobValue
from tunesmith.errors import SpaceError


class Permutations(Sequence[tuple[KnobValue, ...]]):
    """All orders of a few items, made one at a time: 12 items are 479 million tuples."""

    def __init__(self, items: Iterable[KnobValue]) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return math.factorial(len(self._items))

    def __repr__(self) -> str:
        return f"Permutations({self._items!r})"

    @overload
    def __getitem__(self, index: int) -> tuple[KnobValue, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[KnobValue, ...]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        rank = range(len(self))[index]
        left = list(self._items)
        order: list[KnobValue] = []
        for width in range(len(left), 0, -1):  # the rank's digits in the factorial base
            digit, rank = divmod(rank, math.factorial(width - 1))
            order.append(left.pop(digit))
        return tuple(order)

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        order = cast("tuple[KnobValue, ...]", value) if isinstance(value, tuple) else ()
        left, rank = list(self._items), 0
        if sorted(map(repr, order)) != sorted(map(repr, left)):
            raise ValueError(f"not an order of {self._items!r}")
        for item in order:
            digit = left.index(item)
            rank += digit * math.factorial(len(left) - 1)
            left.pop(digit)
        return rank

    def __contains__(self, value: object) -> bool:
        try:
            self.index(value)
        except ValueError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Axis:
    """The values one knob can take.

    Attributes:
        values: at least one, all different; a `range` or `Permutations` stays lazy.
        ordered: whether a step to the next value is a small change (tile sizes) or not (names).
    """

    values: Sequence[KnobValue]
    ordered: bool

    def __contains__(self, value: object) -> bool:
        return self.index(value) is not None

    def index(self, value: object) -> int | None:
        """Where a value stands, `None` if it is not of this axis. `True` is not `1`."""
        if isinstance(self.values, (range, Permutations)):
            right_type = type(value) is int if isinstance(self.values, range) else True
            return self.values.index(cast(Any, value)) if right_type and value in self.values else None
        for i, good in enumerate(self.values):
            if type(good) is type(value) and good == value:
                return i
        return None

    def neighbours(self, value: KnobValue) -> list[KnobValue]:
        """One step down and up an ordered axis, two items swapped in a permutation, else every other value."""
        at = self.index(value)
        if at is None:
            return []
        if isinstance(self.values, Permutations):
            return [_swapped(cast("tuple[KnobValue, ...]", value), i) for i in range(len(self.values[0]) - 1)]
        if self.ordered:
            return [self.values[i] for i in (at - 1, at + 1) if 0 <= i < len(self.values)]
        return [good for i, good in enumerate(self.values) if i != at]

    def __str__(self) -> str:
        shown = [show(value) for value in islice(self.values, 17)]
        return ", ".join(shown[:16]) + (f", … ({len(self.values)} values)" if len(shown) > 16 else "")


def _swapped(order: tuple[KnobValue, ...], i: int) -> tuple[KnobValue, ...]:
    return (*order[:i], order[i + 1], order[i], *order[i + 2 :])


def show(value: KnobValue) -> str:
    """A value as messages have it."""
    return repr(value) if isinstance(value, (str, tuple)) else str(value)


def powers_of_two(low: int, high: int) -> Axis:
    """`low, 2·low, … high`; both ends are powers of two.

    >>> powers_of_two(16, 128).values
    (16, 32, 64, 128)
    """
    for end in (low, high):
        if not isinstance(end, int) or isinstance(end, bool) or end < 1 or end & (end - 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpaceError(f"powers_of_two({low!r}, {high!r}): {end!r} is not a power of two")
    if low > high:
        raise SpaceError(f"powers_of_two({low}, {high}) is empty: the low end is above the high end")
    return Axis(tuple(1 << e for e in range(low.bit_length() - 1, high.bit_length())), ordered=True)


def integers(low: int, high: int, step: int = 1) -> Axis:
    """`low, low + step, …` up to and including `high`."""
    if not all(type(n) is int for n in (low, high, step)):
        raise SpaceError(f"integers({low!r}, {high!r}, {step!r}): needs integers")
    if step < 1 or low > high:
        raise SpaceError(f"integers({low}, {high}, {step}) is empty: needs low <= high and step >= 1")
    return Axis(range(low, high + 1, step), ordered=True)


def choices(*values: KnobValue) -> Axis:
    """Values without an order: names, pairs, flags."""
    return axis_of("choices", values, ordered=False)


def booleans() -> Axis:
    """False and True."""
    return Axis((False, True), ordered=False)


def permutations(*items: KnobValue) -> Axis:
    """Every order of the items, as tuples."""
    if len({(type(item), item) for item in items}) != len(items) or not items:
        raise SpaceError(f"permutations{items!r}: needs at least one item, all different")
    return Axis(Permutations(items), ordered=False)


def axis_of(name: str, values: Iterable[object], ordered: bool | None = None) -> Axis:
    """The Axis of a plain list: ordered where all values are numbers, if nothing else is said.

    Raises:
        SpaceError: for an empty list, a value twice, or what is no list.
    """
    if isinstance(values, range) and values and ordered is not False:
        return Axis(values, ordered=True)  # lazy: a million values are no list
    if isinstance(values, str) or not isinstance(values, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpaceError(f"axis {name!r} is {values!r}: give a list of values")
    knobs = tuple(Config({name: value})[name] for value in values)
    if not knobs:
        raise SpaceError(f"axis {name!r} has no values")
    seen: set[str] = set()
    for value in knobs:
        text = Config({name: value}).text
        if text in seen:
            raise SpaceError(f"axis {name!r} lists {value!r} twice")
        seen.add(text)
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in knobs)
    return Axis(knobs, numbers if ordered is None else ordered)
