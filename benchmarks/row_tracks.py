"""What the row-wise kernels lose without a search: with their defaults, and with a table. Needs a GPU.

    python benchmarks/row_tracks.py --seed 20261130

bfloat16. Thirty problems drawn by the seed (softmax, RMSNorm, RMSNorm of a sum written in place, LayerNorm; from 1 to
32768 rows by the logarithm, of 64 to 32768 elements in steps of 64 by the logarithm, and at most 2^28 elements) are
tuned, and of each the default, the tuned Config and what the table of these thirty says are timed side by side, by
graph replay (30 rounds), with other inputs at each call, 400 MB of them in turn.

Each summary is a geometric mean of ratios to the tuned Config's time, `worst_default_over_tuned` the largest of them.

--keep FOLDER writes each row there as it comes, and our store: the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from _kept import Cases, arguments, caches, judge
from _results import FOLDER, version, write
from _row_kernels import turns
from _side_by_side import COLD_BYTES, compared, replayed

DRAWN, ROUNDS = 30, 30
KERNELS = ("row_softmax", "rmsnorm", "add_rmsnorm", "layernorm")
MOST_ELEMENTS = 2**28
WANTED = {"problems": ">= 30", "default_over_tuned": "<= 1.25", "table_over_tuned": "<= 1.03"}


def drawn(seed: int, number: int) -> list[tuple[str, int, int]]:
    draw, found = random.Random(seed), list[tuple[str, int, int]]()

    def one(low: int, high: int, step: int) -> int:
        return max(low, round(math.exp(draw.uniform(math.log(low), math.log(high))) / step) * step)

    while len(found) < number:
        rows, n = one(1, 32768, 1), one(64, 32768, 64)
        if rows * n <= MOST_ELEMENTS:
            found.append((KERNELS[len(found) % len(KERNELS)], rows, n))
    return found


class Tuned:
    """One problem, tuned."""

    def __init__(self, name: str, rows: int, n: int) -> None:
        from tunesmith.kernels import shipped

        self.name, self.rows, self.n, self.kernel = name, rows, n, shipped()[name]
        self.inputs = self.kernel.inputs(f"rows={rows},n={n},dtype=bfloat16")
        self.args = tuple(self.inputs.values())
        start = time.perf_counter()
        summary = self.kernel.tune(*self.args, isolate=False)
        self.tune_s = time.perf_counter() - start
        assert summary.choice is not None
        self.tuned, self.key = summary.choice.config, summary.key
        self.device = self.kernel.kernel.device(self.args)
        self.default = self.kernel.declared.default_for(name, self.key.problem, self.device)

    def timed(self, others: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Of each way that is not the tuned Config, its ratio to that."""
        bound = self.kernel.kernel.for_call(self.args)
        inputs = [tuple(one.values()) for one in turns(self.inputs, COLD_BYTES)]
        launches = {
            name: bound.load(config, self.key.problem, None).launch
            for name, config in {"tuned": self.tuned, **others}.items()
        }
        calls = {name: [partial(launch, *args) for args in inputs] for name, launch in launches.items()}
        times = replayed(calls, ROUNDS)
        return {name: compared(times, name, "tuned") for name in others}


def measured(name: str, rows: int, n: int) -> dict[str, Any]:
    import torch

    from tunesmith.store import default_store
    from tunesmith.tables.native import from_store

    torch.cuda.empty_cache()  # what the last case had
    one = Tuned(name, rows, n)
    row = from_store(default_store(), name, one.device.identity).lookup(one.key, one.key.problem, one.device)
    assert row is not None
    over = one.timed({"default": one.default, "table": row.config})
    return {
        "kernel": name, "rows": rows, "n": n, "tune_s": one.tune_s, "tuned": dict(one.tuned),
        "default": dict(one.default), "over_tuned": over,
    }  # fmt: skip


def told(row: dict[str, Any]) -> str:
    ratios = "  ".join(f"{name} {one['ratio']:.3f}" for name, one in row["over_tuned"].items())
    return f"{row['kernel']:12} {row['rows']:6}x{row['n']:6}  tune {row['tune_s']:5.1f} s  {ratios}  {row['tuned']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--seed", type=int, required=True, help="draws the problems")
    parser.add_argument("--dry", action="store_true", help="say which they are")
    arguments(parser)
    options = parser.parse_args()
    problems = drawn(options.seed, DRAWN)
    if options.dry:
        print("\n".join(f"{name} {rows}x{n}" for name, rows, n in problems))
        return
    with caches(options.keep) as folder:
        named = {f"{options.seed}-{'-'.join(map(str, one))}": partial(measured, *one) for one in problems}
        cases, rows = Cases(folder, options.limit), list[dict[str, Any]]()
        for row in cases.rows(named):
            rows.append(row)
            print(told(row), flush=True)
    import torch

    from tunesmith.core.stats import geometric_mean

    def ratios(way: str) -> list[float]:
        return [row["over_tuned"][way]["ratio"] for row in rows]

    summary = {
        "problems": len(rows), "default_over_tuned": geometric_mean(ratios("default")),
        "table_over_tuned": geometric_mean(ratios("table")), "worst_default_over_tuned": max(ratios("default")),
        "tune_s": sum(row["tune_s"] for row in rows),
    }  # fmt: skip
    print(json.dumps(summary))
    print(write(
        "row_tracks", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command=f"python benchmarks/row_tracks.py --seed {options.seed}", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    judge(summary, WANTED, cases)


if __name__ == "__main__":
    main()
