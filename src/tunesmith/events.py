"""What a search says while it works, and to whom."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.notebook import choice_html, trials_html
from tunesmith.core.outcome import Choice, Failed, Measured, Trial
from tunesmith.core.problem import Problem
from tunesmith.measure.pick import Verdict
from tunesmith.search import Step
from tunesmith.turns import Turns


@dataclass(frozen=True, slots=True)
class Preparing:
    """Of several problems one after the other, this one's turn has come; it may need no search."""

    kernel: str
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """A search begins: how many points, how many cut for which reason, how many known from before."""

    kernel: str
    problem: Problem
    cardinality: int
    cut: Mapping[str, int]
    known: int
    budget_s: float | None


@dataclass(frozen=True, slots=True)
class Compiling:
    """A batch of so many Configs goes to the compilers.

    Kernels may be timed meanwhile: whoever hears of it and works in a thread of its own takes `turns` with them.
    """

    count: int
    turns: Turns = field(default_factory=Turns, compare=False)


@dataclass(frozen=True, slots=True)
class Compiled:
    """One came back; `failure` says why it did not compile."""

    config: Config
    failure: Failed | None


@dataclass(frozen=True, slots=True)
class Racing:
    """So many candidates are being timed."""

    count: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sample was taken; in round -1 while others were still being compiled."""

    config: Config
    leader: Config
    leader_s: float
    round: int


@dataclass(frozen=True)
class Summary:
    """A search is over: everything a score table needs. cut + failed + measured + untried = cardinality.

    Attributes:
        trials: one for each legal Config, in the Space's order; of a Space too large to enumerate, those looked at.
        cut: Configs left out by constraints, by reason (none are counted in a Space too large to enumerate).
        why_untried: what ended the search before every Config had been looked at.
        known: how many Trials came from the store.
    """

    key: Key
    choice: Choice | None
    verdict: Verdict | None
    trials: tuple[Trial, ...]
    cut: Mapping[str, int]
    cardinality: int
    known: int
    why_untried: str
    compile_s: float
    measure_s: float

    @property
    def failures(self) -> Iterator[tuple[Config, Failed]]:
        return ((t.config, t.outcome) for t in self.trials if isinstance(t.outcome, Failed))

    @property
    def counts(self) -> dict[str, int]:
        """How many Configs met which fate."""
        kinds = [type(trial.outcome) for trial in self.trials]
        counts = {"measured": kinds.count(Measured), "failed": kinds.count(Failed), "cut": sum(self.cut.values())}
        return {**counts, "untried": self.cardinality - sum(counts.values())}

    def _repr_html_(self) -> str:
        chosen = "" if self.choice is None else choice_html(self.choice)
        return chosen + trials_html(self.trials, f"{self.key.kernel}({self.key.problem}) on {self.key.device}")


Event: TypeAlias = "Preparing | Started | Compiling | Compiled | Racing | Sampled | Step | Summary"
Watcher: TypeAlias = Callable[[Event], None]

_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("tunesmith_watchers", default=())


@contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """Within this scope, `watcher` hears of every search of this thread."""
    token = _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        _watchers.reset(token)


def say(event: Event) -> None:
    """Tell every watcher of this thread."""
    for watcher in _watchers.get():
        watcher(event)
