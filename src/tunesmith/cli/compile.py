"""`tunesmith compile`: a whole Space for a GPU that need not be here; what each Config takes, and what is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, answers_only, aside, paced, print_json
from tunesmith.cli.problems import ProblemOption, ProblemsOption, wanted
from tunesmith.cli.target import TargetArgument, find_target
from tunesmith.core.device import Device
from tunesmith.core.model import occupancy
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.backends.ahead import AheadKernel, Compilation
    from tunesmith.tuned import TunedKernel

ArchOption: TypeAlias = Annotated[
    str, typer.Option("--target", metavar="ARCH", help="What to compile for: sm_80, sm_90, sm_100, gfx942, …")
]


def compile_(
    target: TargetArgument,
    arch: ArchOption,
    problem: ProblemOption = [],
    problems: ProblemsOption = [],
    json: AsJson = False,
) -> None:
    """Compile a Triton, CUDA, CuTe DSL or FlyDSL kernel's space, without a GPU; say what each configuration takes.

    What is compiled lies in the language's cache: on the machine with the GPU it is only loaded.
    """
    from tunesmith.backends.ahead import target_device

    with answers_only(json):
        kernel = find_target(target)
        device = target_device(arch)
        inner = _ahead_kernel(kernel)
        results = [(one, _compile(kernel, inner, one, device)) for one in wanted(kernel, problem, problems).problems]
    if json:
        documents = [_data(one, found, device) for one, found in results]
        about = {"kernel": kernel.kernel.name, "target": arch, "device": device.name}
        print_json("compile", {**about, "results": documents})
    else:
        _show(kernel, results, device)
    done = any(one.failed is None for _, found in results for one in found)
    raise typer.Exit(GOOD if done else NO)


def _ahead_kernel(kernel: TunedKernel) -> AheadKernel:
    inner: Any = kernel.kernel
    found: Any = getattr(inner, "inner", inner)  # some Configs of which have hooks
    if getattr(found, "why_no_times", ""):
        raise BadInput(f"{inner.name} cannot be compiled: {found.why_no_times}")
    if not hasattr(found, "for_target"):
        if found.backend == "triton":  # a program around it allocates, and launches what it needs
            raise BadInput(
                f"{inner.name} is a program around Triton kernels, which are compiled where it is launched: `tunesmith "
                "tune` does it beside the search. A kernel under @triton.jit alone can be compiled here"
            )
        raise BadInput(
            f"{inner.name} is a {inner.backend} kernel: only Triton, CUDA, CuTe DSL and FlyDSL kernels can be compiled "
            "for a GPU that is not here"
        )
    return found


def _compile(kernel: TunedKernel, inner: AheadKernel, problem: Problem, device: Device) -> list[Compilation]:
    from tunesmith.backends.ahead import compile_space
    from tunesmith.options import options

    configs = list(kernel.declared.space_for(problem, device))
    found: list[Compilation] = []
    say = paced()
    for one in compile_space(inner, configs, lambda: kernel.inputs(problem), device, options().jobs):
        found.append(one)
        aside(f"{one.config!r}: {'compiled' if one.failed is None else f'{one.failed.stage}: {one.failed.reason}'}")
        say(f"{len(found)} of {len(configs)} compiled")
    order = {config: i for i, config in enumerate(configs)}
    return sorted(found, key=lambda one: order[one.config])


def _data(problem: Problem, found: Sequence[Compilation], device: Device) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "problem": problem.text,
        "compiled": sum(one.failed is None for one in found),
        "failed": sum(one.failed is not None for one in found),
        "configs": [
            {
                "config": dict(one.config),
                "failed": None if one.failed is None else {"stage": one.failed.stage, "reason": one.failed.reason},
                **asdict(one.resources),
                "occupancy": occupancy(device, one.resources),
                "compile_s": one.seconds,
            }
            for one in found
        ],
    }


def _show(kernel: TunedKernel, results: Sequence[tuple[Problem, list[Compilation]]], device: Device) -> None:
    from tunesmith.report.terminal import print_compilations
    from tunesmith.report.units import problem_line

    for number, (problem, found) in enumerate(results):
        if number:
            print()
        rows = [(one.config, one.failed, one.resources, occupancy(device, one.resources)) for one in found]
        print_compilations(f"{kernel.kernel.name}({problem_line(problem)}) for {device.name} ({device.arch})", rows)
