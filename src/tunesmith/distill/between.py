"""What is expected of sizes that were not tuned, by a model that tuned problems have corrected.

A table that knows M=512 and M=1024 alone says of 768 what holds for 1024. A performance model knows what changes
between them, and what it gets wrong at both ends it is told. So such sizes shape a table, and a tree, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache

from tunesmith.core.config import Config
from tunesmith.core.device import device_of
from tunesmith.core.model import Model
from tunesmith.core.problem import Problem
from tunesmith.distill.table import Fill, Group
from tunesmith.distill.tree import MOST
from tunesmith.distill.tuned import Tuned
from tunesmith.errors import BadInput
from tunesmith.neighbours import prior_of
from tunesmith.search import Prior, Solved, nearest
from tunesmith.search.forecast import forecast

#: Expected sizes are these times the powers of two: four to a doubling, and multiples of a tile where they are large.
QUARTERS = (1.0, 1.25, 1.5, 1.75)
#: So much more may be lost where it is only expected: the forecast is not surer.
DOUBT = 0.02


def expecting(model: Model, device: str, size: str, within: float) -> Fill:
    """From groups of tuned problems to the same with expected ones between their sizes, and up to the last size that
    was tuned in any group.

    Args:
        device: `Device.identity` of a known chip.
        within: a Config that loses more on every tuned problem (0.03 for 3 %) was good nowhere. That it is good between
            them is believed if that pays where a tuned problem is left out: `believed`.

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
        good = believed(known, solved, device, within)
        last = max((max(group.sizes) for group in groups), default=0)
        between = [*grid(0, last), last]  # below the first, too: a table's first row serves them
        return [_filled(group, size, between, good, device, solved, prior) for group in groups]

    return fill


def believed(known: Sequence[Tuned], solved: Sequence[Solved], device: str, within: float) -> Collection[Config]:
    """The Configs of which something is expected: those that were good somewhere, or all.

    A forecast is wrong now and then by a lot, and then by a Config that was good nowhere. But where tuned problems are
    few, what is good between them was good at none. So each tuned problem is forecast from the others, and what is
    lost with the most promising of all Configs is held against what is lost with that of the good ones.
    """
    lost_by_good = lost_by_all = 0.0
    measured = {one.problem: one for one in known}
    for left_out in solved:
        others = [one for one in solved if one is not left_out]
        configs = list(dict.fromkeys(config for one in others for config in one.seconds))
        good = good_somewhere((measured[one.problem] for one in others), within)
        if good:
            logs = forecast(
                left_out.problem, device, configs, nearest(left_out.problem, device, others), left_out.prior
            )
            truth = measured[left_out.problem]
            lost_by_all += min(MOST, truth.loss(min(configs, key=lambda config: logs[config])))
            lost_by_good += min(MOST, truth.loss(min(good, key=lambda config: logs[config])))
    every = {config: None for one in known for config in one.losses}
    return good_somewhere(known, within) if lost_by_good <= lost_by_all else every


def good_somewhere(known: Iterable[Tuned], within: float) -> dict[Config, None]:
    """The Configs that lose at most so much on some tuned problem, in the order in which they are found."""
    return {config: None for one in known for config, loss in one.losses.items() if loss <= within}


def _filled(
    group: Group, size: str, between: Sequence[int], good: Collection[Config], device: str, solved: Sequence[Solved],
    prior: Callable[[Problem], Prior | None],
) -> Group:  # fmt: skip
    """With what is expected of further sizes, of those good Configs that were measured in this group."""
    sizes = dict(group.sizes)
    configs = [c for c in dict.fromkeys(c for one in group.sizes.values() for c in one.losses) if c in good]
    for value in between:
        if value not in group.sizes:
            problem = Problem({**group.fields, size: value})
            sizes[value] = Tuned(problem, _expected(problem, device, configs, solved, prior(problem)), doubt=DOUBT)
    return Group(group.fields, dict(sorted(sizes.items())))


def _expected(
    problem: Problem, device: str, configs: Sequence[Config], solved: Sequence[Solved], prior: Prior | None
) -> dict[Config, float]:
    """What each Config is expected to lose."""
    logs = forecast(problem, device, configs, nearest(problem, device, solved), prior)
    best = min(logs.values())
    return {config: math.expm1(log - best) for config, log in logs.items()}


def grid(first: int, last: int) -> list[int]:
    """The sizes between two at which something is expected."""
    powers = [2**k for k in range(last.bit_length())]
    sizes = sorted({int(power * part) for power in powers for part in QUARTERS if power * part == int(power * part)})
    return [one for one in sizes if first < one < last]
