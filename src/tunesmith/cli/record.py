"""`tunesmith record`: measure a kernel's whole space for one problem, and write all samples to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, answers_only, detail, print_json
from tunesmith.cli.problems import ProblemOption, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.cli.tune import FixOption, IsolateOption, hold, isolated
from tunesmith.errors import BadInput

OutputOption: TypeAlias = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where to; compressed where it ends in .gz.")
]
RoundsOption: TypeAlias = Annotated[
    int, typer.Option("--rounds", metavar="N", help="Samples of each configuration, interleaved.")
]


def record(
    target: TargetArgument,
    output: OutputOption,
    problem: ProblemOption = [],
    rounds: RoundsOption = 30,
    fix: FixOption = [],
    isolate: IsolateOption = None,
    json: AsJson = False,
) -> None:
    """Measure a whole space with all samples, so that searches can be replayed without the device.

    Nothing is stored, and what is stored is measured all the same.
    """
    from tunesmith.core.outcome import Measured
    from tunesmith.events import watched
    from tunesmith.recording import save
    from tunesmith.report.terminal import Progress

    with answers_only(json):
        kernel = find_target(target)
        todo = wanted(kernel, problem).problems
        if len(todo) != 1:
            raise BadInput(f"{len(todo)} problems are given: a recording is of one; run the command for each")
        (one,) = todo
        if not output.absolute().parent.is_dir():
            raise BadInput(f"{output}: there is no folder {output.parent}")
        kernel = hold(kernel, fix)
        with Progress(detail=detail()) as progress, watched(progress):
            inputs = kernel.inputs(one)
            recording = kernel.record(rounds=rounds, isolate=isolated(kernel, isolate, inputs), **inputs)
        save(recording, output)
    measured = [(t.config, t.outcome) for t in recording.trials if isinstance(t.outcome, Measured)]
    best = min(measured, key=lambda one: one[1].median_s, default=None)
    said = {
        "file": str(output), "kernel": recording.kernel, "device": recording.device, "problem": recording.problem.text,
        "measured": len(measured), "failed": len(recording.trials) - len(measured), "rounds": rounds,
        "best": None if best is None else {"config": dict(best[0]), "median_s": best[1].median_s},
    }  # fmt: skip
    if json:
        print_json("record", said)
    else:
        print(f"{output}: {said['measured']} measured, {said['failed']} failed, {rounds} samples each")
        if best is not None:
            from tunesmith.report.terminal import print_lines
            from tunesmith.report.units import duration

            print_lines(f"the fastest: {duration(best[1].median_s)} {best[0]!r}")
    raise typer.Exit(GOOD if measured else NO)
