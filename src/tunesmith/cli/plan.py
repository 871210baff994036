"""`tunesmith plan`: the Choices that a program makes, as a file: write it, replay it, look at it, compare two."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, Commands, note, print_json
from tunesmith.errors import BadInput
from tunesmith.report.units import count

if TYPE_CHECKING:
    from tunesmith.core.key import Key
    from tunesmith.plan import Plan

app = typer.Typer(cls=Commands, help="The Choices a program makes, as a file: write, replay, show, compare.")

Command: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The program to run, after `--`: -- python prog.py …")
]
PlanFile: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="A plan.")]


@app.command()
def export(file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan to write.")], command: Command) -> None:
    """Run a program, and write the Choices that it and its child processes make. What was in the file is replaced."""
    from tunesmith.plan import Plan
    from tunesmith.processes import run_in_our_place

    _refuse_no_program(command)
    Plan({}).write(file)
    code = run_in_our_place(command, {"TUNESMITH_PLAN": str(file.absolute())})
    plan = Plan.read(file)
    kernels = count(len({key.kernel for key in plan.choices}), "kernel")
    none = "the program made no choice" + (", or could not end as it should" if code else "")
    note(f"wrote {file}: {f'{_choices(plan)} of {kernels}' if plan.choices else none}")
    raise typer.Exit(code)


@app.command()
def replay(
    file: PlanFile,
    command: Command,
    miss: Annotated[
        str, typer.Option(metavar="WHAT", help="A call that the plan does not know: error, or default.")
    ] = "error",
) -> None:
    """Run a program with just the Configs of a plan. Nothing is measured."""
    from tunesmith.plan import Plan, Replay

    plan = Plan.read(file)
    Replay(lambda: plan, miss, str(file))  # a bad `miss` is said before anything runs
    _refuse_no_program(command)
    otherwise = "is an error" if miss == "error" else "runs with its kernel's default"
    note(f"replaying {file}: {_choices(plan)}; a call that it does not know {otherwise}")
    sys.stdout.flush()
    sys.stderr.flush()
    replayed = {"TUNESMITH_REPLAY": str(file.absolute()), "TUNESMITH_REPLAY_MISS": miss}
    os.execvpe(command[0], command, {**os.environ, **replayed})  # output, signals and exit code are the program's


def _refuse_no_program(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        raise BadInput(f"{command[0]!r} is not a program that can be run; write: -- python prog.py …")


def _choices(plan: Plan) -> str:
    return count(len(plan.choices), "choice")


@app.command()
def show(file: PlanFile, json: AsJson = False) -> None:
    """List what a plan holds, a Config for each kernel and Problem."""
    from tunesmith.plan import Plan, said

    plan = Plan.read(file)
    if json:
        choices = [{**key.to_data(), **_configs(plan, key, "config", "called")} for key in plan.choices]
        print_json("plan-show", {"choices": [{k: v for k, v in row.items() if k != "soft"} for row in choices]})
        return
    from tunesmith.report.terminal import print_lines

    for key in plan.choices:
        print_lines(f"{_title(key)}: {said(plan, key)}")


def _configs(plan: Plan, key: Key, config: str, called: str) -> dict[str, Any]:
    """What a plan has for a Key, under these names; the second where there is one."""
    both = plan.served(key)
    found = [None if one is None else dict(one) for one in both]
    return {config: found[0], **({} if both[1] is None else {called: found[1]})}


def _title(key: Key) -> str:
    return f"{key.kernel}({key.problem}) on {key.device}"


@app.command()
def diff(file: PlanFile, other: PlanFile, json: AsJson = False) -> int:
    """Say in which Choices two plans differ; the exit code is 1 if they do."""
    from tunesmith.plan import Plan, said

    here, there = Plan.read(file), Plan.read(other)
    rows = here.differences(there)
    if json:
        found = [
            {**{k: v for k, v in key.to_data().items() if k != "soft"}, **_configs(here, key, "config", "called"),
             **_configs(there, key, "other", "other_called")}
            for key in rows
        ]  # fmt: skip
        print_json("plan-diff", {"differences": found})
    elif not rows:
        print("the plans are the same")
    else:
        from tunesmith.report.terminal import print_lines

        for key in rows:
            print_lines(f"{_title(key)}: {said(here, key)} → {said(there, key)}")
    return NO if rows else GOOD
