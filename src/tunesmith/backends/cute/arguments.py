"""What the arguments of a CuTe DSL function are: from its signature, and from those of a call, as JSON types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tunesmith.core.config import KnobValue
from tunesmith.core.problem import stride_classes
from tunesmith.dispatch.arguments import aligned, dtype_name, is_array, plain, strides_of
from tunesmith.errors import BadInput, unknown

#: what an array is assumed to be aligned to where its address allows it: the widest load of a thread
ALIGNMENT_BYTES = 16
_INT32 = range(-(2**31), 2**31)
#: how CuTe's own tensors, which wrap an array, are called
_WRAPPED = ("_Tensor", "_FakeTensor")

Role: TypeAlias = Literal["argument", "value", "knob", "stream"]


@dataclass(frozen=True)
class Given:
    """One argument of a call, as far as a binary knows it.

    Attributes:
        kind: what it is; of a `value` all is compiled in.
        dtype: of an array; of a value that is one of CuTe's types, which.
        layout: of an array: the class of each of its strides.
        aligned: whether an array's first element lies at a multiple of 16 bytes.
        divisible: how many elements every size and stride of an array that is not known is a multiple of.
    """

    kind: Literal["array", "int32", "int64", "float", "bool", "none", "value"]
    dtype: str = ""
    layout: str = ""
    aligned: bool = False
    divisible: int = 1
    value: KnobValue = None


def roles_of(name: str, function: Any, knobs: Iterable[str] | None) -> dict[str, Role]:
    """What each parameter of a host function is for.

    A `cutlass.Constexpr` is a knob where `knobs` names it, or, where nothing does, where it has a default or is given
    by keyword alone; any other is an argument whose value is compiled in.

    Args:
        name: the kernel's, for messages.

    Raises:
        BadInput: for a knob that is no parameter, and for arguments that can't be given by position.
    """
    parameters = inspect.signature(function).parameters
    for knob in sorted(knobs or ()):
        if knob not in parameters:
            raise BadInput(f"{name}: {unknown('knob', knob, parameters)}")
    found: dict[str, Role] = {}
    for p in parameters.values():
        found[p.name] = role = _role(p, knobs)
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise BadInput(f"{name} takes *{p.name}: name each argument")
        if role in ("argument", "value") and p.kind is p.KEYWORD_ONLY:
            raise BadInput(f"{name}: {p.name!r} is no knob and can be given by keyword only; put it before the *")
        if role == "argument" and p.name in (knobs or ()):
            raise BadInput(f"{name}: knob {p.name!r} is no cutlass.Constexpr, so it is no constant of the kernel")
    return found


def _role(p: inspect.Parameter, knobs: Iterable[str] | None) -> Role:
    if is_stream(p):
        return "stream"
    if "Constexpr" not in word_of(p.annotation):
        return "argument"
    if knobs is not None:
        return "knob" if p.name in knobs else "value"
    return "knob" if p.default is not p.empty or p.kind is p.KEYWORD_ONLY else "value"


def is_stream(p: inspect.Parameter) -> bool:
    """Whether a parameter is the stream to launch in: it is given the caller's current one."""
    return "CUstream" in word_of(p.annotation) or p.name == "stream"


def word_of(annotation: Any) -> str:
    """An annotation as it is spelled: CuTe's types by their names, whether it is a text or not."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") + f" {annotation}"


def given_to(
    kernel: str, roles: Mapping[str, Role], names: Sequence[str], args: Sequence[Any], divisible: Mapping[str, int]
) -> dict[str, Given]:
    """What a call's arguments are, by name.

    Raises:
        BadInput: for one that no CuTe kernel takes.
    """
    found: dict[str, Given] = {}
    for name, value in zip(names, args, strict=True):
        if roles.get(name) == "value":
            found[name] = _constant(kernel, name, value)
        elif is_array(value) and type(value).__name__ not in _WRAPPED:
            if not value.shape:
                raise BadInput(f"{kernel}: array {name!r} has no dimension; give a number, or an array of one element")
            classes, dtype = stride_classes(strides_of(name, value)), dtype_name(value)
            found[name] = Given("array", dtype, classes, aligned(name, value), divisible.get(name, 1))
        else:
            found[name] = _scalar(kernel, name, value)
    return found


def _scalar(kernel: str, name: str, value: Any) -> Given:
    number = plain(value)
    if number is None:
        return Given("none")
    if isinstance(number, bool):
        return Given("bool")
    if isinstance(number, int):
        return Given("int32" if number in _INT32 else "int64")
    if isinstance(number, float):
        return Given("float")
    more = "; give the array itself, without from_dlpack" if type(value).__name__ in _WRAPPED else ""
    raise BadInput(
        f"{kernel}: argument {name!r} is of type {type(value).__module__}.{type(value).__qualname__}; "
        f"expected an array, a number, a bool or None{more}"
    )


def _constant(kernel: str, name: str, value: Any) -> Given:
    if isinstance(value, type) and value.__module__.partition(".")[0] == "cutlass":
        return Given("value", value.__name__)
    number = plain(value)
    if number is None or isinstance(number, (bool, int, float, str)):
        return Given("value", value=number)
    raise BadInput(
        f"{kernel}: {name!r} is compiled in, and is of type {type(value).__qualname__}; "
        "good ones: numbers, bools, texts, None, CuTe's types (cutlass.Float32)"
    )


def numeric_of(annotation: Any) -> str:
    """The type of CuTe's that a scalar is annotated with (`Float32`), empty for none."""
    found = re.search(r"\b(?:Int|Uint|Float|BFloat)\d+\b|\bBoolean\b", word_of(annotation))
    return found[0] if found else ""
