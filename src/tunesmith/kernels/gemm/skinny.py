"""`SkinnyKernel`: the CUDA C++ product of few rows and a matrix whose columns lie one after the other, with its output.

See `kernels/cuda/skinny_gemm.cu`. Imports neither torch nor what compiles CUDA until a call is bound.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tunesmith.backends.call import CallExecutable
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Built, Specialised, Task
from tunesmith.kernels import nvidia
from tunesmith.kernels.gemm.cublaslt import by_torch
from tunesmith.kernels.gemm.launch import MATRICES, GemmKernel, Outline
from tunesmith.kernels.gemm.memory import fresh
from tunesmith.kernels.gemm.plan import SAME
from tunesmith.kernels.strides import Others

if TYPE_CHECKING:
    from tunesmith.backends.cuda import CudaKernel

KNOBS = ("GROUPS", "SPREAD", "WARPS", "CLUSTER", "DEPTH", "DEPENDENT")
MOST_ROWS = 64
#: columns of b, elements of a column: numbers of 32 bits count them, up to a tile beyond the last
MOST_SIZE = 2**31 - 2**10
DTYPES = ("bfloat16", "float16")
#: what addresses of rows have to be divisible by
PIECE_BYTES = 16
#: rows of a that the matrix units take at once, rows of b's transpose that a warp has for each of GROUPS
TILE_ROWS, GROUP_ROWS = 8, 16


def tiles_of(rows: int) -> int:
    """M_TILES for so many rows of a: a power of two, so that warps share them equally."""
    return 1 << (max(1, -(-rows // TILE_ROWS)) - 1).bit_length()


def blocks_of(n: int, GROUPS: int, SPREAD: int, CLUSTER: int) -> int:
    """How many blocks are launched for n columns of b."""
    return -(-n // (GROUP_ROWS * GROUPS * SPREAD)) * CLUSTER


def shared_bytes(M_TILES: int, GROUPS: int, SPREAD: int, WARPS: int, CLUSTER: int, DEPTH: int) -> int:
    """Shared memory of a block: see the source's constants, in pieces."""
    of_warp = max(DEPTH * 4 * GROUPS * 32, TILE_ROWS * M_TILES * (GROUP_ROWS * GROUPS + 4) // 4)
    of_a = WARPS // SPREAD * DEPTH * 2 * M_TILES * 32
    told = 2 * M_TILES * GROUP_ROWS * GROUPS * SPREAD if CLUSTER > 1 else 0
    return PIECE_BYTES * (WARPS * of_warp + of_a + told)


@cache
def program() -> CudaKernel:
    """The kernel as the CUDA backend has it. What is derived of a call's sizes are knobs to that."""
    from tunesmith.backends import cuda

    source = Path(__file__).parents[1] / "cuda" / "skinny_gemm.cu"
    # NVRTC 12 takes a function without an annotation for the host's, and lambdas have none.
    options = ["-default-device"]
    return cuda.kernel(
        source, grid="BLOCKS", block=_threads, shared=shared_bytes, dependent="DEPENDENT", options=options
    )


def _threads(WARPS: int) -> int:
    return 32 * WARPS


def is_readable(args: Sequence[Any]) -> bool:
    """Whether rows of a and columns of b (K elements each) have no gaps, and begin at multiples of 16 bytes."""
    a, b, *_ = args
    (m, k), (_, n) = a.shape, b.shape
    return _is_aligned(a, m, k, *a.stride()) and _is_aligned(b, n, k, *reversed(b.stride()))


def _is_aligned(x: Any, number: int, size: int, pitch: int, within: int) -> bool:
    item: int = x.dtype.itemsize
    apart = number <= 1 or pitch * item % PIECE_BYTES == 0
    return (within == 1 or size <= 1) and apart and x.data_ptr() % PIECE_BYTES == 0


class SkinnyKernel(nvidia.CudaSource):
    """The operation of `GemmKernel` for one product of 16-bit floats with up to 64 rows, into an output of their dtype.

    A Config is compiled for the number of rows (rounded up), the dtype and the activation. What the kernel can't read,
    as rows that begin elsewhere than at multiples of 16 bytes, torch multiplies.
    """

    name, backend, per_problem, knobs = "skinny_gemm", "cuda", True, frozenset(KNOBS)
    signature, specialised = GemmKernel.signature, Specialised(alignment=("a", "b", "bias"))
    program = staticmethod(program)

    def __init__(self) -> None:
        self._args: tuple[Any, ...] = ()
        self._program: CudaKernel | None = None

    def device(self, args: Sequence[Any]) -> Device:
        found = GemmKernel().device(args)
        return self.on_nvidia(found, "a") if args else found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(("a", "b"), DTYPES)

    def for_call(self, args: Sequence[Any]) -> SkinnyKernel:
        """As one call needs it compiled.

        Raises:
            BadInput: for a product that it does not compute.
        """
        return self._bound(args, program().for_call((args[0], args[1], args[2], None, 0, 0, 0, 0, 0)))

    def for_target(self, make_inputs: Callable[[], Mapping[str, Any]], device: Device) -> SkinnyKernel:
        """This kernel for arguments on a device that need not be here.

        Raises:
            BadInput: for a product that it does not compute, or leaves to torch.
        """
        made = make_inputs()
        args = [made[name] for name in self.signature.parameters]
        bound = self._bound(args, program())
        if not is_readable(bound._args):
            a, b = (f"{tuple(x.shape)} with strides {tuple(x.stride())}" for x in args[:2])
            raise BadInput(
                f"skinny_gemm of a {a} and b {b}: torch multiplies them, there is nothing to compile; good ones: rows "
                f"of a and columns of b without gaps, that begin at multiples of {PIECE_BYTES} bytes (K divisible by 8)"
            )
        return bound

    def _bound(self, args: Sequence[Any], inner: CudaKernel) -> SkinnyKernel:
        _check(args)
        bound = copy.copy(self)
        bound._args = tuple(Outline.of(value) if hasattr(value, "data_ptr") else value for value in args)
        bound._program = inner
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkinnyKernel) and (self._args, self._program) == (other._args, other._program)

    def __hash__(self) -> int:
        return hash((self._args, self._program))

    @property
    def bound(self) -> CudaKernel:
        """The program for the call that this is for.

        Raises:
            BadInput: when this is not yet the kernel of a call.
        """
        if self._program is None:
            raise BadInput(f"{self.name} is compiled for the types of a call's arguments: use kernel.for_call(args)")
        return self._program

    def plan(self, config: Config) -> Config:
        """What is compiled in, and how many blocks are launched."""
        a, _, _, _, m, n, _, activation, *_ = self._args
        knobs = cast("dict[str, int]", {knob: config[knob] for knob in KNOBS})
        return Config({
            **knobs, "DTYPE": str(a.dtype).rpartition(".")[2], "ACTIVATION": activation or "none",
            "M_TILES": tiles_of(m),
            "BLOCKS": blocks_of(n, knobs["GROUPS"], knobs["SPREAD"], knobs["CLUSTER"]) if m else 0,
        })  # fmt: skip

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Task | None:
        inner = self.bound
        return inner.compile_job(self.plan(config), problem, device) if is_readable(self._args) else None

    def resources_of(self, config: Config, built: Built, device: Device) -> Resources:
        return self.bound.resources_of(self.plan(config), built, device)

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        """Make a Config ready to launch on the call's device.

        Raises:
            CompileFailed, OutOfResources, DeviceError, MissingEngine: as `CudaKernel.load`.
        """
        inner = self.bound

        def launch_for(args: Sequence[Any]) -> Callable[..., Any]:
            return self._bound(args, inner).load(config, problem, None).launch

        others = Others(launch_for, MATRICES)
        if not is_readable(self._args):
            return CallExecutable(config, _guarded(self._args, by_torch, others))
        loaded = inner.load(self.plan(config), problem, built)
        return CallExecutable(config, _launch(self._args, loaded.launch, others), loaded.resources)


def _check(args: Sequence[Any]) -> None:
    a, b, bias, _, m, n, k, _, out, _ = args
    dtype = str(a.dtype).rpartition(".")[2]
    of_bias = a.dtype if bias is None else bias.dtype
    plain = len(a.shape) == len(b.shape) == 2 and out == SAME and of_bias == b.dtype == a.dtype
    if not plain or m > MOST_ROWS or max(n, k) > MOST_SIZE or dtype not in DTYPES:
        raise BadInput(
            f"skinny_gemm of a {tuple(a.shape)} {a.dtype} and b {tuple(b.shape)} {b.dtype}, a bias of {of_bias} and an "
            f"output of {out}: needs (M, K) and (K, N) with M up to {MOST_ROWS}, N and K up to {MOST_SIZE}, all "
            f"{' or all '.join(DTYPES)}; gemm takes any"
        )


# --- a launch ---


def _guarded(args: Sequence[Any], run: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    """The function for calls of one Problem; `run` is right for the strides of these arguments."""
    of_a, of_b = args[0].stride(), args[1].stride()

    def launch(a: Any, b: Any, *given: Any) -> Any:
        return run(a, b, *given) if a.stride() == of_a and b.stride() == of_b else others(a, b, *given)

    return launch


def _launch(args: Sequence[Any], run: Callable[..., None], others: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a compiled kernel."""
    a, b, bias, _, m, n, k, *_ = args
    output, of_a, of_b = fresh((m, n), a.dtype, a.device), a.stride(), b.stride()
    step_a, step_b = of_a[0], of_b[1]

    def plain(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        c = output()
        run(a, b, None, c, step_a, step_b, m, n, k, a.data_ptr(), b.data_ptr(), 0, c.data_ptr())
        return c

    def biased(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        c = output()
        run(a, b, bias, c, step_a, step_b, m, n, k, a.data_ptr(), b.data_ptr(), bias.data_ptr(), c.data_ptr())
        return c

    return plain if bias is None else biased
