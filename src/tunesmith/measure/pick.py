"""Which Config a search ends with: the cheapest of those that cannot be told from the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Resources, Trial
from tunesmith.core.stats import paired_ratio

#: A Config is as good as the fastest when it is at most this much slower, with 95 % confidence.
MARGIN = 0.01
#: Who has fewer samples than this left the race far behind, or the race was cut short: its median is no rival
#: to one of many samples.
ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the Trials say.

    Attributes:
        winner: the Config to use.
        ranking: all measured Trials, fastest first; those with too few samples to win come after the others.
        ties: Configs as good as the fastest, the winner left out.
    """

    winner: Trial
    ranking: tuple[Trial, ...]
    ties: tuple[Config, ...]


def pick(trials: Sequence[Trial], margin: float = MARGIN) -> Verdict | None:
    """The verdict, `None` when nothing was measured.

    Args:
        trials: in the Space's order, which decides between Configs that take the same resources.
        margin: how much slower a Config may be and still tie, by the upper bound of its paired ratio
            to the fastest: too few samples never make a tie.
    """
    place = {trial.config: i for i, trial in enumerate(trials)}
    measured = [trial for trial in trials if isinstance(trial.outcome, Measured)]
    most = max((_count(trial) for trial in measured), default=0)
    ranking = sorted(measured, key=lambda trial: (_count(trial) < min(ENOUGH, most), _median(trial)))
    if not ranking:
        return None
    fastest = ranking[0]
    level = [fastest, *[t for t in ranking[1:] if _upper_ratio(t, fastest) <= 1 + margin]]
    winner = min(level, key=lambda t: (_cost(t.resources), place[t.config]))
    return Verdict(winner, tuple(ranking), tuple(t.config for t in level if t is not winner))


def _median(trial: Trial) -> float:
    assert isinstance(trial.outcome, Measured)
    return trial.outcome.median_s


def _count(trial: Trial) -> int:
    assert isinstance(trial.outcome, Measured)
    return len(trial.outcome.samples)


def _upper_ratio(trial: Trial, fastest: Trial) -> float:
    """The upper 95 % bound of how much longer it takes than the fastest, from the rounds both were in."""
    mine, best = _by_round(trial), _by_round(fastest)
    rounds = sorted(mine.keys() & best.keys())
    if len(rounds) < 2 or trial.at != fastest.at:  # timed in different searches: not side by side
        return float("inf")
    return paired_ratio([mine[r] for r in rounds], [best[r] for r in rounds])[2]


def _by_round(trial: Trial) -> dict[int, float]:
    assert isinstance(trial.outcome, Measured)
    return {sample.round: sample.seconds for sample in trial.outcome.samples if sample.round >= 0}


def _cost(resources: Resources) -> tuple[int, int, int]:
    """What a Config takes from its neighbours; unknown counts as nothing."""
    return resources.threads or 0, resources.shared_bytes or 0, resources.registers or 0
