"""In which order Configs are compiled, and where a stated bound ends: `rank` and `queue`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tunesmith.core.model.prediction import Prediction
from tunesmith.errors import BadInput

C = TypeVar("C")  # a Config, or whatever stands for one

#: One in so many of a bound goes to Configs that the model ranks low: how else would it be found wrong?
EXPLORED = 10
#: Predictions that differ by less than this part are one: the order of a sum's terms is no reason to leave one out.
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Queue(Generic[C]):
    """What is compiled, in this order, and what is left when the bound is reached: untried, not cut."""

    tried: tuple[C, ...]
    untried: tuple[C, ...]


def rank(predictions: Mapping[C, Prediction | None]) -> list[list[C]]:
    """Groups that the model can't tell apart, fastest first; in a group, the order of the mapping.

    Where the model says nothing of a Config it can't be told from any other: those are one group, at the front,
    because nothing speaks against them.
    """
    silent = [config for config, one in predictions.items() if one is None]
    told = [(one.seconds, config) for config, one in predictions.items() if one is not None]
    told.sort(key=lambda pair: pair[0])  # stable: the mapping's order among equals
    groups: list[list[C]] = [silent] if silent else []
    first = math.nan
    for seconds, config in told:
        if seconds <= first * (1 + SAME):  # of the group's first, so that a group never creeps
            groups[-1].append(config)
        else:
            groups.append([config])
            first = seconds
    return groups


def queue(predictions: Mapping[C, Prediction | None], bound: int | None = None) -> Queue[C]:
    """The order of compilation, cut off at a bound.

    A tenth of the bound goes to Configs ranked low, spread evenly over them, one after every nine of the others.
    The bound never falls inside a group of equal predictions: the group is taken whole, and the bound is exceeded.
    What has a `cut` is in neither list.

    Args:
        predictions: by Config, in the Space's order.
        bound: how many Configs to compile; `None` for all, with the low ones last.

    Raises:
        BadInput: for a bound below 1.
    """
    if bound is not None and bound < 1:
        raise BadInput(f"a bound of {bound} Configs: at least 1, or None for all")
    groups = rank({config: one for config, one in predictions.items() if one is None or not one.cut})
    if bound is None or bound >= sum(map(len, groups)):
        return Queue(tuple(config for group in groups for config in group), ())
    low_count = bound // EXPLORED
    high: list[C] = []
    while len(high) < bound - low_count:
        high.extend(groups.pop(0))
    rest = [config for group in groups for config in group]
    low_count = min(low_count, len(rest))
    chosen = [(2 * i + 1) * len(rest) // (2 * low_count) for i in range(low_count)]  # the middles of equal parts
    low = [rest[i] for i in chosen]
    left = set(range(len(rest))) - set(chosen)
    return Queue(tuple(_mixed(high, low)), tuple(rest[i] for i in sorted(left)))


def _mixed(high: Sequence[C], low: Sequence[C]) -> list[C]:
    """One of `low` after every nine of `high`; a budget that ends early has spent its tenth too."""
    mixed: list[C] = []
    waiting = list(low)
    for number, config in enumerate(high, 1):
        mixed.append(config)
        if waiting and number % (EXPLORED - 1) == 0:
            mixed.append(waiting.pop(0))
    return mixed + waiting
