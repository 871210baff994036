"""What tunesmith says while it works, and to whom: watchers of the thread, and Python's `logging`.

Logger `tunesmith.search` has INFO where a search begins and ends, DEBUG for its stages and each candidate's fate, and
WARNING for one that ends without a Choice; `tunesmith.choice` has INFO for each Choice that a kernel's calls will use.
Nothing is shown unless the program asks `logging` for it.
"""

from __future__ import annotations

import logging
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

#: what ends a search before every Config had its turn; it may have been in the middle of a race
BUDGET = "the budget ended"
LAUNCHES = "as many launches as were allowed had been timed"
STOPPED = (BUDGET, LAUNCHES)


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


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate is no longer looked at: what is known of it now, and why."""

    kernel: str
    problem: Problem
    trial: Trial
    why: str


@dataclass(frozen=True, slots=True)
class Decided:
    """From now on a kernel's calls of one Problem use this Choice."""

    kernel: str
    problem: Problem
    choice: Choice


@dataclass(frozen=True)
class Summary:
    """A search is over: everything a score table needs. cut + failed + measured + untried = cardinality.

    Attributes:
        trials: one for each legal Config, in the Space's order; of a Space too large to enumerate, those looked at.
        cut: Configs left out by constraints, by reason (none are counted in a Space too large to enumerate).
        why_untried: what ended the search before every Config had been looked at.
        known: how many Trials came from the store.
        compile_s, measure_s, store_s, wait_s: as of `Evaluation`.
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
    store_s: float = 0.0
    wait_s: float = 0.0

    @property
    def failures(self) -> Iterator[tuple[Config, Failed]]:
        return ((t.config, t.outcome) for t in self.trials if isinstance(t.outcome, Failed))

    @property
    def counts(self) -> dict[str, int]:
        """How many Configs met which fate."""
        kinds = [type(trial.outcome) for trial in self.trials]
        counts = {"measured": kinds.count(Measured), "failed": kinds.count(Failed), "cut": sum(self.cut.values())}
        return {**counts, "untried": self.cardinality - sum(counts.values())}

    @property
    def cut_short(self) -> bool:
        """Whether something was left untried for want of time: nothing can be said of all Configs."""
        return self.why_untried in STOPPED and self.counts["untried"] > 0

    def __repr__(self) -> str:
        """A line for a terminal; `trials` have the samples."""
        counts = ", ".join(f"{number:,} {fate}" for fate, number in self.counts.items())
        chosen = "nothing works" if self.choice is None else f"{self.choice.config!r}"
        return f"<Summary of {self.key.kernel}({self.key.problem}): {chosen}; {counts}>"

    def _repr_html_(self) -> str:
        chosen = "" if self.choice is None else choice_html(self.choice)
        return chosen + trials_html(self.trials, f"{self.key.kernel}({self.key.problem}) on {self.key.device}")


def fate(trial: Trial, how: str) -> str:
    """Why a candidate is no longer looked at: the reason of its failure, or how far it went in the race.

    Args:
        how: of one that was timed: `left after`, `to the end,`, `stopped after`.
    """
    if isinstance(trial.outcome, Failed):
        return f"{trial.outcome.stage}: {trial.outcome.reason}"
    samples = trial.outcome.samples if isinstance(trial.outcome, Measured) else ()
    rounds = len({sample.round for sample in samples if sample.round >= 0})
    return f"{how} {rounds} round{'s' if rounds != 1 else ''}" if rounds else "far behind in its first sample"


Event: TypeAlias = "Preparing | Started | Compiling | Compiled | Racing | Sampled | Tried | Step | Summary | Decided"
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
    """Tell every watcher of this thread, and who listens to the loggers."""
    for watcher in _watchers.get():
        watcher(event)
    if not isinstance(event, Sampled):  # thousands in a second, between which a kernel is timed
        _log(event)


# --- the loggers ---------------------------------------------------------------------------------------

logging.getLogger("tunesmith").addHandler(logging.NullHandler())  # or Python itself would print the warnings
_search, _choice = logging.getLogger("tunesmith.search"), logging.getLogger("tunesmith.choice")


def _log(event: Event) -> None:
    """Make a log record of an event. Its `event` is the event itself."""
    match event:
        case Summary(choice=None):
            logger, level = _search, logging.WARNING
        case Started() | Summary():
            logger, level = _search, logging.INFO
        case Decided():
            logger, level = _choice, logging.INFO
        case _:
            logger, level = _search, logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(level, "%s", _in_words(event), extra={"event": event})


def _in_words(event: Event) -> str:
    """One line of an event; durations in seconds, as a program may read it."""
    match event:
        case Preparing(kernel, number, total):
            return f"{kernel}: problem {number} of {total}"
        case Started(kernel, problem, cardinality, cut, known):
            cut_count = sum(cut.values())
            return f"{kernel}({problem}): a search of {cardinality} points: {cut_count} cut, {known} in the store"
        case Compiling(count):
            return f"compiling {count}"
        case Compiled(config, failure):
            return f"compiled {config!r}" if failure is None else f"not compiled {config!r}: {failure.reason}"
        case Racing(count):
            return f"timing {count} candidates"
        case Tried(kernel, problem, trial, why):
            timed = f"{trial.outcome.median_s:.4g} s, " if isinstance(trial.outcome, Measured) else ""
            return f"{kernel}({problem}): {trial.config!r}: {timed}{why}"
        case Decided(kernel, problem, choice):
            note = f" ({choice.note})" if choice.note else ""
            return f"{kernel}({problem}): {choice.config!r} by {choice.track}, from {choice.source}{note}"
        case Summary(key, choice):
            counts = ", ".join(f"{number} {fate}" for fate, number in event.counts.items())
            none = "nothing works" if any(event.failures) else "nothing was measured"
            best = none if choice is None else repr(choice.config)
            took = "" if choice is None or choice.median_s is None else f", {choice.median_s:.4g} s"
            spent_s = event.compile_s + event.measure_s
            return f"{key.kernel}({key.problem}): {best}{took}; {counts}; {spent_s:.1f} s compiling and timing"
        case Step():
            return f"{event}: {event.config!r}, {event.seconds:.4g} s"
        case Sampled():
            return ""
