"""What is expected of sizes that were not tuned, by a model that tuned problems have corrected.

A table that knows M=512 and M=1024 alone says of 768 what holds for 1024. A performance model knows what changes
between them, and what it gets wrong at both ends it is told. So such sizes shape a table, and a tree, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

from tunesmith.core.config import Config
from tunesmith.core.device import device_of
from tunesmith.core.model import Model
from tunesmith.core.problem import Problem
from tunesmith.distill.table import Fill, Group
from tunesmith.distill.tuned import Tuned
from tunesmith.errors import BadInput
from tunesmith.neighbours import prior_of
from tunesmith.search import Prior, Solved, nearest
from tunesmith.search.forecast import forecast

#: Expected sizes are these times the powers of two: four to a doubling, and multiples of a tile where they are large.
QUARTERS = (1.0, 1.25, 1.5, 1.75)
#: An expected loss that is no more than this is none: the forecast is not surer.
DOUBT = 0.02


def expecting(model: Model, device: str, size: str) -> Fill:
    """From groups of tuned problems to the same with expected ones between their sizes.

    Args:
        device: `Device.identity` of a known chip.

    Raises:
        BadInput: for a device that is not known.
    """
    chip = device_of(device)
    if chip is None:
        raise BadInput(f"too little is known of device {device} to expect anything: leave the model out")

    @cache
    def prior(problem: Problem) -> Prior | None:
        found = prior_of(model, problem, chip)
        return None if found is None else cache(found)

    def fill(groups: Sequence[Group]) -> list[Group]:
        known = [one for group in groups for one in group.sizes.values()]
        solved = [Solved(one.problem, one.seconds, device, prior(one.problem)) for one in known if one.seconds]
        return [_filled(group, size, device, solved, prior) for group in groups]

    return fill


def _filled(
    group: Group, size: str, device: str, solved: Sequence[Solved], prior: Callable[[Problem], Prior | None]
) -> Group:
    """With what is expected of sizes up to the last that was tuned."""
    sizes = dict(group.sizes)
    configs = list(dict.fromkeys(config for one in group.sizes.values() for config in one.losses))
    for between in grid(0, max(sizes)):  # below the first, too: a table's first row serves them
        if between not in group.sizes:
            problem = Problem({**group.fields, size: between})
            sizes[between] = Tuned(problem, _expected(problem, device, configs, solved, prior(problem)), expected=True)
    return Group(group.fields, dict(sorted(sizes.items())))


def _expected(
    problem: Problem, device: str, configs: Sequence[Config], solved: Sequence[Solved], prior: Prior | None
) -> dict[Config, float]:
    """What each Config is expected to lose."""
    logs = forecast(problem, device, configs, nearest(problem, device, solved), prior)
    best = min(logs.values())
    return {config: max(0.0, math.expm1(log - best) - DOUBT) for config, log in logs.items()}


def grid(first: int, last: int) -> list[int]:
    """The sizes between two at which something is expected."""
    powers = [2**k for k in range(last.bit_length())]
    sizes = sorted({int(power * part) for power in powers for part in QUARTERS if power * part == int(power * part)})
    return [one for one in sizes if first < one < last]
