"""`ops.linear` with bias and activation against torch, and against torch.compile's own choice. Needs a GPU.

    python benchmarks/linear.py

Eight layers in bfloat16. Each is tuned, torch.compile (mode max-autotune-no-cudagraphs: what max-autotune chooses,
without the graph it would be put in) compiles the same, both into empty caches, and the seconds of each are noted.
Then all three are timed side by side: by graph replay (30 rounds) and called back to back (20 rounds), in random order
within a round, with other weights at each call as in `gemm.py`.

`geomean_over_torch` and `geomean_over_compile` are of ours over theirs, by graph replay. A search takes 20 seconds at
most (TUNESMITH_BUDGET_S says otherwise).

--keep FOLDER writes each row there as it comes: the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from _kept import Cases, arguments, caches, judge
from _results import FOLDER, version, write
from _side_by_side import called, compared, copies, replayed

#: M, N, K, activation: a projection, an MLP's first layer, in decode and prefill
LAYERS = (
    (1, 5120, 2880, "silu"), (16, 4096, 4096, "relu"), (16, 12288, 4096, "gelu"), (64, 5120, 5120, "silu"),
    (128, 8192, 2048, "gelu"), (512, 14336, 4096, "silu"), (2048, 4096, 4096, "gelu"), (4096, 16384, 4096, "relu"),
)  # fmt: skip


#: of one search
BUDGET_S = "20"
WANTED = {"layers": ">= 8", "geomean_over_torch": "<= 1", "geomean_over_compile": "<= 1"}


def measured(m: int, n: int, k: int, activation: str, device: str) -> dict[str, Any]:
    import torch

    from tunesmith import ops

    torch.cuda.empty_cache()  # what the last case had
    functional = getattr(torch.nn.functional, activation)
    x, w = (torch.randn(*size, device=device, dtype=torch.bfloat16) for size in ((m, k), (n, k)))
    bias = torch.randn(n, device=device, dtype=torch.bfloat16)

    def plain(x: Any, w: Any, bias: Any) -> Any:
        return functional(torch.nn.functional.linear(x, w, bias))

    start = time.perf_counter()
    summary = ops.tune(x, w, bias, activation)
    tune_s = time.perf_counter() - start
    torch._dynamo.reset()
    compiled = torch.compile(plain, mode="max-autotune-no-cudagraphs", dynamic=False)
    with torch.no_grad():
        start = time.perf_counter()
        compiled(x, w, bias)
        compile_s = time.perf_counter() - start
        weights = copies(w)
        ways = {
            "torch": [lambda w=w: plain(x, w, bias) for w in weights],
            "compile": [lambda w=w: compiled(x, w, bias) for w in weights],
            "ours": [lambda w=w: ops.linear(x, w, bias, activation) for w in weights],
        }
        eager = called(ways, 20)
        graph = eager if device == "cpu" else replayed(ways, 30)
    choice = summary.choice
    assert choice is not None
    exact = functional(x.double() @ w.double().mT + bias.double())
    error = float((ops.linear(x, w, bias, activation) - exact).abs().max() / exact.abs().max())
    if not error < 1e-2:
        raise AssertionError(f"linear {m}x{n}x{k} {activation}: {choice.config} is wrong by {error:.1e}")
    return {
        "M": m, "N": n, "K": k, "activation": activation, "tune_s": tune_s, "torch_compile_s": compile_s,
        "chosen": dict(choice.config), "error": error,
        "graph": {other: compared(graph, "ours", other) for other in ("torch", "compile")},
        "eager": {other: compared(eager, "ours", other) for other in ("torch", "compile")},
        "scores": ops.scores(x, w, bias, activation, top=5).splitlines()[3:],
    }  # fmt: skip


def told(row: dict[str, Any]) -> str:
    graph = row["graph"]
    return (
        f"{row['M']:5}x{row['N']:6}x{row['K']:5} {row['activation']}  tune {row['tune_s']:5.1f} s, "
        f"torch.compile {row['torch_compile_s']:5.1f} s  {graph['torch']['ours_us']:8.2f} us  "
        f"over torch {graph['torch']['ratio']:.3f}  over compile {graph['compile']['ratio']:.3f}  {row['chosen']['by']}"
    )


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    from tunesmith.core.stats import geometric_mean

    def mean(way: str, other: str) -> float:
        return geometric_mean([row[way][other]["ratio"] for row in rows])

    return {
        "layers": len(rows),
        **{f"geomean_over_{other}": mean("graph", other) for other in ("torch", "compile")},
        **{f"geomean_over_{other}_eager": mean("eager", other) for other in ("torch", "compile")},
        "tune_s": sum(row["tune_s"] for row in rows), "torch_compile_s": sum(row["torch_compile_s"] for row in rows),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--dry", action="store_true", help="small layers on the CPU; nothing is written")
    arguments(parser)
    options = parser.parse_args()
    os.environ.setdefault("TUNESMITH_BUDGET_S", BUDGET_S)
    with caches(options.keep) as folder:
        layers = [(min(m, 8), 64, 48, activation) for m, _, _, activation in LAYERS[:2]] if options.dry else LAYERS
        device = "cpu" if options.dry else "cuda"
        named = {"-".join(map(str, layer)): partial(measured, *layer, device) for layer in layers}
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
        "linear", chip, protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/linear.py", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    judge(summary, WANTED, cases)


if __name__ == "__main__":
    main()
