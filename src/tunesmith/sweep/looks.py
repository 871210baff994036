"""Later looks at what brief samples have chosen, when no problem is left that was not begun: close ones that were made
while others were at work on the core are raced again (`tunesmith.refresh` says why), and those near the fastest are
timed in other processes, at other times (`tunesmith.confirm`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunesmith.confirm import MOST, Visits, rivals_among
from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice, Trial
from tunesmith.kernel import Clock
from tunesmith.measure.pace import is_shared
from tunesmith.measure.race import of_races
from tunesmith.store import default_store
from tunesmith.sweep.task import SECONDS, Result
from tunesmith.tuned import TunedKernel

#: Races at most of one problem: its search, two that may be disturbed, and one in each process that confirms it.
MOST_LOOKS = 3 + MOST
#: What a stretch can turn round: Configs within this factor of each other.
NEAR = 1.25


def is_close(choice: Choice, clock: Clock) -> bool:
    """Whether another look may name another Config if others were at work on the core: its samples are brief, the
    runner-up is near, and no bound has cut the search short or was of launches."""
    brief = of_races(clock).get("brief")
    if brief is None or choice.pace_s is None or choice.median_s is None or choice.ratio is None:
        return False
    limited = choice.partial or choice.launches is not None
    return choice.median_s < brief.below_s and choice.ratio < NEAR and not limited


def opened(result: Result, trials: Sequence[Trial]) -> Result:
    """What an undisturbed race has found, with those that may be the fastest in other processes."""
    assert result.config is not None
    rivals = rivals_among(trials, Config(result.config))
    return replace(result, rivals=[dict(config) for config in rivals], visits=[], open=bool(rivals))


def looked_again(
    kernel: TunedKernel, arguments: Mapping[str, Any], before: Result, budget_s: float | None, isolate: bool
) -> Result:
    """Race what was chosen against the best of then, if others were at work on the core then; else time those near the
    fastest in this process.

    Returns:
        `before` with what is chosen now, and what this look took; or a failure that says why it came to nothing, where
        `before` stands.

    Raises:
        Busy, BadInput, WorkerLost: as of `TunedKernel.look_again`.
    """
    confirms, visits = before.open and not is_shared(before.pace_s), before
    if confirms:
        said = Visits(tuple(map(Config, before.rivals)), tuple(tuple(mine) for mine in before.visits))
        confirmed = kernel.confirm(visits=said, budget_s=budget_s, isolate=isolate, **arguments)
        found = confirmed and confirmed.found
        if confirmed is not None:
            rivals = [dict(config) for config in confirmed.visits.rivals]
            seconds = [list(mine) for mine in confirmed.visits.seconds]
            visits = replace(before, rivals=rivals, visits=seconds, open=confirmed.open)
    else:
        found = kernel.look_again(budget_s=budget_s, isolate=isolate, **arguments)
    took = dict.fromkeys(SECONDS, 0.0)
    if found is None:
        return replace(before, fate="failed", error="another look found nothing in this worker's store", **took)
    took |= {part: getattr(found, part) for part in ("compile_s", "measure_s", "store_s", "wait_s")}
    if found.fate not in ("kept", "changed"):
        return replace(before, fate="failed", error=f"another look came to no end: {found.why}", **took)
    now, changed = found.after, found.after.config != found.before.config
    result = replace(
        visits, config=dict(now.config), median_s=now.median_s, ties=len(now.ties), pace_s=now.pace_s,
        changed=before.changed + changed, **took,
    )  # fmt: skip
    return result if confirms or is_shared(now.pace_s) else opened(result, default_store().trials(found.key))
