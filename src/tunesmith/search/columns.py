"""Configs as rows of numbers, for models that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from math import log2
from typing import Any, cast

from tunesmith.core.axis import Axis, Permutations
from tunesmith.core.config import Config, KnobValue
from tunesmith.core.space import Space

#: An axis that spans less than a doubling is close to linear; above, sizes matter by their ratio.
DOUBLING = 2
#: From so many values on, how often a size can be halved is told apart from how large it is: 96 = 3 · 2⁵ fills
#: warps and vectors that 80 = 5 · 2⁴ does not, though the two are neighbours.
DIVISIBLE_FROM = 5
#: More halvings than this make no difference: 64 covers a wavefront, and 128 bytes of halves.
HALVINGS = 6
#: Two names of one axis are as far apart as the two ends of another: 2 · 0.5 = 1, squared.
NAME = 0.5**0.5
#: A count goes up to more than this, and seldom starts at 0.
VARIANTS = 8
#: As many values of an axis are looked at to tell what it is.
LOOKED_AT = 1000

Column = Callable[[KnobValue], float]


class Encoder:
    """Makes a row of a Config: some columns in about [0, 1] for each knob that varies, and a code for each knob.

    Args:
        configs: a part of the Space large enough to show which knobs some Configs do not have.
    """

    def __init__(self, space: Space, configs: Sequence[Config]) -> None:
        self._columns = {knob: _of_axis(space.axis(knob)) for knob in space.knobs}
        self._optional = {knob for knob in space.knobs if any(knob not in config for config in configs)}
        self._seen: dict[str, dict[object, tuple[int, list[float]]]] = {knob: {} for knob in space.knobs}

    @property
    def width(self) -> int:
        """How many columns there are."""
        return sum(map(len, self._columns.values())) + len(self._optional)

    def row(self, config: Config) -> tuple[list[float], list[int]]:
        """(columns, codes); two Configs have a knob's value in common exactly where its codes are equal."""
        row: list[float] = []
        codes: list[int] = []
        for knob, seen in self._seen.items():
            there = knob in config
            value = config[knob] if there else None
            name = (there, value.__class__, repr(value) if isinstance(value, tuple) else value)
            found = seen.get(name)
            if found is None:
                found = seen[name] = (len(seen), self._part(knob, value, there))
            codes.append(found[0])
            row += found[1]
        return row, codes

    def _part(self, knob: str, value: KnobValue, there: bool) -> list[float]:
        part = [column(value) if there else 0.0 for column in self._columns[knob]]
        return [*part, float(there)] if knob in self._optional else part


def _of_axis(axis: Axis) -> list[Column]:
    if len(axis.values) < 2:
        return []
    if isinstance(axis.values, Permutations):
        items = axis.values[0]
        return [lambda order, item=item: cast("Any", order).index(item) / (len(items) - 1) for item in items]
    values = list(islice(axis.values, LOOKED_AT))
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if axis.ordered and numbers and not _looks_like_names(values):
        return _of_numbers(values, cast("float", axis.values[-1]))
    if len(values) == 2 or (axis.ordered and not numbers):
        return [lambda value: (axis.index(value) or 0) / (len(values) - 1)]
    return [lambda value, name=name: NAME * (axis.index(value) == name) for name in range(len(values))]


def _looks_like_names(values: Sequence[KnobValue]) -> bool:
    """0, 1, 2 and maybe more: variants that were numbered, as a C macro wants them."""
    return 2 < len(values) <= VARIANTS and values == list(range(len(values)))


def _of_numbers(values: Sequence[KnobValue], last: float) -> list[Column]:
    numbers = [*cast("Sequence[float]", values), last]
    low, high = min(numbers), max(numbers)
    if low <= 0 or high < DOUBLING * low:
        return [lambda value: (cast("float", value) - low) / (high - low)]
    made: list[Column] = [lambda value: log2(cast("float", value) / low) / log2(high / low)]
    if len(values) >= DIVISIBLE_FROM and all(isinstance(n, int) for n in numbers):
        whole = cast("list[int]", numbers)
        if any(n & (n - 1) for n in whole):
            most = max(map(_halvings, whole)) or 1
            made.append(lambda value: _halvings(cast("int", value)) / most)
    return made


def _halvings(number: int) -> int:
    return min((number & -number).bit_length() - 1, HALVINGS)
