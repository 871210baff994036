"""What neighbouring Problems, and a model, let one expect of each Config of a new Problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.core.stats import median

#: A Config → the seconds that a model predicts, `None` where it says nothing of it or says that it can't run.
Prior: TypeAlias = "Callable[[Config], float | None]"

#: Doublings of one size over which what a neighbour says loses its weight (that of a normal distribution).
REACH = 2.0
#: Another kind of device is as far as so many doublings; so is each other field (a dtype, a flag) that differs.
ELSEWHERE, OTHERWISE = 2.0, 2.0
#: The model alone counts as much as this part of the nearest neighbour.
DOUBT = 0.5
#: Of a neighbour of which fewer Configs are known, only that its fastest was its fastest is believed.
FEW = 3
#: A Config of which neither a model nor a neighbour says anything is taken to need so many times the best's time.
UNKNOWN = 2.0


@dataclass(frozen=True)
class Solved:
    """A Problem that was tuned before.

    Attributes:
        seconds: medians of what was measured; of a table's row, one Config. Failures are left out.
        chosen: what it ended with; the fastest where nothing is said.
        device: `Device.identity`, as in a Key.
        prior: what a model says for that Problem on that device.
        samples: how many its search took, 0 where that is not known.
    """

    problem: Problem
    seconds: Mapping[Config, float]
    device: str = ""
    prior: Prior | None = None
    samples: int = 0
    chosen: Config | None = None

    @property
    def winner(self) -> Config:
        """What was chosen, else the fastest."""
        return self.chosen if self.chosen is not None else min(self.seconds, key=self.seconds.__getitem__)


def distance(problem: Problem, device: str, solved: Solved) -> float:
    """How far a solved Problem is: the Euclidean distance in doublings of each size, other fields and devices added.

    A size that only one of them has counts as another field.
    """
    mine, other = problem.dims, solved.problem.dims
    both = mine.keys() & other.keys()
    doublings = [math.log2((abs(mine[name]) + 1) / (abs(other[name]) + 1)) for name in both]
    differ = sum(
        problem.get(name) != solved.problem.get(name) for name in {*problem, *solved.problem} if name not in both
    )
    steps = [*doublings, *[OTHERWISE] * differ, ELSEWHERE * (device != solved.device)]
    return math.sqrt(math.fsum(step * step for step in steps))


def nearest(problem: Problem, device: str, near: Iterable[Solved]) -> list[Solved]:
    """Solved Problems of which a Config is known, the nearest first."""
    known = [solved for solved in near if solved.seconds]
    return sorted(known, key=lambda solved: (distance(problem, device, solved), solved.problem.text))


def forecast(
    problem: Problem, device: str, configs: Sequence[Config], near: Sequence[Solved], prior: Prior | None = None
) -> dict[Config, float]:
    """The natural logarithm of each Config's expected time, up to a constant that all share.

    A neighbour says of a Config by how much the model was wrong there (without a model: how far it was from the best);
    nearer neighbours count more, and a Config that none has measured keeps what the model says. A neighbour that was
    not searched whole has only seen what looked fast: its own constant is found by what others say of these Configs.

    Args:
        near: in the order of `nearest`.
    """
    usual = _logs(configs, prior)
    weights = _weights(problem, device, near)
    told: dict[Config, tuple[float, float]] = {}  # (weight, weighted sum)
    for solved in sorted(near, key=lambda one: -len(one.seconds)):
        weight, theirs = weights[id(solved)], _logs([*configs, *solved.seconds], solved.prior)
        wrong = {config: math.log(seconds) - theirs[config] for config, seconds in solved.seconds.items()}
        constant = _constant(solved, wrong, theirs, told)
        for config, error in wrong.items():
            known, total = told.get(config, (0.0, 0.0))
            told[config] = known + weight, total + weight * (error - constant)
    return {config: usual[config] + _shrunk(told.get(config), prior is None) for config in configs}


def _weights(problem: Problem, device: str, near: Sequence[Solved]) -> dict[int, float]:
    """Of each neighbour, by identity: 1 for the nearest."""
    far = {id(solved): distance(problem, device, solved) ** 2 for solved in near}
    least = min(far.values(), default=0.0)
    return {name: math.exp((least - square) / (2 * REACH**2)) for name, square in far.items()}


def _logs(configs: Iterable[Config], prior: Prior | None) -> dict[Config, float]:
    """The model's logarithms; of a Config that it says nothing of, that of the slowest it knows; 0 without a model."""
    if prior is None:
        return dict.fromkeys(configs, 0.0)
    said = {config: prior(config) for config in configs}
    logs = {config: math.log(seconds) for config, seconds in said.items() if seconds is not None}
    slowest = max(logs.values(), default=0.0)
    return {config: logs.get(config, slowest) for config in said}


def _constant(
    solved: Solved, wrong: Mapping[Config, float], theirs: Mapping[Config, float],
    told: Mapping[Config, tuple[float, float]],
) -> float:  # fmt: skip
    """What all of a neighbour's errors share: the level of its times against the model's."""
    if solved.prior is None:
        return min(wrong.values())
    if len(wrong) < FEW:  # its fastest is as fast as the model's fastest should have been
        return wrong[solved.winner] + theirs[solved.winner] - min(theirs.values())
    return median([error - (told[c][1] / told[c][0] if c in told else 0.0) for c, error in wrong.items()])


def _shrunk(told: tuple[float, float] | None, alone: bool) -> float:
    """The neighbours' mean, drawn towards what holds without them."""
    weight, total = told or (0.0, 0.0)
    doubt, usual = (DOUBT, 0.0) if not alone else (0.0 if told else 1.0, math.log(UNKNOWN))
    return (total + doubt * usual) / (weight + doubt)
