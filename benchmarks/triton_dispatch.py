"""What a warm launch of a Triton kernel costs the host: through tunesmith and its peers. Needs a GPU and a C compiler.

    python benchmarks/triton_dispatch.py

All contenders launch one matrix product of twelve runtime arguments (three of them tensors) and six knobs, for four
small problems in turn, on tensors that are made outside the timed stretch. `autotune`, `jit` and ours get the grid
as the tutorials give it, as a function of the knobs; `ours_static_grid` gets a tuple. `launcher` is the compiled
kernel's own launcher, called with tensors; `launcher_pointers` the same with addresses, `launcher_in_c` the C function
under it with addresses, which ours calls, and `driver` a loop in C over the driver's cuLaunchKernel: for these the
grid, the stream and the argument list are ready beforehand.

Each round times all contenders in random order, over the same calls; the GPU is idle when a stretch begins, and its
queue never full. Reported is the median of the rounds, with its 95 % interval, and ratios taken within each round.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from _results import FOLDER, version, write

import tunesmith
from tunesmith.core.stats import median, median_interval

#: small: the GPU must be faster than the host
SIZES = ((64, 64, 64), (64, 128, 64), (128, 64, 64), (64, 64, 128))
ROUNDS = 20
#: launches of one contender in a round: well under what the GPU's queue takes (1024)
CALLS = 400
KNOBS = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8}
OPTIONS = {"num_warps": 4, "num_stages": 3}

DRIVER_LOOP = r"""
#include <time.h>
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
/* Seconds a launch, over `n` launches that take their arguments from `calls` in turn. */
double loop(launch_t launch, void **functions, unsigned *grids, unsigned *shared, void ***args, int calls, int n,
            unsigned threads, void *stream) {
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < n; i++) {
    int c = i % calls;
    if (launch(functions[c], grids[c], 1, 1, threads, 1, 1, shared[c], stream, args[c], 0)) return -1;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return ((end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) * 1e-9) / n;
}
"""


@triton.jit
def product(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """c = a · b, programs grouped for the L2 cache."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * across)
    rows = min(down - group * GROUP_M, GROUP_M)
    row = group * GROUP_M + (program % (GROUP_M * across)) % rows
    column = (program % (GROUP_M * across)) // rows
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        left = (m[:, None] < M) & (start + k[None, :] < K)
        right = (start + k[:, None] < K) & (n[None, :] < N)
        x = tl.load(a + m[:, None] * stride_am + (start + k[None, :]) * stride_ak, mask=left, other=0.0)
        y = tl.load(b + (start + k[:, None]) * stride_bk + n[None, :] * stride_bn, mask=right, other=0.0)
        total = tl.dot(x, y, total)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * stride_cm + n[None, :] * stride_cn, total.to(c.dtype.element_ty), mask=inside)


def grid(meta: dict[str, Any]) -> tuple[int]:
    """How many programs: plain integers, as `triton.cdiv` costs the host microseconds of its own."""
    return (-(-meta["M"] // meta["BLOCK_M"]) * -(-meta["N"] // meta["BLOCK_N"]),)


Args = tuple[Any, ...]
Contender = Callable[[Sequence[Args]], float]


def fresh_calls(count: int) -> list[Args]:
    """Arguments of `count` launches: four problems in turn, tensors of their own."""
    calls: list[Args] = []
    for i in range(count):
        M, N, K = SIZES[i % len(SIZES)]
        a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((M, K), (K, N)))
        c = torch.full((M, N), float("nan"), device="cuda", dtype=torch.float16)
        calls.append((a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride()))
    return calls


# --- the contenders: seconds a launch, over some calls ---------------------------------------------------


def through(kernel: Any, how: Any = grid, **knobs: Any) -> Contender:
    """By `kernel[grid](…)`; `how="tuple"` gives the grid itself."""

    def run(calls: Sequence[Args]) -> float:
        if how == "tuple":
            grids = [grid({"M": args[3], "N": args[4], **KNOBS}) for args in calls]
            start = time.perf_counter()
            for blocks, args in zip(grids, calls, strict=True):
                kernel[blocks](*args, **knobs)
            return (time.perf_counter() - start) / len(calls)
        start = time.perf_counter()
        for args in calls:
            kernel[how](*args, **knobs)
        return (time.perf_counter() - start) / len(calls)

    return run


def launcher(*, pointers: bool) -> Contender:
    """By the compiled kernel's own launcher."""

    def run(calls: Sequence[Args]) -> float:
        stream = torch.cuda.current_stream().cuda_stream
        ready = [_prepared(args, pointers) for args in calls]
        start = time.perf_counter()
        for launch, function, packed, blocks, passed in ready:
            launch(blocks, 1, 1, stream, function, packed, None, None, None, *passed)
        return (time.perf_counter() - start) / len(calls)

    return run


def launcher_in_c(calls: Sequence[Args]) -> float:
    """By the C function under Triton 3.6's launcher, which skips the Python above it."""
    stream = torch.cuda.current_stream().cuda_stream
    ready = [_prepared(args, pointers=True) for args in calls]
    start = time.perf_counter()
    for run, function, packed, blocks, passed in ready:
        run.launch(blocks, 1, 1, stream, function, False, False, None, None, packed, None, None, None, *passed)
    return (time.perf_counter() - start) / len(calls)


def _compiled(args: Args) -> Any:
    """Triton's compiled kernel for a call: from its own memory."""
    found = product.warmup(*args, **KNOBS, **OPTIONS, grid=(1,))
    found._init_handles()
    return found


def _prepared(args: Args, pointers: bool) -> tuple[Any, int, Any, int, Args]:
    compiled = _compiled(args)
    first = tuple(tensor.data_ptr() for tensor in args[:3]) if pointers else args[:3]
    blocks = grid({"M": args[3], "N": args[4], **KNOBS})[0]
    return compiled.run, compiled.function, compiled.packed_metadata, blocks, (*first, *args[3:], *KNOBS.values())


def driver() -> Contender:
    """By the driver, from C: arguments packed beforehand. The floor of everything here."""
    loop, launch = _driver_loop()

    def run(calls: Sequence[Args]) -> float:
        packed = [_packed(args) for args in calls]
        count = len(calls)
        functions = (ctypes.c_void_p * count)(*[p[0] for p in packed])
        grids, shared = (
            (ctypes.c_uint * count)(*[p[1] for p in packed]),
            (ctypes.c_uint * count)(*[p[2] for p in packed]),
        )
        args = (ctypes.c_void_p * count)(*[ctypes.addressof(p[3]) for p in packed])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        seconds = loop(launch, functions, grids, shared, args, count, count, 32 * OPTIONS["num_warps"], stream)
        if seconds < 0:
            raise RuntimeError("cuLaunchKernel failed")
        return float(seconds)

    return run


def _packed(args: Args) -> tuple[int, int, int, Any, list[Any]]:
    """(function, blocks, bytes of shared memory, array of addresses, the values they point to)."""
    compiled = _compiled(args)
    values: list[Any] = [ctypes.c_uint64(tensor.data_ptr()) for tensor in args[:3]]
    values += [ctypes.c_int32(value) for value in args[3:] if value != 1]  # a 1 is compiled in
    values += [ctypes.c_uint64(0), ctypes.c_uint64(0)]  # Triton's scratch memories: none
    addresses = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
    blocks = grid({"M": args[3], "N": args[4], **KNOBS})[0]
    return compiled.function, blocks, compiled.metadata.shared, addresses, values


def _driver_loop() -> tuple[Any, Any]:
    """The C loop, compiled, and the driver's function."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(DRIVER_LOOP)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        loop = ctypes.CDLL(str(library)).loop
    loop.restype = ctypes.c_double
    return loop, ctypes.CDLL("libcuda.so.1").cuLaunchKernel


def smallest_op(calls: Sequence[Args]) -> float:
    """torch's smallest: an addition in place, for scale."""
    start = time.perf_counter()
    for args in calls:
        torch.add(args[2], args[2], out=args[2])
    return (time.perf_counter() - start) / len(calls)


def contenders() -> dict[str, Contender]:
    """Name → what is timed. All launch the same binaries."""
    configs = [triton.Config(KNOBS, num_warps=4, num_stages=stages) for stages in (3, 4)]

    times = itertools.cycle((1.0, 2.0))

    def bench(launch: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
        """Lets the first of the two Configs win: what is timed here is the launch."""
        launch()
        return [next(times)] * len(quantiles)

    key = ["M", "N", "K"]
    stock = triton.autotune(configs=configs, key=key, do_bench=bench)(product)
    ours = tunesmith.autotune(
        configs=configs, key=key, default=configs[0], policy="default", name="triton_dispatch"
    )(product)  # fmt: skip
    return {
        "ours": through(ours),
        "ours_static_grid": through(ours, "tuple"),
        "autotune": through(stock),
        "jit": through(product, **KNOBS, **OPTIONS),
        "launcher": launcher(pointers=False),
        "launcher_pointers": launcher(pointers=True),
        **({"launcher_in_c": launcher_in_c} if triton.__version__.startswith("3.6.") else {}),
        "driver": driver(),
        "torch_add": smallest_op,
    }


# --- checking and timing ---------------------------------------------------------------------------------


def check(name: str, contender: Contender) -> None:
    """Refuse a contender that computes something else."""
    calls = fresh_calls(len(SIZES))
    contender(calls)
    torch.cuda.synchronize()
    for a, b, c, *_ in calls:
        torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2e-3, atol=2e-2, msg=f"{name} is wrong")


def measure(all_of_them: dict[str, Contender], rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds a launch in each round."""
    rng, found = random.Random(seed), {name: [] for name in all_of_them}
    for _ in range(rounds):
        order = list(all_of_them)
        rng.shuffle(order)
        calls = fresh_calls(CALLS)
        for name in order:
            all_of_them[name](calls[: len(SIZES)])
            torch.cuda.synchronize()
            gc.collect()
            gc.disable()
            found[name].append(all_of_them[name](calls))
            gc.enable()
            torch.cuda.synchronize()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("triton_dispatch needs a GPU that torch can use")
    field = contenders()
    for name, contender in field.items():
        if name != "torch_add":
            check(name, contender)
        for _ in range(4):  # past everything that looks at first calls
            contender(fresh_calls(CALLS))
            torch.cuda.synchronize()
    seconds = measure(field, options.rounds, options.seed)
    rows = [_row(name, seconds[name], seconds["ours"]) for name in field]
    for row in rows:
        low, high = row["interval_us"]
        print(
            f"{row['contender']:18} {row['us']:7.2f} us  ({low:.2f} to {high:.2f})  ours over it {row['ours_over']:.3f}"
        )
    over = {row["contender"]: row["ours_over"] for row in rows}
    path = write(
        "triton_dispatch", torch.cuda.get_device_name().split()[-1].lower(),
        protocol={
            "what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            "rounds": options.rounds, "launches": CALLS, "order": "shuffled in each round", "seed": options.seed,
        },
        command="python benchmarks/triton_dispatch.py", rows=rows,
        summary={
            "over_launcher": over["launcher"], "over_autotune": over["autotune"], "over_jit": over["jit"],
            "over_driver": over["driver"],
        },
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    )  # fmt: skip
    print(path)


def _row(name: str, seconds: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    low, high = median_interval(seconds)
    return {
        "contender": name, "us": median(seconds) * 1e6, "interval_us": [low * 1e6, high * 1e6],
        "ours_over": median([mine / other for mine, other in zip(ours, seconds, strict=True)]),
        "rounds_us": [one * 1e6 for one in seconds],
    }  # fmt: skip


if __name__ == "__main__":
    main()
