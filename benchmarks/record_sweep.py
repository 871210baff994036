"""Record the whole space of a matrix product over a sweep of M, to replay what a sweep does. Needs a GPU.

    python benchmarks/record_sweep.py FOLDER

The kernel of `examples/` in float16, 480 configurations, 10 samples of each, interleaved: 12 values of M for each of
two weights (N, K). M is not specialised, as in kernels that serve, so that all problems share their binaries. One file
a problem is written as soon as it is measured, and a problem whose file is there is left alone: a run that was cut
short goes on where it was. No problem is begun when the time is up (`--limit`).

`--dry` needs no GPU: the performance model makes the times up, with other constants than the shipped ones and noise.

`--swept KEPT` needs none either: it writes what `benchmarks/sweep.py --keep KEPT` stored, a file a problem. These are
no whole spaces: of each problem there are the configurations that the sweep tried, with the samples its race took.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tune import GEMM_AXES

MS = (1, 4, 16, 32, 64, 128, 192, 256, 512, 768, 1024, 2048)
#: (N, K): a square one, and one that is narrow and deep
WEIGHTS = ((4096, 4096), (2560, 8192))
ROUNDS = 10
#: seconds, of the 240 that the whole may take: the last problem begun needs ten
LIMIT_S = 220.0
#: A time is kept to the nanosecond: events tell no more.
DIGITS = 9


def problems() -> list[tuple[int, int, int]]:
    """(M, N, K): the ends and the middle of the range first, so that whatever is there spans it."""
    order = sorted(range(len(MS)), key=lambda i: (i not in (0, len(MS) - 1), i % 2, i))
    return [(MS[i], n, k) for i in order for n, k in WEIGHTS]


def on_gpu() -> Callable[[int, int, int], Any]:
    """From a problem to its recording."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import triton
    import triton_gemm

    from tunesmith import Problem, Space, Tiles, autotune

    jitted = triton.jit(triton_gemm.gemm.fn.fn, do_not_specialize=["M"])
    kernel = autotune(space=Space(GEMM_AXES), key=["M", "N", "K"], model=Tiles(), name="gemm", isolate=False)(jitted)

    def record(m: int, n: int, k: int) -> Any:
        made = triton_gemm.inputs(Problem({"M": m, "N": n, "K": k}))
        grid = made.pop("grid")
        return kernel.tuned.record(grid, **made, rounds=ROUNDS)

    return record


def made_up() -> Callable[[int, int, int], Any]:
    """The same with times that a model makes up, for an H200 that is not there."""
    from tunesmith import Problem, Space, autotune
    from tunesmith.core.device import known_device
    from tunesmith.core.model import FITTED, Model, Tiles
    from tunesmith.measure.modelled import ModelClock

    other = replace(
        FITTED, matrix=0.8, narrow=0.4, stage_s=1.5e-6, port_bytes_s=75e9, block_s=1.2e-6, overlap=3.0, bandwidth=0.7
    )
    device = known_device("NVIDIA H200")

    def gemm(M: int, N: int, K: int, *, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, num_warps: int, num_stages: int):
        pass

    def record(m: int, n: int, k: int) -> Any:
        problem = Problem({"M": m, "N": n, "K": k})
        clock = ModelClock(Model(Tiles(), constants=other), problem, device, noise=0.01)
        kernel = autotune(space=Space(GEMM_AXES), key=["M", "N", "K"], clock=clock, name="gemm", version="1")(gemm)
        return replace(kernel.record(m, n, k, rounds=ROUNDS), device="NVIDIA H200")

    return record


def slim(recording: Any) -> Any:
    """What a replay needs: seconds to the nanosecond, rounds, resources; no clock, no message beyond its first line."""
    from tunesmith import Failed, Measured, Sample

    def outcome(given: Any) -> Any:
        if isinstance(given, Failed):
            return replace(given, detail="")
        if isinstance(given, Measured):
            return Measured(tuple(Sample(round(s.seconds, DIGITS), s.round, s.order) for s in given.samples))
        return given

    trials = tuple(replace(one, outcome=outcome(one.outcome), at="", soft={}) for one in recording.trials)
    return replace(recording, trials=trials)


def swept(kept: Path, folder: Path) -> int:
    """Write the problems that a sweep's store holds as recordings; how many there are."""
    from tunesmith.core.device import device_of
    from tunesmith.core.outcome import Recording
    from tunesmith.recording import save
    from tunesmith.store import Store

    store = Store.open(kept / "sweep" / "ours")
    keys = store.keys("sweep_gemm")
    for key in keys:
        device, choice, dims = device_of(key.device), store.choice(key), key.problem.dims
        if device is None or choice is None:
            sys.exit(f"{key.problem} was not tuned to its end, or on a device that is not known: {key.device}")
        about = {**choice.soft, "arch": device.arch, "units": str(device.units), "at": choice.at}
        protocol = f"{key.protocol}: the race of a sweep; what was slower beyond doubt left it early"
        recording = Recording(key.kernel, device.name, key.problem, tuple(store.trials(key)), protocol, meta=about)
        save(slim(recording), folder / f"gemm_M{dims['M']}_N{dims['N']}_K{dims['K']}_h200.json.gz")
    return len(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds after which no problem is begun")
    parser.add_argument("--dry", action="store_true", help="times that the model makes up, to try the script")
    parser.add_argument("--swept", type=Path, metavar="KEPT", help="write what sweep.py --keep KEPT stored instead")
    options = parser.parse_args()
    begun = time.perf_counter()
    from tunesmith import Measured
    from tunesmith.recording import save

    options.folder.mkdir(parents=True, exist_ok=True)
    if options.swept is not None:
        print(f"{options.folder}: {swept(options.swept, options.folder)} problems")
        return
    left = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.setdefault("TRITON_CACHE_DIR", f"{scratch}/triton")
        record = made_up() if options.dry else on_gpu()
        for m, n, k in problems():
            path = options.folder / f"gemm_M{m}_N{n}_K{k}{'_dry' if options.dry else '_h200'}.json.gz"
            if path.exists():
                print(path, "is there", flush=True)
                continue
            if time.perf_counter() - begun > options.limit:
                left += 1
                continue
            recording = slim(record(m, n, k))
            save(recording, path)
            ran = [t.outcome.median_s for t in recording.trials if isinstance(t.outcome, Measured)]
            took = time.perf_counter() - begun
            print(
                f"{path}  {len(ran)} of {len(recording.trials)} ran  best {min(ran) * 1e6:.1f} µs  {took:.0f} s",
                flush=True,
            )
    if left:
        sys.exit(f"{left} problems are left: {options.limit:g} s were over; the same command goes on with them")


if __name__ == "__main__":
    main()
