"""`fused_moe` against a loop of torch's products over experts, in layers of open models. Needs a GPU.

    python benchmarks/moe.py

bfloat16, tokens routed by a softmax over standard normal logits. Each layer and number of tokens is tuned (`tune_s`,
with compiling), then its Config, the kernel's default and torch's ways are timed side by side by graph replay (20
rounds, in random order within each). Eight routings take turns, so that few tokens find other experts at each call.

Torch's loop multiplies each chosen expert's own tokens, by two products and what stands between them; as a graph cannot
wait for the host, it is told beforehand which tokens these are, for nothing. Beside it stands torch's product of groups
(`grouped_mm`), with the sorting that it takes. `eager` is by the host's clock, where the loop has to ask the GPU for
each expert's tokens, as models' own code does.

Ratios are of ours to torch's time, summaries geometric means. At the end each layer's rows are exported for SGLang and
vLLM; the files are checked, and looked up as these engines do for every number of tokens up to 8192. A search takes 12
seconds at most (TUNESMITH_BUDGET_S says otherwise).

--keep FOLDER writes each row there as it comes, and our store: the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _kept import Cases, arguments, caches, judge
from _model_shapes import LAYERS, Layer
from _results import FOLDER, version, write
from _side_by_side import called, compared, replayed

TOKENS = (1, 16, 64, 256, 1024, 4096)
ROUTINGS, ROUNDS, EAGER_ROUNDS, UPTO = 8, 20, 7, 8192
#: one search, so that no problem takes what others need
BUDGET_S = "12"
WANTED = {"problems": ">= 18", "over_torch_loop": "<= 1", "check_errors": "<= 0", "found_by_the_engines_rule": ">= 6"}

Calls = Sequence[Callable[[], Any]]


# --- torch's loop, told beforehand which tokens go where ---


def looped(x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Callable[[], Any]:
    import torch

    chosen = [(expert, *torch.where(ids == expert)) for expert in ids.unique().tolist()]
    told = [(expert, tokens, weights[tokens, which].to(x.dtype)[:, None]) for expert, tokens, which in chosen]

    def call() -> Any:
        out = torch.zeros_like(x)
        for expert, tokens, weight in told:
            gate, up = (x[tokens] @ w1[expert].mT).chunk(2, -1)
            out.index_add_(0, tokens, (torch.nn.functional.silu(gate) * up) @ w2[expert].mT * weight)
        return out

    return call


# --- one layer with so many tokens ---


def inputs(layer: Layer, M: int, device: str) -> tuple[Any, list[tuple[Any, Any]]]:
    """(x, w1, w2), and routings of the tokens."""
    import torch

    from tunesmith import Problem
    from tunesmith.kernels.fused_moe import make_inputs, route

    usual = {f"{array}.dtype": "bfloat16" for array in ("x", "w1", "w2")}
    made = make_inputs(Problem({"M": M, **layer._asdict(), **usual}), device=device)
    routings = [(made["topk_weights"], made["topk_ids"])]
    while len(routings) < ROUTINGS:
        routings.append(route(torch.randn(M, layer.E, device=device), layer.top_k))
    return (made["x"], made["w1"], made["w2"]), routings


def measured(name: str, M: int) -> dict[str, Any]:
    import torch

    from tunesmith import ops_moe
    from tunesmith.kernels import fused_moe

    torch.cuda.empty_cache()  # what the last case had
    layer = LAYERS[name]
    tensors, routings = inputs(layer, M, "cuda")
    every = [fused_moe.arguments(*tensors, *routing) for routing in routings]
    kernel = fused_moe.kernel.kernel
    start = time.perf_counter()
    summary = fused_moe.kernel.tune(*every[0], isolate=False)  # a worker would start for longer than it runs
    tune_s = time.perf_counter() - start
    assert summary.choice is not None
    problem = summary.key.problem
    usual = fused_moe.default(problem, kernel.device(every[0]))

    def launches(config: Any) -> Calls:
        launch = kernel.for_call(every[0]).load(config, problem, None).launch
        return [partial(launch, *args) for args in every]

    ways: dict[str, Calls] = {
        "ours": launches(summary.choice.config), "default": launches(usual),
        "loop": [looped(*tensors, *routing) for routing in routings],
    }  # fmt: skip
    if ops_moe._has_groups(*tensors):
        ways["grouped"] = [partial(ops_moe._by_groups, *args) for args in every]
    check(ways)
    graph = replayed(ways, ROUNDS)
    eager = called(
        {
            "ours": [partial(fused_moe.kernel, *args) for args in every],
            "loop": [partial(ops_moe._by_loop, *args) for args in every],
        },
        EAGER_ROUNDS,
    )
    return {
        "layer": name, "M": M, **layer._asdict(), "device": summary.key.device,
        "tune_s": tune_s, "compile_s": summary.compile_s,
        "counts": summary.counts, "tuned": dict(summary.choice.config), "default": dict(usual),
        "loop": compared(graph, "ours", "loop"), "eager": compared(eager, "ours", "loop"),
        "default_over_tuned": compared(graph, "default", "ours"),
        "grouped": compared(graph, "ours", "grouped") if "grouped" in ways else None,
    }  # fmt: skip


def check(ways: Mapping[str, Calls]) -> None:
    """All ways give one result, so far as bfloat16 can tell."""
    first = {way: calls[0]().double() for way, calls in ways.items()}
    for way, made in first.items():
        off = float((made - first["loop"]).abs().max() / first["loop"].abs().max())
        if not off < 0.05:
            raise AssertionError(f"{way} is off by {off:.2g} of the loop's largest number")


# --- tables for the engines ---


def exported(table: Any, device: str, triton: str, folder: Path) -> tuple[dict[str, float], list[str]]:
    """(figures of the files, what `table check` says of them)."""
    from tunesmith.tables import convert, names
    from tunesmith.tables.check import Options
    from tunesmith.tables.check import check as checked

    found = files = 0
    for layer in LAYERS.values():
        try:
            rows = convert.rows_by_size(table, "M", layer._asdict(), {})
        except ValueError as error:  # nothing of it was tuned in time
            print(f"{layer}: {error}")
            continue
        logical = names.Layer(layer.E, layer.N)
        for engine in names.ENGINES:
            made = convert.export_moe(engine, logical, device, rows, triton=triton)
            for path, data in made.files().items():
                (folder / engine / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / engine / path).write_bytes(data)
            files += 1
            found += looked_up(engine, layer, device, triton, folder / engine, rows)
    report = checked([folder / engine for engine in names.ENGINES], Options(device=device.replace(" ", "_"), upto=UPTO))
    figures = {"exported_files": files, "found_by_the_engines_rule": found, "check_errors": report.errors}
    return figures, [str(finding) for finding in report.findings]


def looked_up(
    engine: str, layer: Layer, device: str, triton: str, folder: Path, rows: Mapping[int, Mapping[str, Any]]
) -> bool:
    """Whether an engine's own name and rule, written out once more here, find the nearest row for every size."""
    if engine == "sglang":
        name = f"E={layer.E},N={layer.N},device_name={device.replace(' ', '_')}.json"
        path = folder / "configs" / f"triton_{triton.replace('.', '_')}" / name
        configs = {int(key): value for key, value in json.loads(path.read_text()).items()}
    else:
        spelled = "_".join(device.replace("/", " ").split())
        spelled = "NVIDIA_H200" if "H200" in spelled.split("_") else spelled
        tuned = json.loads((folder / f"E={layer.E},N={layer.N},device_name={spelled}.json").read_text())
        tuned.pop("triton_version", None)
        configs = {int(key): value for key, value in tuned.items()}
    ordered = sorted(rows)  # of two that are equally near the first in the file
    return all(
        configs[min(configs, key=lambda key: abs(key - M))] == rows[min(ordered, key=lambda key: abs(key - M))]
        for M in range(1, UPTO + 1)
    )


# --- all of it ---


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    from tunesmith.core.stats import geometric_mean

    def mean(name: str) -> float:
        return geometric_mean([row[name]["ratio"] for row in rows if row[name] is not None])

    grouped = {"over_torch_grouped": mean("grouped")} if any(row["grouped"] for row in rows) else {}
    return {
        "problems": len(rows), "over_torch_loop": mean("loop"),
        "worst_over_torch_loop": max(row["loop"]["ratio"] for row in rows),
        "eager_over_torch_loop": mean("eager"), **grouped, "default_over_tuned": mean("default_over_tuned"),
        "tune_s": sum(row["tune_s"] for row in rows),
    }  # fmt: skip


def dry() -> None:
    """What can be run on the CPU of this script: torch's ways on small layers, and the export."""
    import torch

    from tunesmith import Problem, known_device, ops_moe
    from tunesmith.kernels import fused_moe
    from tunesmith.tables.native import Entry, NativeTable

    small = Layer(8, 64, 32, 2)
    for M in (1, 16):
        tensors, routings = inputs(small, M, "cpu")
        every = [fused_moe.arguments(*tensors, *routing) for routing in routings]
        ways: dict[str, Calls] = {
            "ours": [partial(ops_moe._by_all, *args) for args in every],
            "loop": [looped(*tensors, *routing) for routing in routings],
            "grouped": [partial(ops_moe._by_groups, *args) for args in every],
        }
        check(ways)
        with torch.no_grad():
            print(M, compared(called(ways, 3), "ours", "loop"))
    device = known_device("NVIDIA H200")
    usual = {"w1.strides": "xx1", "w2.strides": "xx1", "topk_weights.dtype": "float32", "topk_ids.dtype": "int32"}
    usual |= {f"{array}.dtype": "bfloat16" for array in ("x", "w1", "w2")}
    problems = [Problem({"M": M, **layer._asdict(), **usual}) for layer in LAYERS.values() for M in TOKENS]
    entries = {problem: Entry(fused_moe.default(problem, device), 1e-4) for problem in problems}
    with tempfile.TemporaryDirectory() as scratch:
        print(exported(NativeTable("fused_moe", device.identity, entries), device.name, "3.6.0", Path(scratch)))


def told(row: Mapping[str, Any]) -> str:
    loop, grouped = row["loop"], row["grouped"] or {"ratio": float("nan")}
    return (
        f"{row['layer']:15} M={row['M']:5} tune {row['tune_s']:5.1f} s  ours {loop['ours_us']:9.1f} us  "
        f"loop {loop['ratio']:.3f}  grouped {grouped['ratio']:.3f}  eager {row['eager']['ratio']:.3f}  "
        f"default {row['default_over_tuned']['ratio']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--count", type=int, default=len(LAYERS) * len(TOKENS), help="how many problems of the list")
    parser.add_argument("--table", type=Path, help="where our own table of what was tuned goes, for `table export`")
    parser.add_argument("--dry", action="store_true", help="what can be run on the CPU; nothing is written")
    arguments(parser)
    options = parser.parse_args()
    if options.dry:
        dry()
        return
    os.environ.setdefault("TUNESMITH_BUDGET_S", BUDGET_S)
    with caches(options.keep) as folder, tempfile.TemporaryDirectory() as scratch:
        import torch
        import triton

        from tunesmith.store import default_store
        from tunesmith.tables.native import from_store

        wanted = [(name, M) for M in TOKENS for name in LAYERS][: options.count]
        named = {f"{name.replace('/', '_')}-{M}": partial(measured, name, M) for name, M in wanted}
        cases, rows = Cases(folder, options.limit), list[dict[str, Any]]()
        with torch.no_grad():
            for row in cases.rows(named):
                rows.append(row)
                print(told(row), flush=True)
        table = from_store(default_store(), "fused_moe", rows[0]["device"])
        if options.table is not None:
            table.write(options.table)
        device = torch.cuda.get_device_name()
        figures, findings = exported(table, device, triton.__version__, Path(scratch))
        print(*findings, figures, sep="\n")
    summary = {**summary_of(rows), **figures}
    print(json.dumps(summary))
    print(write(
        "moe", device.split()[-1].lower(), protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/moe.py", rows=[*rows, {"table_check": findings}], summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    judge(summary, WANTED, cases)


if __name__ == "__main__":
    main()
