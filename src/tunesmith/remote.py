"""Candidates in a worker: a Bench and a Clock whose work is done by a child process, which may die of it.

The race stays here. A worker that is dead, hung or without a device that answers is replaced by a new one, in which
the other candidates are loaded again when their turn comes; the one it died of is a Failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Protocol, cast
from weakref import ref

from tunesmith.children import Answer, Child, Guard
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Failed, Resources, Sample
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, WorkerLost
from tunesmith.kernel import Built, Clock, Executable, Run
from tunesmith.measure.bench import Loaded, Ready
from tunesmith.measure.failure import FailedElsewhere, attempt
from tunesmith.measure.pace import heard, known_least_pace_s
from tunesmith.measure.packing import packed
from tunesmith.measure.race import of_races
from tunesmith.processes import resident_bytes

#: importing a program's module and making its inputs may take so long: torch, a CUDA context and gigabytes, with room
OPEN_S = 300.0
#: what `load` may take, as a compiler may: some kernels are compiled by it
LOAD_S = 120.0
#: A candidate that prints more at one step than any warning is long is no kernel: it times its printing.
PRINTED_BYTES = 1024**2
#: Of the memory that is free when a worker starts, what it may take, where the user does not say.
MEMORY_SHARE = 0.5
_MODULE = "tunesmith.worker"
#: A worker is no rank of its parent's job, and what candidates call is not what the program chose.
_NOT_A_WORKERS = ("TUNESMITH_RANKS", "TUNESMITH_PLAN", "TUNESMITH_CAPTURE")
#: (limit, what is used) of this process's cgroup, in versions 2 and 1
_CGROUPS = [
    (Path("/sys/fs/cgroup", limit), Path("/sys/fs/cgroup", used))
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    )
]


@dataclass(frozen=True)
class Recipe:
    """What another process needs to make the same candidates on the same inputs.

    Attributes:
        target: `module:attribute` or `path.py:attribute`.
        fixed: knobs held at one value there.
        key: all that must be the same there: source, Problem, device, way of timing.
        problem: what `make_inputs` is asked for there.
        arguments: the call's, by name.
        device: the index of the GPU that is current here, `None` without one.
        run_s: seconds a candidate may take for one step.
        memory_bytes: what a worker may take, `None`: a part of what is free.
        required: whether candidates may not run in this process instead.
    """

    target: str
    fixed: Config
    key: Key
    problem: Problem
    arguments: Mapping[str, Any]
    device: int | None
    run_s: float
    memory_bytes: int | None = None
    required: bool = True


@dataclass(frozen=True)
class RemoteExecutable:
    """A candidate that is loaded in the worker."""

    config: Config
    resources: Resources

    def launch(self, *_: Any) -> Any:
        """Not from here: its process has other arguments."""
        raise RuntimeError(f"{self.config!r} is loaded in a worker and can't be launched from here")


@dataclass
class RemoteBench:
    """A Bench whose candidates run in a worker.

    Args:
        recipe: what the worker makes them of.
        tells: whether anything is done around launches there, and hears of candidates that never came to one.
    """

    recipe: Recipe
    tells: bool = False
    notes: list[str] = field(default_factory=list[str])
    #: what held the device's clock back in the samples so far, where the Clock there knows
    limits: set[str] = field(default_factory=set[str])
    #: how fast the core was around each of them, where the Clock there reads that
    paces: list[float] = field(default_factory=list[float])
    _folder: TemporaryDirectory[str] | None = None
    _told: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _child: Child | None = None
    #: what each candidate was loaded from
    _held: dict[Config, Built | None] = field(default_factory=dict[Config, "Built | None"])
    #: what the present worker has loaded, and what it has launched
    _there: set[Config] = field(default_factory=set[Config])
    _launched: set[Config] = field(default_factory=set[Config])
    #: whether the present worker ran candidates of an earlier search
    _used: bool = False

    def __enter__(self) -> RemoteBench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._held.clear()

    def close(self) -> None:
        """End the worker, and nothing is left of it; or keep it for the next search where that is asked for."""
        if self._child is not None and _keeping and self._child.is_alive and not _spare:
            _spare.append(self._child)
            self._child = None
        self._end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # --- a Bench's -------------------------------------------------------------------------------

    def load(self, config: Config, built: Built | None) -> Loaded:
        self._held[config] = built
        said, failure, error = attempt("load", lambda: self._ask("load", config))
        if failure is not None:
            del self._held[config]
            return None, failure, error
        assert said is not None
        return RemoteExecutable(config, Resources(**said)), None, None

    def ready(self, executable: Executable) -> Ready:
        config = executable.config
        said, failure, error = attempt("launch", lambda: self._ask("ready", config))
        if failure is not None or said is None:
            return None, failure, error
        if "bad_input" in said:
            raise BadInput(said["bad_input"])
        self.notes += [note for note in said["notes"] if note not in self.notes]
        return Run(executable, (), checked=bool(said["checked"])), None, None

    def tell(self, config: Config, error: BaseException) -> None:
        if self.tells and self._child is not None:
            self._call("tell", {"config": dict(config), "why": str(error)}, self.recipe.run_s)

    def sample(self, config: Config) -> tuple[Sample, int]:
        """Time a candidate; the sample, and how many launches it is the mean of.

        Raises:
            FailedElsewhere: what became of it.
            WorkerLost: when there is no worker any more.
        """
        said = self._ask("sample", config)
        self.limits.update(said["limits"])
        if said["pace"] is not None:
            around_s, least_s = said["pace"]
            self.paces.append(around_s)
            heard(least_s)
        return Sample(**said["sample"]), said["launches"]

    def settle(self, config: Config, seconds: float, left_s: float) -> None:
        """Bring the device under the load of a candidate, as the worker's Clock knows how.

        Args:
            seconds: what a launch takes.
            left_s: until the search ends; half of it is for what is timed then.

        Raises:
            FailedElsewhere: what became of the candidate.
            WorkerLost: when there is no worker any more.
        """
        self._ask("settle", config, seconds=seconds, within_s=min(self.recipe.run_s, left_s) / 2)

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, what: str, config: Config, **more: Any) -> Any:
        """Have the worker do something with a candidate; one that died beside others gets a second chance alone.

        What another wrote where it should not may have been what this one died of.
        """
        others = self._used or bool(self._launched - {config})
        answer = self._step(what, config, more)
        if answer.died and others:
            answer = self._step(what, config, more)
        if answer.failed is not None:
            raise FailedElsewhere(answer.failed)
        return answer.value

    def _step(self, what: str, config: Config, more: Mapping[str, Any]) -> Answer:
        """One step in a live worker, after the steps that it has not done for this candidate."""
        if self._child is None:
            self.begin()
        before = [] if config in self._there else ["load", "ready"]
        steps = [*before[: before.index(what) if what in before else None], what]
        answer = Answer(None, 0.0)
        for step in steps:
            request = {**self._request(step, config), **(more if step == what else {})}
            answer = self._call(step, request, LOAD_S if step == "load" else self.recipe.run_s)
            if answer.failed is not None:
                return answer
            if step == "load":
                self._there.add(config)
            elif answer.printed_bytes > PRINTED_BYTES:
                said = f"printed {answer.printed_bytes / 1024**2:.1f} MiB at one step"
                return Answer(Failed("launch", said, answer.log), answer.seconds)
            else:
                self._launched.add(config)
        return answer

    def _request(self, step: str, config: Config) -> dict[str, Any]:
        built = self._held[config]
        return {"config": dict(config), **({"built": built and str(built.path)} if step == "load" else {})}

    def _call(self, step: str, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """Ask the worker; one that has died of it, or whose device does not answer any more, is put away."""
        assert self._child is not None
        answer = self._child.call(f"{_MODULE}:{step}", request, timeout_s)
        assert answer is not None  # a guarded child never ends for being idle
        value = cast("dict[str, Any]", answer.value or {})
        poisoned = value.get("poisoned")
        if poisoned is not None:  # the candidate failed, and took the device with it
            answer = Answer(Failed(**poisoned), answer.seconds, answer.log)
            self._end()
        elif not self._child.is_alive:
            self._end()
        return answer

    # --- the worker ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a worker and have it make kernel and inputs.

        Raises:
            WorkerLost: with what went wrong there.
        """
        recipe = self.recipe
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="tunesmith-inputs-")
            try:
                self._told = packed(recipe.arguments, Path(self._folder.name))
            except OSError as error:  # the disk is full
                raise WorkerLost(f"no worker for {recipe.target}: its inputs can't be written: {error}") from error
        request = {
            "target": recipe.target, "fixed": dict(recipe.fixed), "key": recipe.key.to_data(),
            "problem": recipe.problem.text, "arguments": self._told, "device": recipe.device, "argv": sys.argv,
            "least_pace_s": known_least_pace_s(),
        }  # fmt: skip
        if _spare:
            self._child, self._used = _spare.pop(), True
            if self._call("begin", request, OPEN_S).failed is None:
                return
            self._end()  # it has suffered, or has no room left: a new one will tell
        self._child = self._new_child()
        answer = self._call("begin", request, OPEN_S)
        if answer.failed is not None:
            self._end()
            raise WorkerLost(
                f"no worker for {recipe.target}: {answer.failed.reason}; isolate=False (--no-isolate) runs candidates "
                "in this process"
            )

    def _new_child(self) -> Child:
        environ = {name: value for name, value in os.environ.items() if name not in _NOT_A_WORKERS}
        limit = self.recipe.memory_bytes or int(MEMORY_SHARE * free_bytes())
        try:
            return Child(Guard("candidate", environ, limit))
        except OSError as error:  # no process can be started
            raise WorkerLost(f"no worker for {self.recipe.target}: {error}") from error

    def _end(self) -> None:
        self._used = False
        self._there.clear()
        self._launched.clear()
        if self._child is not None:
            self._child.end()
            self._child = None


#: A worker that has ended a search well, for the next one: torch and a CUDA context take seconds to make.
_spare: list[Child] = []
_keeping: list[bool] = []


def keep_workers() -> None:
    """From now on a worker that has ended its search well serves this process's next one, whatever its kernel.

    For a process that searches one problem after the other on one device, in one thread.
    """
    _keeping[:] = [True]


def end_spare_worker() -> None:
    """The next search's candidates run in a new process."""
    while _spare:
        _spare.pop().end()


class Ending(Protocol):
    """A search: how long it has."""

    @property
    def left_s(self) -> float:
        """Seconds that are left; infinite without a limit."""
        ...


class RemoteClock:
    """A Clock whose samples are taken in a worker, by a Clock of the same kind as one here.

    Args:
        search: whose clock it is.
    """

    def __init__(self, bench: RemoteBench, local: Clock, search: Ending) -> None:
        self._bench, self.protocol, self.limits, self.paces = bench, local.protocol, bench.limits, bench.paces
        if callable(getattr(local, "settle", None)):
            self.settle = partial(_settle, bench, ref(search))
        for name, value in of_races(local).items():  # whose samples they are does not depend on the process
            setattr(self, name, value)

    def sample(self, run: Run) -> Sample:
        sample, run.state["launches"] = self._bench.sample(run.config)
        return sample


def _settle(
    bench: RemoteBench, search: ref[Ending], run: Run, seconds: float, over: Callable[[], bool]
) -> None:  # fmt: skip
    # No method, and no search that is held: what holds its Clock would hold the call's arrays until a collection.
    ending = search()
    if ending is not None and not over():
        bench.settle(run.config, seconds, ending.left_s)


def free_bytes() -> int:
    """Memory that can be had without swapping: what is free, or what this process's cgroup leaves."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:  # no Linux
        pass
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most = (Path("/sys/fs/cgroup") / limit).read_text().strip()
            if most != "max":
                found.append(int(most) - int((Path("/sys/fs/cgroup") / used).read_text()))
        except (OSError, ValueError):  # no cgroup of this kind
            continue
    return max(resident_bytes(os.getpid()), min(found))
