"""`tunesmith store refresh`: race stale Choices against the next best of then, and say what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.not_stored import NotStored
from tunesmith.cli.output import CANNOT_TELL, GOOD, NO, AsJson, answers_only, detail, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.stored import stored
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.core.key import Key
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.core.outcome import Choice
    from tunesmith.refresh import Refreshed

BestOption: TypeAlias = Annotated[
    int | None, typer.Option("--best", metavar="N", help="How many of the next best race against what is in use (4).")
]


def refresh(
    target: TargetArgument,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    best: BestOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also what was found under the versions of today.")] = False,
    json: AsJson = False,
) -> None:
    """Time what was found under other versions again: what is in use against the next best, and nothing else.

    Exit codes: 0 done, 1 of some problem nothing works any more or what was found could not be stored, 3 some could not
    be looked at.
    """
    from tunesmith.events import watched
    from tunesmith.refresh import BEST
    from tunesmith.report.terminal import Progress

    if best is not None and best < 1:
        raise BadInput(f"--best {best}: good values: integers from 1")
    with answers_only(json):
        kernel = find_target(target)
        known = stored(kernel)
        todo = wanted(kernel, problem, problems).problems if problem or problems else known.problems
        found: list[Refreshed] = []
        unknown: list[str] = []
        unkept = NotStored(kernel.kernel.name)
        with Progress(total=len(todo), detail=detail()) as progress, watched(progress):
            for one in todo:
                result = kernel.refresh(best=best or BEST, anyway=all_, **kernel.inputs(one))
                if result is None:
                    unknown.append(one.text)
                    continue
                found.append(result)
                if result.fate in ("kept", "changed"):
                    unkept.look_at(one, result.after)
    if json:
        data = _data(found, unknown, known.left, known.hard)
        print_json("store-refresh", {**data, "not_kept": unkept.data()})
    else:
        from tunesmith.report.terminal import print_lines

        print_lines(_text(kernel.kernel.name, found, unknown, known.left, known.hard))
    unkept.say()
    failed = bool(unkept.found) or any(result.fate == "failed" for result in found)
    raise typer.Exit(NO if failed else CANNOT_TELL if unknown or known.left else GOOD)


def _data(
    found: list[Refreshed], unknown: list[str], left: list[tuple[Key, str]], hard: list[tuple[Key, list[str]]]
) -> dict[str, Any]:  # fmt: skip
    return {
        "results": [
            {
                "problem": r.key.problem.text, "fate": r.fate, "stale": list(r.stale), "raced": r.raced,
                "before": _choice(r.before), "after": _choice(r.after),
                "ratio": r.ratio, "why": r.why,
            }
            for r in found
        ],
        "not_stored": unknown,
        "not_looked_at": [{"problem": key.problem.text, "why": why} for key, why in left],
        "never_used": [{"problem": key.problem.text, "device": key.device, "differs": d} for key, d in hard],
    }  # fmt: skip


def _choice(choice: Choice) -> dict[str, Any]:
    called = {} if choice.called is None else {"called": dict(choice.called)}
    return {"config": dict(choice.config), **called, "median_s": choice.median_s}


def _text(
    kernel: str, found: list[Refreshed], unknown: list[str], left: list[tuple[Key, str]],
    hard: list[tuple[Key, list[str]]],
) -> str:  # fmt: skip
    from tunesmith.report.units import count, problem_line, ratio

    fates = [result.fate for result in found]
    said = ", ".join(f"{fates.count(f)} {f}" for f in ("changed", "kept", "current", "failed") if f in fates)
    lines = [f"{kernel}: {said or 'nothing was refreshed'}"]
    for r in found:
        if r.fate == "current":
            continue
        what = f"{r.fate:8} {problem_line(r.key.problem)}: {r.before.config!r}"
        if r.after.config != r.before.config:
            what += f" → {r.after.config!r}" + (f", {ratio(r.ratio)} its time" if r.ratio is not None else "")
        calls = [choice.called or choice.config for choice in (r.before, r.after)]
        if (r.before.called or r.after.called) and calls[0] != calls[1]:
            what += f"; calls outside of CUDA graphs: {calls[0]!r} → {calls[1]!r}"
        why = "; ".join(filter(None, [f"soft: {', '.join(r.stale)}" if r.stale else "", r.why]))
        lines.append(f"  {what}  ({r.raced} raced{f'; {why}' if why else ''})")
    lines += [f"  not stored: {text}" for text in unknown]
    lines += [f"  not looked at: {problem_line(key.problem)}: {why}" for key, why in left]
    if hard:
        reasons = "; ".join(dict.fromkeys(difference for _, differences in hard for difference in differences[:1]))
        lines.append(f"  {count(len(hard), 'key')} for hard reasons never used here, and left alone: {reasons}")
    return "\n".join([*lines, ""])
