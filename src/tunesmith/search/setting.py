"""What a strategy is told when it begins, and what it may say on its way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.core.stopping import MARGIN
from tunesmith.search.forecast import Prior, Solved

Strategy: TypeAlias = Generator[list[Config], list[Trial], None]

#: Configs in a batch at most: enough to keep a few compilers busy, few enough to learn from each batch.
BATCH = 8


@dataclass(frozen=True, slots=True)
class Step:
    """Where a climb stands.

    Attributes:
        config: the best so far.
        seconds: its median.
        gain: the time of the place before it over its own; 1.0 where the climb begins, and where it ends.
        changed: knob → (value before, value now).
        tried: how many Configs have been looked at.
        note: why it stands here: `start`, or why it ends (`no neighbour faster`); empty for a step up.
    """

    config: Config
    seconds: float
    gain: float = 1.0
    changed: tuple[tuple[str, object, object], ...] = ()
    tried: int = 0
    note: str = ""

    def __str__(self) -> str:
        """`1.250× BLOCK 64 → 128`, or `1.000×, no neighbour faster`."""
        if self.note:
            return f"{self.gain:.3f}×, {self.note}"
        return f"{self.gain:.3f}× " + ", ".join(f"{knob} {old} → {new}" for knob, old, new in self.changed)


def _silent(step: Step) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a strategy knows: no kernel, no clock, no file.

    Attributes:
        space: the Configs that it may ask for.
        seed: equal seeds and equal Trials make equal searches.
        starts: asked for first: the heuristic's Config, the winners of near Problems, what earlier searches tried.
        most: how many Configs it may ask for in all, `None` for as many as it thinks right.
        batch: Configs in a batch at most, where it is free to choose.
        say: hears of each Step of a climb.
        problem, device: what is searched for, `Device.identity`: where these are told, neighbours can be near.
        near: Problems that were tuned before. prior: what a model says of a Config, in seconds.
        margin: how much slower than the fastest a Config may be and still be as good.
    """

    space: Space
    seed: int = 0
    starts: tuple[Config, ...] = ()
    most: int | None = None
    batch: int = BATCH
    say: Callable[[Step], None] = _silent
    problem: Problem | None = None
    device: str = ""
    near: tuple[Solved, ...] = ()
    prior: Prior | None = None
    margin: float = MARGIN


def seconds_of(trial: Trial) -> float | None:
    """A Trial's seconds, as those of all races can be compared; `None` for one that was not measured."""
    return trial.level_s


def fastest(trials: Iterable[Trial]) -> Trial | None:
    """The Trial of the fewest seconds, the first of equals; `None` where nothing was measured."""
    timed = [(seconds, i, trial) for i, trial in enumerate(trials) if (seconds := seconds_of(trial)) is not None]
    return min(timed)[2] if timed else None
