"""`tunesmith profile`: the Config that a call uses, launched alone between marks, and what to type to look into it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.output import AsJson, answers_only, detail, note, print_json
from tunesmith.cli.problems import ProblemOption, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, Busy

if TYPE_CHECKING:
    from tunesmith.core.device import Device
    from tunesmith.core.outcome import Choice
    from tunesmith.tuned import TunedKernel

#: Launches between the marks; before them some that compile and warm up.
LAUNCHES, WARM_UP = 10, 3
#: All that Nsight Compute has, and what `tunesmith explain --ncu` reads; at the clocks of use, which it would lock.
HOW = "--set full --metrics dram__bytes.sum,gpu__time_duration.sum --clock-control none"

MarkedLaunchesOption: TypeAlias = Annotated[
    int, typer.Option("--launches", metavar="N", help="How many launches there are between the marks.")
]


def profile(
    target: TargetArgument,
    problem: ProblemOption = [],
    launches: MarkedLaunchesOption = LAUNCHES,
    json: AsJson = False,
) -> None:
    """Launch what a call would use, alone and between NVTX marks, and print the profiler's command to type.

    The stored configuration, else a table's, else the default. It is launched in this process; nothing is searched.
    """
    from tunesmith.measure.marks import RANGE, can_mark

    if launches < 1:
        raise BadInput(f"--launches {launches}: good values: integers from 1")
    with answers_only(json):
        kernel = find_target(target)
        todo = wanted(kernel, problem).problems
        if len(todo) != 1:
            raise BadInput(f"{len(todo)} problems are given: a profile is of one; run the command for each")
        (one,) = todo
        choice, device = _launched(kernel, one, launches)
    marks = can_mark(device)
    again = [sys.executable, "-m", "tunesmith", "profile", target, "--problem", *problem]
    commands = commands_for(device, marks, kernel.kernel.name, again)
    if json:
        from tunesmith.core.outcome import choice_to_data

        said = {"kernel": kernel.kernel.name, "problem": one.text, "device": device.identity, "launches": launches}
        range_ = RANGE if marks else None
        print_json("profile", {**said, "range": range_, "choice": choice_to_data(choice), "commands": commands})
        return
    _print(kernel, one, choice, device, launches, marks, commands)


def _launched(kernel: TunedKernel, problem: Problem, launches: int) -> tuple[Choice, Device]:
    """Launch what `lookup` has for a Problem, and nothing else between the marks.

    Raises:
        Busy: when a search measures on the device for longer than `TUNESMITH_WAIT_S`: both would see the other.
    """
    from tunesmith.measure.marks import marked
    from tunesmith.options import options, policy
    from tunesmith.store import default_store

    arguments = kernel.inputs(problem)
    device = kernel.subject(**arguments).device
    with policy("lookup"), default_store().device_lock(device.places, options().wait_s) as alone:
        if not alone:
            raise Busy(f"{device.name} has been measured on by a search for more than one may wait")
        choice = kernel.choice(**arguments)
        for _ in range(WARM_UP):
            kernel(**arguments)
        with marked(device):
            for _ in range(launches):
                kernel(**arguments)
    return choice, device


def commands_for(device: Device, marks: bool, kernel: str, again: list[str]) -> dict[str, str]:
    """What to type for a look into the launches, by the profiler's name.

    Args:
        marks: whether the launches are marked; otherwise they are found by the kernel's name.
        again: the command that launches.
    """
    from tunesmith.measure.marks import RANGE

    name = re.sub(r"\W", "_", kernel)
    one, some = (shlex.join([*again, "--launches", n, "--quiet"]) for n in ("1", "100"))
    if device.kind == "hip":
        return {"rocprofv3": f"rocprofv3 --kernel-trace --marker-trace --stats -- {some}"}
    if device.kind == "cpu":
        return {"perf": f"perf record -g -o {name}.perf -- {some}"}
    which = f'--nvtx --nvtx-include "{RANGE}/"'
    if not marks:
        which = f"--kernel-name {shlex.quote(f'regex:{re.escape(kernel)}')} --launch-skip {WARM_UP} --launch-count 1"
    capture = (
        f"--capture-range=nvtx --nvtx-capture={RANGE} --env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0 " if marks else ""
    )
    return {
        "ncu": f"ncu {which} --target-processes all {HOW} -f -o {name} {one}",
        "nsys": f"nsys profile --trace=cuda,nvtx {capture}--force-overwrite=true -o {name} {some}",
        "counted": f"ncu --import {name}.ncu-rep --page raw --csv > {name}.csv",
        "explained": f"{shlex.join(['tunesmith', 'explain', *again[4:]])} --ncu {name}.csv",
    }


#: What each command is for.
_FOR = {
    "ncu": "where the time goes inside the kernel", "nsys": "when what runs", "rocprofv3": "when what runs",
    "perf": "where the time goes", "counted": "the bytes that were counted",
    "explained": "beside those that the kernel's model= expects",
}  # fmt: skip


def _print(
    kernel: TunedKernel, problem: Problem, choice: Choice, device: Device, launches: int, marks: bool,
    commands: dict[str, str],
) -> None:  # fmt: skip
    from tunesmith.measure.marks import RANGE
    from tunesmith.report.terminal import print_facts
    from tunesmith.report.units import count, problem_line

    nothing = choice.source == "default"
    facts: list[tuple[str, Any]] = [
        ("Config", repr(choice.config)),
        ("source", "the kernel's default: nothing is known of this call" if nothing else choice.source),
        ("device", device.identity),
        ("launched", f"{count(launches, 'time')}, after {WARM_UP} to warm up"),
        ("marks", f"NVTX range {RANGE!r}" if marks else "none: " + _why_no_marks(device)),
    ]
    if choice.distance:
        facts.insert(2, ("distance", choice.distance))
    print_facts(f"{kernel.kernel.name}({problem_line(problem)})", facts)
    if detail() == "quiet":
        return
    for tool, command in commands.items():
        print(f"\n# {_FOR[tool]}\n{command}")  # never wrapped: it is to be pasted
    tool = next(iter(commands))
    if shutil.which(tool) is None:
        note(f"{tool} is not on PATH" + ("; it is in the bin folder of CUDA's toolkit" if tool == "ncu" else ""))
    if nothing:
        note("`tunesmith tune` with the same arguments finds what is fastest; then this command launches that")


def _why_no_marks(device: Device) -> str:
    if device.kind == "cpu":
        return "NVTX is of GPUs, and this is a CPU"
    return "they are made through torch, which the kernel's inputs do not use; launches are found by name"
