"""From a call's arguments to a C function: checks that no wrong argument gets past, and the split over threads."""

from __future__ import annotations

import ctypes
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias, cast

from tunesmith.backends.c_source import Parameter, Prototype
from tunesmith.core.config import KnobValue
from tunesmith.errors import BadInput, unknown
from tunesmith.kernel import binding
from tunesmith.workers import run_slices

#: A size: a number, the name of a parameter or knob, or a function of parameters and knobs by name.
Size: TypeAlias = "int | str | Callable[..., int]"
#: what a checked call's values become: positions of parameters are fixed when a kernel is loaded
_OfValues: TypeAlias = "Callable[[Sequence[Any]], Any]"

_CTYPES: Mapping[str, Any] = {
    "int": ctypes.c_int, "long": ctypes.c_long, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
    "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip


def launcher(
    function: Any,
    prototype: Prototype,
    shapes: Mapping[str, tuple[Size, ...]],
    work: Size | None,
    knobs: Mapping[str, KnobValue],
    threads: int,
) -> Callable[..., None]:
    """The function that a call of one Config ends in.

    Args:
        function: ctypes' own; it releases the interpreter's lock while it runs.
        shapes: of the arrays that declare one.
        work: how many units are split, `None` for a function that takes no slice.
        knobs: of the Config, and the defaults of macros.
        threads: at least 1.
    """
    parameters = prototype.parameters
    function.restype = None
    function.argtypes = [ctypes.c_void_p if p.is_array else _CTYPES[p.ctype] for p in parameters]
    if prototype.sliced:
        function.argtypes += [ctypes.c_int64, ctypes.c_int64]
    readers = [_reader(p) for p in parameters]
    position = {p.name: i for i, p in enumerate(parameters)}
    shaped = [(position[name], _shape(shape, prototype, knobs)) for name, shape in shapes.items()]
    count, units = len(parameters), _size(work, prototype, knobs) if work is not None else None

    def values_of(args: Sequence[Any]) -> list[Any]:
        if len(args) != count:
            raise BadInput(f"{prototype.name} takes {count} arguments ({', '.join(position)}), got {len(args)}")
        values = [read(arg) for read, arg in zip(readers, args, strict=True)]
        for i, shape in shaped:
            if args[i].shape != shape(values):
                raise _wrong_shape(parameters[i].name, args[i], shape(values), shapes)
        return values

    def launch(*args: Any) -> None:
        values = values_of(args)
        if units is None:
            function(*values)
        elif threads == 1:
            function(*values, 0, _whole(units(values), work))
        else:
            run_slices(partial(function, *values), _whole(units(values), work), threads)

    def bind(args: Sequence[Any]) -> Callable[[], None]:
        values = values_of(args)
        whole = [] if units is None else [0, _whole(units(values), work)]
        if threads > 1 and units is not None:
            again = partial(run_slices, partial(function, *values), whole[1], threads)
        else:
            given = zip(function.argtypes, [*values, *whole], strict=True)
            again = partial(function, *[kind(v) if isinstance(v, (int, float)) else v for kind, v in given])
        cast(Any, again).args_kept = tuple(args)  # of torch's tensors there are only the addresses
        return again

    return binding(launch, bind)


def _wrong_shape(name: str, array: Any, expected: tuple[int, ...], shapes: Mapping[str, tuple[Size, ...]]) -> BadInput:
    spelled = ", ".join(str(size) if isinstance(size, (int, str)) else "…" for size in shapes[name])
    return BadInput(f"argument {name!r} has shape {tuple(array.shape)}; expected {expected}, that is ({spelled})")


def _whole(units: Any, work: Size | None) -> int:
    if type(units) is not int or units < 0:
        raise BadInput(f"work={getattr(work, '__name__', work)} gave {units!r} units; good values: integers from 0")
    return units


# --- sizes -----------------------------------------------------------------------------------------


def names_in(size: Size) -> list[str]:
    """The parameters and knobs that a size reads.

    Raises:
        BadInput: for a function whose parameters can't be given by name.
    """
    if isinstance(size, str):
        return [size]
    if isinstance(size, int):
        return []
    found = inspect.signature(size).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY) for p in found):
        raise BadInput(f"{size!r}: a size is a function of parameters and knobs by name, as lambda N, NR: -(-N // NR)")
    return [p.name for p in found]


def _size(size: Size, prototype: Prototype, knobs: Mapping[str, KnobValue]) -> _OfValues:
    """A size as a function of a call's values."""
    positions = {p.name: i for i, p in enumerate(prototype.parameters)}
    if isinstance(size, int):
        return lambda values: size
    names = names_in(size)
    for name in names:
        if name not in prototype.integers and name not in knobs:
            raise BadInput(unknown("name in a size", name, [*prototype.integers, *knobs]))
    fixed = {name: knobs[name] for name in names if name not in prototype.integers}
    varying = [(name, positions[name]) for name in names if name in prototype.integers]
    if isinstance(size, str):
        return operator.itemgetter(varying[0][1]) if varying else lambda values: fixed[size]
    return lambda values: size(**fixed, **{name: values[i] for name, i in varying})


def _shape(shape: tuple[Size, ...], prototype: Prototype, knobs: Mapping[str, KnobValue]) -> _OfValues:
    """A shape as a function of a call's values."""
    if len(shape) > 1 and all(isinstance(size, str) and size in prototype.integers for size in shape):
        names = [p.name for p in prototype.parameters]
        return operator.itemgetter(*(names.index(str(size)) for size in shape))  # half the time of what follows
    sizes = [_size(size, prototype, knobs) for size in shape]
    return lambda values: tuple([size(values) for size in sizes])


# --- arguments -------------------------------------------------------------------------------------


def _reader(parameter: Parameter) -> Callable[[Any], Any]:
    """What makes a checked C value of an argument."""
    if parameter.is_array:
        return _array_reader(parameter)
    if parameter.ctype in ("float", "double"):
        return partial(_float, parameter)
    return _integer_reader(parameter)


def _integer_reader(parameter: Parameter) -> Callable[[Any], int]:
    ctype = _CTYPES[parameter.ctype]
    signed = ctype(-1).value < 0
    bits = 8 * ctypes.sizeof(ctype)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def read(value: Any) -> int:
        if type(value) is not int:
            try:
                value = operator.index(value)  # numpy's and torch's integers
            except TypeError:
                raise _wrong_type(parameter, value, "an integer") from None
        if not low <= value <= high:  # ctypes would cut it
            raise BadInput(f"argument {parameter.name!r} is {value}; good values: {low} to {high} ({parameter.ctype})")
        return value

    return read


def _float(parameter: Parameter, value: Any) -> float:
    if type(value) is float:
        return value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, Real):
        raise _wrong_type(parameter, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise BadInput(f"argument {parameter.name!r} is too large for a {parameter.ctype}") from None


def _wrong_type(parameter: Parameter, value: Any, expected: str) -> BadInput:
    shown = "None" if value is None else f"of type {type(value).__name__}"
    return BadInput(f"argument {parameter.name!r} is {shown}; expected {expected} ({parameter})")


def _array_reader(parameter: Parameter) -> Callable[[Any], Any]:
    """Checks an array and gives its address.

    The type and the dtype object that passed the whole check before are known again by identity: a tenth of the time.
    """
    numpy_type: Any = None
    torch_type: Any = None
    numpy_dtype = torch_dtype = None
    one_byte, byref = ctypes.c_char.from_buffer, ctypes.byref
    unaligned = _ITEM_BYTES[parameter.dtype] - 1

    def read(array: Any) -> Any:
        nonlocal numpy_type, numpy_dtype, torch_type, torch_dtype
        kind = cast("type[Any]", type(array))
        if kind is numpy_type:
            # carray: contiguous, aligned and writable
            if array.dtype is numpy_dtype and array.flags.carray and array.size:
                return byref(one_byte(array))  # holds the array's memory in place until the call is over
        elif (
            kind is torch_type
            and array.dtype is torch_dtype
            and array.is_cpu
            and array.is_contiguous()
            and not array.is_neg()
        ):
            address = array.data_ptr()
            if address and not address & unaligned:
                return address
        address = _checked_address(parameter, array)
        if hasattr(array, "data_ptr"):
            torch_type, torch_dtype = kind, array.dtype
        else:
            numpy_type, numpy_dtype = kind, array.dtype
        return address

    return read


_ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip


def _checked_address(parameter: Parameter, array: Any) -> int:
    """An array's address.

    Raises:
        BadInput: naming the argument, what is wrong with it and what is expected.
    """
    name, dtype = parameter.name, parameter.dtype
    is_torch = hasattr(array, "data_ptr") and hasattr(array, "is_contiguous")
    if isinstance(array, type) or not (is_torch or (hasattr(array, "__array_interface__") and hasattr(array, "flags"))):
        raise _wrong_type(parameter, array, f"a numpy array or torch CPU tensor of {dtype}")
    if is_torch and array.device.type != "cpu":
        raise BadInput(f"argument {name!r} is on {array.device}; expected cpu: a C kernel runs on the CPU")
    if str(array.dtype).removeprefix("torch.") != dtype:  # another byte order spells itself otherwise too
        raise BadInput(
            f"argument {name!r} has dtype {str(array.dtype).removeprefix('torch.')}; expected {dtype} ({parameter})"
        )
    contiguous = array.is_contiguous() if is_torch else array.flags.c_contiguous
    if not contiguous:
        strides = tuple(array.stride()) if is_torch else array.strides
        raise BadInput(
            f"argument {name!r} of shape {tuple(array.shape)} has strides {strides}; expected C-contiguous memory"
        )
    if is_torch and (array.is_neg() or array.is_conj()):
        raise BadInput(f"argument {name!r} is a lazily negated view; expected plain memory: call resolve_neg()")
    if not is_torch and not parameter.const and not array.flags.writeable:
        raise BadInput(f"argument {name!r} is read-only; expected a writable array ({parameter})")
    address: int = array.data_ptr() if is_torch else array.__array_interface__["data"][0]
    if not address and math.prod(array.shape):
        raise BadInput(
            f"argument {name!r} of shape {tuple(array.shape)} has no memory behind it (its storage was freed)"
        )
    if address % _ITEM_BYTES[dtype]:
        raise BadInput(
            f"argument {name!r} lies at an address that is no multiple of {_ITEM_BYTES[dtype]} bytes; "
            "expected aligned memory"
        )
    return address
