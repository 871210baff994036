"""Measuring some Configs of a call beside its search: what became of each, and nothing in the user's store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.errors import Busy
from tunesmith.evaluate import Evaluation
from tunesmith.store import Store
from tunesmith.subject import Effort
from tunesmith.tracks import Asked
from tunesmith.tune import searching


def outcomes(asked: Asked, configs: Sequence[Config], effort: Effort) -> dict[Config, Trial]:
    """The Trials of these Configs on the call's own arguments, which are protected as in a search.

    Those that could not be looked at, as the device was busy or time was up, are missing.
    """
    at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    deadline = None if effort.budget_s is None else perf_counter() + effort.budget_s
    with TemporaryDirectory(prefix="tunesmith-ranks-") as folder:
        store = Store.open(Path(folder))
        state = Evaluation(asked.subject, store, asked.clock(), effort, at, deadline)
        # What was not looked at, as the device was busy, is missing: the caller is told no more than that.
        with closing(store), suppress(Busy), searching():
            state.evaluate(configs)
    return state.trials
