"""`tunesmith distill`: from many tuned problems to the smallest table, and a small rule, that lose little."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, note, print_json, write_file
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.distill import Collection, Fill, HeldBack, Table
    from tunesmith.heuristic import Heuristic


def distill(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Recordings, and tables of ours; the store where none is given."),
    ] = [],
    kernel: Annotated[str, typer.Option("--kernel", metavar="NAME", help="Of the store: which kernel.")] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="IDENTITY", help="Of the store: which device, where there are several.")
    ] = "",
    size: Annotated[str, typer.Option("--size", metavar="NAME", help="The size that a table's rows differ in.")] = "M",
    rule: Annotated[
        str,
        typer.Option(
            "--rule", metavar="NAME", help="How the table's reader finds a row: ceil, floor, nearest-stock, …"
        ),
    ] = "ceil",
    max_loss: Annotated[
        str, typer.Option("--max-loss", metavar="3%", help="What a size may lose with the table, at most.")
    ] = "3%",
    tree_loss: Annotated[
        str, typer.Option("--tree-loss", metavar="6%", help="What a tuned problem may lose with the tree, at most.")
    ] = "6%",
    folds: Annotated[
        int, typer.Option("--folds", metavar="N", help="In how many parts problems are held back, one after the other.")
    ] = 5,
    model: Annotated[
        str, typer.Option("--model", metavar="TARGET", help="Expect sizes between by this kernel's performance model.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="TABLE.json", help="Write the table here.")
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option("--tree", metavar="TREE.json|.py", help="Write the tree here: as data, or as Python to read."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make the smallest table and a small tree with which no tuned problem loses much.

    The table is the smallest there is for its reader's rule. What is lost by problems that were held back is printed
    beside it. Nothing is measured.
    """
    from tunesmith import distill as made
    from tunesmith.heuristic import Heuristic

    bound, tree_bound = part(max_loss, "--max-loss"), part(tree_loss, "--tree-loss")
    if folds < 2:
        raise BadInput(f"--folds {folds}: good values: integers from 2")
    known = collected(files, kernel, device)
    if known.left_out:
        note(f"left out, as other problems were tuned later: {known.left_out}")
    tuned = made.groups_of(known.tuned, size)
    fill = _fill(model, known.device, size, bound) if model else made.as_they_are
    groups = fill(tuned)
    table = made.table_of(groups, size, rule, bound)
    node = made.tree_of(groups, tree_bound)
    worst = max(one.loss(Heuristic("", node)(one.problem)) for one in known.tuned)
    about = {"problems": len(known.tuned), "worst_loss": round(worst, 5), "bound": tree_bound}
    heuristic = Heuristic(known.kernel, node, known.device, about)
    back = {
        "table": made.held_back(tuned, folds, made.by_table(size, rule, bound, fill)),
        "tree": made.held_back(tuned, folds, made.by_tree(tree_bound, fill)),
    }
    shape = made.curve(groups, size, rule)
    if output is not None:
        write_file(output, table.native(known).data())
    if tree is not None:
        text = heuristic.python(_function_name(known.kernel)) if tree.suffix == ".py" else heuristic.text()
        write_file(tree, text.encode())
    if json:
        print_json("distill", data_of(known, table, heuristic, worst, back, shape, folds))
    else:
        _print(known, table, heuristic, worst, back, shape, folds)
    raise typer.Exit(GOOD if worst <= tree_bound and table.worst <= bound else NO)


def _fill(target: str, device: str, size: str, within: float) -> Fill:
    """What the model of a kernel lets one expect.

    Raises:
        BadInput: for a kernel without one.
    """
    from tunesmith.cli.target import find_target
    from tunesmith.distill import expecting

    kernel = find_target(target)
    if kernel.declared.model is None:
        raise BadInput(f"--model {target}: its autotune has no model=; leave --model out, or give it one")
    return expecting(kernel.declared.model, device, size, within)


def part(text: str, option: str) -> float:
    """`3%` or `0.03` as 0.03.

    Raises:
        BadInput: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise BadInput(f"{option} {text}: good values: 3%, or 0.03, from 0 to 1")
    return value


def collected(files: Sequence[Path], kernel: str, device: str) -> Collection:
    """What the files know, or the store.

    Raises:
        BadInput: for neither, and for a kernel's name beside files.
    """
    from tunesmith import distill as made
    from tunesmith.store import default_store

    if files:
        if kernel or device:
            raise BadInput("--kernel and --device are of the store; a file says what it is of: leave one out")
        return made.together(made.of_file(file) for file in files)
    if not kernel:
        raise BadInput("nothing to distill: give recordings or tables, or --kernel NAME for what is in the store")
    return made.of_store(default_store(), kernel, device)


def data_of(
    known: Collection, table: Table, heuristic: Heuristic, worst: float, back: dict[str, HeldBack],
    shape: Sequence[tuple[float, int, float]], folds: int,
) -> dict[str, Any]:  # fmt: skip
    """For `--json`."""
    rows = table.native(known).rows
    return {
        "kernel": known.kernel, "device": known.device, "problems": len(known.tuned), "rule": table.by,
        "rows": [{"problem": p.text, "config": dict(e.config), **e.provenance} for p, e in rows.items()],
        "table_worst_loss": table.worst, "tree_worst_loss": worst, "tree": heuristic.data(),
        "curve": [{"bound": bound, "rows": count, "worst": most} for bound, count, most in shape],
        "held_back": {
            name: {
                "folds": folds, "problems": len(one.losses), "unknown": one.unknown, "p90": one.p90(),
                "worst": one.worst[0], "worst_problem": one.worst[1] and one.worst[1].text,
            }
            for name, one in back.items()
        },
    }  # fmt: skip


def _print(
    known: Collection, table: Table, heuristic: Heuristic, worst: float, back: dict[str, HeldBack],
    shape: Sequence[tuple[float, int, float]], folds: int,
) -> None:  # fmt: skip
    from tunesmith.report.terminal import print_lines
    from tunesmith.report.units import count, problem_line

    print_lines(f"{known.kernel} on {known.device}: {count(len(known.tuned), 'tuned problem')}")
    print_lines(f"\ntable by rule {table.by}: {count(table.rows, 'row')}, the fewest there can be")
    print_lines(f"no tuned problem loses more than {table.worst:.1%}")
    for problem, entry in table.native(known).rows.items():
        print_lines(f"  {problem_line(problem)}  {entry.provenance['serves']}  {entry.config!r}")
    print_lines("\nrows against loss:")
    for bound, rows, most in shape:
        print_lines(f"  at most {bound:5.1%}: {count(rows, 'row'):>8}, the most lost is {most:.1%}")
    leaves = list(heuristic.leaves())
    print_lines(f"\ntree: {count(len(leaves), 'end')}, no tuned problem loses more than {worst:.1%}")
    for conditions, config in leaves:
        print_lines(f"  {' and '.join(conditions) or 'always'}  →  {config!r}")
    print_lines(f"\nheld back, a {_ordinal(folds)} at a time:")
    for name, one in back.items():
        most, problem = one.worst
        where = f" ({problem_line(problem)})" if problem else ""
        unknown = f"; of {one.unknown} the loss is not known" if one.unknown else ""
        print_lines(f"  {name:5}  p90 {one.p90():.1%}, worst {most:.1%}{where}{unknown}")


def _ordinal(n: int) -> str:
    return {2: "half", 3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}.get(n, f"{n}th")


def _function_name(kernel: str) -> str:
    name = re.sub(r"\W", "_", f"{kernel}_default")
    return name if name.isidentifier() else f"_{name}"
