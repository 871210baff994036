"""`CublasLt`: the algorithms that cuBLASLt proposes for a product, each a Config. torch takes the first, unmeasured."""

from __future__ import annotations

import copy
import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from tunesmith.backends.call import CallExecutable
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, DeviceError, MissingEngine, TunesmithWarning
from tunesmith.kernel import Built, Specialised, settling
from tunesmith.kernels.gemm.cublaslt_api import Library, Matrix, Product, Result, Wanted
from tunesmith.kernels.gemm.cublaslt_launch import WORKSPACE_BYTES, entered, launcher
from tunesmith.kernels.gemm.launch import MATRICES, GemmKernel, Outline
from tunesmith.kernels.gemm.plan import SAME
from tunesmith.kernels.strides import Others

#: Algorithms that are asked for: behind the first few come others that the library itself thinks slow.
PROPOSED = 8

space = Space(ALGORITHM=list(range(PROPOSED)))


#: How its matrices may lie, as stride classes: rows or columns of neighbouring elements, none of which is repeated.
_READS = frozenset({"x1", "1x", "11"})


def applies(problem: Problem, device: Device) -> bool:
    """Whether a product is one that cuBLASLt computes whole: no batch, one dtype, relu or no activation (its gelu is
    not torch's), matrices that it can read."""
    plain = problem["out"] == SAME and all(problem[f"{array}.strides"] in _READS for array in ("a", "b"))
    bias = problem.get("bias.dtype")
    return plain and problem["activation"] in (None, "relu") and bias in (None, problem["a.dtype"])


class CublasLt:
    """The operation of `GemmKernel` by cuBLASLt: ALGORITHM is a place in the list that the library proposes.

    The list depends on how matrices lie and on their addresses, which a Problem does not tell. So it is the list for
    packed, aligned matrices; a call of the same Problem whose own list is another takes from it the algorithm that is
    configured alike, else the first. What the library can't do at all, as where rows overlap, torch does.
    """

    name, backend, per_problem, knobs = "cublasLt", "callable", True, frozenset({"ALGORITHM"})
    signature, specialised = GemmKernel.signature, Specialised(alignment=("a", "b", "bias"))

    def __init__(self) -> None:
        self._args: tuple[Any, ...] = ()

    def fingerprint(self) -> str:
        return f"{self.name}-2"  # to be raised when a Config means something else

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
        bound.__dict__.pop("_listed", None)
        bound._args = tuple(Outline.of(value) if hasattr(value, "data_ptr") else value for value in args)
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CublasLt) and self._args == other._args

    def __hash__(self) -> int:
        return hash(self._args)

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    @cached_property
    def _listed(self) -> Product:
        """The product whose algorithms a Config counts."""
        return _product(self._args, packed(self._args))

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        """Make a Config ready to launch.

        Raises:
            BadInput: for an algorithm beyond the library's list.
            DeviceError: when the library refuses.
            MissingEngine: when it is not there.
        """
        number, proposed = config["ALGORITHM"], self._listed.algorithms
        if not isinstance(number, int) or not 0 <= number < len(proposed):
            raise BadInput(f"cuBLASLt proposes {len(proposed)} algorithms for this product: there is no {number}")
        return CallExecutable(config, _launch_for(self._args, self._listed, number))


def wanted(args: Sequence[Any]) -> Wanted:
    """A call's product in cuBLAS's words. c row by row is its transpose column by column: cᵀ = bᵀ · aᵀ.

    Raises:
        BadInput: for a matrix that has no dimension of stride 1, and one whose rows overlap.
    """
    a, b, bias, _, m, n, _, activation, _, precision = args
    dtype = str(a.dtype).rpartition(".")[2]
    aligned = _are_aligned(a, b, bias)
    return Wanted(
        _matrix("b", b), _matrix("a", a), Matrix(n, m, n), dtype, "tf32" if precision == "tf32" else "float32",
        bias is not None, activation == "relu", 16 if aligned else a.dtype.itemsize, precision != "reduced",
    )  # fmt: skip


def _are_aligned(*arrays: Any) -> bool:
    return all(x is None or x.data_ptr() % 16 == 0 for x in arrays)


def packed(args: Sequence[Any]) -> Wanted:
    """The same with matrices that are aligned and packed in the order in which the call's are: it depends on the call's
    Problem alone."""
    a, b, bias, *rest = args
    made = wanted((_packed(a), _packed(b), bias, *rest))
    return replace(made, alignment=16)


def _packed(x: Any) -> Outline:
    (rows, columns), dtype = x.shape, x.dtype
    return Outline(dtype, (rows, columns), (1, rows) if _is_turned(x) else (columns, 1), x.device, 0)


def _is_turned(x: Any) -> bool:
    row, column = x.stride()
    return row == 1 != column


def _matrix(name: str, x: Any) -> Matrix:
    """The transpose of a matrix as cuBLAS has it: read column by column it lies there as it is."""
    (rows, columns), (row, column) = x.shape, x.stride()
    usual = _is_turned(x)
    for turned in (usual, not usual):
        size, number, within, pitch = (rows, columns, row, column) if turned else (columns, rows, column, row)
        if (within == 1 or size == 1) and (pitch >= size or number == 1):
            return Matrix(size, number, size if number == 1 else pitch, turned)
    raise BadInput(f"cuBLASLt reads no matrix like {name}, {tuple(x.shape)} with strides {tuple(x.stride())}")


def _product(args: Sequence[Any], asked: Wanted) -> Product:
    """What the library has for it on the call's device."""
    import torch

    index = int(args[0].device.index)
    with torch.cuda.device(index):
        entered(index)
        return Product(_library(index), asked, PROPOSED, WORKSPACE_BYTES)


# --- a launch ---


def _launch_for(args: Sequence[Any], listed: Product, number: int) -> Callable[..., Any]:
    """The function for calls of a Problem, by the algorithm of that number in a list, or what stands in for it."""

    def for_others(args: Sequence[Any]) -> Callable[..., Any]:
        return _launch_for(args, listed, number)

    runner, (of_a, of_b) = _runner(args, listed, number), (args[0].stride(), args[1].stride())

    def settle(args: Sequence[Any], otherwise: Callable[..., Any], turned: bool) -> Callable[..., Any] | None:
        a, b, bias, _, m, n, *_ = args
        mine = runner if (a.stride(), b.stride()) == (of_a, of_b) else _runner(args, listed, number)
        if mine is None or not _are_aligned(a, b, bias):
            return None
        return launcher(*mine, (m, n), a.dtype, a.device, otherwise)  # turned or not: it reads the address

    return settling(_launch(args, runner, Others(for_others, MATRICES)), settle)


def _runner(args: Sequence[Any], listed: Product, number: int) -> tuple[Product, Result] | None:
    """What runs calls with these strides, `None` where torch has to."""
    try:
        asked = wanted(args)
    except BadInput:  # the library can't read such a matrix
        return None
    product, algorithm = listed, listed.algorithms[number]
    if asked != packed(args):
        try:
            product = _product(args, asked)
        except DeviceError as error:
            a, b = (f"{tuple(x.shape)} with strides {tuple(x.stride())}" for x in args[:2])
            warnings.warn(f"{error}: torch multiplies {a} and {b}", TunesmithWarning, stacklevel=2)
            return None
        algorithm = product.like(algorithm, number)
    return None if algorithm is None else (product, algorithm)


def by_torch(
    a: Any, b: Any, bias: Any, batch: int, m: int, n: int, k: int, activation: str | None, out: str, precision: str
) -> Any:
    """One product by torch, of its inputs' dtype: for calls whose matrices can't be read otherwise."""
    import torch

    made = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    return made if activation is None else getattr(torch.nn.functional, activation)(made)


def _launch(
    args: Sequence[Any], runner: tuple[Product, Result] | None, others: Callable[..., Any]
) -> Callable[..., Any]:
    """The function for calls of one Problem; `runner` is right for the strides of these arguments, `others` sees to the
    rest."""
    import torch

    a, b, _, _, m, n, *_ = args
    of_a, of_b, index = a.stride(), b.stride(), int(a.device.index)
    here, on = torch._C._cuda_getDevice, torch.cuda.device
    run = None if runner is None else launcher(*runner, (m, n), a.dtype, a.device)

    def launch(a: Any, b: Any, bias: Any, *given: Any) -> Any:
        if a.stride() != of_a or b.stride() != of_b:
            return others(a, b, bias, *given)
        if run is None:
            return by_torch(a, b, bias, *given)
        if here() == index:
            return run(a, b, bias)
        with on(index):
            return run(a, b, bias)

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
