"""Measuring a whole Space, so that a search over it can be replayed where there is no such device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Recording, Trial
from tunesmith.core.space import ENUMERATED
from tunesmith.errors import BadInput
from tunesmith.evaluate import Evaluation
from tunesmith.events import Started, say
from tunesmith.kernel import Clock
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject

#: Samples of each Config: two halves of 15, of which one can be judged by the other.
ROUNDS = 30


def record(
    subject: Subject, clock: Clock, effort: Effort, rounds: int = ROUNDS, only: Sequence[Config] | None = None
) -> Recording:
    """Compile every Config of a Space (or these alone) and time each in every round, in random order.

    What fails is kept with its reason; so is one of `only` that the Space refuses.

    Nothing goes to the user's store: not everything a recording needs is what a search would have measured.

    Raises:
        BadInput: for a Space too large to enumerate, or no rounds.
        Busy: when another search has been measuring on the device for too long.
    """
    if rounds < 1:
        raise BadInput(f"rounds={rounds}; good values: integers from 1")
    if only is None and subject.space.cardinality > ENUMERATED:
        raise BadInput(
            f"{subject.kernel.name}: a Space of {subject.space.cardinality:,} points is too large to record whole; "
            f"hold knobs at one value until it has at most {ENUMERATED:,}"
        )
    configs = list(subject.space) if only is None else list(only)
    refused = {config: fault for config in configs if only is not None and (fault := subject.space.fault(config))}
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    say(Started(subject.kernel.name, subject.exact, len(configs), {}, 0, None))
    with TemporaryDirectory(prefix="tunesmith-record-") as folder:
        everybody = replace(effort, rounds=rounds, budget_s=None)
        state = Evaluation(subject, Store.open(Path(folder)), clock, everybody, at, None)
        try:
            state.evaluate([config for config in configs if config not in refused])
        finally:
            state.close()
    cut = {config: Trial(config, Failed("cut", fault), at=at) for config, fault in refused.items()}
    trials = {**state.trials, **cut}
    pace_s = next((trial.pace_s for trial in state.trials.values() if trial.pace_s is not None), None)  # of one race
    pace = {} if pace_s is None else {"pace_s": f"{pace_s:.3e}"}
    return Recording(
        subject.kernel.name, subject.device.name, subject.exact,
        tuple(trials[config] for config in configs if config in trials),
        f"{clock.protocol}: {rounds} rounds, every Config once a round in random order",
        meta={**subject.key.soft, "arch": subject.device.arch, "units": str(subject.device.units), "at": at, **pace},
    )  # fmt: skip
