"""`tunesmith doctor`: what is installed, what works, and what to type where it does not."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import typer

from tunesmith.cli.output import GOOD, NO, AsJson, installed, print_json
from tunesmith.cli.store import facts_of
from tunesmith.core.problem import Problem

#: what kernels, their arguments and this program may come from
PACKAGES = (
    "tunesmith", "numpy", "ziglang", "torch", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "cupy", "flydsl", "rich",
    "typer", "filelock", "platformdirs",
)  # fmt: skip
#: Of the worker that shows whether there can be any: memory, and how long it may take to start.
_WORKER_BYTES, _WORKER_S = 1 << 30, 30.0


def doctor(json: AsJson = False) -> None:
    """Say what is installed, which backends work, which device this is, where the store lies, which options hold.

    Ends with 1 when no backend but `callable` works, or the store cannot keep anything.
    """
    found = examine()
    compiled = [backend["works"] for backend in found["backends"] if backend["name"] != "callable"]
    healthy = any(compiled) and found["store"]["uncached"] is None
    if json:
        print_json("doctor", {"healthy": healthy, **found})
    else:
        _print(found)
    raise typer.Exit(GOOD if healthy else NO)


def examine() -> dict[str, Any]:
    """The state of this machine, as JSON types."""
    from tunesmith.backends import describe
    from tunesmith.backends.cpu import cpu, gpus
    from tunesmith.options import Options, Shared, options, shared_asked
    from tunesmith.store import default_store

    usual = {**asdict(Options.from_environment({})), **asdict(Shared())}
    in_force = {**asdict(options()), **asdict(shared_asked())}
    return {
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: installed(name) for name in PACKAGES},
        "backends": [asdict(state) for state in describe()],
        "device": cpu().identity,
        "gpus": [gpu.identity for gpu in gpus()],
        "options": {name: _plain(value) for name, value in in_force.items()},
        "from_environment": [name for name in in_force if in_force[name] != usual[name]],
        "isolation": _isolation(),
        "store": default_store().info(),
    }


def _isolation() -> str:
    """Whether candidates can run in workers here: one is started."""
    if sys.platform == "win32":
        return "does not work: workers need POSIX signals"
    from tunesmith.children import Child, Guard

    start = time.perf_counter()
    try:
        worker = Child(Guard("worker", os.environ, _WORKER_BYTES))
    except OSError as error:
        return f"does not work: {error}"
    try:
        answer = worker.call("tunesmith.answering:is_guarded", {}, _WORKER_S)
    finally:
        worker.end()
    if answer is None or answer.failed is not None:
        return f"does not work: {answer.failed.reason if answer and answer.failed else 'the worker ended'}"
    return f"works: a worker was started in {time.perf_counter() - start:.1f} s"


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [str(part) for part in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# --- for people ---------------------------------------------------------------------------------------------


def _print(found: Mapping[str, Any]) -> None:
    from tunesmith.report.terminal import print_facts

    packages: dict[str, str | None] = found["packages"]
    missing = [name for name, installed in packages.items() if installed is None]
    versions = [("python", found["python"]), ("system", found["system"])]
    versions += [(name, installed) for name, installed in packages.items() if installed is not None]
    versions += [("not installed", ", ".join(missing))] if missing else []
    print_facts("versions", versions)
    print_facts("backends", [(backend["name"], _state(backend)) for backend in found["backends"]])
    gpus = [("gpu", gpu) for gpu in found["gpus"]] or [("gpu", "none that torch can use")]
    print_facts("device", [("cpu", found["device"].removeprefix("cpu:")), *gpus, ("isolation", found["isolation"])])
    options: dict[str, Any] = found["options"]
    mark = dict.fromkeys(found["from_environment"], "  (from the environment)")
    print_facts("options", [(name, f"{_said(value)}{mark.get(name, '')}") for name, value in options.items()])
    print_facts("store", facts_of(found["store"]))


def _state(backend: Mapping[str, Any]) -> str:
    command = f"; type: {backend['command']}" if backend["command"] else ""
    return f"{'works' if backend['works'] else 'does not work'}: {backend['why']}{command}"


def _said(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType]
    return Problem({"x": value}).text.removeprefix("x=") if value != "" else "none"
