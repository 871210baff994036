"""A sweep over 200 problems of the shipped CPU kernels, with two workers, local and on Ray; killed ten times. No GPU.

    python benchmarks/sweep_cpu.py

Softmax, matrix product and convolution in C, of tiny sizes, most knobs held (9 to 20 configurations), measured in
earnest by two workers, each on a core of its own. At the end, as in every such sweep, close choices that were made
while others were at work on the core are raced again, and those near the fastest are timed in up to five other
processes. Where no quiet moment came for some, the sweep goes on with --resume, twice at most; `unconfirmed` is
what is left of the three sweeps then.

`local` and `ray` sweep all of it into an empty store each. Their choices agree where they are the same configuration or
one that the other's search could not tell from its own (a tie). Where they do not, the two configurations are timed as
a search times them, in 60 rounds side by side, in processes, one on each core at a time, 5 s from their end to the next
two: where memory and code happen to lie in a process makes one of two faster by a percent or two in all its rounds, so
that each process is one sample. A machine that others share has minutes in which both take up to twice as long and
another of the two is the faster: 8 processes count whose core was not shared then (all, where those are fewer than 5 of
24). They are told apart where one is slower by more than the margin of 1 %, by the lower 95 % bound; all others are
ties, too (`same_or_tied`). `within_3_percent` and `worst_ratio` are of the means; `of_all_same_or_tied` counts the
disturbed processes, too. `killed_` are the same figures of `local` and the sweep that was killed (below). What two
local sweeps would disagree on is not measured: that what differs is Ray's is not said.

`killed` sweeps it once more, and the driver is killed (SIGKILL) ten times, each after a random number of races
and a random time, and started again with --resume. At each kill the store is looked at. In the end no problem may have
had more races than the sweep counts (its search, and the later ones), but for those that were under way at a kill:
`measured_twice` counts the Trials of others, `timed_again` is the part of all Trials that those under way had stored.

`worker` kills a worker in the middle of 40 problems; `poison` has a problem whose inputs kill whatever makes them among
12: all others must come to their end (`left_undone`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write
from _same_choices import Apart, Chosen, choices, differing, told_apart

HERE = Path(__file__).parent
KERNELS = HERE / "_sweep_kernels.py"
PROBLEMS = """
targets: [{kernels}:softmax, {kernels}:matmul, {kernels}:conv2d]
problems:
  - kernel: softmax
    rows: [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    n: [32, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
  - kernel: matmul
    M: [8, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    N,K: [[64, 64], [128, 64], [64, 128], [96, 96], [128, 128], [256, 128]]
  - kernel: conv2d
    N: 1
    C: [4, 8]
    H,W: [[16, 16], [20, 20], [24, 24], [28, 28], [32, 32]]
    K: [8, 16]
    R,S: [[1, 1], [3, 3]]
"""
COUNT, KILLS, SEED = 200, 10, 0
CORES = 0, 1
DEVICES = ",".join(f"cpu:{core}" for core in CORES)
#: a search picks among those within 1 % of the fastest
MARGIN, NEARLY = 1.01, 1.03
PROCESSES, APART_S = 8, 5.0
#: so often a sweep goes on that found no quiet moment for some of its problems
RESUMES = 2
COUNTED = "same_or_tied", "of_all_same_or_tied", "within_3_percent"


def command(file: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tunesmith", "sweep", str(file), "--devices", DEVICES, "--json", *more]


def environment(store: Path) -> dict[str, str]:
    return {**os.environ, "TUNESMITH_CACHE_DIR": str(store)}


def swept(file: Path, store: Path, *more: str) -> dict[str, Any]:
    """One whole sweep, and as often as is useful its --resume: what it said first, with what was left at the end."""
    first = answer = _swept(file, store, *more)
    for _ in range(RESUMES):
        if not unconfirmed(answer):
            break
        answer = _swept(file, store, *more, "--resume")
        first["wall_s"] += answer["wall_s"]
    return {**first, "unconfirmed": unconfirmed(answer)}


def unconfirmed(answer: Mapping[str, Any]) -> int:
    """How many choices were made while others used the core, or wait for other processes to say the same."""
    return sum(row["again"] or row["open"] for row in answer["results"])


def _swept(file: Path, store: Path, *more: str) -> dict[str, Any]:
    ended = subprocess.run(command(file, *more), env=environment(store), capture_output=True, text=True)
    if not ended.stdout.startswith("{"):
        sys.exit(f"the sweep failed:\n{ended.stderr[-3000:]}")
    return json.loads(ended.stdout)


# --- the same choices ---------------------------------------------------------------------------------


def compared(ours: Path, others: Sequence[Path]) -> list[dict[str, Any]]:
    """One store's choices beside those of each other one; what differs in any is timed in the same processes."""
    one, theirs = choices(ours), [choices(other) for other in others]
    differ = [(number, name) for number, other in enumerate(theirs) for name in differing(one, other)]
    pairs = [
        (name[0].partition("[")[0], name[1], [one[name]["config"], theirs[number][name]["config"]])
        for number, name in differ
    ]  # fmt: skip
    found = dict(zip(differ, told_apart(KERNELS.stem, pairs, PROCESSES, CORES, APART_S), strict=True))
    return [
        _row(one, other, {name: apart for (mine, name), apart in found.items() if mine == number})
        for number, other in enumerate(theirs)
    ]


def _row(one: Chosen, other: Chosen, found: Mapping[tuple[str, str], Apart]) -> dict[str, Any]:
    return {
        "problems": len(one), "same_problems": one.keys() == other.keys(),
        "same": sum(one[name]["config"] == other[name]["config"] for name in one),
        "tied": len(one) - len(found),
        "differing": {f"{name[0]}({name[1]})": asdict(apart) for name, apart in found.items()},
        "same_or_tied": len(one) - sum(apart.low > MARGIN for apart in found.values()),
        "of_all_same_or_tied": len(one) - sum(apart.low_of_all > MARGIN for apart in found.values()),
        "within_3_percent": len(one) - sum(apart.ratio > NEARLY for apart in found.values()),
        "worst_ratio": max([1.0, *[apart.ratio for apart in found.values()]]),
    }  # fmt: skip


# --- killed -------------------------------------------------------------------------------------------


#: of a key (its number in the store), the dates of its searches and looks → the Trials of each, by Config
Searches = dict[int, dict[str, set[str]]]


def history(store: Path) -> tuple[Searches, dict[int, int]]:
    """(what was measured, by key how many races the sweep's own file says came to an end)."""
    searches: Searches = {}
    if not (store / "store.sqlite").exists():
        return searches, {}
    with sqlite3.connect(store / "store.sqlite") as connection:
        names = {_name(json.loads(key)): number for number, key in connection.execute("SELECT id, data FROM keys")}
        for key, config, at in connection.execute("SELECT key, config, at FROM trials"):
            searches.setdefault(key, {}).setdefault(at, set()).add(config)
    looks: dict[int, int] = {}
    for path in (store / "sweeps").glob("*.jsonl"):
        for line in filter(None, path.read_text().splitlines()):
            with suppress(ValueError):  # torn: its writer was killed
                result = json.loads(line)["result"]
                looks[names[_name(result["key"])]] = result["looks"]
    return searches, looks


def _name(key: Mapping[str, str]) -> tuple[str, str]:
    return key["kernel"], key["problem"]


def finished(store: Path) -> int:
    """How many searches and later looks the sweep's own file says are done."""
    return sum(path.read_bytes().count(b'"task"') for path in (store / "sweeps").glob("*.jsonl"))


def killed(file: Path, store: Path) -> dict[str, Any]:
    rng, before, kills = random.Random(SEED), [], []
    for number in range(KILLS):
        already = finished(store)
        said = store.with_name(f"said-{number}")
        with open(said, "w") as log:
            driver = subprocess.Popen(
                command(file, "--resume"), env=environment(store), stdout=subprocess.DEVNULL, stderr=log
            )
        wanted = already + rng.randint(4, 14)  # fewer than there are in all, where none is raced again
        while finished(store) < wanted and driver.poll() is None:
            time.sleep(0.2)
        time.sleep(rng.random())
        if driver.poll() is not None:
            sys.exit(f"the driver ended by itself:\n{said.read_text()[-3000:]}")
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        time.sleep(0.5)  # its workers are gone
        before.append(history(store))
        kills.append({"kill": number, "done": finished(store), "problems": len(before[-1][1])})
        print(kills[-1], flush=True)
    start = time.monotonic()
    answer = swept(file, store, "--resume")
    twice, again = repeated([*before, history(store)])
    trials = sum(len(mine) for by_date in history(store)[0].values() for mine in by_date.values())
    return {
        "job": "killed", "kills": kills, "wall_last_s": time.monotonic() - start, "measured_twice": twice,
        "timed_again": again, "trials": trials,
        "left": len(answer["left"]), "failed": sum(row["fate"] == "failed" for row in answer["results"]),
        "problems": len(answer["results"]), "unconfirmed": answer["unconfirmed"],
    }  # fmt: skip


def repeated(seen: Sequence[tuple[Searches, Mapping[int, int]]]) -> tuple[int, int]:
    """(Trials of races beyond those that came to an end and those that a kill cut short, those of the latter).

    Args:
        seen: what there was at each kill, and at the end.
    """
    searches, looks = seen[-1]
    cut: dict[int, set[str]] = {}  # by key, the dates of races that were under way at a kill
    for then, ended in seen[:-1]:
        for key, by_date in then.items():
            under_way = sorted(by_date.keys() - cut.get(key, set()))[ended.get(key, 0) :]
            cut.setdefault(key, set()).update(under_way)
    twice = again = 0
    for key, by_date in searches.items():
        whole = sorted(by_date.keys() - cut.get(key, set()))
        twice += sum(len(by_date[at]) for at in whole[looks.get(key, 0) :])
        again += sum(len(by_date[at]) for at in cut.get(key, set()))
    return twice, again


# --- deaths -------------------------------------------------------------------------------------------


def worker_killed(folder: Path) -> dict[str, Any]:
    file, store = folder / "forty.yaml", folder / "worker"
    file.write_text(
        f"targets: ['{KERNELS}:softmax']\nproblems: [{{rows: [1, 2, 4, 8], n: {{range: [16, 160, 16]}}}}]\n"
    )
    sweep = subprocess.Popen(command(file), env=environment(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while finished(store) < 5 and sweep.poll() is None:
        time.sleep(0.2)
    mine = subprocess.run(["pgrep", "-P", str(sweep.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(mine[0]), signal.SIGKILL)
    out, said = sweep.communicate()
    answer = json.loads(out)
    return {
        "job": "worker", "problems": len(answer["results"]), "left": len(answer["left"]),
        "failed": sum(row["fate"] == "failed" for row in answer["results"]), "lost_workers": said.count(b"is lost"),
    }  # fmt: skip


def poisoned(folder: Path) -> dict[str, Any]:
    file = folder / "poison.yaml"
    file.write_text(f"targets: ['{KERNELS}:poisoned']\nproblems: [n: {{range: [8, 19, 1]}}]\n")
    answer = swept(file, folder / "poison")
    failed = [row for row in answer["results"] if row["fate"] == "failed"]
    return {
        "job": "poison", "problems": len(answer["results"]), "left": len(answer["left"]),
        "failed": [row["problem"] for row in failed], "why": [row["error"] for row in failed],
    }  # fmt: skip


# --- the benchmark ------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--only-killed", action="store_true", help="no result: the driver is killed, nothing else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.only_killed:
            file = Path(scratch) / "problems.yaml"
            file.write_text(PROBLEMS.format(kernels=KERNELS))
            print(killed(file, Path(scratch) / "killed"))
            return
        rows, summary = measured(Path(scratch))
    for name, value in summary.items():
        print(f"{name:18} {value:8.3f}")
    path = write(
        "sweep_cpu", "cpu", protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/sweep_cpu.py", rows=rows, summary=summary,
        versions={package: version(package) for package in ("numpy", "ray")}, folder=options.folder,
    )  # fmt: skip
    print(path)


def measured(folder: Path) -> tuple[list[dict[str, Any]], dict[str, float]]:
    file = folder / "problems.yaml"
    file.write_text(PROBLEMS.format(kernels=KERNELS))
    rows: list[dict[str, Any]] = []
    for job in ("local", "ray"):
        answer = swept(file, folder / job, "--executor", job)
        fates = [row["fate"] for row in answer["results"]]
        rows.append({
            "job": job, "wall_s": answer["wall_s"], "problems": len(fates), "tuned": fates.count("tuned"),
            "left": len(answer["left"]), "unconfirmed": answer["unconfirmed"],
            "seconds": sum(row["seconds"] for row in answer["results"]),
            "compile_s": sum(row["compile_s"] for row in answer["results"]),
            "measure_s": sum(row["measure_s"] for row in answer["results"]),
        })  # fmt: skip
        print(rows[-1], flush=True)
    for job in (lambda: killed(file, folder / "killed"), lambda: worker_killed(folder), lambda: poisoned(folder)):
        rows.append(job())
        print(rows[-1], flush=True)
    both = compared(folder / "local", [folder / "ray", folder / "killed"])
    rows += [{"job": job, **row} for job, row in zip(("compared", "compared killed"), both, strict=True)]
    local, ray, kills, worker, poison, same, resumed = rows
    return rows, {
        "problems": local["tuned"], "wall_local_s": local["wall_s"], "wall_ray_s": ray["wall_s"],
        **{name: same[name] / COUNT for name in COUNTED}, "worst_ratio": same["worst_ratio"],
        **{f"killed_{name}": resumed[name] / COUNT for name in COUNTED}, "killed_worst_ratio": resumed["worst_ratio"],
        "unconfirmed": local["unconfirmed"] + ray["unconfirmed"] + kills["unconfirmed"],
        "measured_twice": kills["measured_twice"], "timed_again": kills["timed_again"] / kills["trials"],
        "left_undone": local["left"] + ray["left"] + kills["left"] + worker["left"] + poison["left"]
        + (COUNT - local["tuned"]) + (COUNT - kills["problems"]) + (40 - worker["problems"]),
    }  # fmt: skip


if __name__ == "__main__":
    main()
