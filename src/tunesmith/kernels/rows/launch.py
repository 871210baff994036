"""`RowKernel`: a Triton kernel over the rows of matrices as the tuner sees it, with the output that it allocates."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Built, Specialised, Task

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class RowExecutable:
    """One compiled Config for calls of one Problem."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]


class RowKernel:
    """A program of `kernels.rows` that takes arrays, then numbers, the sizes `rows` and `n` among them.

    The arrays' last dimension has no gaps; how far apart their rows are is among the numbers.

    Args:
        name: the kernel's, and the program's.
        arrays: arguments that are arrays; the first has the dtype of what is made. Some may be `None`.
        strides: numbers: the arrays' first strides. numbers: those behind `rows` and `n`.
        knobs: of the program, and of the compiler.
        makes: whether it allocates an output (rows, n), which stands behind the arrays, and returns it.
        returns: else the arrays that it returns, which it writes.
        typed: arrays whose dtypes a Problem names, all if not given; of the others it follows.
        module: where the program is.
    """

    backend, per_problem = "triton", True

    def __init__(
        self, name: str, arrays: Sequence[str], strides: Sequence[str], knobs: Sequence[str], *,
        numbers: Sequence[str] = (), makes: bool = True, returns: Sequence[str] = (),
        typed: Sequence[str] | None = None, module: str = "tunesmith.kernels.rows.device",
    ) -> None:  # fmt: skip
        self.name, self._arrays, self._makes, self._module = name, tuple(arrays), makes, module
        self.knobs, self._typed = frozenset(knobs), self._arrays if typed is None else tuple(typed)
        parameters = (*arrays, *strides, "rows", "n", *numbers)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = inspect.Signature([inspect.Parameter(one, kind) for one in parameters])
        self.specialised = Specialised(alignment=tuple(arrays), divisibility=(*strides, "n"), width=("rows",))
        self._rows_at = len(self._arrays) + len(strides)
        self._returned = tuple(self._arrays.index(one) for one in returns)
        self._bound: tuple[Any, int, int, int] | None = None  # the Triton kernel, rows, n, units

    @property
    def _program(self) -> Any:
        return _program(self._module, self.name, self.knobs)

    def fingerprint(self) -> str:
        return cast(str, self._program.fingerprint())

    def environment(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self._program.environment())

    def versions(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self._program.versions())

    def device(self, args: Sequence[Any]) -> Device:
        found = device_of(dict(zip(self.signature.parameters, args, strict=False)))
        if args and found.kind == "cpu":
            raise BadInput(
                f"{self.name} is a Triton kernel, and its arguments are on the CPU; good values: tensors on a GPU"
            )
        return found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(self._typed, DTYPES)

    def for_call(self, args: Sequence[Any], device: Device | None = None) -> RowKernel:
        """As one call needs it compiled.

        Args:
            device: to compile for one that is not here; the arguments can be on any then.
        """
        arrays, numbers = args[: len(self._arrays)], args[len(self._arrays) :]
        made = [_Fresh(arrays[0].dtype)] if self._makes else []
        units = (device or self.device(args)).units
        bound = copy.copy(self)
        program = self._program.for_call(((1,), *arrays, *made, *numbers), device)
        bound._bound = program, int(args[self._rows_at]), int(args[self._rows_at + 1]), units
        return bound

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> RowKernel:
        """This kernel for arguments on a device that need not be here."""
        made = make_inputs()
        return self.for_call([made[name] for name in self.signature.parameters], device)

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        return cast(Resources, self._program.resources_of(config, built, device))

    def __eq__(self, other: object) -> bool:
        """What is compiled in of the sizes is whether a row fits a block, and how many programs there are."""
        return isinstance(other, RowKernel) and (self.name, self._bound) == (other.name, other._bound)

    def __hash__(self) -> int:
        return hash((self.name, self._bound))

    def _compiled(self, config: Config) -> tuple[Any, Config, int]:
        """(the Triton kernel for this call's types, what is compiled in, how many programs run).

        Raises:
            BadInput: when this is not yet the kernel of a call.
        """
        if self._bound is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        program, rows, n, units = self._bound
        knobs = cast("dict[str, int]", dict(config))
        tiles, block = -(-rows // knobs["ROWS"]), knobs["BLOCK"]
        if "PER_UNIT" not in knobs:  # a row is shared by programs
            return program, config, tiles * -(-n // block)
        each = knobs["PER_UNIT"]
        return program, Config({**config, "LOOP": block < n}), min(tiles, each * units) if each else tiles

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        program, constants, _ = self._compiled(config)
        return cast("Task | None", program.compile_job(constants, problem, device))

    def load(self, config: Config, problem: Problem, built: Built | None) -> RowExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            triton.runtime.errors.OutOfResources: when the device does not have what it takes.
        """
        program, constants, programs = self._compiled(config)
        loaded = program.load(constants, problem, built)
        return RowExecutable(config, loaded.resources, self._launch(loaded.launch, (programs,)))

    def _launch(self, run: Callable[..., Any], grid: tuple[int]) -> Callable[..., Any]:
        """The function for calls of one Problem."""
        assert self._bound is not None
        import torch

        _, rows, n, _ = self._bound
        behind, shape, empty, returned, some = len(self._arrays), (rows, n), torch.empty, self._returned, rows * n > 0

        def making(*args: Any) -> Any:
            first = args[0]
            made = empty(shape, dtype=first.dtype, device=first.device)
            if some:
                run(grid, *args[:behind], made, *args[behind:])
            return made

        def writing(*args: Any) -> Any:
            if some:
                run(grid, *args)
            return tuple(args[i] for i in returned) if returned else None

        return making if self._makes else writing


@cache
def _program(module: str, name: str, knobs: frozenset[str]) -> Any:
    """A program as a kernel; imports Triton."""
    from tunesmith.backends.triton.kernel import TritonKernel

    return TritonKernel(getattr(import_module(module), name), knobs | ({"LOOP"} if "PER_UNIT" in knobs else set[str]()))


class _Fresh:
    """Stands for an array that a launch allocates: its dtype, and that it is aligned."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0
