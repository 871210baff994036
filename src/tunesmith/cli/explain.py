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
    """Say which configuration a call would use and why: how it won, how sure that is, what the device allows.

    Measures nothing.
    """
    from tunesmith.report.data import explanation_data
    from tunesmith.report.evidence import evidence_for
    from tunesmith.report.terminal import print_explanation

    with answers_only(json):
        kernel = find_target(target)
        asked = wanted(kernel, problem, problems).problems
        if ncu is not None and len(asked) > 1:
            raise BadInput(f"--ncu {ncu} is of one launch, and {len(asked)} problems are given: give one --problem")
        results: list[dict[str, Any]] = []
        for number, one in enumerate(asked):
            arguments = kernel.inputs(one)
            if not json:
                print("\n" if number else "", end="")
                print_explanation(kernel, (), arguments, ncu)
                continue
            found = kernel.explanation(**arguments)
            evidence = evidence_for(kernel.subject(**arguments), kernel.declared.policy, *found[1:])
            model = dict(kernel.predicted(ncu=ncu, **arguments))
            results.append({**explanation_data(*found, evidence), "model": model})
    if json:
        print_json("explain", {"kernel": kernel.kernel.name, "results": results})
