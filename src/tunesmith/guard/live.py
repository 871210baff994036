"""What is stored against the default and what was in use before, timed side by side on the device at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Outcome, Recording
from tunesmith.core.problem import Problem
from tunesmith.guard.rule import Comparison, Limits, Pair, judge
from tunesmith.guard.sides import Timed
from tunesmith.options import policy

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

#: Samples of each Config: enough for the rule to show 5 % at a spread of 3 %.
ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Against:
    """A stored Choice against another Config of the same problem.

    Attributes:
        other: `the default`, or `BASE`.
        base, new: the other's Config, and the stored one.
        base_s, new_s: their medians, where they ran.
        comparison: stored ÷ other; `None` where one of them did not run, and `why` says what happened.
        fails: whether this alone makes the guard fail.
    """

    kernel: str
    problem: Problem
    other: str
    base: Config | None
    new: Config | None
    base_s: float | None = None
    new_s: float | None = None
    comparison: Comparison | None = None
    why: str = ""
    fails: bool = False


def measure(
    kernel: TunedKernel, problems: Sequence[Problem], base: Sequence[Timed], limits: Limits, rounds: int = ROUNDS
) -> list[Against]:
    """Time what is stored for some problems against the default and against what BASE has for them.

    Every Config is timed in every round, in random order, so that a drift of the machine meets all alike.

    Args:
        base: rows of other stores or tables, of any kernel and device.

    Raises:
        Busy: when another search has been measuring on the device for too long.
    """
    rows = [row for problem in problems for row in _measured(kernel, problem, base, rounds)]
    pairs = {i: pair for i, (_, pair) in enumerate(rows) if pair is not None}
    judged = judge(pairs, limits).rows
    return [replace(row, comparison=judged.get(i)) for i, (row, _) in enumerate(rows)]


def _measured(
    kernel: TunedKernel, problem: Problem, base: Sequence[Timed], rounds: int
) -> list[tuple[Against, Pair | None]]:  # fmt: skip
    arguments = kernel.inputs(problem)
    key = kernel.key(**arguments)
    stored = kernel.lookup(**arguments)
    with policy("default"):
        default = kernel.choice(**arguments).config
    others = {"the default": default}
    for row in base:
        if (row.kernel, row.problem) == (key.kernel, key.problem) and row.device == key.device:
            others["BASE"] = row.config
    if stored is None:
        return [(Against(key.kernel, key.problem, "the default", default, None, why="nothing is stored"), None)]
    rivals = {name: config for name, config in others.items() if config != stored.config}
    if not rivals:
        why = f"it is {' and '.join(others)}: nothing was measured"
        return [(Against(key.kernel, key.problem, "the default", default, stored.config, why=why), None)]
    configs = list(dict.fromkeys([stored.config, *rivals.values()]))
    found = kernel.record(rounds=rounds, only=configs, **arguments)
    return [_against(key.kernel, key.problem, name, other, stored.config, found) for name, other in rivals.items()]


def _against(
    kernel: str, problem: Problem, name: str, other: Config, stored: Config, found: Recording
) -> tuple[Against, Pair | None]:
    row = Against(kernel, problem, name, other, stored)
    outcomes = {trial.config: trial.outcome for trial in found.trials}
    mine, theirs = outcomes.get(stored), outcomes.get(other)
    if not isinstance(mine, Measured):
        return replace(row, why=f"what is stored fails: {_why(mine)}", fails=True), None
    if not isinstance(theirs, Measured):
        return replace(row, new_s=mine.median_s, why=f"{name} fails: {_why(theirs)}"), None
    new, old = ({s.round: s.seconds for s in outcome.samples} for outcome in (mine, theirs))
    shared = sorted(new.keys() & old.keys())
    pair = Pair([old[r] for r in shared], [new[r] for r in shared], paired=True)
    return replace(row, base_s=theirs.median_s, new_s=mine.median_s), pair


def _why(outcome: Outcome | None) -> str:
    return outcome.reason if isinstance(outcome, Failed) else "it was not measured"
