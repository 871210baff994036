"""How small a table and a tree are that lose little, and what they lose where they were not made. Needs no GPU.

    python benchmarks/distill.py

Of matrix products on an H200, twice: `recording`, 24 of them with all 480 configurations timed on each, 10 samples of
each; and `sweep`, the 64 that `benchmarks/sweep.py` tuned, with what its search measured on each: the 120 that the
model ranked first, of which what was slower beyond doubt left the race early. There, a configuration that was not
measured on a problem may not serve it, and losses are to the fastest that was measured; the sweep's own result says how
far from the fastest of all that is.

The smallest table for a reader that takes the next key above with which no size loses more than 3 %, and a tree with
which no problem loses more than 6 %. `table_worst_loss` and `tree_worst_loss` are the most that a problem loses, by
paired samples of the same rounds; `rows_fraction` the rows over the problems. Sizes between the tuned ones shape both,
by what the performance model, corrected by the tuned ones, expects there; `without_model` is without that.

Then each fifth of the problems is held back while table and tree are made of the others: `held_back_p90` is the 90th
percentile of what the held-back problems lose with the table, `tree_held_back_p90` with the tree; `held_back_unknown`
the held-back problems on which what was chosen had not been measured: they are in no percentile. The rows for other
bounds, and for a reader that takes the nearest key, are beside them.

A figure with `recording_` or `sweep_` before it is of that one, without it the larger of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import FOLDER, write

from tunesmith import Tiles, distill
from tunesmith.core.model import Model
from tunesmith.distill import Collection, HeldBack
from tunesmith.heuristic import Heuristic

RECORDINGS = Path(__file__).parent / "recordings"
#: by name, the folder of its recordings
SOURCES = {"recording": RECORDINGS / "sweep", "sweep": RECORDINGS / "swept"}
SIZE, MAX_LOSS, TREE_LOSS, FOLDS = "M", 0.03, 0.06, 5
RULES = ("ceil", "nearest-stock")


@dataclass(frozen=True)
class Found:
    """What came of one source: rows of the result, and figures."""

    rows: Sequence[dict[str, Any]]
    figures: Mapping[str, float]


def distilled(known: Collection) -> Found:
    """Table, tree, curve, and what is lost by what was held back."""
    bare = distill.groups_of(known.tuned, SIZE)
    fill = distill.expecting(Model(Tiles()), known.device, SIZE, MAX_LOSS)
    groups = fill(bare)
    rows: list[dict[str, Any]] = []
    for rule, sizes, of in [*((rule, "between too", groups) for rule in RULES), (RULES[0], "tuned alone", bare)]:
        for bound, count, most in distill.curve(of, SIZE, rule):
            about = {"kind": "curve", "rule": rule, "sizes": sizes}
            rows.append({**about, "bound": bound, "rows": count, "worst": round(most, 5)})
            print(f"{rule:14} {sizes:12} at most {bound:5.1%}: {count:3} rows, the most lost is {most:.2%}")
    table = distill.table_of(groups, SIZE, RULES[0], MAX_LOSS)
    tree = Heuristic(known.kernel, distill.tree_of(groups, TREE_LOSS), known.device)
    print(tree.python())
    back = {
        "table": distill.held_back(bare, FOLDS, distill.by_table(SIZE, RULES[0], MAX_LOSS, fill)),
        "tree": distill.held_back(bare, FOLDS, distill.by_tree(TREE_LOSS, fill)),
        "table without model": distill.held_back(bare, FOLDS, distill.by_table(SIZE, RULES[0], MAX_LOSS)),
        "tree without model": distill.held_back(bare, FOLDS, distill.by_tree(TREE_LOSS)),
    }
    for name, one in back.items():
        rows += lost(name, one)
    return Found(rows, {
        "table_worst_loss": table.worst, "tree_worst_loss": max(o.loss(tree(o.problem)) for o in known.tuned),
        "held_back_p90": back["table"].p90(), "held_back_worst": back["table"].worst[0],
        "tree_held_back_p90": back["tree"].p90(), "tree_held_back_worst": back["tree"].worst[0],
        "held_back_unknown": back["table"].unknown + back["tree"].unknown,
        "without_model_held_back_p90": back["table without model"].p90(),
        "without_model_rows": distill.table_of(bare, SIZE, RULES[0], MAX_LOSS).rows,
        "rows_fraction": table.rows / len(known.tuned), "rows": table.rows, "problems": len(known.tuned),
        "tree_ends": len(list(tree.leaves())),
    })  # fmt: skip


def lost(name: str, back: HeldBack) -> list[dict[str, Any]]:
    """A row for each problem that was held back."""
    most, problem = back.worst
    print(f"held back, {name}: p90 {back.p90():.2%}, worst {most:.2%} ({problem}), {back.unknown} unknown")
    known = {problem.text: None if loss == float("inf") else round(loss, 5) for problem, loss in back.losses.items()}
    return [{"kind": f"held back, {name}", "problem": text, "loss": loss} for text, loss in sorted(known.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--write", action="store_true", help="write distill-recorded.json")
    options = parser.parse_args()
    found: dict[str, Found] = {}
    for name, folder in SOURCES.items():
        print(f"--- {name}")
        found[name] = distilled(distill.together(distill.of_file(path) for path in sorted(folder.glob("*.json.gz"))))
    of_both = ("table_worst_loss", "tree_worst_loss", "held_back_p90", "held_back_worst", "tree_held_back_p90",
               "tree_held_back_worst", "held_back_unknown", "rows_fraction")  # fmt: skip
    summary = {name: max(one.figures[name] for one in found.values()) for name in of_both}
    for source, one in found.items():
        summary |= {f"{source}_{name}": value for name, value in one.figures.items()}
    print("\n".join(f"{name} {value:.4g}" for name, value in summary.items()))
    if options.write:
        rows = [{"of": source, **row} for source, one in found.items() for row in one.rows]
        print(write(
            "distill", "recorded", protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            command="python benchmarks/distill.py --write", rows=rows, summary=summary, folder=options.folder,
        ))  # fmt: skip


if __name__ == "__main__":
    main()
