"""A sweep over 512 matrix products on 1, 2, 4, … GPUs of one host, by local workers and on Ray. Needs GPUs.

    python benchmarks/scale.py

The fp16 matrix product of `examples/` over 480 configurations, of which its model says which 120 are tried, for 128
values of M from 1 to 8192 with the weights of four layers of Llama-3.1-8B; --count takes fewer of them, evenly spread.
`tunesmith sweep` gets the same list on each number of GPUs, into an empty store, with empty caches of compiled kernels:
all that a command needs is compiled within its time, and its compilers share the cores of the host, whatever the number
of GPUs (so one GPU has all cores for its compilers). `per_s` is problems per second of the whole command, from start to
end; `efficiency` of n GPUs is that over n times what one GPU did under the same executor (under `local`, where that
was not run), the least of all; `efficiency_begun` is the same without the time in which workers start.

A sweep that does not end within the command's time is interrupted, and goes on with --resume when the same command is
run again; its time is the sum, without the later parts' starts.

`shares` say what the devices did with the time of the sweep, as the sweep itself tells it; the largest that is not
measuring is the `bottleneck`. `compilations` counts kernels that were compiled, those compiled twice by two workers
included; `compiler_s` are the seconds of one core that took.

The choices of every sweep are compared with those of the first one: they agree where they are the same configuration or
one that the other's search could not tell from its own (a tie). Where they do not, the two are timed in 60 rounds side
by side on one GPU; beyond the margin of 1 % it is one of `disagreements`.

`taken` sweeps some of the problems on all GPUs, and takes one of them away in the middle: its worker is killed
(SIGKILL), and so is every worker after it that begins on this GPU. The others have to do all (`left_undone`).

`ranks` is a job of torch.distributed with a rank for each GPU (NCCL), each with a store of its own and the problems in
an order of its own, first with empty stores, then once more with what these have (`cold`, `warm`): all ranks have to
use the same configuration for each problem, and the second time nothing may be searched (`rank_disagreements`).

--gpus 1,2,4 says which numbers of GPUs, --executors and --only which executors and parts. --keep FOLDER keeps what was
found: the same command goes on from it, and one with other numbers adds to it. --cpu does all of it in small with a C
kernel, each device a core, to see that it runs; there is no result then but where --folder says where.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _scale_jobs
from _kept import Cases, Unfinished, arguments, caches, judge
from _results import FOLDER, version, write
from _scale_sweeps import ROWS, Plan, environment, plan_of, swept, taken
from sweep import WEIGHTS

from tunesmith.sweep.devices import VISIBLE, usable_cores

COUNT = len(ROWS) * len(WEIGHTS)
EXECUTORS = ("local", "ray")
PARTS = ("sweeps", "taken", "ranks", "compared")
#: problems of `taken` for each GPU; M of the ranks' problems
TAKEN_EACH, RANKED = 8, (1, 64, 4096)
#: configurations within this are tied
MARGIN = 1.01
WANTED = {"efficiency": ">= 0.9", "disagreements": "<= 0", "left_undone": "<= 0", "rank_disagreements": "<= 0"}
JOBS: Mapping[str, Callable[..., Any]] = {
    "machine": _scale_jobs.machine, "compared": _scale_jobs.compared, "rank": _scale_jobs.rank
}  # fmt: skip


def ranked(plan: Plan, n: int, folder: Path, kind: str, cases: Cases) -> dict[str, Any]:
    """A job with a rank for each device, `cold` or `warm`."""
    if cases.left_s < 2 * plan.least_s:
        raise Unfinished("there is no time for it")
    if kind == "warm" and not row_file(folder.parent, f"{folder.name}-cold").exists():
        raise Unfinished("the cold job is not done")
    if kind == "cold":
        shutil.rmtree(folder, ignore_errors=True)
    rows = plan.rows[:2] if plan.cpu else RANKED
    problems = [
        f"M={m},N={weights[0]},K={weights[1]}" for m in rows for weights in plan.weights[: 1 if plan.cpu else 2]
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1",
           "NCCL_NVLS_ENABLE": "0", "TUNESMITH_JOBS": str(max(1, len(usable_cores()) // n))}  # fmt: skip
    ranks = [
        subprocess.Popen(
            asked("rank", {"target": plan.target, "problems": problems, "cpu": plan.cpu}), text=True,
            env={**environment(folder / f"rank{rank}", folder / "triton"), **job, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(n)
    ]  # fmt: skip
    try:
        end = time.monotonic() + max(60.0, cases.left_s)
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            if time.monotonic() > end:
                raise RuntimeError("the ranks did not end in time")
            time.sleep(0.1)
        said = [answer_of(rank, "rank") for rank in sorted(ranks, key=lambda rank: rank.poll() is None)]
    finally:
        for rank in ranks:
            rank.kill()
    return {
        "job": kind, "gpus": n, "problems": len(problems), "differ": sorted({p for one in said for p in one["differ"]}),
        "searched": sum(len(one["searched"]) for one in said), "took_s": max(one["took_s"] for one in said),
        "used": said[0]["used"],
    }  # fmt: skip


def compare(plan: Plan, folder: Path, first: str, other: str) -> dict[str, Any]:
    """The choices of a sweep against those of the first, on the first device."""
    missing = [name for name in (first, other) if not row_file(folder, name).exists()]
    if missing:
        raise Unfinished(f"{missing[0]} is not done")
    given = {"target": plan.target, "ours": f"{folder}/{first}/ours", "theirs": f"{folder}/{other}/ours"}
    environ = environment(folder / "compared", folder / first / "triton")
    if not plan.cpu:
        environ[VISIBLE] = os.environ.get(VISIBLE, "0").split(",")[0]
    return {"job": "compared", "sweep": other, "with": first, **fresh("compared", given, environ)}


def asked(job: str, given: Mapping[str, Any]) -> list[str]:
    return [sys.executable, __file__, "--job", job, "--given", json.dumps(given)]


def fresh(job: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> Any:
    """One of `_scale_jobs` in a new process."""
    return answer_of(subprocess.Popen(asked(job, given), env=environ, stdout=subprocess.PIPE, text=True), job)


def answer_of(process: subprocess.Popen[str], job: str) -> Any:
    out = process.communicate()[0]
    if process.returncode:
        raise RuntimeError(f"{job} ended with exit code {process.returncode}; what it said is above")
    return json.loads(out.splitlines()[-1])


# --- all of it ----------------------------------------------------------------------------------------


def cases_of(
    plan: Plan, options: argparse.Namespace, sizes: Sequence[int], folder: Path, cases: Cases
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured, by name, in this order; beside what was asked for, what an earlier command has measured."""
    every = [(executor, n) for executor in EXECUTORS for n in range(1, len(plan.devices) + 1)]
    asked_for = options.executors if "sweeps" in options.only else []
    wanted = [
        (executor, n) for executor, n in every
        if (n in sizes and executor in asked_for) or row_file(folder, f"{executor}-{n}").exists()
    ]  # fmt: skip
    names = [f"{executor}-{n}" for executor, n in wanted]
    sweeps = {
        f"{executor}-{n}": partial(swept, plan, options.count, executor, n, folder / f"{executor}-{n}", cases)
        for executor, n in wanted
    }  # fmt: skip
    found = {name: make for name, make in sweeps.items() if name.startswith("local")}
    most = max(sizes)
    if most > 1 and "taken" in options.only:
        few = min(options.count, TAKEN_EACH * most)
        found[f"taken-{most}"] = partial(
            taken, plan, few, most, folder / f"taken-{most}", folder / f"local-{most}" / "triton", cases
        )  # fmt: skip
    for kind in ("cold", "warm") if "ranks" in options.only else ():
        found[f"ranks-{most}-{kind}"] = partial(ranked, plan, most, folder / f"ranks-{most}", kind, cases)
    found |= sweeps
    for name in names[1:] if "compared" in options.only else ():
        found[f"compared-{name}"] = partial(compare, plan, folder, names[0], name)
    return found


def row_file(folder: Path, name: str) -> Path:
    return folder / "rows" / f"{name}.json"


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What all rows say.

    Raises:
        SystemExit: where no sweep is done.
    """
    sweeps = [row for row in rows if row["job"] == "sweep"]
    if not sweeps:
        sys.exit("no sweep is done yet")
    widest = max(sweeps, key=lambda row: row["gpus"])
    compared = [row for row in rows if row["job"] == "compared"]
    ratios = [ratio for row in compared for ratio in row["ratios"].values()]
    undone = sum(row["left"] + row["failed"] for row in rows if row["job"] in ("sweep", "taken"))
    figures = {
        "gpus": widest["gpus"], "efficiency": efficiency(sweeps, lambda row: row["wall_s"]),
        "disagreements": sum(ratio > MARGIN for ratio in ratios),
        "efficiency_begun": efficiency(sweeps, lambda row: row["wall_s"] - row["start_s"]),
        "problems": widest["problems"], "left_undone": undone, "worst_ratio": max([1.0, *ratios]),
        "compared": sum(row["problems"] for row in compared), "rank_disagreements": rank_disagreements(rows),
        "measuring": widest["shares"]["measure_s"], "waiting_for_compilers": widest["shares"]["compile_s"],
    }  # fmt: skip
    walls = {f"{row['executor']}_{row['gpus']}_s": row["wall_s"] for row in sweeps}
    return {**figures, **walls}


def efficiency(sweeps: Sequence[Mapping[str, Any]], took: Callable[[Mapping[str, Any]], float]) -> float:
    """The least throughput for each GPU, over that of the fewest GPUs under the same executor, else under `local`."""

    def each(row: Mapping[str, Any]) -> float:
        return row["problems"] / took(row) / row["gpus"]

    found = [1.0]
    for row in sweeps:
        alike = [one for one in sweeps if one["executor"] == row["executor"]]
        fewest = min([one for one in alike if one["gpus"] == 1] or sweeps, key=lambda one: one["gpus"])
        if row["gpus"] > fewest["gpus"]:
            found.append(each(row) / each(fewest))
    return min(found)


def rank_disagreements(rows: Sequence[Mapping[str, Any]]) -> int:
    """Problems on which ranks did not agree, or the warm job not with the cold one; and what the warm one searched."""
    cold = next((row for row in rows if row["job"] == "cold"), None)
    warm = next((row for row in rows if row["job"] == "warm"), None)
    differ = sum(len(row["differ"]) for row in (cold, warm) if row is not None)
    if cold is None or warm is None:
        return differ
    return differ + warm["searched"] + sum(warm["used"][one] != config for one, config in cold["used"].items())


def sizes_of(text: str | None, there: int) -> list[int]:
    """Numbers of GPUs: those asked for, else 1, 2, 4, … up to what there is."""
    if text is None:
        return [n for n in (2**power for power in range(20)) if n <= there]
    sizes = sorted({int(one) if one.strip().isdecimal() else 0 for one in text.split(",")})
    if not all(1 <= n <= there for n in sizes):
        sys.exit(f"--gpus {text}: good ones: numbers from 1 to {there}, as 1,2,4")
    return sizes


def words_of(good: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads an option that is some of these words."""

    def words(text: str) -> list[str]:
        if not {*text.split(",")} <= {*good}:
            raise argparse.ArgumentTypeError(f"{text}: good ones: {', '.join(good)}")
        return text.split(",")

    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the result goes")
    parser.add_argument("--count", type=int, default=COUNT, help=f"problems, a multiple of {len(WEIGHTS)} ({COUNT})")
    parser.add_argument("--gpus", help="on how many, as 1,2,4 (1, 2, 4, … up to what there is)")
    parser.add_argument("--executors", type=words_of(EXECUTORS), default=list(EXECUTORS), help="local, ray or both")
    parser.add_argument("--only", type=words_of(PARTS), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--cpu", action="store_true", help="in small on two cores: no result but where --folder says")
    arguments(parser)
    for hidden in ("--job", "--given"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(JOBS[options.job](**json.loads(options.given))))
        return
    if "ray" in options.executors and find_spec("ray") is None:
        print("Ray is not installed: what is on Ray is left out", flush=True)
        options.executors.remove("ray")
    with caches(options.keep) as folder:
        there: dict[str, Any] = {"name": "cpu"} if options.cpu else fresh("machine", {}, os.environ)
        plan = plan_of(options.cpu, there.get("gpus", 0))
        if not plan.devices:
            sys.exit("there is no GPU that torch sees; --cpu does it in small without one")
        cases = Cases(folder, options.limit)
        rows: list[dict[str, Any]] = []
        sizes = sizes_of(options.gpus, len(plan.devices))
        for row in cases.rows(cases_of(plan, options, sizes, folder, cases)):
            rows.append(row)
            print({name: value for name, value in row.items() if name not in ("uses", "used")}, flush=True)
    conclude(rows, cases, options, there["name"])


def conclude(rows: Sequence[Mapping[str, Any]], cases: Cases, options: argparse.Namespace, device: str) -> None:
    """Write the result, and judge it."""
    summary = summary_of(rows)
    print("\n".join(f"{name:22} {value:9.4f}" for name, value in summary.items()))
    if not options.cpu or options.folder is not None:
        fewer = f" --count {options.count}" if options.count != COUNT else ""
        path = write(
            "scale", device, protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            command=f"python benchmarks/scale.py{' --cpu' if options.cpu else fewer}", rows=rows, summary=summary,
            versions={package: version(package) for package in ("torch", "triton", "ray")}, gpu=not options.cpu,
            folder=options.folder or FOLDER,
        )  # fmt: skip
        print(path)
    judge(summary, {} if options.cpu else WANTED, cases)


if __name__ == "__main__":
    main()
