"""A CuTe DSL kernel tuned by us and by CuTe DSL's own tuner, in one process. Needs an NVIDIA GPU.

    python benchmarks/cute_rmsnorm.py

The kernel is that of `examples/cute_rmsnorm.py` in bfloat16; both tuners are given the same 24 Configs. Ours is
`tune` with the defaults into an empty store: compiled in child processes, checked against float64, raced with a cold
L2. Theirs is `cutlass.cute.testing.autotune_jit` with its own defaults: Configs are compiled and timed one after the
other (10 + 100 launches, L2 flushed before each, two events around a launch from Python), and the least mean wins; it
is called with the arguments of `from_dlpack(…, assumed_align=16).mark_layout_dynamic()`. Each compiles all that it
measures on the first problem; on later ones ours finds its object files, and theirs compiles again.

The Configs that the two chose, the kernel's default and `torch.nn.functional.rms_norm` are then timed side by side, in
random order, with a cold L2, all Configs through the same launcher; ratios are taken within each round.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write

PROBLEMS = (4096, 32768)  # rows
GRID: Mapping[str, list[Any]] = {"THREADS": [64, 128, 256, 512], "ROWS": [1], "VEC": [2, 4, 8], "KEEP": [True, False]}
ROUNDS = 100
EPS = 1e-6


class Call:
    """A call of torch's, timed as a kernel is."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        from tunesmith import Config, Resources

        self.config, self.resources, self.launch = Config(), Resources(), launch


def compare(example: Any, tuned: Any, own: Any, M: int, rounds: int) -> dict[str, Any]:
    """One problem: both tune, then their Choices are timed."""
    import torch
    from _cute_own import N
    from cutlass.cute.runtime import from_dlpack

    from tunesmith import Config, Problem
    from tunesmith.core.stats import median
    from tunesmith.kernel import Run

    made = example.inputs(Problem({"M": M, "N": N}))
    args = tuple(made.values())
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = tuned.tune(**made)
    tune_s = time.perf_counter() - start

    given = [from_dlpack(made[name], assumed_align=16).mark_layout_dynamic() for name in ("x", "w", "y")]
    torch.cuda.synchronize()
    start = time.perf_counter()
    own(*given, EPS, M)
    torch.cuda.synchronize()
    own_tune_s = time.perf_counter() - start
    (theirs,) = [config for key, config in own.__wrapped__._best_config.items() if M in key]

    kernel = example.kernel.for_call(args)
    chosen = {"tuned": found.choice.config, "own_tuner": Config(**theirs), "default": example.rmsnorm.declared.default}
    runs = {name: Run(kernel.load(config, Problem({}), None), args) for name, config in chosen.items()}
    norm = torch.nn.functional.rms_norm
    runs["torch"] = Run(Call(lambda x, w, y, eps, n: norm(x, (n,), w, eps)), args)  # pyright: ignore
    check(example, runs, made)
    seconds = side_by_side(runs, rounds, kernel.device(args))
    row = {
        "M": M, "N": N, "dtype": "bfloat16", "configs": len([*tuned.space]), "tune_s": tune_s,
        "compile_s": found.compile_s, "measure_s": found.measure_s, "counts": found.counts,
        "own_tuner_tune_s": own_tune_s, **{name: dict(config) for name, config in chosen.items()},
        **{f"{name}_s": median(times) for name, times in seconds.items()},
        **{f"tuned_over_{name}": ratio(seconds, name) for name in ("own_tuner", "default", "torch")},
    }  # fmt: skip
    print(
        f"M={M}: tune {tune_s:.1f} s, own tuner {own_tune_s:.1f} s; tuned {1e6 * row['tuned_s']:.1f} µs, over own "
        f"tuner's {row['tuned_over_own_tuner']:.3f}, over default {row['tuned_over_default']:.3f}, over torch "
        f"{row['tuned_over_torch']:.3f}; {row['tuned']} against {row['own_tuner']}",
        flush=True,
    )
    return row


def check(example: Any, runs: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Stop at a wrong result."""
    import torch

    expected = example.reference(made["x"].double(), made["w"].double(), EPS)
    for name, run in runs.items():
        made["y"].fill_(float("nan"))
        returned = run()
        result = made["y"] if returned is None else returned
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=2e-2, msg=f"{name} is wrong")


def side_by_side(runs: Mapping[str, Any], rounds: int, device: Any) -> dict[str, list[float]]:
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


def ratio(seconds: Mapping[str, list[float]], other: str) -> float:
    from tunesmith.core.stats import median

    return median([ours / theirs for ours, theirs in zip(seconds["tuned"], seconds[other], strict=True)])


def dry() -> None:
    """Compile both sides for an H200, launch nothing: one Config of theirs, two of ours."""
    os.environ["CUTE_DSL_ARCH"] = "sm_90a"
    import cutlass
    import cutlass.cute as cute
    from _cute_own import N, example, own
    from cutlass.cute.runtime import make_fake_tensor

    from tunesmith import Config, Problem
    from tunesmith.backends.ahead import compile_space, target_device

    configs = [Config(THREADS=128, ROWS=1, VEC=8, KEEP=keep) for keep in (True, False)]
    made = partial(example.inputs, Problem({"M": 64, "N": N}))
    for one in compile_space(example.kernel, configs, made, target_device("sm_90"), 2):
        print(one.config, one.failed or one.resources)
    wide, flat = (cute.sym_int(), cute.sym_int()), (cute.sym_int(),)
    x = make_fake_tensor(cutlass.BFloat16, wide, (cute.sym_int64(), 1), assumed_align=16)
    w = make_fake_tensor(cutlass.BFloat16, flat, (1,), assumed_align=16)
    print(cute.compile(own, x, w, x, cutlass.Float32(EPS), cutlass.Int32(64), VEC=8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one problem, few rounds; writes nothing")
    parser.add_argument("--dry", action="store_true", help="compile a few Configs without a GPU, and no more")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    options = parser.parse_args()
    if options.dry:
        dry()
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("benchmarks/cute_rmsnorm.py needs a GPU that torch can use; --dry compiles without one")
    from _cute_own import example, own
    from cutlass.cute.testing import autotune_jit

    import tunesmith
    from tunesmith.core.stats import geometric_mean

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TUNESMITH_CACHE_DIR"] = scratch
        tuned = tunesmith.autotune(
            space=tunesmith.Space(**GRID), key=example.key, dims=["M", "N"], make_inputs=example.inputs,
            reference=example.reference, outputs=["y"],
        )(example.kernel)  # fmt: skip
        theirs = autotune_jit(params_dict=dict(GRID), update_on_change=["M"])(own)
        problems = PROBLEMS[:1] if options.quick else PROBLEMS
        rows = [compare(example, tuned, theirs, M, 10 if options.quick else ROUNDS) for M in problems]
    summary = {
        "tuned_over_own_tuner": geometric_mean([row["tuned_over_own_tuner"] for row in rows]),
        "tuned_over_default": geometric_mean([row["tuned_over_default"] for row in rows]),
        "tuned_over_torch": geometric_mean([row["tuned_over_torch"] for row in rows]),
        "tune_s": rows[0]["tune_s"], "own_tuner_tune_s": rows[0]["own_tuner_tune_s"],
        "second_tune_s": rows[-1]["tune_s"], "own_tuner_second_tune_s": rows[-1]["own_tuner_tune_s"],
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    if options.quick:
        return
    packages = ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi")
    path = write(
        "cute", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), command="python benchmarks/cute_rmsnorm.py",
        rows=rows, summary=summary, gpu=True, folder=options.folder,
        versions={package: version(package) for package in packages},
    )  # fmt: skip
    print(path)


if __name__ == "__main__":
    main()
