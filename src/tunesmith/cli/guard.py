"""`tunesmith guard`: did anything become slower, is what is shipped sound, is what is stored still the best?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tunesmith.cli.guard_summary import Line, Summary, of_findings, of_measured, of_sides
from tunesmith.cli.output import AsJson, answers_only, detail, note, print_json, write_file
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.stored import stored
from tunesmith.cli.target import find_target, find_targets
from tunesmith.errors import BadInput
from tunesmith.report.units import count

if TYPE_CHECKING:
    from tunesmith.core.problem import Problem
    from tunesmith.guard.rule import Limits
    from tunesmith.guard.sides import Timed
    from tunesmith.tuned import TunedKernel

PathsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="BASE NEW | PATH…",
        help="Two recordings, stores, exports, tables or folders of them. With --static: such files and kernels. "
        "With --measure: at most BASE.",
    ),
]
MeasureOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--measure", metavar="TARGET", help="Time what is stored of a kernel against its default and BASE."),
]
MarginOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="RATIO", help="A slowdown has to be shown to be larger to be called one (1.05).")
]
WarnOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="RATIO", help="A slowdown that must not go unnoticed: same excludes it (1.10).")
]
FailOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="RATIO", help="A slowdown shown to be larger fails: exit code 1 (1.15).")
]
MarkdownOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write a summary for a pull request; - is standard output.")
]


def guard(
    paths: PathsArgument = [],
    static: Annotated[bool, typer.Option("--static", help="Look, measure nothing, need no device.")] = False,
    target: MeasureOption = None,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    margin: MarginOption = None,
    warn: WarnOption = None,
    fail: FailOption = None,
    confidence: Annotated[float | None, typer.Option(metavar="PART", help="Of each end of an interval (0.95).")] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="With --measure: samples of each configuration (30).")
    ] = None,
    spread: Annotated[
        float | None, typer.Option(metavar="PART", help="How far off a table's time may be, as 0.03.")
    ] = None,
    no_drift: Annotated[bool, typer.Option("--no-drift", help="Do not take out what all problems share.")] = False,
    allow_unmatched: Annotated[
        bool, typer.Option("--allow-unmatched", help="Problems of one side only are listed, and no more.")
    ] = False,
    allow_search: Annotated[
        bool, typer.Option("--allow-search", help="With --static: kernels may tune themselves.")
    ] = False,
    markdown: MarkdownOption = None,
    json: AsJson = False,
) -> None:
    """Say of each problem whether it became better, same, worse, or that it cannot be told.

    Exit codes: 0 nothing is worse by more than the limit, 1 something is (or a fault was found), 2 bad usage,
    3 cannot tell.
    """
    from tunesmith.guard.rule import Limits

    if static and target is not None:
        raise BadInput("--static measures nothing, and --measure does: give one of them")
    asked = {"margin": margin, "warn": warn, "fail": fail, "confidence": confidence}
    limits = Limits(**{name: value for name, value in asked.items() if value is not None})
    if spread is not None and not 0 <= spread < 1:
        raise BadInput(f"--spread {spread:g}: good values: a part from 0 to below 1, as 0.03")
    with answers_only(json):
        if static:
            summary = _static(paths, allow_search)
        elif target is not None:
            summary = _measure(target, paths, problem, problems, limits, rounds)
        else:
            summary = _compare(paths, limits, not no_drift, spread, allow_unmatched)
    _print(summary, markdown, json)
    raise typer.Exit(summary.code)


def _print(summary: Summary, markdown: str | None, json: bool) -> None:
    if markdown is not None and markdown != "-":
        write_file(Path(markdown), summary.markdown().encode(), "--markdown")
    if json:
        print_json("guard", summary.data())
    elif markdown == "-":
        print(summary.markdown(), end="")
    else:
        from tunesmith.report.terminal import print_lines

        print_lines(summary.text())


def _compare(paths: Sequence[str], limits: Limits, drift: bool, spread: float | None, allow_unmatched: bool) -> Summary:
    from tunesmith.guard.sides import compare, read

    if len(paths) != 2:
        raise BadInput(
            f"{count(len(paths), 'path')} given; write: tunesmith guard BASE NEW (or --static PATH…, --measure …)"
        )
    base, new = (read(Path(path)) for path in paths)
    return of_sides(compare(base, new, limits, drift=drift, spread=spread), limits, allow_unmatched)


def _static(paths: Sequence[str], allow_search: bool) -> Summary:
    from tunesmith.guard.static import check

    if not paths:
        raise BadInput("nothing is given; write: tunesmith guard --static kernels.py tables/ …")
    kernels: list[TunedKernel] = []
    files: list[Path] = []
    for path in paths:
        # what is there and no Python file is data; all else names kernels
        if Path(path).exists() and not path.endswith(".py"):
            files.append(Path(path))
        elif path.endswith((".json", ".sqlite", ".gz", ".csv")):
            raise BadInput(f"there is no file {path!r}")
        else:
            kernels += find_targets(path)
    found, checked = check(kernels, files, allow_search=allow_search)
    return of_findings(found, len(kernels), len(files), checked)


def _measure(
    target: str, paths: Sequence[str], texts: Sequence[str], files: Sequence[Path], limits: Limits,
    asked: int | None,
) -> Summary:  # fmt: skip
    from tunesmith.events import watched
    from tunesmith.guard.live import ROUNDS, measure
    from tunesmith.guard.sides import read
    from tunesmith.report.terminal import Progress

    if len(paths) > 1:
        raise BadInput(
            f"{count(len(paths), 'path')} given; with --measure there is one at most: BASE, what was used before"
        )
    rounds = ROUNDS if asked is None else asked
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: good values: integers from 2")
    kernel = find_target(target)
    base: list[Timed] = [row for path in paths for row in read(Path(path))]
    skipped: list[Line] = []
    todo: Sequence[Problem]
    if texts or files:
        todo = wanted(kernel, texts, files).problems
    else:
        known = stored(kernel)
        todo = known.problems
        skipped = [Line("cannot tell", key.kernel, key.problem.text, note=why) for key, why in known.left]
    if not todo and not skipped:
        note(f"nothing is stored of {kernel.kernel.name} for this source and device: tunesmith tune finds it")
    with Progress(total=len(todo), detail=detail()) as progress, watched(progress):
        found = measure(kernel, todo, base, limits, rounds)
    return of_measured(found, limits, skipped)
