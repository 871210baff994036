"""A recorded matrix product as a kernel of many problems, whose trials take time: for `scaling.py`, in its workers."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunesmith import Config, Device, Problem, Space, autotune, evaluate
from tunesmith.backends.replay import ReplayKernel
from tunesmith.core.outcome import Measured, Sample
from tunesmith.kernel import Built, Run
from tunesmith.recording import load
from tunesmith.store import Store

RECORDED = load(Path(__file__).parent / "recordings" / "gemm_M1024_N4096_K8192_h200.json.gz")
#: Configs of a problem, of the 424 that were measured: every so many.
CONFIGS = 12
#: where workers wait for each other, and say what it cost them
FOLDER = Path(os.environ.get("SCALING_FOLDER", "."))
TRIAL_S = float(os.environ.get("SCALING_TRIAL_S", "1.0"))

measured = [trial for trial in RECORDED.trials if isinstance(trial.outcome, Measured)]
CHOSEN = tuple(trial.config for trial in measured[:: len(measured) // CONFIGS][:CONFIGS])
SECONDS = {t.config: [s.seconds for s in t.outcome.samples] for t in measured if isinstance(t.outcome, Measured)}

evaluate.STORE_EVERY_S = 0.0  # one commit a trial, where a search usually makes two a second


class Spent:
    """What storing cost this process."""

    commits = 0
    commit_s = 0.0
    slept_s = 0.0
    begun = False


_add_trials = Store.add_trials


def add_trials(self: Store, *args: Any, **kwargs: Any) -> None:
    start = time.perf_counter()
    _add_trials(self, *args, **kwargs)
    Spent.commits += 1
    Spent.commit_s += time.perf_counter() - start


Store.add_trials = add_trials


class Many(ReplayKernel):
    """One recording for every `case`; a device of its own for each process."""

    def device(self, args: Sequence[Any]) -> Device:
        return replace(super().device(args), uid=str(os.getpid()))

    def load(self, config: Config, problem: Problem, built: Built | None) -> Any:
        return super().load(config, Problem({**problem, "case": 0}), built)


class SleepingClock:
    """A trial takes its time at the first launch (compiling, loading, the launch); the launches of the race after it
    take what was recorded."""

    protocol = "replay/1"

    def sample(self, run: Run) -> Sample:
        at = int(run.state.get("at", 0))
        run.state["at"] = at + 1
        mine = SECONDS[run.config]
        takes_s = mine[at % len(mine)] if at else TRIAL_S
        time.sleep(takes_s)
        Spent.slept_s += takes_s
        return Sample(mine[at % len(mine)])


def inputs(problem: Problem) -> Mapping[str, Any]:
    """Waits until all workers are there, and says what the tasks before this one cost.

    The first begins at a random time: workers that race all at once would wait for the few cores there are here.
    """
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    if not Spent.begun:
        Spent.begun = True
        time.sleep(random.random() * CONFIGS * TRIAL_S)
    said = {
        "commits": Spent.commits, "commit_s": Spent.commit_s, "cpu_s": time.process_time(), "at": time.time(),
        "slept_s": Spent.slept_s,
    }  # fmt: skip
    with open(FOLDER / f"spent-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(said) + "\n")
    return {"case": problem["case"]}


product = autotune(space=Space.of(CHOSEN), key=["case"], make_inputs=inputs, clock=SleepingClock(), isolate=False)(
    Many(replace(RECORDED, problem=Problem({"case": 0})))
)
