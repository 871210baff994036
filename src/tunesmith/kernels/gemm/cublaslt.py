"""`CublasLt`: the algorithms that cuBLASLt proposes for a product, each a Config. torch takes the first, unmeasured."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from tunesmith.backends.call import CallExecutable
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Built, Specialised
from tunesmith.kernels.gemm.cublaslt_api import Library, Matrix, Product, Wanted
from tunesmith.kernels.gemm.launch import SAME, GemmKernel, Outline
from tunesmith.kernels.gemm.memory import fresh

#: Algorithms that are asked for: behind the first few come others that the library itself thinks slow.
PROPOSED = 8
#: Of workspace that an algorithm may take: what NVIDIA recommends for Hopper, and torch gives cuBLAS there.
WORKSPACE_BYTES = 32 << 20

space = Space(ALGORITHM=list(range(PROPOSED)))


def applies(problem: Problem, device: Device) -> bool:
    """Whether a product is one that cuBLASLt computes whole: no batch, one dtype, relu or no activation (its gelu is
    not torch's)."""
    plain = problem["out"] == SAME and all(len(str(problem[f"{array}.strides"])) == 2 for array in ("a", "b"))
    bias = problem.get("bias.dtype")
    return plain and problem["activation"] in (None, "relu") and bias in (None, problem["a.dtype"])


class CublasLt:
    """The operation of `GemmKernel` by cuBLASLt: ALGORITHM is the place in the list that the library proposes."""

    name, backend, per_problem, knobs = "cublasLt", "callable", True, frozenset({"ALGORITHM"})
    signature, specialised = GemmKernel.signature, Specialised(alignment=("a", "b", "bias"))

    def __init__(self) -> None:
        self._args: tuple[Any, ...] = ()

    def fingerprint(self) -> str:
        return f"{self.name}-1"  # to be raised when a Config means something else

    def environment(self) -> Mapping[str, str]:
        return {}

    def versions(self) -> Mapping[str, str]:
        """That of the library: another proposes other lists. None where it is not there."""
        try:
            return {"cublasLt": str(_dll().cublasLtGetVersion())}
        except MissingEngine:
            return {}

    def device(self, args: Sequence[Any]) -> Device:
        return GemmKernel().device(args)

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return GemmKernel().dtypes()

    def for_call(self, args: Sequence[Any]) -> CublasLt:
        bound = copy.copy(self)
        bound.__dict__.pop("_product", None)
        bound._args = tuple(Outline.of(value) if hasattr(value, "data_ptr") else value for value in args)
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CublasLt) and self._args == other._args

    def __hash__(self) -> int:
        return hash(self._args)

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    @cached_property
    def _product(self) -> Product:
        """The call's product on its device."""
        import torch

        index = int(self._args[0].device.index)
        with torch.cuda.device(index):
            return Product(_library(index), wanted(self._args), PROPOSED, WORKSPACE_BYTES)

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        """Make a Config ready to launch.

        Raises:
            BadInput: for an algorithm beyond the library's list, and strides that it does not take.
            DeviceError: when the library refuses.
            MissingEngine: when it is not there.
        """
        number, proposed = config["ALGORITHM"], self._product.algorithms
        if not isinstance(number, int) or not number < len(proposed):
            raise BadInput(f"cuBLASLt proposes {len(proposed)} algorithms for this product: there is no {number}")
        launcher = self._product.launcher(proposed[number])

        def other(args: Sequence[Any]) -> Callable[..., Any]:
            return self.for_call(args).load(config, problem, None).launch

        return CallExecutable(config, _launch(self._args, launcher, proposed[number].workspace_bytes, other))


def wanted(args: Sequence[Any]) -> Wanted:
    """A call's product in cuBLAS's words. c row by row is its transpose column by column: cᵀ = bᵀ · aᵀ.

    Raises:
        BadInput: for a matrix that has no dimension of stride 1.
    """
    a, b, bias, _, m, n, _, activation, _, precision = args
    dtype = str(a.dtype).rpartition(".")[2]
    aligned = all(x is None or x.data_ptr() % 16 == 0 for x in (a, b, bias))
    return Wanted(
        _matrix("b", b), _matrix("a", a), Matrix(n, m, n), dtype, "tf32" if precision == "tf32" else "float32",
        bias is not None, activation == "relu", 16 if aligned else a.dtype.itemsize, precision != "reduced",
    )  # fmt: skip


def _matrix(name: str, x: Any) -> Matrix:
    """The transpose of a matrix as cuBLAS has it: read column by column it lies there as it is."""
    (rows, columns), (row, column) = x.shape, x.stride()
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return Matrix(columns, rows, max(row, columns))
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return Matrix(rows, columns, max(column, rows), turned=True)
    raise BadInput(f"cuBLASLt reads no matrix like {name}, {tuple(x.shape)} with strides {tuple(x.stride())}")


# --- a launch ---


def _launch(
    args: Sequence[Any], run: Callable[..., None], workspace_bytes: int,
    other: Callable[[Sequence[Any]], Callable[..., Any]],
) -> Callable[..., Any]:  # fmt: skip
    """The function for calls of one Problem; `other` makes it for those with other strides."""
    import torch

    a, b, _, _, m, n, *_ = args
    known, index = (a.stride(), b.stride()), int(a.device.index)
    output, scratch = fresh((m, n), a.dtype, a.device), fresh((workspace_bytes,), torch.int8, a.device)
    here, stream_of, on = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream, torch.cuda.device
    turn, others = threading.Lock(), dict[tuple[object, ...], Callable[..., Any]]()

    def queue(a: Any, b: Any, bias: Any, c: Any) -> None:
        workspace = scratch() if workspace_bytes else None
        at = None if workspace is None else workspace.data_ptr()
        if bias is None:
            run(b.data_ptr(), a.data_ptr(), c.data_ptr(), 0, at, stream_of(index))
            return
        with turn:
            run(b.data_ptr(), a.data_ptr(), c.data_ptr(), bias.data_ptr(), at, stream_of(index))

    def launch(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        strides = a.stride(), b.stride()
        if strides != known:
            if strides not in others:
                others[strides] = other((a, b, bias, *given))
            return others[strides](a, b, bias, *given)
        c = output()
        if here() == index:
            queue(a, b, bias, c)
        else:
            with on(index):
                queue(a, b, bias, c)
        return c

    return launch


@cache
def _library(index: int) -> Library:
    """The library for a GPU, which has to be the current one."""
    return Library(_dll())


@cache
def _dll() -> Any:
    """The one that torch was built with and has loaded.

    Raises:
        MissingEngine: where torch has none.
    """
    import torch

    version = torch.version.cuda
    if version is None:
        raise MissingEngine("this build of torch has no cuBLASLt: pip install torch, for CUDA")
    name = f"libcublasLt.so.{version.partition('.')[0]}"
    try:
        dll = ctypes.CDLL(name)
    except OSError as error:
        raise MissingEngine(f"{name} cannot be loaded ({error}): pip install torch, for CUDA") from None
    dll.cublasLtGetVersion.restype = ctypes.c_size_t
    return dll
