"""cuBLASLt by ctypes, as far as one matrix product needs it. Nothing here knows torch."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

from tunesmith.errors import DeviceError

# Values of CUDA's headers cublasLt.h, cublas_api.h and library_types.h, the same in CUDA 11 to 13.
DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType_t
COMPUTE = {"float32": 68, "tf32": 77}  # cublasComputeType_t
EPILOGUES = {(False, False): 1, (False, True): 2, (True, False): 4, (True, True): 6}  # (bias, relu)
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER, _BIAS_DTYPE = 3, 4, 7, 8, 26  # cublasLtMatmulDescAttributes_t
#: cublasLtMatmulPreferenceAttributes_t; alignments of A, B, C and D
_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
#: cublasLtReductionScheme_t: parts of a sum that is split are kept in the type that is computed in
_EXACT_REDUCTIONS = 2
#: cublasLtMatmulAlgoConfigAttributes_t, and what each is read as: id, tile, parts of the sum, how they are added up,
#: swizzle, custom option, stages, inner shape, cluster
_CONFIGURATION: tuple[tuple[int, Any], ...] = (
    (0, ctypes.c_int32), (1, ctypes.c_uint32), (2, ctypes.c_int32), (3, ctypes.c_uint32), (4, ctypes.c_uint32),
    (5, ctypes.c_uint32), (6, ctypes.c_uint32), (7, ctypes.c_uint16), (8, ctypes.c_uint16),
)  # fmt: skip

#: divisible by more than any alignment
_STAND_IN = 1 << 32
#: Biases of one product that are described at once: more than a model has layers of one kind.
KEPT_BIASES = 1024

_P, _I, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
#: An address as an argument of a function without argtypes: ctypes passes it on as it is.
address = _P.from_param


class Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it takes."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace_bytes", _S), ("state", _I), ("waves", ctypes.c_float),
        ("reserved", _I * 4),
    )  # fmt: skip


_OUT = ctypes.POINTER(_P)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_OUT,),
    "cublasLtMatmulDescCreate": (_OUT, _I, _I),
    "cublasLtMatmulDescSetAttribute": (_P, _I, _P, _S),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatrixLayoutCreate": (_OUT, _I, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_OUT,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, _I, _P, _S),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulAlgoGetHeuristic": (_P,) * 7 + (_I, ctypes.POINTER(Result), ctypes.POINTER(_I)),
    "cublasLtMatmulAlgoConfigGetAttribute": (_P, _I, _P, _S, ctypes.POINTER(_S)),
}


class Matrix(NamedTuple):
    """As cuBLAS has it, column by column: `pitch` elements from one to the next. Transposed when it is multiplied."""

    rows: int
    columns: int
    pitch: int
    turned: bool = False


@dataclass(frozen=True)
class Wanted:
    """D = relu(op(A) · op(B) + bias), everything of one dtype.

    Attributes:
        compute: what sums are in, a key of COMPUTE.
        bias: of D's rows. relu: whether it is asked for.
        alignment: of addresses, the bias's too, bytes.
        exact: parts of a sum that is split are not rounded to the dtype.
    """

    a: Matrix
    b: Matrix
    d: Matrix
    dtype: str
    compute: str = "float32"
    bias: bool = False
    relu: bool = False
    alignment: int = 16
    exact: bool = False


class Library:
    """The library, ready for one device.

    Raises:
        DeviceError: when it can't be used on the current device.
    """

    def __init__(self, dll: Any) -> None:
        for name, parameters in _SIGNATURES.items():
            function = getattr(dll, name)
            function.argtypes, function.restype = parameters, _I
        dll.cublasLtGetVersion.restype = _S
        self.dll, self.version = dll, int(dll.cublasLtGetVersion())
        self.handle = self.made("cublasLtCreate")

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the library.

        Raises:
            DeviceError: with its status, when that is not success.
        """
        status = getattr(self.dll, name)(*args)
        if status:
            raise self.failure(name, status)

    def failure(self, name: str, status: int) -> DeviceError:
        """What is raised where a function returned something else than success."""
        return DeviceError(f"{name} of cuBLASLt {self.version} failed with cublasStatus_t {status}")

    def made(self, name: str, *args: Any) -> Any:
        """What a function of the library makes."""
        found = _P()
        self.call(name, ctypes.byref(found), *args)
        return found

    def configuration(self, algorithm: Result) -> tuple[int | None, ...]:
        """What an algorithm is, wherever it stands in a list: _CONFIGURATION's values, `None` for one that this version
        of the library does not have."""
        found: list[int | None] = []
        for which, kind in _CONFIGURATION:
            value, written = kind(), _S()
            status = self.dll.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(algorithm, Result.algorithm.offset), which, ctypes.byref(value), ctypes.sizeof(value),
                ctypes.byref(written),
            )  # fmt: skip
            found.append(None if status else value.value)
        return tuple(found)


class Described:
    """A product as cublasLtMatmul has it told, destroyed when nothing uses it any more.

    Attributes:
        argument: its address, ready made.
    """

    def __init__(self, library: Library, wanted: Wanted, bias: int) -> None:
        self._library, dtype = library, DTYPES[wanted.dtype]
        self._desc = library.made("cublasLtMatmulDescCreate", COMPUTE[wanted.compute], DTYPES["float32"])
        weakref.finalize(self, library.dll.cublasLtMatmulDescDestroy, self._desc).atexit = False
        self._set(_TRANSPOSE_A, _I(wanted.a.turned))
        self._set(_TRANSPOSE_B, _I(wanted.b.turned))
        self._set(_EPILOGUE, _I(EPILOGUES[wanted.bias, wanted.relu]))
        if wanted.bias:
            self._set(_BIAS_DTYPE, _I(dtype))
            self._set(_BIAS_POINTER, _P(bias))
        self.argument = address(self._desc.value)

    def _set(self, attribute: int, value: Any) -> None:
        set_ = "cublasLtMatmulDescSetAttribute"
        self._library.call(set_, self._desc, attribute, ctypes.byref(value), ctypes.sizeof(value))


class Ready(NamedTuple):
    """What an algorithm is launched by, as arguments of which ctypes converts nothing again (a call has sixteen):
    matmul(handle, product, one, A, of_a, B, of_b, zero, D, of_d, D, of_d, algorithm, workspace, bytes, stream).

    It returns a cublasStatus_t. A, B, D, the workspace and the stream are each what `address` makes, or `None` for 0.
    """

    matmul: Any
    handle: Any
    one: Any
    of_a: Any
    of_b: Any
    zero: Any
    of_d: Any
    algorithm: Any
    workspace_bytes: Any


class Product:
    """One product, with the algorithms that the library proposes for it, the one it thinks fastest first.

    What `ready` and `described` give is right as long as the Product is there.

    Attributes:
        biased: whether a bias is added.

    Raises:
        DeviceError: when the library has no algorithm for it.
    """

    def __init__(self, library: Library, wanted: Wanted, most: int, workspace_bytes: int) -> None:
        self._library, self._wanted, made, dtype = library, wanted, library.made, DTYPES[wanted.dtype]
        # What the library proposes depends on the bias's alignment: an address that has it and no more, never read.
        self._usual = Described(library, wanted, _STAND_IN + wanted.alignment)
        self.biased = wanted.bias
        #: by the bias's address
        self._described = {} if wanted.bias else {0: self._usual}
        self._layouts = [
            made("cublasLtMatrixLayoutCreate", dtype, one.rows, one.columns, one.pitch)
            for one in (wanted.a, wanted.b, wanted.d)
        ]
        for layout in self._layouts:
            weakref.finalize(self, library.dll.cublasLtMatrixLayoutDestroy, layout).atexit = False
        self.algorithms = self._proposed(wanted, most, workspace_bytes)
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def _proposed(self, wanted: Wanted, most: int, workspace_bytes: int) -> list[Result]:
        library, asked = self._library, self._library.made("cublasLtMatmulPreferenceCreate")
        try:
            limits = [(_WORKSPACE, ctypes.c_uint64(workspace_bytes))]
            limits += [(which, ctypes.c_uint32(wanted.alignment)) for which in _ALIGNMENTS]
            if wanted.exact:
                limits.append((_REDUCTIONS, ctypes.c_uint32(_EXACT_REDUCTIONS)))
            for which, value in limits:
                size = ctypes.sizeof(value)
                library.call("cublasLtMatmulPreferenceSetAttribute", asked, which, ctypes.byref(value), size)
            results, number = (Result * most)(), _I()
            a, b, d = self._layouts
            library.call(
                "cublasLtMatmulAlgoGetHeuristic", library.handle, self._usual.argument, a, b, d, d, asked, most,
                results, ctypes.byref(number),
            )  # fmt: skip
        finally:
            library.call("cublasLtMatmulPreferenceDestroy", asked)
        return [one for one in results[: number.value] if not one.state]

    def like(self, algorithm: Result, place: int) -> Result | None:
        """The algorithm of this product that is configured as one of another's list, from its place there on; where
        there is none the one that the library thinks fastest, and `None` where it proposes nothing."""
        wanted = self._library.configuration(algorithm)
        for one in (*self.algorithms[place:], *self.algorithms[:place]):
            if self._library.configuration(one) == wanted:
                return one
        return next(iter(self.algorithms), None)

    def described(self, bias: int) -> Described:
        """The product with the bias at that address, 0 where there is none. Each keeps its own: threads that launch
        products of one kind with different biases at once do not meet.

        Raises:
            DeviceError: when the library refuses.
        """
        found = self._described.get(bias)
        if found is None:
            found = Described(self._library, self._wanted, bias)
            if len(self._described) >= KEPT_BIASES:
                self._described.clear()
            self._described[bias] = found
        return found

    def ready(self, algorithm: Result) -> Ready:
        """What it is launched by."""
        library = self._library
        of_a, of_b, of_d = (address(layout.value) for layout in self._layouts)
        return Ready(
            library.dll["cublasLtMatmul"],  # a function of its own, that knows nothing of its arguments' types
            address(library.handle.value), ctypes.byref(self._one), of_a, of_b, ctypes.byref(self._zero), of_d,
            ctypes.byref(algorithm, Result.algorithm.offset), _S.from_param(algorithm.workspace_bytes),
        )  # fmt: skip

    def failure(self, status: int) -> DeviceError:
        """What is raised where a launch returned something else than success."""
        return self._library.failure("cublasLtMatmul", status)
