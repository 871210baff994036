"""Kernels in CUDA C++ on a GPU: tuned, by default, and by libraries; and what a warm launch costs. Needs an NVIDIA GPU.

    python benchmarks/cuda_kernels.py

The kernels are those of `examples/`: a matrix product in float32, and sums of rows in float32 and float16. Each
problem is tuned with the defaults into an empty store; `tune_s` of the first problem of a kernel and dtype includes
compiling (`cold`). The tuned Config, the kernel's default and torch's own (`torch.mm` without TF32, which is cuBLAS;
`torch.sum`) are then timed side by side, in random order, with a cold L2, by two events around each launch; what takes
longer than 0.3 ms under the load it makes. All results are compared with float64.

Launches: one small matrix product, of three arrays and three integers, for four problems in turn, on tensors made
beforehand; the GPU is idle when a stretch begins and its queue is never full. `cuda_core` is `cuda.core.launch` of the
same binary as a user writes it: stream and configuration are kept, addresses and numpy scalars are made for each
launch. `cuda_core_config` makes the configuration, whose grid depends on the problem, for each launch too.
`cuda_core_ready` is given everything ready, which no caller with tensors has. Ratios are taken within each round.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _results import FOLDER, version, write

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

PRODUCTS = ("M=4096,N=4096,K=4096", "M=2048,N=8192,K=1024", "M=512,N=512,K=4096", "M=128,N=8192,K=4096")
SUMS = (
    "rows=4096,n=8192,x.dtype=float32", "rows=65536,n=256,x.dtype=float32", "rows=16,n=1048576,x.dtype=float32",
    "rows=4096,n=8192,x.dtype=float16",
)  # fmt: skip
SIDE_BY_SIDE = 100
ROUNDS, CALLS = 20, 400
SMALL = ((64, 64, 64), (64, 128, 64), (128, 64, 64), (64, 64, 128))


# --- speed -----------------------------------------------------------------------------------------------


class Library:
    """A call of torch's, timed as a kernel is."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        from tunesmith import Config, Resources

        self.config, self.resources, self.launch = Config(), Resources(), launch


def side_by_side(runs: dict[str, Any], rounds: int, device: Any) -> dict[str, list[float]]:
    """Seconds a launch in each round."""
    from tunesmith.measure.clock import clock_for

    clock, rng = clock_for(device), random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        clock.sample(run)  # the first launch is not like others
        clock.settle(run, clock.sample(run).seconds, lambda: False)
    for _ in range(rounds):
        for name in rng.sample(list(runs), len(runs)):
            found[name].append(clock.sample(runs[name]).seconds)
    return found


def speed(name: str, problem: str, rounds: int, seen: set[str]) -> dict[str, Any]:
    """One problem: tune, check, compare."""
    import cuda_reduce
    import cuda_sgemm
    import torch

    from tunesmith import Problem
    from tunesmith.core.stats import median
    from tunesmith.kernel import Run

    module = {"sgemm": cuda_sgemm, "row_sums": cuda_reduce}[name]
    tuned = getattr(module, name)
    made = module.inputs(Problem.parse(problem))
    args = tuple(made.values())
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = tuned.tune(**made)
    tune_s = time.perf_counter() - start
    kernel = module.kernel.for_call(args)
    default = tuned.declared.default
    chosen = found.choice.config
    if name == "sgemm":
        library = Library(lambda a, b, c, *_: torch.mm(a, b, out=c))
        expected = made["a"].double() @ made["b"].double()
    else:
        library = Library(lambda x, y, *_: torch.sum(x, 1, dtype=torch.float32, out=y))
        expected = made["x"].double().sum(1)
    runs = {
        "tuned": Run(kernel.load(chosen, Problem({}), None), args),
        "default": Run(kernel.load(default, Problem({}), None), args),
        "torch": Run(library, args),  # pyright: ignore
    }
    output = args[2] if name == "sgemm" else args[1]
    errors = {who: _error(run, output, expected) for who, run in runs.items()}
    seconds = side_by_side(runs, rounds, kernel.device(args))
    medians = {who: median(times) for who, times in seconds.items()}
    dtype = problem.rpartition("x.dtype=")[2] if "dtype" in problem else "float32"
    row = {
        "kernel": name, "problem": problem, "configs": len(list(module.SPACE)), "cold": f"{name} {dtype}" not in seen,
        "tune_s": tune_s, "compile_s": found.compile_s, "measure_s": found.measure_s, "counts": found.counts,
        "chosen": dict(chosen), "default": dict(default), **{f"{who}_s": one for who, one in medians.items()},
        "tuned_over_default": _ratio(seconds, "tuned", "default"),
        "tuned_over_torch": _ratio(seconds, "tuned", "torch"), "errors": errors,
    }  # fmt: skip
    seen.add(f"{name} {dtype}")
    print(
        f"{name:>8} {problem:36} tune {tune_s:6.1f} s{' cold' if row['cold'] else '     '}  tuned "
        f"{1e6 * medians['tuned']:8.1f} µs  over default {row['tuned_over_default']:.3f}  over torch "
        f"{row['tuned_over_torch']:.3f}  {dict(chosen)}",
        flush=True,
    )
    return row


def _ratio(seconds: dict[str, list[float]], one: str, other: str) -> float:
    from tunesmith.core.stats import median

    return median([a / b for a, b in zip(seconds[one], seconds[other], strict=True)])


def _error(run: Any, output: Any, expected: Any) -> float:
    output.fill_(float("nan"))
    run()
    error = float((output.double() - expected).abs().max() / expected.abs().max())
    if not error < 1e-3:
        sys.exit(f"{run.config} is wrong by {error:.1e}")
    return error


# --- launches --------------------------------------------------------------------------------------------

Args = tuple[Any, ...]
Contender = Callable[[Sequence[Args]], float]


def small_calls(count: int) -> list[Args]:
    """Arguments of `count` launches: four problems in turn, tensors of their own."""
    import torch

    calls: list[Args] = []
    for i in range(count):
        M, N, K = SMALL[i % len(SMALL)]
        a, b = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N)))
        calls.append((a, b, torch.full((M, N), float("nan"), device="cuda"), M, N, K))
    return calls


def timed(launch: Callable[..., Any], calls: Sequence[Args]) -> float:
    start = time.perf_counter()
    for args in calls:
        launch(*args)
    return (time.perf_counter() - start) / len(calls)


def contenders() -> dict[str, Contender]:
    """Name → what is timed. All launch the same binary."""
    import cuda_sgemm as example
    import numpy as np

    import tunesmith
    from tunesmith.backends.cuda.compile import cubin_beside

    tuned = tunesmith.autotune(space=example.SPACE, key=["M", "N", "K"], default=example.DEFAULT, policy="default")(
        example.kernel
    )
    executable = example.kernel.for_call(small_calls(1)[0]).load(example.DEFAULT, tunesmith.Problem({}), None)
    core = _cuda_core()
    cubin = cubin_beside(executable.path).read_bytes()
    kernel = core.ObjectCode.from_cubin(cubin).get_kernel(executable.artifact.entry)
    stream = _stream(core)
    sizes = {"block": executable.resources.threads, "shmem_size": executable.resources.shared_bytes}
    knobs = {name: example.DEFAULT[name] for name in ("BM", "BN")}
    kept = {(M, N): core.LaunchConfig(grid=example.tiles(M, N, **knobs), **sizes) for M, N, _ in SMALL}
    i32, launch = np.int32, core.launch

    def bare(a: Any, b: Any, c: Any, M: int, N: int, K: int) -> None:
        launch(stream, kept[M, N], kernel, a.data_ptr(), b.data_ptr(), c.data_ptr(), i32(M), i32(N), i32(K))

    def with_config(a: Any, b: Any, c: Any, M: int, N: int, K: int) -> None:
        config = core.LaunchConfig(grid=example.tiles(M, N, **knobs), **sizes)
        launch(stream, config, kernel, a.data_ptr(), b.data_ptr(), c.data_ptr(), i32(M), i32(N), i32(K))

    def ready(calls: Sequence[Args]) -> float:
        prepared = [
            (stream, kept[args[3], args[4]], kernel, *(x.data_ptr() for x in args[:3]), *map(i32, args[3:]))
            for args in calls
        ]
        return timed(launch, prepared)

    return {
        "ours": lambda calls: timed(tuned, calls),
        "executable": lambda calls: timed(executable.launch, calls),
        "cuda_core": lambda calls: timed(bare, calls),
        "cuda_core_config": lambda calls: timed(with_config, calls),
        "cuda_core_ready": ready,
    }


def _cuda_core() -> Any:
    """cuda-core, wherever its version keeps these names."""
    import importlib

    for name in ("cuda.core", "cuda.core.experimental"):
        found = importlib.import_module(name)
        if all(hasattr(found, part) for part in ("launch", "LaunchConfig", "ObjectCode", "Device", "Stream")):
            return found
    sys.exit("cuda-core with launch, LaunchConfig and ObjectCode is needed: pip install cuda-core")


def _stream(core: Any) -> Any:
    """torch's current stream as cuda-core's."""
    import torch

    core.Device(torch.cuda.current_device()).set_current()
    return core.Stream.from_handle(int(torch.cuda.current_stream().cuda_stream))


def launches(rounds: int) -> list[dict[str, Any]]:
    """What each contender costs the host; ratios of ours to it, within each round."""
    import torch

    from tunesmith.core.stats import median, median_interval

    field, rng = contenders(), random.Random(0)
    for name, contender in field.items():
        calls = small_calls(len(SMALL))
        contender(calls)
        torch.cuda.synchronize()
        for a, b, c, *_ in calls:
            torch.testing.assert_close(
                c.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-4, msg=f"{name} is wrong"
            )
        contender(small_calls(CALLS))
    found: dict[str, list[float]] = {name: [] for name in field}
    for _ in range(rounds):
        calls = small_calls(CALLS)
        for name in rng.sample(list(field), len(field)):
            field[name](calls[: len(SMALL)])
            torch.cuda.synchronize()
            gc.collect()
            gc.disable()
            found[name].append(field[name](calls))
            gc.enable()
            torch.cuda.synchronize()
    rows: list[dict[str, Any]] = []
    for name, seconds in found.items():
        low, high = median_interval(seconds)
        over = median([ours / other for ours, other in zip(found["ours"], seconds, strict=True)])
        rows.append({
            "contender": name, "us": median(seconds) * 1e6, "interval_us": [low * 1e6, high * 1e6], "ours_over": over,
        })  # fmt: skip
        print(f"{name:18} {rows[-1]['us']:7.2f} µs  ({low * 1e6:.2f} to {high * 1e6:.2f})  ours over it {over:.3f}")
    return rows


def dry() -> None:
    """Compile every 20th Config and the default of each kernel and dtype: what can be seen without a GPU."""
    import cuda_reduce
    import cuda_sgemm

    from tunesmith import Problem
    from tunesmith.core.device import known_device
    from tunesmith.workers import compile_all

    device, nothing = known_device("NVIDIA H200"), Problem({})
    for module, tuned, dtypes in (
        (cuda_sgemm, cuda_sgemm.sgemm, ["float32"]), (cuda_reduce, cuda_reduce.row_sums, ["float32", "float16"])
    ):  # fmt: skip
        for dtype in dtypes:
            x = SimpleNamespace(dtype=dtype, shape=(0,))  # all that a kernel has to know of an array
            kernel = module.kernel.for_target(lambda x=x: {"x": x}, device)
            configs = [tuned.declared.default, *list(module.SPACE)[::20]]
            jobs = [(config, kernel.compile_job(config, nothing, device)) for config in configs]
            built = dict(compile_all(jobs, os.cpu_count() or 1))
            for config, one in built.items():
                said = kernel.resources_of(config, one, device) if hasattr(one, "path") else one.reason
                print(f"{kernel.prototype.expression} {dict(config)}: {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one problem of each, few rounds; writes nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--dry", action="store_true", help="compile for sm_90 what is timed, on any machine; no more")
    options = parser.parse_args()
    _cuda_core()  # what is missing is said before anything is tuned
    if options.dry:
        return dry()
    import torch

    from tunesmith.core.stats import geometric_mean

    if not torch.cuda.is_available():
        sys.exit("benchmarks/cuda_kernels.py needs a GPU that torch can use")
    torch.backends.cuda.matmul.allow_tf32 = False
    most, rounds = (1, 10) if options.quick else (None, SIDE_BY_SIDE)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TUNESMITH_CACHE_DIR"] = scratch
        seen = set[str]()
        rows = [speed("sgemm", problem, rounds, seen) for problem in PRODUCTS[:most]]
        rows += [speed("row_sums", problem, rounds, seen) for problem in SUMS[:most]]
        launched = launches(3 if options.quick else ROUNDS)
    of = {name: [row for row in rows if row["kernel"] == name] for name in ("sgemm", "row_sums")}
    over = {row["contender"]: row["ours_over"] for row in launched}
    summary = {
        "sgemm_tuned_over_default": geometric_mean([row["tuned_over_default"] for row in of["sgemm"]]),
        "sgemm_tuned_over_cublas": geometric_mean([row["tuned_over_torch"] for row in of["sgemm"]]),
        "sgemm_4096_tuned_over_cublas": of["sgemm"][0]["tuned_over_torch"],
        "row_sums_tuned_over_default": geometric_mean([row["tuned_over_default"] for row in of["row_sums"]]),
        "row_sums_tuned_over_torch": geometric_mean([row["tuned_over_torch"] for row in of["row_sums"]]),
        "longest_tune_s": max(row["tune_s"] for row in rows), "launch_over_bare": over["cuda_core"],
        "launch_over_bare_with_config": over["cuda_core_config"], "launch_over_bare_ready": over["cuda_core_ready"],
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    if options.quick:
        return
    packages = ("torch", "cuda-bindings", "cuda-core", "nvidia-cuda-nvrtc")
    path = write(
        "cuda", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), command="python benchmarks/cuda_kernels.py",
        rows=[*rows, *launched], summary=summary, gpu=True, folder=options.folder,
        versions={**{package: version(package) for package in packages}, "nvrtc": _nvrtc()},
    )  # fmt: skip
    print(path)


def _nvrtc() -> str:
    from tunesmith.backends.cuda.compile import nvrtc_version

    return nvrtc_version()


if __name__ == "__main__":
    main()
