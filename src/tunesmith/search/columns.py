"""Configs as rows of numbers, for models that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
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

Column = Callable[[Config], float]


def columns(space: Space, configs: Sequence[Config]) -> list[Column]:
    """What makes a row of a Config: functions to about [0, 1], some for each knob that varies in the Space.

    Args:
        configs: a part of the Space large enough to show which knobs some Configs do not have.
    """
    made: list[Column] = []
    for knob in space.knobs:
        axis = space.axis(knob)
        if any(knob not in config for config in configs):
            made.append(lambda config, knob=knob: float(knob not in config))
        if len(axis.values) > 1:
            made.extend(_of_axis(knob, axis))
    return made


def _of_axis(knob: str, axis: Axis) -> list[Column]:
    if isinstance(axis.values, Permutations):
        items = axis.values[0]
        return [
            _scaled(knob, lambda order, item=item: cast("Any", order).index(item), len(items) - 1) for item in items
        ]
    values = list(islice(axis.values, 1000))
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    if axis.ordered and numbers and not _looks_like_names(values):
        return _of_numbers(knob, axis)
    if axis.ordered and not numbers:
        return [_scaled(knob, lambda value: axis.index(value) or 0, len(axis.values) - 1)]
    if len(values) == 2:
        return [_scaled(knob, lambda value: axis.index(value) or 0, 1)]
    return [
        lambda config, name=name: NAME * (knob in config and axis.index(config[knob]) == name)
        for name in range(len(values))
    ]


def _looks_like_names(values: Sequence[KnobValue]) -> bool:
    """0, 1, 2 and maybe more: variants that were numbered, as a C macro wants them."""
    return 2 < len(values) <= VARIANTS and values == list(range(len(values)))


def _of_numbers(knob: str, axis: Axis) -> list[Column]:
    from math import log2

    values = [cast("float", value) for value in islice(axis.values, 1000)]
    low, high = min(*values, cast("float", axis.values[-1])), max(*values, cast("float", axis.values[-1]))
    if low > 0 and high >= DOUBLING * low:
        made = [_scaled(knob, lambda value: log2(cast("float", value) / low), log2(high / low))]
    else:
        made = [_scaled(knob, lambda value: cast("float", value) - low, high - low)]
    whole = [value for value in values if isinstance(value, int) and value > 0]
    if len(whole) == len(values) >= DIVISIBLE_FROM and low * DOUBLING <= high and any(n & (n - 1) for n in whole):
        made.append(_scaled(knob, _halvings, max(map(_halvings, values)) or 1))
    return made


def _halvings(value: KnobValue) -> int:
    number = cast("int", value)
    return min((number & -number).bit_length() - 1, HALVINGS)


def _scaled(knob: str, of: Callable[[KnobValue], float], scale: float) -> Column:
    return lambda config: of(config[knob]) / scale if knob in config else 0.0
