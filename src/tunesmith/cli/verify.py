"""`tunesmith verify`: whether the Configs that calls would use give right results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from tunesmith.cli.output import CANNOT_TELL, GOOD, NO, AsJson, answers_only, aside, note, paced, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, example, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, ProblemError

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel
    from tunesmith.verification import Verification


def verify(
    target: TargetArgument,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    json: AsJson = False,
) -> None:
    """Check the configurations that calls would use against the kernel's reference; times nothing.

    Without a problem, those of all problems that the store knows of this kernel.
    """
    with answers_only(json):
        kernel = find_target(target)
        asked = wanted(kernel, problem, problems).problems if problem or problems else _stored(kernel)
        found: list[tuple[Problem, Verification]] = []
        say = paced()
        for one in asked:
            found.append((one, kernel.verify(**kernel.inputs(one))))
            aside(f"{one}: {_says(found[-1][1])}")
            say(f"{len(found)} of {len(asked)} checked")
    if json:
        print_json("verify", {"kernel": kernel.kernel.name, "results": [_data(*one) for one in found]})
    else:
        _show(kernel, found)
    if any(one.failure is not None for _, one in found):
        raise typer.Exit(NO)
    raise typer.Exit(GOOD if all(one.checked for _, one in found) else CANNOT_TELL)


def _stored(kernel: TunedKernel) -> Sequence[Problem]:
    """The Problems of which the store has a Choice, as far as they can be made.

    Raises:
        BadInput: when there are none.
    """
    from tunesmith.store import default_store

    store, found = default_store(), dict[Problem, None]()
    for key in store.keys(kernel.kernel.name):
        if store.choice(key) is None:
            continue
        try:
            found[kernel.problem(key.problem)] = None
        except ProblemError as error:
            note(f"skipped {key.problem}: {error}")
    if not found:
        raise BadInput(f"the store has no Choice of {kernel.kernel.name}; write {example(kernel)}")
    return list(found)


def _says(one: Verification) -> str:
    if one.failure is not None:
        return f"{one.failure.stage}: {one.failure.reason}"
    return "right" if one.checked else "; ".join(one.notes) or "not checked"


def _data(problem: Problem, one: Verification) -> dict[str, Any]:
    from tunesmith.core.outcome import choice_to_data

    failure = None if one.failure is None else {"stage": one.failure.stage, "reason": one.failure.reason}
    return {
        "problem": problem.text, "choice": choice_to_data(one.choice), "checked": one.checked, "failure": failure,
        "notes": list(one.notes),
    }  # fmt: skip


def _show(kernel: TunedKernel, found: Sequence[tuple[Problem, Verification]]) -> None:
    from tunesmith.report.terminal import print_facts
    from tunesmith.report.units import problem_line

    for problem, one in found:
        facts = [("result", _says(one)), ("Config", repr(one.choice.config)), ("source", one.choice.source)]
        if one.choice.called is not None:
            facts.insert(2, ("calls", f"outside of CUDA graphs: {one.choice.called!r}"))
        if one.checked:
            facts.append(("against", one.choice.checked))
        print_facts(f"{kernel.kernel.name}({problem_line(problem)})", facts)
