"""A Choice confirmed: those near the fastest are timed in other processes, at other times, and all of these decide.

In one process on a CPU one of two Configs is the faster by a percent or three in all rounds, and in another one, or a
minute later, the other: it depends on where code and data happen to lie, and on what else the machine does. More
rounds say nothing of that, so here each process is a sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from statistics import fmean
from time import perf_counter

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Sample, Trial
from tunesmith.core.stats import median, paired_ratio
from tunesmith.evaluate import Evaluation
from tunesmith.kernel import Clock
from tunesmith.measure.pace import is_shared
from tunesmith.measure.pick import compared, within_reach
from tunesmith.refresh import Refreshed, concluded
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject
from tunesmith.tune import searching

#: Within so much of the fastest in one process, another one may be the fastest in others; of so many at most.
NEAR, MOST_RIVALS = 1.05, 5
#: Rounds in each process: what it differs from others by is as much as these leave unsure.
ROUNDS = 12
#: Fewer processes decide nothing, more are not asked.
FEWEST, MOST = 3, 5


@dataclass(frozen=True, slots=True)
class Visits:
    """What processes have said of some Configs.

    Attributes:
        rivals: the Configs.
        seconds: of each process, what each of them took there.
    """

    rivals: tuple[Config, ...]
    seconds: tuple[tuple[float, ...], ...] = ()

    def without(self, gone: Collection[Config]) -> Visits:
        stay = [i for i, config in enumerate(self.rivals) if config not in gone]
        return Visits(tuple(self.rivals[i] for i in stay), tuple(tuple(mine[i] for i in stay) for mine in self.seconds))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What one more process has said.

    Attributes:
        found: what became of the Choice, as of a refresh.
        visits: with this one, of those that may still be the fastest.
        open: whether yet another process may change it.
    """

    found: Refreshed
    visits: Visits
    open: bool


def rivals_among(trials: Sequence[Trial], chosen: Config) -> tuple[Config, ...]:
    """Which Configs may be the fastest in another process, what is chosen among them; none where that is alone."""
    near = [trial.config for trial in within_reach(trials, NEAR) if trial.config != chosen]
    rivals = [chosen, *near[: MOST_RIVALS - 1]]
    return tuple(sorted(rivals, key=lambda config: config.text)) if near else ()


def confirm(subject: Subject, store: Store, clock: Clock, effort: Effort, visits: Visits) -> Confirmed | None:
    """Time the rivals in this process (or its worker), and store who is the fastest in all processes so far; `None`
    where nothing is stored. The caller holds the key's claim.

    What was cut short, or disturbed by others at work on the core, does not count. Where the Choice is none of the
    rivals any more, those near it now are, and no process has said anything yet. Who fails is no rival any more.

    Raises:
        Busy: when another search has been measuring on the device for too long.
    """
    stored = store.choice(subject.key)
    if stored is None:
        return None
    known = {trial.config: trial for trial in store.trials(subject.key)}
    if stored.choice.config not in visits.rivals:  # somebody else has chosen it meanwhile
        visits = Visits(rivals_among(list(known.values()), stored.choice.config))
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    budget_s = effort.budget_s or stored.choice.budget_s
    state = Evaluation(
        subject, store, clock, replace(effort, rounds=ROUNDS, budget_s=budget_s), at,
        None if budget_s is None else perf_counter() + budget_s, held=True, known=known,
    )  # fmt: skip
    with searching(), closing(state):
        state.evaluate(visits.rivals)
    found = Refreshed(
        subject.key, "failed", tuple(subject.key.stale(stored.soft)), len(state.trials), stored.choice, stored.choice,
        None, "", False, state.compile_s, state.measure_s, state.store_s, state.waited_s,
    )  # fmt: skip
    failed = [config for config, trial in state.trials.items() if isinstance(trial.outcome, Failed)]
    if not visits.rivals or (failed and stored.choice.config not in failed):
        left = visits.without(failed)
        return Confirmed(replace(found, fate="kept", why=_no_end(state)), left, len(left.rivals) > 1)
    seconds = _seconds(visits.rivals, state.trials)
    if seconds is None or state.cut_short:
        return Confirmed(replace(found, why=_no_end(state)), visits, False)
    if is_shared(max((t.pace_s for t in state.trials.values() if t.pace_s is not None), default=None)):
        return Confirmed(replace(found, fate="kept", disturbed=True), visits, True)
    state.held = False
    state.commit()
    return _decided(found, replace(visits, seconds=(*visits.seconds, seconds)), state)


def _seconds(rivals: Sequence[Config], trials: Mapping[Config, Trial]) -> tuple[float, ...] | None:
    """What each took beside the first, over the rounds; `None` where one was not in all of them."""
    found = [t.outcome for c in rivals if (t := trials.get(c)) is not None and isinstance(t.outcome, Measured)]
    rounds = {tuple(sample.round for sample in one.samples) for one in found}
    if len(found) < len(rivals) or len(rounds) != 1 or len(rounds.pop()) != ROUNDS:
        return None
    timed = [one.samples_s for one in found]
    return tuple(median(timed[0]) * paired_ratio(mine, timed[0])[0] for mine in timed)


def _no_end(state: Evaluation) -> str:
    reasons = dict.fromkeys(t.outcome.reason for t in state.trials.values() if isinstance(t.outcome, Failed))
    return "; ".join(reasons) or "the budget ended before the race did"


def _decided(found: Refreshed, visits: Visits, state: Evaluation) -> Confirmed:
    """Store who is the fastest in all processes, once they are enough to say."""
    n = len(visits.seconds)
    if n < FEWEST:
        return Confirmed(replace(found, fate="kept", store_s=state.store_s), visits, True)
    together = {trial.config: trial for trial in _together(visits, state.trials)}
    verdict = state.effort.verdict(list(together.values()))
    assert verdict is not None
    doubt = verdict.doubt.replace("samples", "processes")
    now = concluded(found, verdict, state, together.get(found.before.config), doubt)
    slower = {one.trial.config for one in compared(verdict, len(together)) if one.low > 1}
    left = visits.without(slower - {verdict.winner.config})
    sure = verdict.within is not None and verdict.within <= verdict.margin
    return Confirmed(now, left, len(left.rivals) > 1 and n < MOST and not sure)


def _together(visits: Visits, trials: Mapping[Config, Trial]) -> list[Trial]:
    """A Trial of each rival in which each process is a round. What is common to all in a process says nothing."""
    logs = [[math.log(seconds) for seconds in mine] for mine in visits.seconds]
    common = [fmean(mine) for mine in logs]
    usual = median(common)
    return [
        replace(
            trials[config], drift=1.0, outcome=Measured(tuple(
                Sample(math.exp(mine[i] - shared + usual), round=n)
                for n, (mine, shared) in enumerate(zip(logs, common, strict=True))
            )),
        )
        for i, config in enumerate(visits.rivals)
    ]  # fmt: skip
