"""Row-wise kernels against a device copy, torch and Liger, on inputs of more than 64 MiB. Needs a GPU.

    python benchmarks/rows.py

softmax, RMSNorm, LayerNorm, and RMSNorm of a sum written in place, in bfloat16, each on 16 shapes from open models.
Each is tuned (a few seconds, `tune_s`), its result compared with float64, and timed by graph replay side by side with
torch, Liger where its package is installed, and `copy_` of an array that moves as many bytes; 15 rounds, in random
order within a round, each call on other inputs than the one before, 400 MB of them in turn. torch and Liger write the
norm of a sum to new arrays, which is as many bytes for Liger and more for torch, in two kernels. Of softmax `ours` is
`tunesmith.ops.softmax`, tuned: the fastest of torch's call, our Triton kernel and, for long rows, our CUDA C++ kernel
(`row_softmax` names the case, `chosen` says by which); of the others it is our Triton kernel.

`worst_bandwidth_fraction` is the least of the copy's median time over ours, `worst_KERNEL` of one kernel;
`geomean_speedup_over_torch` and `geomean_speedup_over_liger` are of theirs over ours, KERNEL_speedup_over_torch
and the like of one kernel.

--keep FOLDER writes each row there as it comes, and our store: the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _kept import Cases, arguments, caches, judge
from _results import FOLDER, version, write
from _row_kernels import Case, cases, moved, tuned, turns, ways
from _side_by_side import COLD_BYTES, called, compared, replayed

ROUNDS = 15
#: of a row's mean: bfloat16 has eight bits
ALLOWED = 2e-2
WANTED = {"shapes": ">= 64", "worst_bandwidth_fraction": ">= 0.85"}


def measured(case: Case, budget_s: float, liger: bool) -> dict[str, Any]:
    import torch

    torch.cuda.empty_cache()  # what the last case had
    kernel = tuned(case.kernel)
    given = kernel.inputs(f"rows={case.rows},n={case.n},dtype=bfloat16")
    start = time.perf_counter()
    summary = kernel.tune(*given.values(), budget_s=budget_s, isolate=False)
    tune_s = time.perf_counter() - start
    off = _error(case, given)
    if not off < ALLOWED:
        raise AssertionError(f"{case}: {summary.choice} is wrong by {off:.1e}")
    inputs = turns(given, COLD_BYTES)
    found = dict(ways(case.kernel, liger))
    if liger and not _runs(found["liger"], inputs[-1]):
        del found["liger"]
    calls = {name: [lambda call=call, one=one: call(one) for one in inputs] for name, call in found.items()}
    size = moved(case.kernel) // 2 * given["x"].numel()
    pairs = [torch.empty(2, size, dtype=torch.bfloat16, device="cuda") for _ in range(max(2, len(inputs) // 2))]
    calls["copy"] = [lambda pair=pair: pair[0].copy_(pair[1]) for pair in pairs]
    with torch.no_grad():
        times = replayed(calls, ROUNDS)
    assert summary.choice is not None
    over = {name: compared(times, "ours", name) for name in calls if name != "ours"}
    return {
        **case._asdict(), "input_bytes": 2 * given["x"].numel(), "tune_s": tune_s, "counts": summary.counts,
        "chosen": dict(summary.choice.config), "error": off, "fraction": 1 / over["copy"]["ratio"],
        "copy_bytes_per_s": 4 * size / (1e-6 * over["copy"]["copy_us"]), "over": over,
    }  # fmt: skip


def _has_liger() -> bool:
    if find_spec("liger_kernel") is None:
        return False
    try:
        for case in cases():
            ways(case.kernel, True)
    except ImportError as error:
        print(f"without Liger: {error}")
        return False
    return True


def _runs(call: Any, given: dict[str, Any]) -> bool:
    """Whether another's function takes these inputs: Liger's do not take every length of a row."""
    from triton.errors import TritonError

    try:
        call(given)
    except (RuntimeError, ValueError, AssertionError, TritonError) as error:
        print(f"left out: {error}")
        return False
    return True


def _error(case: Case, given: dict[str, Any]) -> float:
    """Of the first rows, over the mean of their size."""
    from tunesmith.kernels import shipped

    kernel, some = shipped()[case.kernel], slice(0, 256)
    first = {name: value[some] if getattr(value, "ndim", 0) == 2 else value for name, value in given.items()}
    exact = kernel.declared.against.reference(**first)
    own = {name: value.clone() if getattr(value, "ndim", 0) == 2 else value for name, value in given.items()}
    made = ways(case.kernel, False)["ours"](own)
    pairs = zip(made, exact, strict=True) if isinstance(exact, tuple) else [(made, exact)]
    return max(
        float(((mine[some].double() - right).abs() / (right.abs() + right.abs().mean(-1, keepdim=True))).max())
        for mine, right in pairs
    )


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    from tunesmith.core.stats import geometric_mean

    def worst(kernel: str) -> float:
        return min(row["fraction"] for row in rows if row["kernel"] == kernel)

    def speedup(other: str, kernels: Sequence[str]) -> float:
        return geometric_mean(
            [1 / row["over"][other]["ratio"] for row in rows if other in row["over"] and row["kernel"] in kernels]
        )

    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    beside = {name: [k for k in kernels if any(row["kernel"] == k and name in row["over"] for row in rows)]
              for name in ("torch", "liger")}  # fmt: skip
    return {
        "shapes": len(rows), "worst_bandwidth_fraction": min(row["fraction"] for row in rows),
        "geomean_bandwidth_fraction": geometric_mean([row["fraction"] for row in rows]),
        **{f"worst_{kernel}": worst(kernel) for kernel in kernels},
        **{f"geomean_speedup_over_{name}": speedup(name, they) for name, they in beside.items() if they},
        **{
            f"{kernel}_speedup_over_{name}": speedup(name, [kernel])
            for name, they in beside.items()
            for kernel in they
        },
        "tune_s": sum(row["tune_s"] for row in rows),
    }  # fmt: skip


def dry() -> None:
    """On small inputs, on the CPU: what torch and the references make of them, and what would be run."""
    import torch

    from tunesmith.kernels import shipped

    for case in cases():
        kernel = shipped()[case.kernel]
        given = kernel.declared.make_inputs(kernel.problem(f"rows=3,n={min(case.n, 64)},dtype=bfloat16"), device="cpu")
        theirs, exact = ways(case.kernel, False)["torch"](given), kernel.declared.against.reference(**given)
        for mine, right in zip(*[one if isinstance(one, tuple) else (one,) for one in (theirs, exact)], strict=True):
            torch.testing.assert_close(mine.double(), right, atol=0.05, rtol=0.05)
        assert len(turns(given, 10**4)) > 1
    pair = torch.empty(2, 1000)
    print(
        compared(
            called({"ours": [lambda: pair[0].copy_(pair[1])], "copy": [lambda: pair[1].clone()]}, 3), "ours", "copy"
        )
    )
    print(f"{len(cases())} cases: {', '.join(sorted({f'{case.rows}x{case.n}' for case in cases()}))}")


def told(row: dict[str, Any]) -> str:
    others = "  ".join(f"over {name} {one['ratio']:.3f}" for name, one in row["over"].items())
    return (
        f"{row['kernel']:12} {row['rows']:7}x{row['n']:6}  tune {row['tune_s']:4.1f} s  "
        f"{row['over']['copy']['ours_us']:7.1f} us  {row['fraction']:.3f} of a copy  {others}  {row['chosen']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--count", type=int, default=64, help="how many of the cases")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for tuning each")
    parser.add_argument("--dry", action="store_true", help="small inputs on the CPU; nothing is written")
    arguments(parser)
    options = parser.parse_args()
    if options.dry:
        dry()
        return
    liger = _has_liger()
    with caches(options.keep) as folder:
        named = {
            f"{case.kernel}-{case.rows}-{case.n}": partial(measured, case, options.budget, liger)
            for case in cases()[: options.count]
        }
        turn, rows = Cases(folder, options.limit), list[dict[str, Any]]()
        for row in turn.rows(named):
            rows.append(row)
            print(told(row), flush=True)
    summary = summary_of(rows)
    print(json.dumps(summary))
    import torch

    packages = ("torch", "triton", *(("liger_kernel",) if liger else ()))
    print(write(
        "rows", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command=f"python benchmarks/rows.py --budget {options.budget:g}", rows=rows, summary=summary,
        versions={package: version(package) for package in packages}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    ahead = {name: ">= 1" for name in summary if "speedup_over_" in name}
    judge(summary, {**WANTED, **ahead}, turn)


if __name__ == "__main__":
    main()
