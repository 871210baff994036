"""The fp16 matrix product over 480 configurations for 64 shapes, tuned in one sweep from empty caches. Needs a GPU.

    python benchmarks/sweep.py

The kernel of `examples/triton_gemm.py`, M in 16 sizes from 1 to 8192, with the weights of four layers of Llama-3.1-8B.
`tunesmith sweep` gets them all, on one GPU, with an empty store and no compiled kernel; `wall_s` is the command's time.
Of each shape, the kernel's model (`model=Tiles()`) says which 120 of the 480 are compiled and timed.

Then, for 8 of them, all configurations are timed in 3 rounds, and the 10 fastest of these and the chosen one again in
100 rounds side by side; `regret` is the chosen one's median over the smallest of these medians, less 1.

`triton.autotune` gets 16 of the 480, drawn with a fixed seed, for a shape of each of the three kinds that are compiled
apart (M is 1, a multiple of 16, another) and one more each, for which all is compiled. Its time for 480 is scaled by
their number, and `autotune_s_per_shape` is the mean of the 64: 3 that compile, 61 that do not.

--devices 0,1 sweeps on two GPUs, and does no more than that: its result is named by their number.

--keep FOLDER keeps what was found there, compiled kernels included: a run that was cut short after its sweep goes on
with what is left to compare.

--cpu does the same with a C kernel on the CPU, in small, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _kept import judge, once
from _results import FOLDER, version, write

HERE = Path(__file__).parent
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
#: (N, K) of qkv, o, gate_up, down
WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
CHECKED = (
    (1, 28672, 4096), (8, 4096, 14336), (16, 6144, 4096), (64, 4096, 4096), (256, 28672, 4096), (1024, 4096, 14336),
    (2048, 6144, 4096), (8192, 4096, 4096),
)  # fmt: skip
#: by kind, the shape that compiles and one that finds all compiled
STOCK = {"one": ((1, 4096, 4096), (1, 6144, 4096)), "other": ((4, 4096, 4096), (8, 4096, 4096)),
         "sixteens": ((4096, 4096, 4096), (64, 4096, 4096))}  # fmt: skip
SUBLIST, SEED = 16, 0
LOOK_ROUNDS, FINALISTS, SIDE_BY_SIDE = 3, 10, 100
#: the sweep is ended after so long; shapes are checked, at most, until so long after the begin
SWEEP_S, CHECK_S = 480.0, 540.0
WANTED = {"problems": ">= 64", "wall_s": "<= 480"}


@dataclass(frozen=True)
class Case:
    """What is swept: a target, shapes, how many of them are checked against all Configs; where."""

    target: str
    rows: Sequence[int]
    weights: Sequence[tuple[int, int]]
    checked: Sequence[tuple[int, int, int]]
    devices: str

    def yaml(self) -> str:
        weights = [list(one) for one in self.weights]
        return f"targets: ['{self.target}']\nproblems: [{{M: {list(self.rows)}, 'N,K': {weights}}}]\n"


def case(cpu: bool) -> Case:
    if cpu:
        shapes = ((16, 32, 32), (64, 64, 64))
        return Case(f"{HERE / '_sweep_kernels.py'}:matmul", (1, 16, 64), ((32, 32), (64, 64)), shapes, "cpu:0")
    return Case(f"{HERE / '_sweep_gemm.py'}:gemm", ROWS, WEIGHTS, CHECKED, "0")


def named(shape: Sequence[int]) -> str:
    return "M={},N={},K={}".format(*shape)


# --- in processes of their own ------------------------------------------------------------------------


def swept(folder: Path, cpu: bool, devices: str) -> dict[str, Any]:
    """The sweep, by its command."""
    file = folder / "problems.yaml"
    file.write_text(case(cpu).yaml())
    command = [sys.executable, "-m", "tunesmith", "sweep", str(file), "--devices", devices, "--json"]
    start = time.perf_counter()
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SWEEP_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"the sweep took more than {SWEEP_S:g} s")
    wall_s = time.perf_counter() - start
    if not ended.stdout.startswith("{"):
        sys.exit("the sweep failed; what it said is above")
    found = {**json.loads(ended.stdout), "wall_s": wall_s}
    return found


def checked(shape: Sequence[int], chosen: Mapping[str, Any], cpu: bool) -> dict[str, Any]:
    """The choice of one shape against the best of all Configs."""
    from tunesmith import Config, Measured, Space
    from tunesmith.cli.target import find_target

    kernel, choice = find_target(case(cpu).target), Config(chosen)
    arguments = kernel.inputs(named(shape))
    space: Any = kernel.subject(**arguments).space

    def medians(rounds: int, only: Sequence[Config]) -> dict[Config, float]:
        found = kernel.record(**arguments, rounds=rounds, only=list(only), isolate=False)
        return {t.config: t.outcome.median_s for t in found.trials if isinstance(t.outcome, Measured)}

    start = time.perf_counter()
    assert isinstance(space, Space)
    roughly = medians(LOOK_ROUNDS, list(space))
    finalists = sorted(roughly, key=roughly.__getitem__)[:FINALISTS]
    exactly = medians(SIDE_BY_SIDE, list(dict.fromkeys([*finalists, choice])))
    best = min(exactly, key=exactly.__getitem__)
    return {
        "shape": named(shape), "ran": len(roughly), "chosen": dict(choice), "chosen_s": exactly[choice],
        "best": dict(best), "best_s": exactly[best], "regret": exactly[choice] / exactly[best] - 1,
        "took_s": time.perf_counter() - start,
    }  # fmt: skip


def stock() -> list[dict[str, Any]]:
    """triton.autotune's time for a sublist, by kind of shape, with and without compiling."""
    import triton
    from _sweep_gemm import SPACE, triton_gemm
    from triton_cold_search import call_of, seconds, triton_config

    configs = [triton_config(config) for config in random.Random(SEED).sample(list(SPACE), SUBLIST)]
    kernel = triton.autotune(configs=configs, key=["M", "N", "K"])(triton_gemm.gemm.fn)
    call_of((16, 16, 16))  # the CUDA context
    return [
        {"kind": kind, "shape": named(shape), "compiles": compiles, "seconds": seconds(kernel, shape)}
        for kind, shapes in STOCK.items() for shape, compiles in zip(shapes, (True, False), strict=True)
    ]  # fmt: skip


def stock_on_cpu() -> list[dict[str, Any]]:
    """In place of triton.autotune, where there is no GPU: the same rows, of nothing."""
    return [
        {"kind": kind, "shape": named(shape), "compiles": compiles, "seconds": 1.0}
        for kind, shapes in STOCK.items() for shape, compiles in zip(shapes, (True, False), strict=True)
    ]  # fmt: skip


def fresh(job: str, folder: Path, cpu: bool, *more: str) -> Any:
    """One of the jobs above in a new process."""
    command = [sys.executable, __file__, "--job", job, *(["--cpu"] if cpu else []), *more]
    caches = {"TUNESMITH_CACHE_DIR": str(folder / "ours"), "TRITON_CACHE_DIR": str(folder / "triton")}
    ended = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        sys.exit(f"{job} failed; what it said is above")
    return json.loads(ended.stdout.splitlines()[-1])


# --- the benchmark ------------------------------------------------------------------------------------


def measure(scratch: Path, cpu: bool, devices: str) -> dict[str, Any]:
    """The sweep, from empty caches, or what an earlier run has kept of it."""
    os.environ |= {"TUNESMITH_CACHE_DIR": f"{scratch}/sweep/ours", "TRITON_CACHE_DIR": f"{scratch}/sweep/triton"}
    if not (scratch / "swept.json").exists():  # one that was cut short: caches are to be empty
        shutil.rmtree(scratch / "sweep", ignore_errors=True)
    (scratch / "sweep").mkdir(parents=True, exist_ok=True)
    found = once(scratch / "swept.json", lambda: swept(scratch / "sweep", cpu, devices))
    print(f"{len(found['results'])} shapes in {found['wall_s']:.1f} s", flush=True)
    for row in found["results"]:
        if row["fate"] != "tuned":
            print(f"{row['problem']}: {row['fate']}: {row['error']}", flush=True)
    return found


def compare(
    scratch: Path, cpu: bool, found: Mapping[str, Any], begun: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Some shapes checked against all Configs; triton.autotune's times."""
    stocks = stock_on_cpu() if cpu else once(scratch / "stock.json", lambda: fresh("stock", scratch / "stock", cpu))
    print(*[f"triton.autotune {row['kind']}: {row['seconds']:.1f} s" for row in stocks], sep="\n", flush=True)
    looked: list[dict[str, Any]] = []
    for shape in case(cpu).checked:
        if time.perf_counter() - begun > CHECK_S:
            sys.exit(
                f"only {len(looked)} of {len(case(cpu).checked)} shapes were checked in {CHECK_S:g} s; with --keep "
                "FOLDER, the same command goes on"
            )
        chosen = next(row["config"] for row in found["results"] if fields(row["problem"]) >= fields(named(shape)))
        if chosen is None:
            sys.exit(f"missed: {named(shape)} was not tuned, and there is nothing to check")
        given = ["--shape", json.dumps(shape), "--chosen", json.dumps(chosen)]
        path = scratch / f"checked-{'-'.join(map(str, shape))}.json"
        row = once(path, lambda given=given: fresh("checked", scratch / "sweep", cpu, *given))
        looked.append(row)
        print(f"{row['shape']:24} {row['ran']} ran  regret {row['regret']:7.2%}  {row['took_s']:.1f} s", flush=True)
    return looked, stocks


def fields(problem: str) -> set[str]:
    return set(problem.split(","))


def per_shape(stocks: Sequence[Mapping[str, Any]], count: int) -> float:
    """triton.autotune's mean time for a shape of so many, 480 configurations each, three of which compile them."""
    cold = [row["seconds"] for row in stocks if row["compiles"]]
    warm = [row["seconds"] for row in stocks if not row["compiles"]]
    mean_warm = sum(warm) / len(warm)
    return (sum(cold) + (count - len(cold)) * mean_warm) / count * 480 / SUBLIST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--cpu", action="store_true", help="a small one on the CPU: no result, it only runs")
    parser.add_argument("--devices", help="GPUs; with several, nothing but the sweep")
    parser.add_argument("--keep", type=Path, help="a folder for what was found so far, to go on from")
    for hidden in ("--job", "--shape", "--chosen"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job == "stock":
        print(json.dumps(stock()))
        return
    if options.job == "checked":
        print(json.dumps(checked(json.loads(options.shape), json.loads(options.chosen), options.cpu)))
        return
    begun, looked, stocks = time.perf_counter(), [], []
    devices = options.devices or case(options.cpu).devices
    alone = "," not in devices
    kept = options.keep and options.keep.resolve()
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch), options.cpu, devices)
        if alone:
            looked, stocks = compare(Path(scratch), options.cpu, found, begun)
    count = sum(row["fate"] == "tuned" for row in found["results"])
    summary = {"problems": count, "wall_s": found["wall_s"], "sweep_s_per_shape": found["wall_s"] / count}
    if alone:
        summary["worst_regret"] = max(row["regret"] for row in looked)
        summary["autotune_s_per_shape"] = per_shape(stocks, count)
    print("\n".join(f"{name:22} {value:9.4f}" for name, value in summary.items()))
    if options.cpu:
        return
    import torch

    rows = [
        *[{"job": "sweep", **row} for row in found["results"]], *[{"job": "checked", **row} for row in looked],
        *[{"job": "triton.autotune", **row} for row in stocks],
    ]  # fmt: skip
    path = write(
        "sweep" if alone else f"sweep_{len(devices.split(','))}_gpus", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/sweep.py" + ("" if alone else f" --devices {devices}"), rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    )  # fmt: skip
    print(path)
    judge(summary, WANTED if alone else {})


if __name__ == "__main__":
    main()
