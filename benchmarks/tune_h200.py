"""What a full `tune` chooses, against the best that a long look at every configuration finds. Needs a GPU.

    python benchmarks/tune_h200.py

Twelve problems: matrix products (large, skinny, deep with the sum split), softmax and RMSNorm, the kernels of
`examples/`, in float16; the matrix product over 480 configurations (56 need more shared memory than an H200 has). Each
is tuned with the defaults and a model, into an empty store; compiled kernels stay in Triton's cache, so `tune_s` of
the first problem of a kernel includes compiling all that it looks at (`cold`). The outputs of the chosen configuration
are checked against float64.

Then every configuration is timed in 5 rounds, and the 10 fastest of these and the chosen one again in 200 rounds side
by side, in random order, with a cold L2, by two events around each launch; kernels of more than 0.3 ms under the load
that they make. `regret` is the chosen one's median over the smallest of these medians, less 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

#: of a matrix product: as in the recordings that the race and the model are judged by
GEMM_AXES = {
    "BLOCK_M": [16, 32, 64, 128, 256], "BLOCK_N": [32, 64, 128, 256], "BLOCK_K": [32, 64, 128],
    "num_warps": [4, 8], "num_stages": [2, 3, 4, 5],
}  # fmt: skip
PROBLEMS = (
    ("gemm", "M=4096,N=4096,K=4096"), ("gemm", "M=8192,N=8192,K=8192"), ("gemm", "M=2048,N=8192,K=1024"),
    ("gemm", "M=16,N=4096,K=4096"), ("gemm", "M=64,N=8192,K=8192"),
    ("split_k", "M=32,N=1024,K=16384"), ("split_k", "M=256,N=256,K=32768"),
    ("softmax", "rows=4096,n=4096"), ("softmax", "rows=256,n=131072"),
    ("rms_norm", "rows=4096,n=4096"), ("rms_norm", "rows=16,n=7168"), ("rms_norm", "rows=65536,n=256"),
)  # fmt: skip
EXHAUSTIVE_ROUNDS, FINALISTS, SIDE_BY_SIDE = 5, 10, 200


@dataclass(frozen=True)
class Subject:
    """A kernel and what it is tuned with.

    Attributes:
        tuned: from further arguments of `autotune` to a kernel of its own.
        inputs: of a Problem.
        error: from inputs after a launch to the largest error over the largest value.
    """

    tuned: Callable[..., Any]
    inputs: Callable[[Any], dict[str, Any]]
    error: Callable[[dict[str, Any]], float]


def subjects() -> dict[str, Subject]:
    import triton_gemm
    import triton_rows
    import triton_split_k

    from tunesmith import Rows, Space, Tiles, autotune

    def of(fn: Any, space: Any, key: Sequence[str], **always: Any) -> Callable[..., Any]:
        knobs = {} if isinstance(space, Space) else {"knobs": triton_rows.KNOBS}

        def tuned(configs: Any = None, **more: Any) -> Any:
            which = {"space": space, **knobs} if configs is None else {"configs": configs}
            return autotune(key=key, **which, **always, **more)(fn)

        return tuned

    rows, product = ["rows", "n"], ["M", "N", "K"]
    return {
        "gemm": Subject(
            of(triton_gemm.gemm.fn, Space(GEMM_AXES), product, model=Tiles()), triton_gemm.inputs, product_error
        ),
        "split_k": Subject(
            of(triton_split_k.split_k.fn, triton_split_k.SPACE, product, model=Tiles(split="SPLIT_K"),
               reset_to_zero=["c"]), triton_split_k.inputs, product_error,
        ),
        "softmax": Subject(
            of(triton_rows.softmax.fn, triton_rows.space, rows, model=Rows(operations=12, looped=40)),
            triton_rows.sized, lambda made: rows_error("softmax", made),
        ),
        "rms_norm": Subject(
            of(triton_rows.rms_norm.fn, triton_rows.space, rows, model=Rows(operations=6, looped=8)),
            triton_rows.normed, lambda made: rows_error("rms_norm", made),
        ),
    }  # fmt: skip


def product_error(made: dict[str, Any]) -> float:
    rows = slice(0, 512)
    expected = made["a"][rows].double() @ made["b"].double()
    return float((made["c"][rows].double() - expected).abs().max() / expected.abs().max())


def rows_error(kernel: str, made: dict[str, Any]) -> float:
    from triton_rows import reference

    rows = slice(0, 512)
    expected = reference(kernel, made["x"][rows], made.get("w"))
    return float((made["y"][rows].double() - expected).abs().max() / expected.abs().max())


def measured(number: int, name: str, problem: str, subject: Subject, seen: set[str]) -> dict[str, Any]:
    """One problem: tune, check, look at all, compare side by side."""
    import torch

    from tunesmith import Measured, Problem

    made = subject.inputs(Problem.parse(problem))
    grid = made.pop("grid")
    torch.cuda.synchronize()
    kernel = subject.tuned(name=f"tuned{number}")
    start = time.perf_counter()
    summary = kernel.tune(**made, grid=grid)
    tune_s = time.perf_counter() - start
    choice = summary.choice
    for output in ("c", "y"):
        if output in made:
            made[output].zero_() if name == "split_k" else made[output].fill_(float("nan"))
    kernel[grid](**made)
    error = subject.error(made)
    if not error < 1e-2:
        sys.exit(f"{name} {problem}: the chosen {choice.config} is wrong by {error:.1e}")
    every = subject.tuned(name=f"all{number}").tuned.record(grid, **made, rounds=EXHAUSTIVE_ROUNDS)
    ran = [(t.outcome.median_s, t.config) for t in every.trials if isinstance(t.outcome, Measured)]
    finalists = [config for _, config in sorted(ran, key=lambda one: one[0])[:FINALISTS]]
    both = subject.tuned(list(dict.fromkeys([*finalists, choice.config])), name=f"final{number}")
    final = both.tuned.record(grid, **made, rounds=SIDE_BY_SIDE)
    medians = {t.config: t.outcome.median_s for t in final.trials if isinstance(t.outcome, Measured)}
    best = min(medians, key=medians.__getitem__)
    row = {
        "kernel": name, "problem": problem, "configs": len(every.trials), "ran": len(ran), "cold": name not in seen,
        "tune_s": tune_s, "compile_s": summary.compile_s, "measure_s": summary.measure_s,
        "counts": summary.counts, "chosen": dict(choice.config), "chosen_s": medians[choice.config],
        "best": dict(best), "best_s": medians[best], "regret": medians[choice.config] / medians[best] - 1,
        "ties": len(choice.ties), "within": choice.within, "doubt": choice.doubt, "conditions": choice.conditions,
        "median_of_all_over_best": sorted(ran, key=lambda one: one[0])[len(ran) // 2][0] / medians[best],
        "error": error,
    }  # fmt: skip
    seen.add(name)
    print(
        f"{name:>8} {problem:22} {row['ran']:4} ran  tune {tune_s:6.1f} s{' cold' if row['cold'] else '     '}  "
        f"{1e6 * row['chosen_s']:8.1f} µs  regret {row['regret']:6.2%}  {choice.conditions}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    options = parser.parse_args()
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TUNESMITH_CACHE_DIR"] = f"{scratch}/ours"
        os.environ["TRITON_CACHE_DIR"] = f"{scratch}/triton"
        known, seen = subjects(), set[str]()
        rows = [measured(i, name, problem, known[name], seen) for i, (name, problem) in enumerate(PROBLEMS)]
    regrets = sorted(row["regret"] for row in rows)
    summary = {
        "median_regret": (regrets[5] + regrets[6]) / 2, "worst_regret": regrets[-1],
        "longest_tune_s": max(row["tune_s"] for row in rows),
        "longest_warm_tune_s": max(row["tune_s"] for row in rows if not row["cold"]),
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    device = torch.cuda.get_device_name().split()[-1].lower()
    path = write(
        "tune_h200", device, protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/tune_h200.py", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    )  # fmt: skip
    print(path)


if __name__ == "__main__":
    main()
