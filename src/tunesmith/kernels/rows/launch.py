"""`RowKernel`: a Triton kernel over the rows of matrices as the tuner sees it, with the output that it allocates."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from tunesmith.kernels.counters import counters
from tunesmith.kernels.rows import Holds, part_of

DTYPES = ("bfloat16", "float16", "float32")
#: How often a program asks whether the others that share its row have arrived: some milliseconds. Those that run come
#: within some microseconds.
PATIENCE = 4000


@dataclass(frozen=True)
class RowExecutable:
    """One compiled Config for calls of one Problem."""

    config: Config
    resources: Resources
    launch: Callable[..., Any]


class RowKernel:
    """A program of `kernels.rows` that takes arrays, then `rows`, `n` and other numbers.

    The arrays' last dimension has no gaps. A Config is compiled for the strides that come, each kind of them when it
    is first seen.

    Args:
        name: the kernel's, and the program's.
        arrays: arguments that are arrays; the first has the dtype of what is made. Some may be `None`.
        strided: those whose first strides the program takes, in this order, ahead of `rows`.
        numbers: behind `rows` and `n`.
        knobs: of the program, and of the compiler.
        makes: whether it allocates an output (rows, n), which stands behind the arrays, and returns it.
        returns: else the arrays that it returns, which it writes.
        typed: arrays whose dtypes a Problem names, all if not given; of the others it follows.
        module: where the program is.
        holds: how many blocks of a row, HELD, the program keeps in registers, if it keeps any.
        anywhere: whether it loads many elements at once of rows that begin anywhere (VECTOR is 0).
    """

    backend, per_problem = "triton", True

    def __init__(
        self, name: str, arrays: Sequence[str], strided: Sequence[str], knobs: Sequence[str], *,
        numbers: Sequence[str] = (), makes: bool = True, returns: Sequence[str] = (),
        typed: Sequence[str] | None = None, module: str = "tunesmith.kernels.rows.device",
        holds: Holds | None = None, anywhere: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._arrays, self._makes, self._module = name, tuple(arrays), makes, module
        self.knobs, self._typed = frozenset(knobs), self._arrays if typed is None else tuple(typed)
        parameters = (*arrays, "rows", "n", *numbers)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.signature = inspect.Signature([inspect.Parameter(one, kind) for one in parameters])
        self.specialised = Specialised(alignment=self._arrays, divisibility=("n",), width=("rows",))
        self._strided = tuple(self._arrays.index(one) for one in strided)
        self._returned = tuple(self._arrays.index(one) for one in returns)
        parts = {"LOOP": "PER_UNIT" in self.knobs, "HELD": holds is not None, "PATIENCE": "SPLIT" in self.knobs}
        self._derived = frozenset(("VECTOR", *(name for name, there in parts.items() if there)))
        self._holds, self._anywhere, self._bound = holds, anywhere, cast("_Bound | None", None)

    @property
    def _program(self) -> Any:
        return _program(self._module, self.name, self.knobs | self._derived)

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
        strides = self._strides(args)
        units = (device or self.device(args)).units
        bound = copy.copy(self)
        rows, n = int(numbers[0]), int(numbers[1])

        def typed(*beside: Any) -> Any:
            return self._program.for_call(((1,), *arrays, *made, *beside, *strides, *numbers), device)

        program = typed(*[None] * len(self._beside()))
        split = typed(*self._beside()) if self._beside() else None
        vector = _vector(n, strides, arrays[0].dtype.itemsize, self._anywhere)
        bound._bound = _Bound(program, split, strides, rows, n, units, vector, self._holds)
        return bound

    def _beside(self) -> list[_Fresh]:
        """What programs that share a row need beside the arrays: see `_softmax_split`."""
        if "SPLIT" not in self.knobs:
            return []
        import torch

        return [_Fresh(torch.float32), _Fresh(torch.int32)]

    def _strides(self, args: Sequence[Any]) -> tuple[int, ...]:
        return tuple([args[i].stride(0) for i in self._strided])

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> RowKernel:
        """This kernel for arguments on a device that need not be here."""
        made = make_inputs()
        return self.for_call([made[name] for name in self.signature.parameters], device)

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        return cast(Resources, self._program.resources_of(config, built, device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowKernel) and (self.name, self._bound) == (other.name, other._bound)

    def __hash__(self) -> int:
        return hash((self.name, self._bound))

    @property
    def bound(self) -> _Bound:
        """The call that this is for.

        Raises:
            BadInput: when this is not yet the kernel of a call.
        """
        if self._bound is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        return self._bound

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        constants, _ = self.bound.plan(config)
        return cast("Task | None", self.bound.program_of(config).compile_job(constants, problem, device))

    def load(self, config: Config, problem: Problem, built: Built | None) -> RowExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            triton.runtime.errors.OutOfResources: when the device does not have what it takes.
        """
        constants, programs = self.bound.plan(config)
        loaded = self.bound.program_of(config).load(constants, problem, built)
        return RowExecutable(config, loaded.resources, self._launch(config, loaded.launch, (programs,)))

    def _launch(self, config: Config, first: Callable[..., Any], grid: tuple[int]) -> Callable[..., Any]:
        """The function for calls of one Problem."""
        import torch

        bound, empty, strides_of, returned = self.bound, torch.empty, self._strides, self._returned
        behind, shape, some = len(self._arrays), (bound.rows, bound.n), bound.rows * bound.n > 0
        known, launches = bound.strides, {_kind(bound.strides): first}
        beside = bound.beside(config)

        def launch_for(strides: tuple[int, ...], args: tuple[Any, ...]) -> Callable[..., Any]:
            """For strides of this kind: compiled when it is first seen."""
            kind = _kind(strides)
            if kind not in launches:
                again = self.for_call(args).bound
                launches[kind] = again.program_of(config).load(again.plan(config)[0], Problem({}), None).launch
            return launches[kind]

        def making(*args: Any) -> Any:
            made = empty(shape, dtype=args[0].dtype, device=args[0].device)
            if some:
                strides = strides_of(args)
                run = first if strides == known else launch_for(strides, args)
                run(grid, *args[:behind], made, *beside(made.device), *strides, *args[behind:])
            return made

        def writing(*args: Any) -> Any:
            if some:
                strides = strides_of(args)
                run = first if strides == known else launch_for(strides, args)
                run(grid, *args[:behind], *strides, *args[behind:])
            return tuple(args[i] for i in returned) if returned else None

        return making if self._makes else writing


@dataclass(frozen=True)
class _Bound:
    """What of a call is compiled in: the Triton kernel for its types, the kind of its strides, sizes, and of the GPU.

    Attributes:
        split: the kernel for its types where a row is shared by programs, `None` where none ever is.
        strides: of the call; what is compiled for others of their kind is the same.
        rows, n: of what is written. units: multiprocessors of the GPU.
        vector: elements that all rows begin at a multiple of. holds: see `RowKernel`.
    """

    program: Any
    split: Any
    strides: tuple[int, ...] = field(compare=False)
    rows: int
    n: int
    units: int
    vector: int
    holds: Holds | None

    def program_of(self, config: Config) -> Any:
        return self.program if config.get("SPLIT", 1) == 1 else self.split

    def beside(self, config: Config) -> Callable[[Any], Sequence[Any]]:
        """A function that makes what stands behind the output on a device: a workspace and counters, or nothing."""
        parts = cast("int | None", config.get("SPLIT"))
        if parts is None or parts == 1:
            nothing = () if parts is None else (None, None)
            return lambda device: nothing
        import torch

        empty, float32, use = torch.empty, torch.float32, f"rows in {parts}"
        size, counted = 2 * parts * self.rows, 1 << (self.rows - 1).bit_length()  # few kinds of them, as they stay

        def made(device: Any) -> Sequence[Any]:
            return empty((size,), dtype=float32, device=device), counters(device, counted, use)

        return made

    def plan(self, config: Config) -> tuple[Config, int]:
        """(what is compiled in, how many programs run)."""
        knobs = {**cast("dict[str, int]", dict(config)), "VECTOR": self.vector}
        tiles, block = -(-self.rows // knobs["ROWS"]), knobs["BLOCK"]
        if "PER_UNIT" not in knobs:  # a row is shared by programs
            return Config(knobs), tiles * -(-self.n // block)
        if "SPLIT" in knobs:
            knobs["PATIENCE"] = PATIENCE
        if knobs.get("SPLIT", 1) > 1:  # each program holds its part of a row
            held = -(-part_of(self.n, knobs["SPLIT"]) // block)
            return Config({**knobs, "HELD": held, "LOOP": False}), self.rows * knobs["SPLIT"]
        held = 1
        if self.holds:
            held = knobs["HELD"] = self.holds(self.n, knobs["ROWS"], block, knobs.get("num_warps", 4))
        each = knobs["PER_UNIT"]
        return Config({**knobs, "LOOP": held * block < self.n}), min(tiles, each * self.units) if each else tiles


def _vector(n: int, strides: tuple[int, ...], item: int, anywhere: bool) -> int:
    """Elements, up to 16, that all rows begin at a multiple of.

    Args:
        item: bytes of an element.
        anywhere: 0 where these are less than 16 bytes, and all arrays' rows begin equally far from a multiple of 8.
    """
    common = math.gcd(n, 16, *strides)
    return 0 if anywhere and common * item < 16 and all((step - n) % 8 == 0 for step in strides) else common


def _kind(strides: tuple[int, ...]) -> tuple[tuple[int, bool, bool], ...]:
    """What is compiled in of integers: what they are beyond multiples of 16, whether 1, whether they need 64 bits."""
    return tuple([(step % 16, step == 1, step >= 2**31) for step in strides])


@cache
def _program(module: str, name: str, constants: frozenset[str]) -> Any:
    """A program as a kernel; imports Triton."""
    from tunesmith.backends.triton.kernel import TritonKernel

    return TritonKernel(getattr(import_module(module), name), constants)


class _Fresh:
    """Stands for an array that a launch allocates: its dtype, and that it is aligned."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0
