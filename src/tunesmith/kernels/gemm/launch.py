"""`GemmKernel`: the Triton matrix product as the tuner sees it, with the output, workspace and counters it needs."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, cast

from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Built, Specialised, Task
from tunesmith.kernels.counters import counters_of
from tunesmith.kernels.gemm.memory import fresh
from tunesmith.kernels.gemm.plan import COMPUTED, KNOBS, NOT_THEIRS, PARAMETERS, Plan, output_dtype, plan
from tunesmith.kernels.strides import Others

#: the places of a and b
MATRICES = (0, 1)


@dataclass(frozen=True)
class GemmExecutable:
    """One compiled Config for calls of one Problem."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]


class GemmKernel:
    """activation(a · b + bias), a (batch, M, K) or (M, K), b (batch, K, N) or (K, N), with any strides.

    Takes what `kernels.gemm.arguments` makes of a call, and returns the product, which it allocates. A Config is
    compiled for the strides and alignments that come, each kind of them when it is first seen.
    """

    name, backend, per_problem, knobs = "gemm", "triton", True, KNOBS
    signature = inspect.Signature([
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in PARAMETERS
    ])  # fmt: skip
    specialised = Specialised(alignment=("a", "b", "bias"))

    def __init__(self) -> None:
        self._args: tuple[Any, ...] = ()
        self._device: Device | None = None

    def fingerprint(self) -> str:
        return "-".join(_program(name).fingerprint()[:16] for name in COMPUTED)

    def environment(self) -> Mapping[str, str]:
        return _program("gemm").environment()

    def versions(self) -> Mapping[str, str]:
        return _program("gemm").versions()

    def device(self, args: Sequence[Any]) -> Device:
        found = device_of(dict(zip(PARAMETERS, args, strict=False)))
        if args and found.kind == "cpu":
            raise BadInput("gemm is a Triton kernel, and its arguments are on the CPU; good values: tensors on a GPU")
        return found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(("a", "b"), ("float16", "bfloat16", "float32"))

    def for_call(self, args: Sequence[Any], device: Device | None = None) -> GemmKernel:
        """As one call needs it compiled.

        Args:
            device: to compile for one that is not here; the arguments can be on any then.
        """
        bound = copy.copy(self)
        bound._args = tuple(Outline.of(value) if hasattr(value, "data_ptr") else value for value in args)
        bound._device = device
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GemmKernel) and (self._args, self._device) == (other._args, other._device)

    def __hash__(self) -> int:
        return hash((self._args, self._device))

    def _compiled(self, config: Config) -> tuple[Any, Plan]:
        """(the Triton kernel for this call's types, what it launches)."""
        import torch

        a, b, bias, *_ = self._args
        wanted = plan(config, self._args, self._device or device_of({"a": a}))
        split = [_Fresh(torch.float32), _Fresh(torch.int32)] if wanted.arrived else [None, None]
        arrays = [a, b, bias, _Fresh(output_dtype(self._args)), *(split if wanted.program == "gemm" else [])]
        return _program(wanted.program).for_call((wanted.grid, *arrays, *wanted.scalars), self._device), wanted

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        kernel, wanted = self._compiled(config)
        return cast("Task | None", kernel.compile_job(wanted.constants, problem, device))

    def load(self, config: Config, problem: Problem, built: Built | None) -> GemmExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            triton.runtime.errors.OutOfResources: when the device does not have what it takes.
        """
        kernel, wanted = self._compiled(config)
        loaded = kernel.load(wanted.constants, problem, built)
        a, b, *_ = self._args

        def launch_for(args: Sequence[Any]) -> Callable[..., Any]:
            return self.for_call(args, self._device).load(config, Problem({}), None).launch

        others = Others(launch_for, MATRICES)
        launch = _launch(wanted, loaded.launch, (a.strides, b.strides), others, self._args)
        return GemmExecutable(config, loaded.resources, launch)


@cache
def _program(name: str) -> Any:
    """A program of device.py as a kernel; imports Triton."""
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.kernels.gemm import device

    return TritonKernel(getattr(device, name), KNOBS - NOT_THEIRS[name] | COMPUTED[name])


# --- what arrays are to the compiler ---


class _Fresh:
    """Stands for an array that a launch allocates: its dtype, and that it is aligned."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0


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
        if isinstance(array, Outline):
            return array
        address = 0 if array.device.type == "meta" or array.data_ptr() % 16 == 0 else 8
        return cls(array.dtype, tuple(array.shape), tuple(array.stride()), array.device, address)

    @cached_property
    def ndim(self) -> int:
        return len(self.shape)

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return self.address


# --- a launch ---


def _launch(
    wanted: Plan, run: Callable[..., Any], known: tuple[tuple[int, ...], tuple[int, ...]], others: Callable[..., Any],
    args: Sequence[Any],
) -> Callable[..., Any]:  # fmt: skip
    """The function for calls of one Problem; `run` is right for the strides in `known`, `others` sees to the rest."""
    import torch

    device, grid, shape, scalars = args[0].device, wanted.grid, wanted.shape, wanted.scalars
    output, workspace = fresh(shape, output_dtype(args), device), fresh((wanted.partial,), torch.float32, device)
    arrived, (of_a, of_b) = counters_of(device, wanted.arrived), known
    if wanted.constants.get("DESCRIBED"):
        run = _with_scratch(run, device)

    def whole(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        c = output()
        run(grid, a, b, bias, c, None, None, *scalars)
        return c

    def alone(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        c = output()
        run(grid, a, b, bias, c, *scalars)
        return c

    def split(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        c = output()
        run(grid, a, b, bias, c, workspace(), arrived(), *scalars)
        return c

    def nothing(*_: Any) -> Any:
        return output()

    if not math.prod(shape):
        return nothing
    return alone if wanted.program != "gemm" else split if wanted.arrived else whole


def _with_scratch(run: Callable[..., Any], device: Any) -> Callable[..., Any]:
    """The same launch, with torch's memory for the descriptors that its programs make: in a context of its own, so
    that the process keeps the allocator it has."""
    import torch
    import triton

    empty, int8 = torch.empty, torch.int8

    def take(size: int, alignment: int, stream: int | None) -> Any:  # torch's is aligned to 512
        return empty((size,), dtype=int8, device=device)

    def inside(*args: Any) -> None:
        triton.set_allocator(take)
        run(*args)

    return lambda *args: copy_context().run(inside, *args)
