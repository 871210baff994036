"""Choices looked at again: what is in use against the best of then, and nothing else of the Space.

A stale one is refreshed. One that was made of brief samples while others were at work on the CPU's core is looked at
again for another reason: another Config may be the fastest then than else, and a search lies within one such stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from time import perf_counter
from typing import Literal, TypeAlias

from tunesmith.calls import kept_for_calls, time_calls
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Trial
from tunesmith.core.stats import paired_ratio
from tunesmith.evaluate import Evaluation
from tunesmith.kernel import Clock
from tunesmith.measure.pace import heard, is_shared
from tunesmith.measure.pick import Verdict, within_reach
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject
from tunesmith.tune import called_by, conditions, of_calls, searching

#: Rivals of the Config in use. The winner under other versions is nearly always among the first few of before.
BEST = 4

#: Of two races that were disturbed, one was less by as much.
LESS = 1.1

#: `current`: nothing is stale, nothing was measured. `failed`: no Config works any more, or the budget ended.
Fate: TypeAlias = Literal["current", "kept", "changed", "failed"]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of one stored Choice.

    Attributes:
        stale: the soft reasons, as `triton: 3.7.0, was 3.6.0`.
        raced: how many Configs were timed.
        before, after: the Choice that was stored, and the one that is now.
        ratio: the time of the Config used now over that of the one used before, by paired samples; `None` where the
            two were not timed side by side, and where only calls outside of CUDA graphs go to another now.
        why: what failed.
        disturbed: others were at work on the core, and no less than before: nothing was stored.
        compile_s, measure_s, store_s, wait_s: as of a search's `Summary`.
    """

    key: Key
    fate: Fate
    stale: tuple[str, ...]
    raced: int
    before: Choice
    after: Choice
    ratio: float | None = None
    why: str = ""
    disturbed: bool = False
    compile_s: float = 0.0
    measure_s: float = 0.0
    store_s: float = 0.0
    wait_s: float = 0.0


def refresh(
    subject: Subject, store: Store, clock: Clock, effort: Effort, best: int = BEST, anyway: bool = False
) -> Refreshed | None:
    """Race a stale Choice against the next best of the Trials it was made of, and store who wins; `None` where
    nothing is stored. The caller holds the key's claim.

    Raises:
        Busy: when another search has been measuring on the device for too long.
    """
    key, stored = subject.key, store.choice(subject.key)
    if stored is None:
        return None
    before, stale = stored.choice, tuple(key.stale(stored.soft))
    if not stale and not anyway:
        return Refreshed(key, "current", stale, 0, before, before)
    return _raced(subject, store, clock, effort, before, stale, best)


def look_again(subject: Subject, store: Store, clock: Clock, effort: Effort) -> Refreshed | None:
    """Race a Choice against the best of the Trials it was made of, of which nothing has changed but what else runs on
    the machine; `None` where nothing is stored. The caller holds the key's claim.

    What comes of it is stored, unless it was cut short, or disturbed and no less so than the race before. Where that
    was disturbed, and this one was not or less, what was in use has no advantage over the others. A stale Choice is
    refreshed.

    Raises:
        Busy: when another search has been measuring on the device for too long.
    """
    stored = store.choice(subject.key)
    if stored is None:
        return None
    stale = tuple(subject.key.stale(stored.soft))
    effort = replace(effort, budget_s=effort.budget_s or stored.choice.budget_s)
    return _raced(subject, store, clock, effort, stored.choice, stale, BEST, looks=not stale)


def _raced(
    subject: Subject, store: Store, clock: Clock, effort: Effort, before: Choice, stale: tuple[str, ...], best: int,
    looks: bool = False,
) -> Refreshed:  # fmt: skip
    """Race, and store who wins.

    Args:
        looks: nothing has changed since, and it counts as a whole or not at all.
    """
    stays = getattr(subject.kernel, "stays", None)  # a library's call: what may serve calls is measured by it
    if stays not in subject.space:
        stays = None
    serving = [config for config in (before.config, before.called, stays) if config is not None]
    stored = [trial for trial in store.trials(subject.key) if trial.config in subject.space]
    ranked = None if looks else effort.verdict(stored)
    ranking = [trial.config for trial in ranked.ranking] if ranked else []
    nearest = [config for config in ranking if config not in serving][:best]
    rivals = [trial.config for trial in within_reach(stored)] if looks else nearest
    in_use = [config for config in serving if config in subject.space]
    configs = list(dict.fromkeys([*in_use, *rivals]))
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    state = Evaluation(
        subject, store, clock, effort, at, None if effort.budget_s is None else perf_counter() + effort.budget_s,
        incumbent=stays or before.config, held=looks,
        # other races of the same kernel: by those who were in both, all their times can be compared
        known={trial.config: trial for trial in stored} if looks else {},
    )  # fmt: skip
    with searching(), closing(state):
        with kept_for_calls(state):
            state.evaluate(configs)
        ended = not (state.over or state.cut_short)
        if ended:
            time_calls(state, {})
    trials = [state.trials[config] for config in configs if config in state.trials]
    paces = [trial.pace_s for trial in trials if trial.pace_s is not None]
    less, disturbed = _less_disturbed(before.pace_s, max(paces, default=None)) if looks else (False, False)
    found = Refreshed(
        subject.key, "failed", stale, len(state.trials), before, before, None, "", disturbed,
        state.compile_s, state.measure_s, state.store_s, state.waited_s,
    )  # fmt: skip
    verdict = effort.verdict(trials, stays if less else state.incumbent)
    if verdict is None or not ended:
        return replace(found, why=_no_end(verdict, configs, trials, looks))
    if disturbed:
        return replace(found, fate="kept")
    state.held = False
    state.commit()
    return concluded(found, verdict, state, state.trials.get(before.config))


def _no_end(verdict: Verdict | None, configs: Sequence[Config], trials: Sequence[Trial], looks: bool) -> str:
    """Why a race says nothing."""
    if verdict is not None:
        return f"the budget ended before the race did{'' if looks else '; what was measured is kept'}"
    if not configs:
        return "the Space holds none of the stored Configs any more"
    reasons = dict.fromkeys(t.outcome.reason for t in trials if isinstance(t.outcome, Failed))
    return "; ".join(reasons) or "the budget ended before anything was measured"


def concluded(
    found: Refreshed, verdict: Verdict, state: Evaluation, old: Trial | None, doubt: str | None = None
) -> Refreshed:
    """Store who has won.

    Args:
        old: what is known now of the Config that was in use.
        doubt: the verdict's, in other words.
    """
    key, before, winner = found.key, found.before, verdict.winner
    assert isinstance(winner.outcome, Measured)
    rival = next((t for t in verdict.ranking if t is not winner), None)
    rival_s = rival.outcome.median_s if rival is not None and isinstance(rival.outcome, Measured) else None
    exact = state.subject.exact
    after = replace(
        before, config=winner.config, median_s=winner.outcome.median_s, runner_up=rival.config if rival else None,
        ratio=None if rival_s is None else rival_s / winner.outcome.median_s, ties=verdict.ties,
        measured_at=exact if exact != key.problem else None, within=verdict.within,
        confidence=verdict.confidence, doubt=verdict.doubt if doubt is None else doubt, searched_at=state.at,
        conditions=conditions(verdict, state), pace_s=verdict.pace_s,
        called=_called(verdict, before, state), calls=of_calls(verdict, state),
    )  # fmt: skip
    with state.storing():
        state.store.put_choice(key, after, dict(key.soft))
    same = winner.config == before.config
    fate: Fate = "kept" if same and after.called == before.called else "changed"
    ratio = None if same else side_by_side(winner, old)
    why = f"{before.config!r}: {old.outcome.reason}" if old and isinstance(old.outcome, Failed) else ""
    return replace(found, fate=fate, after=after, ratio=ratio, why=why, store_s=state.store_s)


def _less_disturbed(then_s: float | None, now_s: float | None) -> tuple[bool, bool]:
    """(whether others were less at work on the core than in the race before, whether they were, and no less).

    Args:
        then_s, now_s: how fast the core was around most samples of the race before, and of this one.
    """
    heard(then_s)  # by another process perhaps, which has seen the core quiet
    if now_s is None or then_s is None:
        return False, is_shared(now_s)
    less = is_shared(then_s) and (not is_shared(now_s) or now_s * LESS < then_s)
    return less, is_shared(now_s) and not less


def _called(verdict: Verdict, before: Choice, state: Evaluation) -> Config | None:
    """Who serves calls, where that is not the winner; as before, where what they take could not be measured."""
    if not state.calls_note or before.called == verdict.winner.config:
        return called_by(verdict)
    return before.called if any(t.config == before.called for t in verdict.ranking) else None


def side_by_side(now: Trial, before: Trial | None) -> float | None:
    """How many times as long one Config takes as another, by the rounds both were in; `None` if they never met."""
    if before is None or now.at != before.at:
        return None
    mine, old = _by_round(now), _by_round(before)
    shared = sorted(mine.keys() & old.keys())
    return paired_ratio([mine[r] for r in shared], [old[r] for r in shared])[0] if shared else None


def _by_round(trial: Trial) -> Mapping[int, float]:
    samples = trial.outcome.samples if isinstance(trial.outcome, Measured) else ()
    return {sample.round: sample.seconds for sample in samples if sample.round >= 0}
