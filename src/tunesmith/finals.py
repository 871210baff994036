"""The last race of a search that ran several: those that decide its verdict meet side by side.

Times of different races are no proof: clocks drift, and bounds need rounds that both were in. A strategy that asks
batch by batch leaves the fastest in one race and those near it in others.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tunesmith.evaluate import Evaluation
from tunesmith.measure.pick import apart

#: Of a budget, the part that is kept for it, and seconds at most.
SHARE, MOST_S = 0.1, 1.0
#: A race can bring a clock at which another one leads: so often is it asked again who has to meet.
AGAIN = 3


@contextmanager
def kept_back(state: Evaluation) -> Generator[None]:
    """Within this scope the budget ends earlier, by what the last race needs. Whether it ended is kept in `stopped`."""
    whole = state.effort.budget_s
    kept_s = 0.0 if state.deadline is None or whole is None else min(MOST_S, SHARE * whole)
    if state.deadline is not None:
        state.deadline -= kept_s
    try:
        yield
        state.stopped = state.over
    finally:
        if state.deadline is not None:
            state.deadline += kept_s


def last_race(state: Evaluation) -> None:
    """Race them until they have met, as far as the budget goes."""
    if state.rule.rounds < 2 or state.rule.everybody:
        return  # there are no rounds to share, or each is timed just so often
    for _ in range(AGAIN):
        met = apart(list(state.trials.values()), state.effort.margin, state.incumbent)
        if not met or state.over:
            return
        state.evaluate(met, anew=True)
