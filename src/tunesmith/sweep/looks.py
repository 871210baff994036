"""Second looks: what brief samples have chosen while others were at work on the core is raced again later in the sweep
(`tunesmith.refresh` says why): the close ones, when no problem is left that was not begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tunesmith.core.outcome import Choice
from tunesmith.kernel import Clock
from tunesmith.measure.race import of_races
from tunesmith.sweep.task import SECONDS, Result
from tunesmith.tuned import TunedKernel

#: Races at most of one problem, the search's own counted.
MOST_LOOKS = 3
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


def looked_again(
    kernel: TunedKernel, arguments: Mapping[str, Any], before: Result, budget_s: float | None, isolate: bool
) -> Result:
    """Race what was chosen against the best of then.

    Returns:
        `before` with what is chosen now, and what this look took; or a failure that says why it came to nothing, where
        `before` stands.

    Raises:
        Busy, BadInput, WorkerLost: as of `TunedKernel.look_again`.
    """
    found = kernel.look_again(budget_s=budget_s, isolate=isolate, **arguments)
    took = dict.fromkeys(SECONDS, 0.0)
    if found is None:
        return replace(before, fate="failed", error="another look found nothing in this worker's store", **took)
    took |= {part: getattr(found, part) for part in ("compile_s", "measure_s", "store_s", "wait_s")}
    if found.fate not in ("kept", "changed"):
        return replace(before, fate="failed", error=f"another look came to no end: {found.why}", **took)
    now, changed = found.after, found.after.config != found.before.config
    return replace(
        before, config=dict(now.config), median_s=now.median_s, ties=len(now.ties), pace_s=now.pace_s,
        changed=before.changed + changed, **took,
    )  # fmt: skip
