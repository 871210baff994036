"""The sweeps of `scale.py`: on so many devices, in as many parts as there is time for, and one that loses a device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _scale_taken
from _kept import Cases, Unfinished, once
from sweep import WEIGHTS

from tunesmith.sweep.devices import VISIBLE, usable_cores
from tunesmith.sweep.use import PARTS, Use, mean_shares

HERE = Path(__file__).parent
#: 128 of them: what decoding has, then what prefill has
ROWS = (1, 2, 4, *range(8, 513, 8), 576, *range(640, 8193, 128))
#: before the end of a command's time, a sweep is told to stop; what a case needs at least
STOP_S, LEAST_S = 30.0, 60.0


@dataclass(frozen=True)
class Plan:
    """What is swept, and on what.

    Attributes:
        devices: all there are, as `--devices` and as `_scale_taken` name them.
    """

    target: str
    rows: Sequence[int]
    weights: Sequence[tuple[int, int]]
    devices: Sequence[tuple[str, str]]
    cpu: bool

    def write(self, file: Path, count: int) -> None:
        """A sweep's file of so many problems, evenly spread."""
        weights = [list(one) for one in self.weights]
        rows = spread(self.rows, max(1, count // len(weights)))
        file.write_text(f"targets: ['{self.target}']\nproblems: [{{M: {rows}, 'N,K': {weights}}}]\n")

    @property
    def least_s(self) -> float:
        return 0.0 if self.cpu else LEAST_S


def spread(values: Sequence[int], n: int) -> list[int]:
    """`n` of some values, evenly spread, the first and the last among them."""
    if n >= len(values):
        return list(values)
    return [values[round(at * (len(values) - 1) / max(1, n - 1))] for at in range(n)]


def plan_of(cpu: bool, gpus: int) -> Plan:
    if cpu:
        cores = usable_cores()[:2]
        devices = [(f"cpu:{core}", _scale_taken.name("", [core])) for core in cores]
        return Plan(f"{HERE / '_sweep_kernels.py'}:small", (16, 24, 32, 48), ((32, 32), (64, 64)), devices, cpu)
    visible = os.environ.get(VISIBLE, ",".join(map(str, range(gpus)))).split(",")
    devices = [(str(n), _scale_taken.name(visible[n].strip(), ())) for n in range(gpus)]
    return Plan(f"{HERE / '_sweep_gemm.py'}:gemm", ROWS, WEIGHTS, devices, cpu)


def environment(folder: Path, binaries: Path | None = None) -> dict[str, str]:
    """Own caches, beside all that a user has set."""
    kept = {"TUNESMITH_CACHE_DIR": str(folder / "ours"), "TRITON_CACHE_DIR": str(binaries or folder / "triton")}
    return {**os.environ, **kept}


def command(folder: Path, plan: Plan, n: int, *more: str) -> list[str]:
    devices = ",".join(name for name, _ in plan.devices[:n])
    file = str(folder / "problems.yaml")
    return [sys.executable, "-m", "tunesmith", "sweep", file, "--devices", devices, "--json", *more]


def swept(plan: Plan, count: int, executor: str, n: int, folder: Path, cases: Cases) -> dict[str, Any]:
    """A whole sweep, in as many parts as there were commands."""
    parts: list[dict[str, Any]] = []
    while (path := folder / f"part-{len(parts)}.json").exists():
        parts.append(json.loads(path.read_text()))
    if not parts:  # one that was killed within its first part: caches are to be empty
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    plan.write(folder / "problems.yaml", count)
    while not parts or parts[-1]["interrupted"]:
        left_s = cases.left_s - STOP_S
        if left_s < plan.least_s:
            raise Unfinished(f"{len(parts)} parts are done, and {left_s:.0f} s are not enough for another one")
        made = command(folder, plan, n, "--executor", executor, "--resume")
        parts.append(once(folder / f"part-{len(parts)}.json", partial(part, made, environment(folder), left_s)))
    return row_of(executor, n, folder, parts)


def part(made: Sequence[str], environ: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """One command's answer, and its time; it is told to stop when its time is over."""
    start = time.perf_counter()
    sweep = subprocess.Popen(made, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        out = sweep.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        sweep.send_signal(signal.SIGINT)
        try:
            out = sweep.communicate(timeout=STOP_S)[0]
        except subprocess.TimeoutExpired:
            sweep.kill()
            raise RuntimeError(f"{' '.join(made)} did not stop within {STOP_S:g} s") from None
    except BaseException:
        sweep.kill()
        raise
    if not out.startswith("{"):
        raise RuntimeError(f"{' '.join(made)} failed (exit code {sweep.returncode}); what it said is above")
    return {**json.loads(out), "wall_s": time.perf_counter() - start}


def row_of(executor: str, n: int, folder: Path, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What came of a sweep: of its last part, which has all results, and of the time of all."""
    uses = [[Use(**use) for use in one["uses"]] for one in parts]
    starts = [min(use.start_s for use in each) for each in uses]
    wall_s = sum(one["wall_s"] for one in parts) - sum(starts[1:])
    fates = [result["fate"] for result in parts[-1]["results"]]
    done = sum(fate != "failed" for fate in fates)
    shares = mean_shares([use for each in uses for use in each])
    waits = {name: share for name, share in shares.items() if name != "measure_s"}
    return {
        "job": "sweep", "executor": executor, "gpus": n, "problems": done, "failed": len(fates) - done,
        "left": len(parts[-1]["left"]), "parts": len(parts), "wall_s": wall_s, "per_s": done / wall_s,
        "start_s": starts[0], "shares": shares, "bottleneck": PARTS[max(waits, key=waits.__getitem__)],
        **compiled(folder), "uses": [one["uses"] for one in parts],
    }  # fmt: skip


def compiled(folder: Path) -> dict[str, float]:
    """What all workers of a sweep had compiled."""
    with sqlite3.connect(folder / "ours" / "store.sqlite") as connection:
        took = [json.loads(data).get("compile_s") for (data,) in connection.execute("SELECT data FROM trials")]
    return {"compilations": sum(bool(one) for one in took), "compiler_s": sum(one for one in took if one)}


def taken(plan: Plan, count: int, n: int, folder: Path, binaries: Path, cases: Cases) -> dict[str, Any]:
    """A sweep that loses its second device in the middle; what is compiled is there already."""
    if cases.left_s < 3 * plan.least_s:
        raise Unfinished("it is not interrupted, and there is no time for it")
    shutil.rmtree(folder, ignore_errors=True)
    notes = folder / "workers"
    notes.mkdir(parents=True)
    plan.write(folder / "problems.yaml", count)
    mine = notes / plan.devices[1][1]
    made = command(folder, plan, n, "--adviser", f"{HERE / '_scale_taken.py'}:advise")
    environ = {**environment(folder, binaries), _scale_taken.FOLDER: str(notes)}
    sweep = subprocess.Popen(made, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        while sweep.poll() is None and (finished(folder) < n or not mine.exists()):
            time.sleep(0.1)
        _scale_taken.gone(mine).touch()
        before = finished(folder)
        if sweep.poll() is None:
            os.kill(int(mine.read_text()), signal.SIGKILL)
        out = sweep.communicate(timeout=max(60.0, cases.left_s))[0]
    except subprocess.TimeoutExpired:
        raise RuntimeError("the sweep that lost a device did not end in time") from None
    finally:
        sweep.kill()
    answer: dict[str, Any] = json.loads(out) if out.startswith("{") else {"given_up": []}
    if not answer["given_up"]:
        raise RuntimeError("no device was taken away: the sweep had failed, or was over; what it said is above")
    fates = [result["fate"] for result in answer["results"]]
    return {
        "job": "taken", "gpus": n, "problems": len(fates) - fates.count("failed"), "before": before,
        "failed": fates.count("failed"), "left": len(answer["left"]), "given_up": answer["given_up"],
        "wall_s": answer["wall_s"], "uses": answer["uses"],
    }  # fmt: skip


def finished(folder: Path) -> int:
    """How many problems the sweep's own file says are done."""
    return sum(path.read_bytes().count(b'"task"') for path in (folder / "ours" / "sweeps").glob("*.jsonl"))
