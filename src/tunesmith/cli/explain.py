"""`tunesmith explain`: which Config a call would use, and why. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tunesmith.cli.output import AsJson, answers_only, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.errors import BadInput


def explain(
    target: TargetArgument,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    ncu: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Compare the model's bytes with those Nsight Compute counted."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Say which configuration a call would use and why. Measures nothing."""
    from tunesmith.report.data import explanation_data
    from tunesmith.report.terminal import print_explanation, print_facts
    from tunesmith.tuned import MODEL_HEADING

    with answers_only(json):
        kernel = find_target(target)
        found: list[tuple[Any, Any, Any]] = []
        predicted: list[list[tuple[str, str]]] = []
        asked = wanted(kernel, problem, problems).problems
        if ncu is not None and len(asked) > 1:
            raise BadInput(f"--ncu {ncu} is of one launch, and {len(asked)} problems are given: give one --problem")
        for one in asked:
            arguments = kernel.inputs(one)
            found.append(kernel.explanation(**arguments))
            predicted.append(kernel.predicted(ncu=ncu, **arguments))
    if json:
        results = [
            {**explanation_data(*one), "model": dict(lines)} for one, lines in zip(found, predicted, strict=True)
        ]
        print_json("explain", {"kernel": kernel.kernel.name, "results": results})
        return
    for number, (one, lines) in enumerate(zip(found, predicted, strict=True)):
        if number:
            print()
        print_explanation(*one)
        if lines:
            print_facts(MODEL_HEADING, lines)
