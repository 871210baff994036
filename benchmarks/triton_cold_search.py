"""A cold search through a whole space of a Triton kernel, against `triton.autotune` on the same list. Needs a GPU.

    python benchmarks/triton_cold_search.py

The kernel is the matrix product of `examples/`, in float16 at 4096 x 4096 x 4096; the space has 480 configurations, of
which 56 need more shared memory than an H200 has. Each search runs in a process of its own with empty caches; its time
is that of the first call, from the moment when the imports are done, the CUDA context is there and the inputs are made.
`ours480` has the kernel's model (`model=Tiles()`) say which 48 of the 480 are compiled and timed (`candidates=48`);
`ours480_all` compiles and times all.

`triton.autotune` gets 64 configurations, drawn from the 480 with a fixed seed, and so does ours beside it, which tries
them all (`speedup_same_list`); for the whole list its time is scaled by the number of configurations (`speedup_480`),
unless --whole lets it search that too. Its choice, ours, and the ten fastest of all (timed exhaustively) are then timed
side by side in interleaved rounds; `regret` is how much longer ours takes than the fastest. `next_shape_s` is the first
call of another shape in the same process.

20 more searches like `ours480`, whose binaries are in Triton's cache, say how often the choice is the same: with the
default pick, the cheapest of those shown to be within 1 % of the fastest, and as many with `pick="fastest"`. `interval`
is what 200 samples each say of a winner over the fastest of all: the 95 % interval of the paired ratio's median.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

SHAPE, NEXT = (4096, 4096, 4096), (8192, 1024, 8192)
AXES = {
    "BLOCK_M": [16, 32, 64, 128, 256], "BLOCK_N": [32, 64, 128, 256], "BLOCK_K": [32, 64, 128],
    "num_warps": [4, 8], "num_stages": [2, 3, 4, 5],
}  # fmt: skip
SUBLIST, SEED = 64, 0
#: of 480, with the model
CANDIDATES = 48
SEARCHES, SIDE_BY_SIDE, FINALISTS = 20, 200, 10
PICKS = ("cheapest", "fastest")


# --- in a process of its own --------------------------------------------------------------------------


def space() -> Any:
    from tunesmith import Space

    return Space(AXES)


def sublist() -> list[Any]:
    return random.Random(SEED).sample(list(space()), SUBLIST)


def call_of(shape: tuple[int, int, int]) -> tuple[Any, tuple[Any, ...]]:
    """(grid, arguments) of a product: random inputs on the GPU."""
    import torch
    from triton_gemm import inputs

    from tunesmith import Problem

    made = inputs(Problem(dict(zip("MNK", shape, strict=True))))
    torch.cuda.synchronize()
    return made.pop("grid"), tuple(made.values())


def seconds(kernel: Any, shape: tuple[int, int, int]) -> float:
    """Of the first call of a shape, until its result is there."""
    import torch

    grid, args = call_of(shape)
    start = time.perf_counter()
    kernel[grid](*args)
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    a, b, c = args[:3]
    torch.testing.assert_close(c[:256].double(), a[:256].double() @ b.double(), rtol=1e-2, atol=0.3)
    return took


def stock(whole: bool) -> dict[str, Any]:
    """triton.autotune's search."""
    import triton
    from triton_gemm import gemm

    configs = [triton_config(config) for config in (list(space()) if whole else sublist())]
    kernel = triton.autotune(configs=configs, key=["M", "N", "K"])(gemm.fn)
    took = seconds(kernel, SHAPE)
    best = kernel.best_config
    chosen = {**best.kwargs, "num_warps": best.num_warps, "num_stages": best.num_stages}
    return {"seconds": took, "configs": len(configs), "chosen": chosen}


def triton_config(config: Any) -> Any:
    import triton

    options = {name: config[name] for name in ("num_warps", "num_stages")}
    return triton.Config({name: value for name, value in config.items() if name not in options}, **options)


def tuned(name: str, *, modelled: bool = False, **more: Any) -> Any:
    from triton_gemm import gemm

    import tunesmith

    bounded = {"model": tunesmith.Tiles(), "candidates": CANDIDATES} if modelled else {}
    return tunesmith.autotune(key=["M", "N", "K"], name=name, **bounded, **more)(gemm.fn)


def ours(*, whole: bool, modelled: bool = False) -> dict[str, Any]:
    """Our search; of the whole space, the next shape too."""
    listed = {"space": space()} if whole else {"configs": sublist()}
    kernel = tuned("cold", modelled=modelled, **listed)
    took = seconds(kernel, SHAPE)
    grid, args = call_of(SHAPE)
    choice = kernel.choice(*args, grid=grid)
    found = {"seconds": took, "chosen": dict(choice.config), "ties": len(choice.ties), "candidates": choice.candidates}
    if whole:
        found["next_shape_s"] = seconds(kernel, NEXT)
    return found


def again(pick: str) -> dict[str, Any]:
    """Searches with warm compilers and a store each of their own."""
    winners: list[dict[str, Any]] = []
    took: list[float] = []
    for i in range(SEARCHES):
        kernel = tuned(f"again_{pick}{i}", modelled=True, space=space(), pick=pick)
        took.append(seconds(kernel, SHAPE))
        grid, args = call_of(SHAPE)
        winners.append(dict(kernel.choice(*args, grid=grid).config))
    return {"seconds": took, "winners": winners}


def side_by_side(named: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All Configs timed 10 times, then the fastest and the named ones 200 times, in rounds of random order."""
    from triton_gemm import gemm

    import tunesmith
    from tunesmith import Config
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.core.stats import median, median_interval
    from tunesmith.kernel import Built, Run
    from tunesmith.measure.clock import clock_for
    from tunesmith.workers import compile_all

    grid, args = call_of(SHAPE)
    kernel = TritonKernel(gemm.fn, space().knobs)
    full = kernel.signature.bind(grid, *args)
    full.apply_defaults()
    every = tuple(full.arguments.values())
    mine, device = kernel.for_call(every), kernel.device(every)
    problem = tunesmith.Problem({})
    jobs = ((config, mine.compile_job(config, problem, device)) for config in space())
    runs = {
        config: Run(mine.load(config, problem, built), every)
        for config, built in compile_all(jobs, os.cpu_count() or 1) if isinstance(built, Built)
    }  # fmt: skip
    clock, rng = clock_for(device), random.Random(SEED)

    def timed(configs: list[Config], rounds: int) -> dict[Config, list[float]]:
        found: dict[Config, list[float]] = {config: [] for config in configs}
        for _ in range(rounds):
            for config in rng.sample(configs, len(configs)):
                found[config].append(clock.sample(runs[config]).seconds)
        return found

    roughly = {config: median(samples) for config, samples in timed(list(runs), 10).items()}
    finalists = sorted(roughly, key=roughly.__getitem__)[:FINALISTS]
    wanted = {name: Config(config) for name, config in named.items()}
    samples = timed(list(dict.fromkeys([*finalists, *wanted.values()])), SIDE_BY_SIDE)
    exactly = {config: median(of) for config, of in samples.items()}
    fastest = min(exactly, key=exactly.__getitem__)

    def interval(config: Config) -> tuple[float, float]:
        return median_interval([a / b for a, b in zip(samples[config], samples[fastest], strict=True)])

    return {
        "ran": len(runs), "fastest": dict(fastest), "fastest_s": exactly[fastest],
        "over": {name: exactly[config] / exactly[fastest] for name, config in wanted.items()},
        "interval": {name: interval(config) for name, config in wanted.items()},
    }  # fmt: skip


# --- the benchmark ------------------------------------------------------------------------------------


def fresh(job: str, folder: Path, *args: str) -> dict[str, Any]:
    """Run one of the jobs above in a new process, with caches in a folder."""
    environment = {
        **os.environ,
        "TUNESMITH_CACHE_DIR": str(folder / "ours"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    command = [sys.executable, __file__, "--job", job, *args]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{job} failed:\n{ended.stderr[-3000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="let triton.autotune search all 480 (some 5 minutes)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--named", default="{}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        "stock": lambda: stock(False),
        "stock480": lambda: stock(True),
        "ours": lambda: ours(whole=False),
        "ours480": lambda: ours(whole=True, modelled=True),
        "ours480_all": lambda: ours(whole=True),
        **{f"again_{pick}": partial(again, pick) for pick in PICKS},
        "side_by_side": lambda: side_by_side(json.loads(options.named)),
    }
    if options.job:
        print(json.dumps(jobs[options.job]()))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), options.whole)
    report(rows, options.folder)


def measure(scratch: Path, whole: bool) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for job in ("ours480", "ours480_all", "stock", "ours", *(["stock480"] if whole else [])):
        found[job] = fresh(job, scratch / job)
        print(f"{job:10} {found[job]['seconds']:7.1f} s", flush=True)
    named = {job: found[job]["chosen"] for job in ("ours480", "ours480_all", "ours", "stock")}
    for pick in PICKS:
        more = found[f"again_{pick}"] = fresh(f"again_{pick}", scratch / "ours480")
        distinct = {json.dumps(winner, sort_keys=True): winner for winner in more["winners"]}
        named |= {f"{pick} {i}": winner for i, winner in enumerate(distinct.values())}
        more["distinct"] = len(distinct)
    found["side_by_side"] = fresh("side_by_side", scratch / "ours480_all", "--named", json.dumps(named))
    return found


def report(found: dict[str, dict[str, Any]], folder: Path) -> None:
    import torch

    whole_s = found["stock480"]["seconds"] if "stock480" in found else found["stock"]["seconds"] * 480 / SUBLIST
    over = found["side_by_side"]["over"]
    summary = {
        "speedup_same_list": found["stock"]["seconds"] / found["ours"]["seconds"],
        "speedup_480": whole_s / found["ours480"]["seconds"], "regret": over["ours480"] - 1,
        "speedup_480_all": whole_s / found["ours480_all"]["seconds"],
        "regret_all": over["ours480_all"] - 1, "next_shape_all_s": found["ours480_all"]["next_shape_s"],
        "regret_stock_of_64": over["stock"] - 1, "regret_ours_of_64": over["ours"] - 1,
        "next_shape_s": found["ours480"]["next_shape_s"],
    }  # fmt: skip
    for pick, of in (("cheapest", ""), ("fastest", "_fastest")):
        summary[f"distinct_winners_of_20{of}"] = found[f"again_{pick}"]["distinct"]
        summary[f"worst_of_the_winners{of}"] = max(v for name, v in over.items() if name.startswith(f"{pick} ")) - 1
    for name, value in summary.items():
        print(f"{name:24} {value:8.3f}")
    rows = [{"job": job, **values} for job, values in found.items()]
    path = write(
        "triton_cold_search", torch.cuda.get_device_name().split()[-1].lower(),
        protocol={"what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), "scaled": "stock480" not in found},
        command="python benchmarks/triton_cold_search.py", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=folder,
    )  # fmt: skip
    print(path)


if __name__ == "__main__":
    main()
