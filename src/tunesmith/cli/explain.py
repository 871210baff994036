"""`tunesmith explain`: which Config a call would use, and why. Measures nothing."""

from __future__ import annotations

from tunesmith.cli.output import AsJson, answers_only, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.target import TargetArgument, find_target


def explain(
    target: TargetArgument,
    problem: ProblemOption = [],  # noqa: B006  typer copies it
    problems: ProblemsOption = [],  # noqa: B006  typer copies it
    json: AsJson = False,
) -> None:
    """Say which configuration a call would use and why. Measures nothing."""
    from tunesmith.report.data import explanation_data
    from tunesmith.report.terminal import print_explanation

    with answers_only(json):
        kernel = find_target(target)
        found = [kernel.explanation(**kernel.inputs(one)) for one in wanted(kernel, problem, problems).problems]
    if json:
        results = [explanation_data(*one) for one in found]
        print_json("explain", {"kernel": kernel.kernel.name, "results": results})
        return
    for number, one in enumerate(found):
        if number:
            print()
        print_explanation(*one)
