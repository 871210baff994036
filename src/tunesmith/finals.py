"""The last race of a search that ran several: those that decide its verdict meet side by side.

Times of different races are no proof: clocks drift, and bounds need rounds that both were in. A strategy that asks
batch by batch leaves the fastest in one race and those near it in others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Trial
from tunesmith.evaluate import Evaluation
from tunesmith.measure.pick import apart

#: Of seconds and of launches, the part that is kept for it, and seconds at most.
SHARE, MOST_S = 0.1, 1.0
#: A race can bring a clock at which another one leads: so often is it asked again who has to meet.
AGAIN = 3


@contextmanager
def kept_back(state: Evaluation) -> Generator[None]:
    """Within this scope seconds and launches end earlier, by what the last race needs; not within the first
    race, as its entrants have met. Which of them ended is kept in `stopped`."""
    if _has_a_last_race(state):
        state.kept_s = min(MOST_S, SHARE * (state.effort.budget_s or 0.0))
        state.kept_launches = int(SHARE * (state.effort.launches or 0))
    try:
        yield
        state.stopped = state.ended_by
    finally:
        state.kept_s, state.kept_launches = 0.0, 0


def last_race(state: Evaluation, known: Mapping[Config, Trial]) -> None:
    """Race them until they have met, as far as the budget goes; nobody, where all was known.

    Args:
        known: what the store knows, of other searches: nobody there has met anybody of this one.
    """
    if not state.trials or not _has_a_last_race(state):
        return
    met: dict[Config, None] = {}  # who was in one is in those that follow, or the clock of each would have its own best
    cut_short = state.cut_short
    for _ in range(AGAIN):
        deciding = apart(list({**known, **state.trials}.values()), state.effort.margin, state.incumbent)
        if not deciding or state.over:
            break
        met |= dict.fromkeys(deciding)
        state.evaluate([config for config in met if _may_run(state, config)], anew=True)
    state.cut_short = state.cut_short or cut_short


def _has_a_last_race(state: Evaluation) -> bool:
    """Whether there are rounds to share; a Clock may have one only, and each may be timed just so often."""
    return state.rule.rounds > 1 and not state.rule.everybody


def _may_run(state: Evaluation, config: Config) -> bool:
    trial = state.trials.get(config)
    return trial is None or not isinstance(trial.outcome, Failed)
