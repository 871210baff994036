"""What speaks for a Choice and against it: what is stored nearest, the races, the chip's ceiling, staleness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.model import Ceiling
from tunesmith.core.outcome import Choice, Measured, Trial
from tunesmith.core.stopping import CONFIDENCE
from tunesmith.measure.pick import ratio_between
from tunesmith.options import policy_in_force
from tunesmith.report.racing import Heat, heats
from tunesmith.store import Store, default_store
from tunesmith.subject import Subject
from tunesmith.tune import ONLY


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best of the same search.

    Attributes:
        ratio: its time over the Choice's.
        low, high: bounds of the ratio at `confidence`, by rounds that both were in; `None` where there are none.
        tie: whether it cannot be told from the Choice within the margin.
    """

    config: Config
    ratio: float
    low: float | None = None
    high: float | None = None
    confidence: float = CONFIDENCE
    tie: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Beside a Key, its Choice and its Trials.

    Attributes:
        stored_at: when the Key's Choice was stored: UTC, ISO 8601; empty where there is none.
        nearest: of a Key without a stored Choice, the Key that has one and differs in the fewest fields.
        soft: versions that have changed since it was found: `lookup` uses it, `search` races it again.
        hard: of each stored Choice for the same Problem that is never used here, the fields that forbid it.
        races: of the search that the Choice is of, in order.
        ceiling: what the chip allows; where it is not known, `no_ceiling` says why.
    """

    stored_at: str = ""
    nearest: Key | None = None
    soft: tuple[str, ...] = ()
    hard: tuple[tuple[tuple[str, str, str], ...], ...] = ()
    races: tuple[Heat, ...] = ()
    runner_up: RunnerUp | None = None
    ceiling: Ceiling | None = None
    no_ceiling: str = ""


def evidence_for(subject: Subject, policy: str | None, choice: Choice, trials: Sequence[Trial]) -> Evidence:
    """What is known beside the Choice of a call.

    Args:
        subject: of the call. policy: the kernel's own.
    """
    store, key = default_store(), subject.key
    ceiling, no_ceiling = _ceiling(subject, choice)
    if policy_in_force(policy).track == "default" or choice.source == ONLY:
        return Evidence(ceiling=ceiling, no_ceiling=no_ceiling)  # nothing is looked up
    stored = store.choice(key)
    races = heats(trials)
    return Evidence(
        stored_at="" if stored is None else stored.at,
        nearest=store.nearest(key) if stored is None else None,
        soft=() if stored is None else tuple(key.stale(stored.soft)),
        hard=_hard(key, store),
        races=tuple(race for race in races if race.at == max(one.at for one in races)),
        runner_up=runner_up_of(choice, trials),
        ceiling=ceiling, no_ceiling=no_ceiling,
    )  # fmt: skip


def runner_up_of(choice: Choice, trials: Sequence[Trial]) -> RunnerUp | None:
    """The runner-up that a Choice names, with bounds where its Trials have them."""
    if choice.runner_up is None or choice.ratio is None:
        return None
    tie = choice.runner_up in choice.ties
    timed = {trial.config: trial for trial in trials if isinstance(trial.outcome, Measured)}
    one, used = timed.get(choice.runner_up), timed.get(choice.config)
    confidence = choice.confidence or CONFIDENCE
    found = None if one is None or used is None else ratio_between(one, used, confidence)
    if found is None:
        return RunnerUp(choice.runner_up, choice.ratio, tie=tie)
    return RunnerUp(choice.runner_up, *found, confidence, tie)


def _hard(key: Key, store: Store) -> tuple[tuple[tuple[str, str, str], ...], ...]:
    same = [one for one in store.keys(key.kernel) if one != key and one.problem == key.problem]
    return tuple(tuple(key.differing(one)) for one in same if store.choice(one) is not None)


def _ceiling(subject: Subject, choice: Choice) -> tuple[Ceiling | None, str]:
    """What the chip allows the Config, or why that is not known."""
    if subject.model is None:
        return None, "the kernel's autotune has no model= that says what a launch moves and computes"
    found, device = subject.model.ceiling(subject.exact, choice.config, subject.device), subject.device
    add = "" if device.kind == "cpu" else ": tunesmith.add_device tells them"
    return found, "" if found else f"the peak and the bandwidth of {device.name} are not known{add}"
