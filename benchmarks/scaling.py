"""How a sweep scales, by simulation: 1 to 64 worker processes through the real scheduler and store. No GPU.

    python benchmarks/scaling.py

A recording of a matrix product on an H200 stands in for the GPU. Each worker is a process with a device of its own; all
share one store, as the GPUs of a host do, and one driver. A problem has 12 configurations; each trial sleeps for
1 s (compiling, loading and a first launch), then is committed alone; then they race with the recorded times. A
worker has 2 problems on average. So the workers do all that they do with a GPU but for the GPU's and the compilers'
work, and two cores carry 64 of them.

`busy` is the part of a worker's time that the simulated GPU is at work, from the begin of its first problem to that of
its last, the hand-out by the driver included; `efficiency` is that over the one of 1 worker. They begin at random times
within a problem's length, as all racing at once would wait for two cores. `commit_ms` is how long storing a trial takes
on average, `cpu_ms` the processor's time of a worker for a trial, all of it; `driver_share` is what of a core the
driver needs for each worker.

`saturated` is the store alone: N processes that commit a trial each as fast as they can for some seconds, all into one
file (`commits_per_s`). `h200s_that_each_carries`: how many GPUs with 20 trials a second, which is an H200 with 16 cores
that compile, one store can take, with a commit a trial and with two a second as a search does; how many the workers'
own processor time allows on the cores at hand; how many workers one core of the driver's can wait for. The bottleneck
is the smallest, two commits a second left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from _results import FOLDER, write

HERE = Path(__file__).parent
WORKERS = (1, 2, 4, 8, 16, 32, 64)
TRIAL_S, EACH, HAMMER_S = 1.0, 2, 3.0
#: what one H200 does with 16 cores beside it, compiling included: 424 trials in 21.4 s (triton_cold_search, all)
TRIALS_PER_S = 20.0
#: commits a second of a search as it is (`evaluate.STORE_EVERY_S`), whatever its trials
COMMITS_PER_S = 2.0
CORES = len(os.sched_getaffinity(0))
HAMMER = """
import sys, time
from pathlib import Path
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Measured, Sample, Trial
from tunesmith.core.problem import Problem
from tunesmith.store import Store
store, number, end = Store.open(Path(sys.argv[1])), int(sys.argv[2]), float(sys.argv[3])
key = Key("k", "f" * 64, Problem({"n": number}), "cuda:NVIDIA H200:sm_90:132", "p")
outcome = Measured(tuple(Sample(1e-3, round, 0) for round in range(15)))
count = 0
while time.time() < end - float(sys.argv[4]):
    time.sleep(0.01)
while time.time() < end:
    store.add_trials(key, [Trial(Config(a=count), outcome, at=str(count))])
    count += 1
print(count)
"""


@dataclass
class Watcher:
    """Lets the workers go when all are ready, and notes when."""

    count: int
    folder: Path
    here: int = 0
    since: float = 0.0
    cpu_s: float = 0.0
    ends: list[float] = field(default_factory=list[float])

    def ready(self, name: str, identity: str) -> None:
        self.here += 1
        if self.here == self.count:
            self.since, self.cpu_s = time.time(), time.process_time()
            (self.folder / "go").touch()

    def resumed(self, count: int) -> None: ...
    def looked(self, name: str, task: Any, result: Any, left: int) -> None: ...
    def put_off(self, name: str, task: Any, left: int) -> None: ...
    def began(self, name: str, task: Any) -> None: ...
    def heard(self, name: str, said: Mapping[str, Any]) -> None: ...

    def ended(self, name: str, task: Any, result: Any) -> None:
        if result.fate != "tuned":
            sys.exit(f"{task.title}: {result.error}")
        self.ends.append(time.time())

    def trouble(self, name: str, what: str) -> None:
        print(name, what, file=sys.stderr)


def run(count: int) -> dict[str, Any]:
    """So many workers, in a process of its own."""
    ended = subprocess.run([sys.executable, __file__, "--workers", str(count)], capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{count} workers failed:\n{ended.stderr[-3000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def sweep(count: int, folder: Path) -> dict[str, Any]:
    os.environ |= {
        "SCALING_FOLDER": str(folder), "SCALING_TRIAL_S": str(TRIAL_S), "TUNESMITH_CACHE_DIR": str(folder / "store")
    }  # fmt: skip
    from tunesmith.store import default_store
    from tunesmith.sweep.devices import Place
    from tunesmith.sweep.done import Done
    from tunesmith.sweep.drive import Sweep
    from tunesmith.sweep.task import Task
    from tunesmith.sweep.workers import LocalWorker, Orders

    target = f"{HERE / '_scaling_kernel.py'}:product"
    tasks = [Task(target, "gemm", f"case={case}") for case in range(1, count * EACH + 1)]
    orders = Orders.of(default_store(), simulates="cuda:NVIDIA H200:sm_90:132")
    watcher = Watcher(count, folder)
    workers = {f"gpu:{n}": partial(LocalWorker, Place(f"gpu:{n}"), orders, 1) for n in range(count)}
    outcome = Sweep(tasks, workers, default_store(), Done(folder, tasks), watcher, {}).run()
    spent = [json.loads(line) for file in folder.glob("spent-*.jsonl") for line in last(file.read_text().splitlines())]
    commits = sum(one["commits"] for one in spent)
    return {
        "workers": count, "problems": len(outcome.results), "seconds": max(watcher.ends) - watcher.since,
        "busy": sum(one["slept_s"] for one in spent) / sum(one["at"] for one in spent),
        "commit_ms": 1e3 * sum(one["commit_s"] for one in spent) / max(1, commits), "commits": commits,
        "cpu_ms": 1e3 * sum(one["cpu_s"] for one in spent) / max(1, commits),
        "driver_share": (time.process_time() - watcher.cpu_s) / (max(watcher.ends) - watcher.since) / count,
    }  # fmt: skip


def last(lines: Sequence[str]) -> list[str]:
    """What a worker had spent, of which the first line is what it took to begin."""
    first, end = json.loads(lines[0]), json.loads(lines[-1])
    return [json.dumps({name: end[name] - first[name] for name in ("commits", "commit_s", "cpu_s", "at", "slept_s")})]


def saturated(count: int) -> dict[str, Any]:
    """Commits a second of so many processes at once."""
    with tempfile.TemporaryDirectory() as folder:
        end = time.time() + HAMMER_S + 2 + 0.5 * count
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", HAMMER, folder, str(number), str(end), str(HAMMER_S)],
                stdout=subprocess.PIPE, text=True,
            )
            for number in range(count)
        ]  # fmt: skip
        total = sum(int(process.communicate()[0]) for process in processes)
    return {"writers": count, "commits_per_s": total / HAMMER_S}


def bottleneck(rows: Sequence[Mapping[str, Any]], hammered: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How many H200 each part could serve, were it alone: of a host with one store, by what was measured here."""
    widest = rows[-1]
    store = min(row["commits_per_s"] for row in hammered)
    return {
        "store": store / TRIALS_PER_S,
        "store as it is": store / COMMITS_PER_S,
        "the workers on this machine's cores": CORES * 1e3 / widest["cpu_ms"] / TRIALS_PER_S,
        "driver": 1 / widest["driver_share"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--most", type=int, default=WORKERS[-1], help="workers at most")
    options = parser.parse_args()
    if options.workers:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(sweep(options.workers, Path(folder))))
        return
    rows: list[dict[str, Any]] = []
    for count in [count for count in WORKERS if count <= options.most]:
        row = run(count)
        rows.append({**row, "efficiency": row["busy"] / (rows[0] if rows else row)["busy"]})
        print(rows[-1], flush=True)
    hammered = [saturated(count) for count in (1, 2, 8, 32) if count <= options.most]
    print(hammered)
    carries = bottleneck(rows, hammered)
    print(carries)
    alone = {name: number for name, number in carries.items() if name != "store as it is"}
    named = min(alone, key=alone.__getitem__)
    widest = rows[-1]
    path = write(
        "scaling", "cpu", protocol={
            "what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), "bottleneck": named,
            "h200s_that_each_carries": carries, "load": os.getloadavg(),
        },
        command="python benchmarks/scaling.py", rows=[*rows, *hammered], folder=options.folder,
        summary={
            f"efficiency_{widest['workers']}": widest["efficiency"], "commit_ms_1": rows[0]["commit_ms"],
            f"commit_ms_{widest['workers']}": widest["commit_ms"], "cpu_ms": widest["cpu_ms"],
            "driver_share": widest["driver_share"], "commits_per_s": min(row["commits_per_s"] for row in hammered),
            "h200s_by_bottleneck": carries[named],
        },
    )  # fmt: skip
    print(f"bottleneck: {named}, {carries[named]:.0f} H200s\n{path}")


if __name__ == "__main__":
    main()
