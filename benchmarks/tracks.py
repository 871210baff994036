"""What the shipped matrix product loses without a search: with its default, and with a table. Needs a GPU.

    python benchmarks/tracks.py --seed 20261130

bfloat16, weights as linear layers have them. Twenty products drawn by the seed (M from 1 to 8192, N and K multiples of
64 from 512 to 16384, all by the logarithm) are tuned, and of each the default, the tuned Config and what the table of
these twenty says are timed side by side, by graph replay (30 rounds), with other weights at each call. Then ten more
are tuned, which are not in the table, and what a call of each would use with that table is timed beside the tuned one:
the row that the table's own rule finds (`Near`, as for the tables that ship), else the default. `rows_found` of them
have a row. Shipped tables are not asked.

Each summary is a geometric mean of ratios to the tuned Config's time.

--keep FOLDER writes each row there as it comes, and our store: the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from _kept import Cases, arguments, caches, judge
from _results import FOLDER, version, write
from _side_by_side import compared, copies, replayed

DRAWN, UNSEEN, ROUNDS = 20, 10, 30
WANTED = {
    "problems": ">= 30", "default_over_tuned": "<= 1.25", "table_over_tuned": "<= 1.03",
    "neighbour_over_tuned": "<= 1.1",
}  # fmt: skip


def drawn(seed: int, number: int) -> list[tuple[int, int, int]]:
    draw = random.Random(seed)

    def one(low: int, high: int, step: int) -> int:
        return max(low, round(math.exp(draw.uniform(math.log(low), math.log(high))) / step) * step)

    return [(one(1, 8192, 1), one(512, 16384, 64), one(512, 16384, 64)) for _ in range(number)]


class Product:
    """One product, tuned; `ways` are Configs that are to be timed."""

    def __init__(self, m: int, n: int, k: int) -> None:
        import torch

        from tunesmith.kernels import gemm

        torch.cuda.empty_cache()  # what the last one had
        self.sizes, self.kernel = (m, n, k), gemm.kernel
        self.a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
        self.args = gemm.arguments(self.a, self.w.mT)
        start = time.perf_counter()
        summary = gemm.kernel.tune(*self.args, isolate=False)  # a worker for each would start for longer than it runs
        self.tune_s = time.perf_counter() - start
        assert summary.choice is not None
        self.tuned, self.key = summary.choice.config, summary.key
        self.device = gemm.kernel.kernel.device(self.args)
        self.space = gemm.space(self.key.problem, self.device)
        self.default = gemm.default(self.key.problem, self.device)

    def timed(self, ways: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Of each way that is not the tuned Config, its ratio to that."""
        from tunesmith.kernels import gemm

        whole = {"tuned": self.tuned, **ways}
        weights = copies(self.w)
        bound = self.kernel.kernel.for_call(self.args)
        launches = {name: bound.load(config, self.key.problem, None).launch for name, config in whole.items()}
        calls = {
            name: [partial(launch, *gemm.arguments(self.a, w.mT)) for w in weights] for name, launch in launches.items()
        }
        times = replayed(calls, ROUNDS)
        return {name: compared(times, name, "tuned") for name in ways}


def looked_up(table: Any, product: Product) -> tuple[Any, str]:
    """What a call of the product would use with this table alone: (the Config, whose row it is; empty for none)."""
    row = table.lookup(product.key, product.key.problem, product.device)
    if row is None or product.space.fault(row.config) is not None:
        return product.default, ""
    return row.config, row.distance or "its own"


def dry(seed: int) -> None:
    """Defaults and what a table of defaults would find, on an H200 that is not here."""
    from tunesmith import Problem, known_device
    from tunesmith.core.key import Key
    from tunesmith.kernels import gemm
    from tunesmith.tables import NativeTable, Near
    from tunesmith.tables.native import Entry

    chip, keys = known_device("NVIDIA H200"), list[Any]()
    for m, n, k in drawn(seed, DRAWN + UNSEEN):
        problem = gemm.kernel.problem(Problem({"M": m, "N": n, "K": k, "dtype": "bfloat16", "b.strides": "1x"}))
        keys.append(Key("gemm", "f", problem, chip.identity, "p"))
    known = {key.problem: Entry(gemm.default(key.problem, chip)) for key in keys[:DRAWN]}
    table = Near(NativeTable("gemm", chip.identity, known), ["M", "N", "K"])
    for i, key in enumerate(keys):
        row = table.lookup(key, key.problem, chip)
        assert row is None or i >= DRAWN or row.config == known[key.problem].config
        said = "no row" if row is None else row.distance or "its own row"
        print(*(key.problem[name] for name in "MNK"), f"{len(list(gemm.space(key.problem, chip)))} Configs, {said}")


def tuned(m: int, n: int, k: int) -> dict[str, Any]:
    return {"tune_s": Product(m, n, k).tune_s}


def timed(m: int, n: int, k: int, seen: Collection[tuple[int, int, int]]) -> dict[str, Any]:
    """What the default and the table of the products that were seen lose."""
    from tunesmith.store import default_store
    from tunesmith.tables import Near, from_store

    product = Product(m, n, k)
    every = from_store(default_store(), "gemm", product.device.identity)
    known = {problem: row for problem, row in every.rows.items() if tuple(problem[one] for one in "MNK") in seen}
    found, whose = looked_up(Near(replace(every, rows=known), ["M", "N", "K"]), product)
    ways = {"default": product.default, "table" if product.sizes in seen else "neighbour": found}
    return {
        "M": m, "N": n, "K": k, "in_table": product.sizes in seen, "row": whose, "tuned": dict(product.tuned),
        **{name: dict(config) for name, config in ways.items()}, "over_tuned": product.timed(ways),
    }  # fmt: skip


def summary_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    from tunesmith.core.stats import geometric_mean

    def mean(way: str, of: list[dict[str, Any]]) -> float:
        return geometric_mean([row["over_tuned"][way]["ratio"] for row in of])

    seen, unseen = ([row for row in rows if row["in_table"] == known] for known in (True, False))
    return {
        "problems": len(rows),
        "default_over_tuned": mean("default", seen), "table_over_tuned": mean("table", seen),
        "rows_found": sum(bool(row["row"]) for row in unseen),
        **({"neighbour_over_tuned": mean("neighbour", unseen)} if unseen else {}),
        "tune_s": sum(row["tune_s"] for row in rows),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--seed", type=int, required=True, help="draws the products")
    parser.add_argument(
        "--dry", action="store_true", help="compiles and times nothing, needs no GPU; nothing is written"
    )
    arguments(parser)
    options = parser.parse_args()
    with caches(options.keep) as folder:
        if options.dry:
            dry(options.seed)
            return
        sizes, rows = drawn(options.seed, DRAWN + UNSEEN), list[dict[str, Any]]()
        cases, seen = Cases(folder, options.limit), set(sizes[:DRAWN])
        names = {"-".join(map(str, (options.seed, *size))): size for size in sizes}
        searches = list(cases.rows({f"tuned-{name}": partial(tuned, *size) for name, size in names.items()}))
        if cases.left or cases.failed:
            sys.exit(f"missed: {len(searches)} of {len(sizes)} were tuned, and there is no table yet")
        searched = dict(zip(names, searches, strict=True))
        for row in cases.rows({name: partial(timed, *size, seen) for name, size in names.items()}):
            name = "-".join(str(row[one]) for one in "MNK")
            rows.append(row | searched[f"{options.seed}-{name}"])
            ratios = "  ".join(f"{name} {one['ratio']:.3f}" for name, one in row["over_tuned"].items())
            print(f"{name}  tune {rows[-1]['tune_s']:5.1f} s  {ratios}  {row['row'] or 'no row'}", flush=True)
    import torch

    summary = summary_of(rows)
    print(json.dumps(summary))
    print(write(
        "tracks", torch.cuda.get_device_name().split()[-1].lower(),
        protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command=f"python benchmarks/tracks.py --seed {options.seed}", rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=True, folder=options.folder,
    ))  # fmt: skip
    judge(summary, {name: bound for name, bound in WANTED.items() if name in summary}, cases)


if __name__ == "__main__":
    main()
