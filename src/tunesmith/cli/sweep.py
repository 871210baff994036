"""`tunesmith sweep`: many problems of many kernels on many devices."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tunesmith.cli.output import GOOD, INTERRUPTED, NO, AsJson, answers_only, complain, detail, note, print_json
from tunesmith.cli.sweep_file import Limits, read, targets_in
from tunesmith.cli.target import find_targets
from tunesmith.cli.tune import BudgetOption, LaunchesOption, StrategyOption, check_limits
from tunesmith.errors import BadInput, unknown
from tunesmith.options import options
from tunesmith.places import is_file

if TYPE_CHECKING:
    from tunesmith.sweep.devices import Place
    from tunesmith.sweep.drive import Outcome
    from tunesmith.sweep.task import Result, Task
    from tunesmith.sweep.workers import Orders, Worker
    from tunesmith.tuned import TunedKernel

EXECUTORS = ("local", "ray")

FileArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="Problems: a .csv with a field a column, or a .yaml with axes.")
]
TargetsOption: TypeAlias = Annotated[
    list[str],
    typer.Option("--targets", metavar="TARGET,…", help="Kernels, as of `tune`; module or path.py: all in it."),
]
DevicesOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--devices", metavar="0,1,…", help="GPUs, or sets of cores: cpu:0-3,cpu:4-7. All GPUs, else cpu."),
]
ExecutorOption: TypeAlias = Annotated[str, typer.Option("--executor", metavar="NAME", help="local or ray.")]
AddressOption: TypeAlias = Annotated[
    str, typer.Option("--ray-address", metavar="ADDRESS", help="Of a Ray cluster; else RAY_ADDRESS, else a local one.")
]
ResumeOption: TypeAlias = Annotated[
    bool, typer.Option("--resume", help="Go on with this sweep: what an earlier run has done is not looked at again.")
]
RetryOption: TypeAlias = Annotated[
    bool, typer.Option("--retry", help="Try problems again of which nothing worked the last time.")
]
AdviserOption: TypeAlias = Annotated[
    str, typer.Option("--adviser", metavar="MODULE:NAME", help="A function that says how each problem is searched.")
]
LooksOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--looks", metavar="N", help="Races at most of a close choice on a CPU, most in processes of their own (8)."
    ),
]


def sweep(
    file: FileArgument,
    targets: TargetsOption = [],
    devices: DevicesOption = None,
    executor: ExecutorOption = "local",
    ray_address: AddressOption = "",
    resume: ResumeOption = False,
    retry: RetryOption = False,
    budget: BudgetOption = None,
    launches: LaunchesOption = None,
    strategy: StrategyOption = None,
    adviser: AdviserOption = "",
    looks: LooksOption = None,
    json: AsJson = False,
) -> None:
    """Tune many problems of many kernels, on several devices at once.

    Each kind of device gets results of its own; alike devices share the work. What the store knows is not measured
    again. It may be stopped or killed at any time, and goes on with --resume.
    """
    if executor not in EXECUTORS:
        raise BadInput(unknown("executor", executor, EXECUTORS))
    check_limits(budget, launches, strategy)
    if looks is not None and looks < 1:
        raise BadInput(f"--looks {looks}: good values: integers from 1")
    with answers_only(json):
        adviser = _checked(adviser)
        kernels = _kernels(file, targets)
        wanted = read(file, kernels, Limits(budget, launches, strategy))
        for said in wanted.notes:
            note(said)
        start = time.monotonic()
        with _workers(executor, ray_address, devices, kernels, retry, adviser) as workers:
            outcome = _run(wanted.tasks, workers, resume, retry, looks)
        took_s = time.monotonic() - start
    if json:
        print_json("sweep", _data(outcome, took_s, list(workers)))
    else:
        from tunesmith.report.terminal import print_sweep

        print_sweep(outcome, took_s, len(workers))
    if outcome.interrupted:
        complain(
            f"interrupted: {len(outcome.results)} of {len(wanted.tasks)} problems are done; --resume goes on from there"
        )
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(GOOD if outcome.good else NO)


def _kernels(file: Path, typed: Sequence[str]) -> list[TunedKernel]:
    names = [name for text in typed for name in text.split(",") if name] or targets_in(file)
    if not names:
        raise BadInput(
            "no kernel is given; write --targets matmul,my_package.kernels:scale, or targets: in a .yaml file"
        )
    found = list(dict.fromkeys(kernel for name in names for kernel in find_targets(name)))
    by_name: dict[str, TunedKernel] = {}
    for kernel in found:
        other = by_name.setdefault(kernel.kernel.name, kernel)
        if other is not kernel:
            raise BadInput(
                f"two of the kernels are named {kernel.kernel.name!r}: a file's rows could not tell them apart"
            )
    return found


def _checked(adviser: str) -> str:
    """The adviser, as processes with another folder find it too.

    Raises:
        BadInput: when there is none.
    """
    if not adviser:
        return adviser
    from tunesmith.sweep.advice import adviser_at

    adviser_at(adviser)
    place, _, name = adviser.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if is_file(place) else adviser


# --- workers -----------------------------------------------------------------------------------------


@contextmanager
def _workers(
    executor: str, address: str, devices: str | None, kernels: Sequence[TunedKernel], retry: bool, adviser: str
) -> Generator[Mapping[str, Callable[[], Worker]]]:
    """Within this scope, what makes a worker, by the name of its device."""
    from tunesmith.store import default_store
    from tunesmith.sweep.devices import jobs_each, on_one_core, places, usable_cores, usual_places
    from tunesmith.sweep.workers import LocalWorker, Orders

    if options().read_only:
        raise BadInput("nothing is swept: TUNESMITH_READ_ONLY is set, and nothing is measured")
    orders = Orders.of(default_store(), retry, adviser)
    backends = [kernel.kernel.backend for kernel in kernels]
    if executor == "ray":
        with _on_ray(address, devices, backends, orders) as workers:
            yield workers
        return
    if devices is not None:
        found = places(devices, os.environ, usable_cores())
    else:
        found = usual_places(backends, _gpu_count(backends), os.environ, usable_cores())
    for said in on_one_core(found):
        note(said)
    jobs = jobs_each(found)
    yield {place.name: _maker(LocalWorker, place, orders, jobs) for place in found}


def _maker(kind: Callable[..., Worker], *args: Any) -> Callable[[], Worker]:
    return lambda: kind(*args)


@contextmanager
def _on_ray(
    address: str, devices: str | None, backends: Sequence[str], orders: Orders
) -> Generator[Mapping[str, Callable[[], Worker]]]:
    from tunesmith.sweep.cluster import connected
    from tunesmith.sweep.devices import on_one_core, places, usable_cores, usual_places

    remote = bool(address or os.environ.get("RAY_ADDRESS"))
    # of a cluster's nodes neither is known
    environ: Mapping[str, str] = {} if remote else os.environ
    cores = None if remote else usable_cores()
    found: list[Place] = []
    if devices is not None:
        found = places(devices, environ, cores)
    elif not remote:
        found = usual_places(backends, _gpu_count(backends), environ, cores)
    for said in () if remote else on_one_core(found):
        note(said)
    with connected(address, found) as cluster:
        found = found or usual_places(backends, cluster.gpus, environ, cores)
        yield {place.name: _maker(cluster.worker, place, orders, None) for place in found}


def _gpu_count(backends: Sequence[str]) -> int:
    """How many GPUs there are, found out in a child: a driver that holds a context on each would take their memory."""
    if all(backend == "cc" for backend in backends):
        return 0
    from tunesmith.workers import run_command

    code = "from tunesmith.backends.cpu import gpus; print(len(gpus()))"
    path = os.pathsep.join(part for part in sys.path if part)
    ended = run_command([sys.executable, "-c", code], timeout_s=300, environ={"PYTHONPATH": path})
    lines = ended.output.split()
    return int(lines[-1]) if ended.code == 0 and lines and lines[-1].isdecimal() else 0


# --- the run -----------------------------------------------------------------------------------------


def _run(
    tasks: Sequence[Task], workers: Mapping[str, Callable[[], Worker]], resume: bool, retry: bool, looks: int | None
) -> Outcome:
    from tunesmith.report.sweeping import SweepProgress
    from tunesmith.store import default_store
    from tunesmith.sweep.done import Done
    from tunesmith.sweep.drive import Sweep
    from tunesmith.sweep.looks import MOST_LOOKS

    done = Done(options().cache_dir, tasks)
    with done.in_use(), SweepProgress(len(tasks), detail=detail()) as progress:
        before = done.results()
        if before and not resume:
            count = len({task for results in before.values() for task in results})
            whose = "an earlier run" if done.forget() else "another command, which is at this very sweep,"
            note(f"{whose} has done {count} of these {len(tasks)} problems; --resume does not look at them again")
        known = before if resume else {}
        most = MOST_LOOKS if looks is None else looks
        return Sweep(tasks, workers, default_store(), done, progress, known, retry, most).run()


def _data(outcome: Outcome, took_s: float, devices: Sequence[str]) -> dict[str, Any]:
    return {
        "devices": list(devices), "wall_s": took_s, "interrupted": outcome.interrupted,
        "results": [_result(task, result) for task, result in outcome.results],
        "left": [{"kernel": task.kernel, "problem": task.problem, "why": why} for task, why in outcome.left],
        "not_stored": [{"kernel": task.kernel, "problem": task.problem, "why": why} for task, why in outcome.unkept],
        "given_up": [{"device": name, "why": why} for name, why in outcome.given_up],
        "uses": [asdict(use) for use in outcome.uses],
    }  # fmt: skip


def _result(task: Task, result: Result) -> dict[str, Any]:
    fields = asdict(result)
    for name in ("row", "key", "soft", "rivals", "visits"):
        del fields[name]
    return {"kernel": task.kernel, "problem": task.problem, **fields, "error": result.error or None}
