"""What a kernel's author says about its key, and what is checked of it when the kernel is decorated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tunesmith.core.problem import Bucket, bucket
from tunesmith.errors import BadInput, ProblemError, unknown
from tunesmith.kernel import Specialised

#: Argument names, or a callable that is given runtime arguments by name and returns a mapping field → value.
KeyNames: TypeAlias = "tuple[str, ...] | Callable[..., Mapping[str, object]]"


@dataclass(frozen=True)
class KeySpec:
    """What a kernel's author said about its key.

    Attributes:
        names: the arguments whose values are fields of the Problem; or a callable that is given those runtime
            arguments it names (all, if it takes `**rest`) and returns a mapping field → value.
        buckets: field → how its integers are bucketed.
        strides: arrays whose stride classes (0, 1, other) are fields.
        alignment: arrays whose alignment to 16 bytes is a field.
        specialised: decides the binary, never the Choice.
        opaque: arguments that are passed on and decide nothing (the grid of a GPU kernel).
    """

    names: KeyNames = ()
    buckets: Mapping[str, Bucket] = field(default_factory=dict[str, Bucket])
    strides: tuple[str, ...] = ()
    alignment: tuple[str, ...] = ()
    specialised: Specialised = field(default_factory=Specialised)
    opaque: tuple[str, ...] = ()


def check_key_spec(kernel_name: str, parameters: Collection[str], spec: KeySpec, knobs: Collection[str]) -> None:
    """Check what a kernel's author said about its key. A name given twice counts once.

    Args:
        kernel_name: for messages.
        parameters: the names of its runtime parameters.
        spec: what the author said.
        knobs: the names of its knobs.

    Raises:
        BadInput: for a name that is no runtime argument, and for a bucket that does not exist.
    """
    parameters = [name for name in parameters if name not in spec.opaque]
    if callable(spec.names):
        names_taken(kernel_name, spec.names, parameters, knobs)
    else:
        check_names(kernel_name, "key", spec.names, parameters, knobs)
        for name in spec.buckets:
            if name not in spec.names:
                good = dict.fromkeys(spec.names)
                raise BadInput(f"kernel {kernel_name}, buckets: {unknown('name of key', name, good)}")
    for name, how in spec.buckets.items():
        try:
            bucket(how)
        except (ProblemError, TypeError) as error:
            raise BadInput(f"kernel {kernel_name}, bucket of {name!r}: {error}") from None
    check_names(kernel_name, "strides", spec.strides, parameters, knobs)
    check_names(kernel_name, "alignment", spec.alignment, parameters, knobs)
    check_names(kernel_name, "specialised.alignment", spec.specialised.alignment, parameters, knobs)
    check_names(kernel_name, "specialised.divisibility", spec.specialised.divisibility, parameters, knobs)
    check_names(kernel_name, "specialised.width", spec.specialised.width, parameters, knobs)
    check_names(kernel_name, "specialised.values", spec.specialised.values, parameters, knobs)
    check_names(kernel_name, "specialised.layout", spec.specialised.layout, parameters, knobs)


def check_names(
    kernel_name: str,
    list_name: str,
    names: Iterable[object],
    parameters: Collection[str],
    knobs: Collection[str],
) -> None:
    """Check a list of argument names that a kernel's author gave.

    Raises:
        BadInput: naming the kernel, the list, the bad name and the nearest good one.
    """
    where = f"kernel {kernel_name}, {list_name}"
    if isinstance(names, str):
        raise BadInput(f"{where}: {names!r} is one string; write [{names!r}]")
    for name in names:
        if name in knobs:
            raise BadInput(f"{where}: {name!r} is a knob: tuning decides its value, so it can't be named here")
        if name not in parameters:
            raise BadInput(f"{where}: {unknown('argument', name, parameters)}")


def names_taken(
    kernel_name: str, key: Callable[..., object], parameters: Collection[str], knobs: Collection[str],
    what: str = "key function",
) -> tuple[str, ...]:  # fmt: skip
    """The runtime arguments that a function of the author's wants by name.

    Raises:
        BadInput: when it wants something else.
    """
    taken: list[str] = []
    for p in inspect.signature(key).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            return tuple(parameters)
        if p.kind is p.VAR_POSITIONAL or (p.name not in parameters and p.default is not p.empty):
            continue
        if p.kind is p.POSITIONAL_ONLY:
            raise BadInput(
                f"kernel {kernel_name}: {p.name!r} of the {what} is positional only; arguments are given by name"
            )
        taken.append(p.name)
    check_names(kernel_name, what, taken, parameters, knobs)
    return tuple(taken)
