"""`tunesmith report`: what is stored or recorded, as one HTML file to look at. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunesmith.cli.output import AsJson, answers_only, note, print_json, write_file
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.target import find_target
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.report.html import Report
    from tunesmith.tuned import TunedKernel


def report(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A kernel, as for tune; without one: all that the store knows.")
    ] = "",
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    recording: Annotated[
        list[Path], typer.Option("--recording", metavar="FILE", help="Of a recording, not the store; may be repeated.")
    ] = [],
    table: Annotated[
        list[Path],
        typer.Option("--table", metavar="FILE", help="Compare with a table's or heuristic's choices; may be repeated."),
    ] = [],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="Where to.")] = Path(
        "report.html"
    ),
    json: AsJson = False,
) -> None:
    """Write one HTML file that shows what was tried, what won, why, and how sure that is. Measures nothing."""
    if not output.absolute().parent.is_dir():
        raise BadInput(f"{output}: there is no folder {output.parent}")
    if output.is_dir():
        raise BadInput(f"{output} is a folder; write {output / 'report.html'}")
    if recording and (problem or problems):
        raise BadInput("--problem is of what is stored, and a recording is of one problem: give one of the two")
    if not target and (problem or problems):
        raise BadInput("--problem needs a TARGET: which kernel's problem it is")
    with answers_only(json):
        kernel = find_target(target) if target else None
        made = _gather(kernel, problem, problems, recording, table)
        write_file(output, made.html().encode())
    size_bytes = output.stat().st_size if output.is_file() else 0
    if json:
        print_json("report", {
            "file": str(output), "file_bytes": size_bytes, "notes": list(made.notes),
            "problems": [{"kernel": one.key.kernel, "problem": one.exact.text, "trials": len(one.trials)}
                         for one in made.searches],
        })  # fmt: skip
        return
    from tunesmith.report.units import count

    for text in made.notes:
        note(text)
    trials = sum(len(one.trials) for one in made.searches)
    done = f"{output}: {count(len(made.searches), 'problem')}, {count(trials, 'trial')}, {size_bytes / 1e6:.1f} MB"
    if output.parts[:2] == ("/", "dev"):
        note(done)  # standard output may be where the page has gone
    else:
        print(done)


def _gather(
    kernel: TunedKernel | None, problem: Sequence[str], problems: Sequence[Path], recordings: Sequence[Path],
    tables: Sequence[Path],
) -> Report:  # fmt: skip
    from tunesmith.report.html import Report

    if kernel is not None:
        asked = wanted(kernel, problem, problems).problems if problem or problems else ()
        return Report.of(*recordings, kernel, problems=asked, tables=tables)
    return Report.of(*recordings, tables=tables) if recordings else Report.of_store(tables=tables)
