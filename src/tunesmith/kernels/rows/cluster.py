"""`ClusterKernel`: the CUDA C++ softmax whose rows clusters of blocks share, with the output that it allocates.

See `kernels/cuda/cluster_softmax.cu`. Imports neither torch nor what compiles CUDA until a call is bound.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Built, Specialised, Task
from tunesmith.kernels import nvidia
from tunesmith.kernels.rows.launch import DTYPES, RowExecutable

if TYPE_CHECKING:
    from tunesmith.backends.cuda import CudaKernel

KNOBS = ("CLUSTER", "THREADS", "REGISTERS")
#: bytes that a thread holds at once, and of which a block of shared memory has so many for itself
PIECE_BYTES, RESERVED_BYTES = 16, 1024
#: registers of a thread beside the pieces that it holds in them
WORKING = 60


@dataclass(frozen=True)
class Layout:
    """How the threads of a cluster hold a row: each `slots` pieces of 16 bytes, some of them in registers.

    Attributes:
        resident: blocks that a multiprocessor holds at once; 0 where it can't hold one.
    """

    slots: int
    shared_bytes: int
    resident: int

    @classmethod
    def of(cls, n: int, item: int, config: Config, device: Device) -> Layout:
        """For rows of n elements of so many bytes."""
        cluster, threads, registers = _knobs(config)
        pieces = n * item // PIECE_BYTES
        share = -(-pieces // (8 * cluster)) * 8  # of a block: whole lines of memory
        slots = max(1, registers, -(-share // threads))
        shared = PIECE_BYTES * threads * (slots - registers)
        told = 2 * (cluster * threads // 32 * 8 + 8)  # what warps tell each other
        if shared + told > device.shared_bytes_per_block:
            return cls(slots, shared, 0)
        fits = device.shared_bytes_per_unit // (shared + told + RESERVED_BYTES)
        in_registers = device.registers_per_unit // (threads * (WORKING + PIECE_BYTES // 4 * registers))
        return cls(slots, shared, max(1, min(fits, in_registers, device.threads_per_unit // threads)))


def _knobs(config: Config) -> tuple[int, int, int]:
    cluster, threads, registers = (cast(int, config[knob]) for knob in KNOBS)
    return cluster, threads, registers


@cache
def program() -> CudaKernel:
    """The kernel as the CUDA backend has it. What is derived of a call's sizes are knobs to that."""
    from tunesmith.backends import cuda

    source = Path(__file__).parents[1] / "cuda" / "cluster_softmax.cu"
    # NVRTC 12 takes a function without an annotation for the host's, and generic lambdas have none.
    options = ["-default-device"]
    return cuda.kernel(source, grid="BLOCKS", block="THREADS", shared=_shared_bytes, options=options)


def _shared_bytes(SLOTS: int, REGISTERS: int, THREADS: int) -> int:
    return 16 * THREADS * (SLOTS - REGISTERS)


class ClusterKernel(nvidia.CudaSource):
    """Softmax along rows: takes x, rows, n and returns y. A Config is compiled for a length of rows and a dtype; rows
    may begin anywhere."""

    name, backend, per_problem, knobs = "cluster_softmax", "cuda", True, frozenset(KNOBS)
    signature = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("x", "rows", "n")]
    )
    specialised = Specialised()
    program = staticmethod(program)

    def __init__(self) -> None:
        self._bound: _Bound | None = None

    def device(self, args: Sequence[Any]) -> Device:
        found = device_of(dict(zip(self.signature.parameters, args, strict=False)))
        return self.on_nvidia(found, "x") if args else found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {"x": DTYPES}

    def for_call(self, args: Sequence[Any], device: Device | None = None) -> ClusterKernel:
        """As one call needs it compiled.

        Args:
            device: to compile for one that is not here; x can be on any then.
        """
        x, rows, n = args
        here = device is None
        inner = program().for_call((x, None, 0, n)) if here else program()
        bound = copy.copy(self)
        bound._bound = _Bound(inner, str(x.dtype).rpartition(".")[2], x.dtype.itemsize, int(rows), int(n),
                              self.device(args) if device is None else device)  # fmt: skip
        return bound

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> ClusterKernel:
        """This kernel for arguments on a device that need not be here."""
        made = make_inputs()
        return self.for_call([made[name] for name in self.signature.parameters], device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterKernel) and self._bound == other._bound

    def __hash__(self) -> int:
        return hash(self._bound)

    @property
    def bound(self) -> _Bound:
        """The call that this is for.

        Raises:
            BadInput: when this is not yet the kernel of a call.
        """
        if self._bound is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        return self._bound

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task:
        return self.bound.program.compile_job(self.bound.plan(config), problem, device)

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        return self.bound.program.resources_of(self.bound.plan(config), built, device)

    def load(self, config: Config, problem: Problem, built: Built | None) -> RowExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            CompileFailed, OutOfResources, DeviceError, MissingEngine: as `CudaKernel.load`.
        """
        import torch

        bound, empty = self.bound, torch.empty
        loaded = bound.program.load(bound.plan(config), problem, built)
        run, shape, some = loaded.launch, (bound.rows, bound.n), bound.rows * bound.n > 0

        def launch(x: Any, rows: int, n: int) -> Any:
            made = empty(shape, dtype=x.dtype, device=x.device)
            if some:
                run(x, made, x.stride(0), n)
            return made

        return RowExecutable(config, loaded.resources, launch)


@dataclass(frozen=True)
class _Bound:
    """What of a call is compiled in, or decides how many blocks are launched."""

    program: CudaKernel
    dtype: str
    item: int
    rows: int
    n: int
    device: Device

    def plan(self, config: Config) -> Config:
        """What is compiled in, and how many blocks are launched."""
        layout = Layout.of(self.n, self.item, config, self.device)
        cluster, threads, registers = _knobs(config)
        return Config(
            DTYPE=self.dtype, CLUSTER=cluster, THREADS=threads, SLOTS=layout.slots, REGISTERS=registers,
            RESIDENT=max(1, layout.resident), BLOCKS=cluster * self.rows,
        )  # fmt: skip
