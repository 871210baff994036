"""What one argument of a call says of itself: kind, dtype, strides, address, plain value. Imports no engine."""

from __future__ import annotations

import ctypes
import operator
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

from tunesmith.core.problem import stride_classes
from tunesmith.errors import BadInput

#: How an array is read. `torch`: .device, .get_device(), .stride() and .data_ptr(). `host`: as numpy's. `array`: a
#: dtype, a shape, and what else it may have.
Protocol: TypeAlias = Literal["torch", "host", "array"]

#: the widest load or store of one GPU thread; compilers specialise on it
ALIGNMENT_BYTES = 16
#: Stride tuples remembered with their classes. A table of a pure function: when full it starts anew.
MEMO_ENTRIES = 4096


#: what a tensor of torch's has, beside a method that tells its strides
_TORCH = ("device", "get_device", "data_ptr")


def protocol_of(value: object) -> Protocol | None:
    """How to read an array, `None` for what is no array."""
    if not is_array(value):
        return None
    if callable(getattr(value, "stride", None)) and all(hasattr(value, name) for name in _TORCH):
        return "torch"
    return "host" if hasattr(value, "__array_interface__") and hasattr(value, "ctypes") else "array"


def is_array(value: object) -> bool:
    """Whether it has a dtype and a shape, and is not one of numpy's scalars."""
    return hasattr(value, "dtype") and hasattr(value, "shape") and not is_numpy_scalar(value)


def device_told(array: Any) -> Any:
    """What tells an array's device in a key, `None` where it has none. Cupy's devices have no hash, but a number."""
    device = getattr(array, "device", None)
    return device if type(device).__hash__ is not None else getattr(device, "id", device)


def is_numpy_scalar(value: object) -> bool:
    """Whether it looks like an array without dimensions into which nothing can be stored."""
    return hasattr(value, "dtype") and getattr(value, "shape", ...) == () and not hasattr(type(value), "__setitem__")


def dtype_name(array: Any) -> str:
    """`float16`, whether torch's or numpy's; numpy's dtypes of the other byte order keep their sign."""
    dtype = array.dtype
    text = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    return text.rpartition(".")[2] if re.fullmatch(r"[\w.]+", text) else text


def strides_of(name: str, array: Any) -> tuple[int, ...]:
    """An array's strides in elements.

    Raises:
        BadInput: for an argument that does not tell them.
    """
    method = getattr(array, "stride", None)
    if callable(method):
        return tuple(cast(Sequence[int], method()))
    if not hasattr(array, "strides") or not hasattr(array, "itemsize"):
        raise BadInput(f"strides names {name!r}, and a {type(array).__name__} does not tell its strides")
    return _elements(array.strides, array.itemsize)


def _elements(strides: Sequence[int], itemsize: int) -> tuple[int, ...]:
    # A field of a record can have a stride that is no multiple of its size: neither broadcast nor contiguous.
    return tuple(s // itemsize if s % itemsize == 0 else max(2, s // itemsize) for s in strides)


def aligned(name: str, array: Any) -> bool:
    """Whether an array's first element lies at a multiple of 16 bytes.

    Raises:
        BadInput: for an argument that does not tell its address.
    """
    return memory_address(name, array) % ALIGNMENT_BYTES == 0


def memory_address(name: str, array: Any) -> int:
    """Where an array's first element lies.

    Raises:
        BadInput: for an argument that does not tell its address.
    """
    if hasattr(array, "data_ptr"):
        return int(array.data_ptr())
    if hasattr(array, "ctypes"):
        return int(array.ctypes.data)
    interface = getattr(array, "__cuda_array_interface__", getattr(array, "__array_interface__", None))
    if interface is not None:
        return int(interface["data"][0])
    if hasattr(array, "__dlpack__"):
        return _dlpack_address(array)
    raise BadInput(f"argument {name!r} is a {type(array).__name__}, which does not tell its address")


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor, as far as it is read."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


def _dlpack_address(array: Any) -> int:
    """An array's address by DLPack, without waiting for its stream: nothing is read here."""
    capsule = array.__dlpack__(stream=-1)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(pointer_of(capsule, b"dltensor"))
    return int(tensor.data or 0) + int(tensor.byte_offset)


def plain(value: Any) -> object:
    """A value without its wrapping: numpy's and torch's scalars, enums and -0.0 as what they stand for."""
    if type(value) in (int, bool, type(None)):
        return value
    if is_numpy_scalar(value):
        value = value.item()
    if isinstance(value, float):
        return float(value) + 0.0  # -0.0 equals 0.0 in a dictionary, so it must be the same Problem
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return value if isinstance(value, bool) else int(value)
    if isinstance(value, tuple):
        parts = [plain(part) for part in cast("tuple[object, ...]", value)]
        return cast(object, value) if any(is_array(part) for part in parts) else repr(tuple(parts))
    if is_constexpr(value):
        return plain(value.value)
    if not hasattr(value, "dtype") and any(c.__name__ == "dtype" for c in type(value).__mro__):  # torch's, Triton's
        return str(getattr(value, "name", None) or value).rpartition(".")[2]
    # an integer array without dimensions is its one element; any other array is refused by Problem
    integer = hasattr(value, "__index__") and getattr(value, "shape", ()) == ()
    return operator.index(value) if integer and "int" in str(getattr(value, "dtype", "int")) else value


def is_constexpr(value: object) -> bool:
    """Whether it is a constant in Triton's wrapping, which is compiled in wherever it is given."""
    return type(value).__name__ == "constexpr" and hasattr(value, "value")


def exactly(value: Any) -> object:
    """A constant so spelled that two are equal only where they compile to the same, down to the sign of a zero."""
    kind = cast(object, value.__class__)
    if is_constexpr(value):
        return kind, exactly(value.value)
    if isinstance(value, (tuple, list)):
        return kind, tuple([exactly(part) for part in cast("Sequence[object]", value)])
    found = value if isinstance(value, float) else plain(value)
    return kind, repr(value) if isinstance(found, float) else found


def integer_facts(value: object) -> tuple[str, ...]:
    """What a binary may rely on; nothing for what is no integer."""
    n = plain(value)
    if type(n) is not int:
        return ()
    facts = ("== 1",) if n == 1 else ("% 16 == 0",) if n % 16 == 0 else ()
    return (*facts, *width_facts(n))


def width_facts(value: object) -> tuple[str, ...]:
    """Whether an integer needs more than 32 bits; nothing for what is no integer."""
    n = plain(value)
    if type(n) is not int or -(2**31) <= n < 2**31:
        return ()
    return ("needs 64 bits",) if n < 2**63 else ("needs 64 bits without a sign",)


def is_descriptor(value: object) -> bool:
    """Whether it is a tensor descriptor, as Triton's: a tensor and the shape of the blocks it is read in."""
    return hasattr(value, "base") and hasattr(value, "block_shape") and is_array(cast(Any, value).base)


def is_compound(value: object) -> bool:
    """Whether a value has parts, or is of a class that nothing is known of: then `structure` tells it from others."""
    if is_array(value):
        return False
    compound = isinstance(value, (tuple, list)) or is_constexpr(value)
    return compound or type(plain(value)) not in (int, float, bool, str, type(None))


def structure(value: Any) -> object:
    """Everything of an argument that a compiler may rely on: of a tuple, of each part; of a descriptor, its blocks."""
    if value is None:
        return None
    if is_array(value):
        # not its class: a Parameter is launched as any tensor is
        return "array", value.dtype, device_told(value), aligned("an argument", value)
    if is_descriptor(value):
        base = value.base
        blocks = tuple(cast("Sequence[int]", value.block_shape))
        return value.__class__, base.dtype, device_told(base), blocks, getattr(value, "padding", None)
    if isinstance(value, (tuple, list)):
        parts = cast("Sequence[object]", value)
        return type(parts), tuple([structure(part) for part in parts])
    if is_constexpr(value):
        return exactly(value)
    n = plain(value)
    if type(n) is int:
        return int, integer_facts(n)
    return type(n) if type(n) in (bool, float) else (value.__class__, n)


def leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    """The arrays of an argument by name: itself, those of a tuple (`xs.0`), the one under a descriptor."""
    if is_array(value):
        return [(name, value)]
    if is_descriptor(value):
        return [(name, value.base)]
    if isinstance(value, (tuple, list)):
        parts = enumerate(cast("Sequence[object]", value))
        return [leaf for i, part in parts for leaf in leaves(f"{name}.{i}", part)]
    return []


class StrideClasses(dict[Any, str]):
    """Strides in elements → their classes, computed at the first look-up.

    Args:
        in_bytes: look up (strides in bytes, bytes of an element) instead.
    """

    def __init__(self, *, in_bytes: bool = False) -> None:
        super().__init__()
        self._in_bytes = in_bytes

    def __missing__(self, strides: Any) -> str:
        if len(self) >= MEMO_ENTRIES:
            self.clear()
        classes = stride_classes(_elements(*strides) if self._in_bytes else strides)
        self[strides] = classes
        return classes
