"""`ops.matmul` against `torch.mm` over products of open models. Needs a GPU.

    python benchmarks/gemm.py

bfloat16, weights as linear layers have them. Each product is tuned (`tune_s`, with compiling; binaries are shared by
later products), then timed beside torch's by graph replay (30 rounds, many calls in a graph) and called back to back
with the host's part counted (20 rounds), both in random order within a round. Each call finds other weights than the
one before it, 400 MB of them in turn (64 at most), so that they come from memory as they do in a model.

`worst_over_torch` is the largest lower 95 % bound of the paired ratio to torch by graph replay,
`worst_over_torch_eager` the same for calls; `geomean_speedup_small_m` of products with at most 64 rows, by graph
replay, and `geomean_speedup_small_m_large` of those of them whose weights are more than 100 MB, which no kernel reads
faster than memory gives them. A search takes 20 seconds at most (TUNESMITH_BUDGET_S says otherwise).

--keep FOLDER writes each row there as it comes, and our store: the same command goes on from it, and a table is made of
FOLDER/ours.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from _gemm_shapes import ALL, Shape
from _kept import Cases, arguments, caches, judge
from _results import FOLDER, version, write
from _side_by_side import called, compared, copies, replayed

FEW_ROWS, LARGE_BYTES = 64, 100e6
#: of one search
BUDGET_S = "20"
WANTED = {
    "shapes": ">= 40", "worst_over_torch": "<= 1.02", "worst_over_torch_eager": "<= 1.02",
    "geomean_speedup_small_m": ">= 1.15",
}  # fmt: skip


def measured(shape: Shape, device: str) -> dict[str, Any]:
    import torch

    from tunesmith import ops

    torch.cuda.empty_cache()  # what the last case had
    m, n, k, layer, activation = shape
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    start = time.perf_counter()
    summary = ops.tune(x, w, activation=activation)
    tune_s = time.perf_counter() - start
    weights, relu = copies(w), torch.nn.functional.relu
    if activation is None:
        ways = {
            "torch": [lambda b=w.mT: torch.mm(x, b) for w in weights],
            "ours": [lambda b=w.mT: ops.matmul(x, b) for w in weights],
        }
    else:
        ways = {
            "torch": [lambda b=w.mT: relu(torch.mm(x, b)) for w in weights],
            "ours": [lambda w=w: ops.linear(x, w, activation=activation) for w in weights],
        }
    with torch.no_grad():
        graph = None if device == "cpu" else compared(replayed(ways, 30), "ours", "torch")
        eager = compared(called(ways, 20), "ours", "torch")
    choice = summary.choice
    assert choice is not None
    return {
        "M": m, "N": n, "K": k, "layer": layer, "activation": activation, "tune_s": tune_s,
        "compile_s": summary.compile_s, "measure_s": summary.measure_s, "counts": summary.counts,
        "chosen": dict(choice.config), "graph": graph or eager, "eager": eager,
        "scores": ops.scores(x, w, activation=activation, top=5).splitlines()[3:],
    }  # fmt: skip


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    from tunesmith.core.stats import geometric_mean

    few = [row for row in rows if row["M"] <= FEW_ROWS]
    small = [1 / row["graph"]["ratio"] for row in few]
    large = [1 / row["graph"]["ratio"] for row in few if 2 * row["N"] * row["K"] > LARGE_BYTES]
    return {
        "shapes": len(rows),
        "worst_over_torch": max(row["graph"]["low"] for row in rows),
        "worst_over_torch_eager": max(row["eager"]["low"] for row in rows),
        "geomean_speedup_small_m": geometric_mean(small),
        **({"geomean_speedup_small_m_large": geometric_mean(large)} if large else {}),
        "geomean_speedup": geometric_mean([1 / row["graph"]["ratio"] for row in rows]),
        "tune_s": sum(row["tune_s"] for row in rows),
    }


def told(row: dict[str, Any]) -> str:
    graph, eager = row["graph"], row["eager"]
    return (
        f"{row['M']:5}x{row['N']:6}x{row['K']:5} {row['activation'] or '':4} tune {row['tune_s']:5.1f} s  "
        f"graph {graph['ours_us']:8.2f} us of {graph['torch_us']:8.2f}  {graph['ratio']:.3f} from {graph['low']:.3f}  "
        f"eager {eager['ratio']:.3f} from {eager['low']:.3f}  {row['chosen']['by']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--count", type=int, default=72, help="how many products of the list")
    parser.add_argument("--dry", action="store_true", help="small products on the CPU; nothing is written")
    arguments(parser)
    options = parser.parse_args()
    os.environ.setdefault("TUNESMITH_BUDGET_S", BUDGET_S)
    with caches(options.keep) as folder:
        wanted, device = ALL[: options.count], "cpu" if options.dry else "cuda"
        if options.dry:
            wanted = [Shape(min(s.M, 32), 64, 48, s.layer, s.activation) for s in wanted]
        named = {f"{s.M}-{s.N}-{s.K}-{s.activation}": partial(measured, s, device) for s in wanted}
        cases, rows = Cases(folder, options.limit), list[dict[str, Any]]()
        for row in cases.rows(named):
            rows.append(row)
            print(told(row), flush=True)
    summary = summary_of(rows)
    print(json.dumps(summary))
    if options.dry:
        return
    import torch

    chip = torch.cuda.get_device_name().split()[-1].lower()
    print(write(
        "gemm", chip, protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command=f"python benchmarks/gemm.py --count {options.count}", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    judge(summary, WANTED, cases)


if __name__ == "__main__":
    main()
