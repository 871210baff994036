"""`ProgramsKernel`: Triton programs that are launched one after the other as one kernel, with the arrays they pass on.

Imports neither torch nor Triton until something is compiled or launched.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import WITHOUT_GPU, BadInput, MissingEngine
from tunesmith.kernel import Built, Specialised, Task
from tunesmith.kernels.strides import Others

FLOATS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Fresh:
    """An array that each launch allocates; `dtype` is torch's."""

    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Program:
    """One launch.

    Attributes:
        name: of the function in the kernel's device module.
        names: of its arguments, in their order: the call's, or fresh arrays. `None` for one that is left out.
        integers: what it takes behind them.
        constants: what is compiled in, and the compiler's options.
    """

    name: str
    grid: tuple[int, ...]
    names: tuple[str | None, ...]
    integers: tuple[int, ...]
    constants: Config


@dataclass(frozen=True)
class Plan:
    """What a Config makes of a call. `result` is the name of the fresh array that is returned."""

    programs: tuple[Program, ...]
    fresh: tuple[Fresh, ...]
    result: str

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return any(0 in array.shape for array in self.fresh if array.name == self.result)


#: from a Config and a call's arguments by name, of which it sees dtypes, shapes and strides
Planner: TypeAlias = "Callable[[Config, Mapping[str, Any]], Plan]"


@dataclass(frozen=True)
class ProgramsExecutable:
    """One compiled Config for calls of one Problem."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]


class ProgramsKernel:
    """Triton programs as one kernel: it allocates what they pass on, and returns the last one's result.

    A Config is compiled for the strides and alignments that come, each kind of them when it is first seen.

    Args:
        name: the kernel's.
        device_module: where its programs are.
        programs: their names there.
        parameters: of a call, in order.
        arrays: those of them that are arrays of floats, which share one dtype.
        integers: those that are arrays of integers, or `None`.
        knobs: of a Config. plan: what one makes of a call.
    """

    backend, per_problem = "triton", True

    def __init__(
        self, name: str, device_module: str, programs: Sequence[str], parameters: Sequence[str], arrays: Sequence[str],
        integers: Sequence[str], knobs: frozenset[str], plan: Planner,
    ) -> None:  # fmt: skip
        self.name, self.knobs, self.plan = name, knobs, plan
        self._module, self._programs = device_module, tuple(programs)
        self._arrays, self._all = tuple(arrays), (*arrays, *integers)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = inspect.Signature([inspect.Parameter(parameter, kind) for parameter in parameters])
        self.specialised = Specialised(alignment=self._all)
        self._args: dict[str, Any] = {}
        self._device: Device | None = None

    def _of(self, program: str, constants: Config) -> Any:
        return _triton_kernel(self._module, program, frozenset(constants))

    def fingerprint(self) -> str:
        return "-".join(self._of(program, Config()).fingerprint()[:12] for program in self._programs)

    def environment(self) -> Mapping[str, str]:
        return self._of(self._programs[0], Config()).environment()

    def versions(self) -> Mapping[str, str]:
        return self._of(self._programs[0], Config()).versions()

    def device(self, args: Sequence[Any]) -> Device:
        found = device_of(dict(zip(self.signature.parameters, args, strict=False)))
        if args and found.kind == "cpu":
            raise BadInput(
                f"{self.name} is a Triton kernel, and its arguments are on the CPU; good values: tensors on a GPU, or "
                f"tunesmith.ops.{self.name}, which takes either"
            )
        return found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(self._arrays, FLOATS)

    def for_call(self, args: Sequence[Any], device: Device | None = None) -> ProgramsKernel:
        """As one call needs it compiled.

        Args:
            device: to compile for one that is not here; the arguments can be on any then.
        """
        bound = copy.copy(self)
        given = zip(self.signature.parameters, args, strict=True)
        bound._args = {name: _kind(value) for name, value in given}
        bound._device = device
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramsKernel) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.name, tuple(self._args.items()), self._device

    def _compiled(self, config: Config) -> tuple[list[Any], Plan]:
        """(the Triton kernels for this call's types, what they launch)."""
        wanted = self.plan(config, self._args)
        device = self._args[self._all[0]].device
        fresh = {array.name: Outline(array.dtype, array.shape, (), device, address=0) for array in wanted.fresh}
        known = {**self._args, **fresh}
        kernels = [
            self._of(one.name, one.constants).for_call(
                (one.grid, *[None if name is None else known[name] for name in one.names], *one.integers), self._device
            )
            for one in wanted.programs
        ]
        return kernels, wanted

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        kernels, wanted = self._compiled(config)
        jobs = [
            (len(one.constants.items() & config.items()), kernel.compile_job(one.constants, problem, device))
            for kernel, one in zip(kernels, wanted.programs, strict=True)
        ]
        if any(job is None for _, job in jobs):
            return None
        # What other Configs share comes first: that the last one's output exists means that all of it was compiled.
        tasks: dict[Any, Task] = {task.output: task for _, task in sorted(jobs, key=lambda job: job[0])}

        def request() -> dict[str, Any]:
            return {"requests": [dict(task.request()) for task in tasks.values() if not task.output.exists()]}

        return Task(f"{__name__}:compile_modules", request, list(tasks)[-1], sum(t.timeout_s for t in tasks.values()))

    def load(self, config: Config, problem: Problem, built: Built | None) -> ProgramsExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            triton.runtime.errors.OutOfResources: when the device does not have what it takes.
        """
        kernels, wanted = self._compiled(config)
        loaded = [k.load(p.constants, problem, None) for k, p in zip(kernels, wanted.programs, strict=True)]
        most = max((one.resources for one in loaded), key=lambda found: (found.shared_bytes or 0, found.registers or 0))
        return ProgramsExecutable(config, most, self._launch(config, wanted, [one.launch for one in loaded]))

    def _launch(self, config: Config, wanted: Plan, runs: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """The function for calls of one Problem; the programs are right for the strides that the call had."""
        import torch

        names = list(self.signature.parameters)
        strided = [(names.index(name), self._args[name].stride()) for name in self._all if self._args[name] is not None]
        places, known = tuple(place for place, _ in strided), [strides for _, strides in strided]

        def launch_for(args: Sequence[Any]) -> Callable[..., Any]:
            return self.for_call(args).load(config, Problem({}), None).launch

        device, empty, others = self._args[self._all[0]].device, torch.empty, Others(launch_for, places)
        slots = {None: 0, **{name: at for at, name in enumerate([*names, *[a.name for a in wanted.fresh]], 1)}}
        fresh = [(array.shape, array.dtype) for array in wanted.fresh]
        steps = [
            (run, one.grid, [slots[name] for name in one.names], one.integers)
            for run, one in zip(runs, wanted.programs, strict=True)
        ]
        result = slots[wanted.result]

        def launch(*args: Any) -> Any:
            if [args[place].stride() for place in places] != known:
                return others(*args)
            values = [None, *args, *[empty(shape, dtype=dtype, device=device) for shape, dtype in fresh]]
            for run, grid, taken, integers in steps:
                run(grid, *[values[at] for at in taken], *integers)
            return values[result]

        def nothing(*_: Any) -> Any:
            shape, dtype = next((array.shape, array.dtype) for array in wanted.fresh if array.name == wanted.result)
            return empty(shape, dtype=dtype, device=device)

        return nothing if wanted.is_empty else launch


def _kind(value: Any) -> Any:
    """What of an argument decides what is compiled: of a float nothing but that it is one."""
    return Outline.of(value) if hasattr(value, "data_ptr") else 0.5 if isinstance(value, float) else value


@cache
def _triton_kernel(module: str, program: str, knobs: frozenset[str]) -> Any:
    """A program as a kernel; imports Triton."""
    from tunesmith.backends.triton.kernel import TritonKernel

    return TritonKernel(getattr(import_module(module), program), knobs)


@dataclass(frozen=True)
class Outline:
    """An array of a call without its content: what a compiler wants to know, and nothing that keeps memory alive."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: Any
    address: int

    @classmethod
    def of(cls, array: Any) -> Outline:
        """An array's outline."""
        if isinstance(array, Outline):
            return array
        address = 0 if array.device.type == "meta" or array.data_ptr() % 16 == 0 else 8
        return cls(array.dtype, tuple(array.shape), tuple(array.stride()), array.device, address)

    def stride(self) -> tuple[int, ...]:
        """In elements, as torch's arrays answer it."""
        return self.strides

    def data_ptr(self) -> int:
        """Stands for an address: what it is divisible by is all that counts."""
        return self.address


def drawer(device: str, seed: int) -> Any:
    """Torch's generator of random numbers on a device.

    Raises:
        MissingEngine: where torch has no such device.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise MissingEngine(
            f"inputs on a GPU need one that torch can use: torch.cuda.is_available() is False; {WITHOUT_GPU}"
        )
    draw = torch.Generator(device=device)
    draw.manual_seed(seed)
    return draw


# --- in a child -------------------------------------------------------------------------------------------


def compile_modules(*, requests: Sequence[Mapping[str, Any]]) -> None:
    """Compile the modules of several programs into Triton's cache, the last one last. Runs in a child.

    Raises:
        OutOfResources: when a block of one of them would want more than there is.
    """
    from tunesmith.backends.triton.compile import compile_module

    for request in requests:
        compile_module(**request)
