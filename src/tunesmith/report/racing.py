"""A race in short, from stored Trials: who was timed, for how many rounds, who left when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.core.outcome import Measured, Trial


@dataclass(frozen=True, slots=True)
class Leaving:
    """Those who were in no more than so many rounds, the fastest first."""

    rounds: int
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """One race of a search.

    Attributes:
        at: when the search began: UTC, ISO 8601.
        rounds: that whoever stayed longest was in.
        hopeless: so far behind in their first sample that they were in no round, the fastest first.
        left: those who left before its end, by how many rounds they were in.
        stayed: those who were in the last round or in the one before it, as an interrupted one has not all of them.
    """

    at: str
    rounds: int
    hopeless: tuple[Trial, ...]
    left: tuple[Leaving, ...]
    stayed: tuple[Trial, ...]

    @property
    def timed(self) -> int:
        """How many were."""
        return len(self.hopeless) + sum(len(one.trials) for one in self.left) + len(self.stayed)


def heats(trials: Sequence[Trial]) -> list[Heat]:
    """The races of the Trials, in the order in which they were run.

    A Config that was in several is in the last one alone: its Trial has the samples of that. Trials without rounds
    (of another program's recording) are in none.
    """
    entrants: dict[tuple[str, int], list[Trial]] = {}
    early: dict[str, list[Trial]] = {}
    for trial in trials:
        if not isinstance(trial.outcome, Measured):
            continue
        rounds = _rounds(trial)
        if rounds:
            entrants.setdefault((trial.at, min(rounds)), []).append(trial)
        elif len(trial.outcome.samples) == 1:
            early.setdefault(trial.at, []).append(trial)
    found: list[Heat] = []
    for at, first in sorted(entrants):
        mine = entrants[at, first]
        found.append(_heat(at, mine, early.pop(at, [])))
    return found


def _heat(at: str, mine: Sequence[Trial], hopeless: Sequence[Trial]) -> Heat:
    last = max(max(_rounds(trial)) for trial in mine)
    stayed = [trial for trial in mine if max(_rounds(trial)) >= last - 1]
    gone: dict[int, list[Trial]] = {}
    for trial in mine:
        if max(_rounds(trial)) < last - 1:
            gone.setdefault(len(_rounds(trial)), []).append(trial)
    left = tuple(Leaving(rounds, _by_time(gone[rounds])) for rounds in sorted(gone))
    return Heat(at, max(len(_rounds(trial)) for trial in stayed), _by_time(hopeless), left, _by_time(stayed))


def _rounds(trial: Trial) -> set[int]:
    samples = trial.outcome.samples if isinstance(trial.outcome, Measured) else ()
    return {sample.round for sample in samples if sample.round >= 0}


def _by_time(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    return tuple(sorted(trials, key=median_s))


def median_s(trial: Trial) -> float:
    """The median time of a measured Trial in seconds, infinite for another."""
    return trial.outcome.median_s if isinstance(trial.outcome, Measured) else float("inf")
