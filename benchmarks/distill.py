"""How small a table and a tree are that lose little, and what they lose where they were not made. Needs no GPU.

    python benchmarks/distill.py benchmarks/recordings/sweep/*.json.gz

From recordings of whole spaces: the smallest table for a reader that takes the next key above with which no size loses
more than 3 %, and a tree with which no problem loses more than 6 %. `table_worst_loss` and `tree_worst_loss` are the
most that a recorded problem loses, by paired samples of the same rounds; `rows_fraction` the rows over the problems.
Sizes between the recorded ones shape both by what the performance model, corrected by the recorded ones, expects there;
`without_model` is without that.

Then each fifth of the problems is held back while table and tree are made of the others: `held_back_p90` is the 90th
percentile of what the held-back problems lose with the table, `tree_held_back_p90` with the tree. The rows for other
bounds, and for a reader that takes the nearest key, are beside them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _results import FOLDER, typed, write

from tunesmith import Tiles, distill
from tunesmith.core.model import Model
from tunesmith.heuristic import Heuristic

HERE = Path(__file__).parent
USUAL = sorted((HERE / "recordings").rglob("*.json.gz"))
MAX_LOSS, TREE_LOSS, FOLDS = 0.03, 0.06, 5
RULES = ("ceil", "nearest-stock")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=Path, nargs="*", default=USUAL)
    parser.add_argument("--size", default="M")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--write", action="store_true", help="write distill-recorded.json")
    options = parser.parse_args()
    known = distill.together(distill.of_file(path) for path in options.recordings)
    bare = distill.groups_of(known.tuned, options.size)
    fill = distill.expecting(Model(Tiles()), known.device, options.size)
    groups = fill(bare)
    rows: list[dict[str, Any]] = []
    for rule in RULES:
        for bound, count, most in distill.curve(groups, options.size, rule):
            rows.append({"kind": "curve", "rule": rule, "bound": bound, "rows": count, "worst": round(most, 5)})
            print(f"{rule:14} at most {bound:5.1%}: {count:3} rows, the most lost is {most:.2%}")
    table = distill.table_of(groups, options.size, RULES[0], MAX_LOSS)
    tree = Heuristic(known.kernel, distill.tree_of(groups, TREE_LOSS), known.device)
    print(tree.python())
    back = {
        "table": distill.held_back(bare, FOLDS, distill.by_table(options.size, RULES[0], MAX_LOSS, fill)),
        "tree": distill.held_back(bare, FOLDS, distill.by_tree(TREE_LOSS, fill)),
        "table without model": distill.held_back(bare, FOLDS, distill.by_table(options.size, RULES[0], MAX_LOSS)),
        "tree without model": distill.held_back(bare, FOLDS, distill.by_tree(TREE_LOSS)),
    }
    for name, one in back.items():
        for problem, loss in sorted(one.losses.items(), key=lambda pair: pair[0].text):
            known_loss = None if loss == float("inf") else round(loss, 5)
            rows.append({"kind": f"held back, {name}", "problem": problem.text, "loss": known_loss})
        most, problem = one.worst
        print(f"held back, {name}: p90 {one.p90():.2%}, worst {most:.2%} ({problem}), {one.unknown} unknown")
    summary = {
        "table_worst_loss": table.worst, "tree_worst_loss": max(o.loss(tree(o.problem)) for o in known.tuned),
        "held_back_p90": back["table"].p90(), "held_back_worst": back["table"].worst[0],
        "tree_held_back_p90": back["tree"].p90(), "tree_held_back_worst": back["tree"].worst[0],
        "held_back_unknown": back["table"].unknown + back["tree"].unknown,
        "without_model_held_back_p90": back["table without model"].p90(),
        "without_model_rows": distill.table_of(bare, options.size, RULES[0], MAX_LOSS).rows,
        "rows_fraction": table.rows / len(known.tuned), "rows": table.rows, "problems": len(known.tuned),
        "tree_ends": len(list(tree.leaves())),
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4g}" for name, value in summary.items()))
    if options.write:
        given = typed(options.recordings, USUAL)
        print(write(
            "distill", "recorded", protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            command=f"python benchmarks/distill.py --write{given}", rows=rows, summary=summary, folder=options.folder,
        ))  # fmt: skip


if __name__ == "__main__":
    main()
