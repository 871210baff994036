"""How large a launch is: grid, block, shared memory and cluster as numbers, names or functions of a call and knobs."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from tunesmith.backends.c_launch import Size, names_in
from tunesmith.errors import BadInput

#: One to three sizes: a Size, a tuple of them, or a function of arguments and knobs by name that returns either.
Extent: TypeAlias = "Size | Sequence[Size] | Callable[..., int | Sequence[int]]"
#: the name by which a size may ask for the Device
DEVICE = "device"


def names_read(extent: Extent) -> list[str]:
    """The arguments and knobs that an extent reads.

    Raises:
        BadInput: for more than three sizes, or a function whose parameters can't be given by name.
    """
    if isinstance(extent, (tuple, list)):
        parts = cast("Sequence[Size]", extent)
        if not 1 <= len(parts) <= 3:
            raise BadInput(f"{extent!r} has {len(parts)} sizes; good values: one to three")
        return list(dict.fromkeys(name for part in parts for name in names_in(part)))
    return names_in(cast("Size", extent))


@dataclass(frozen=True)
class Resolved:
    """An extent of one Config, as a Python expression: it stands in the source of a launch.

    Attributes:
        names: the arguments of a call that it reads.
        values: what else it reads, by name.
    """

    names: tuple[str, ...]
    expression: str
    values: Mapping[str, Any]

    @property
    def constant(self) -> bool:
        """Whether it is the same for every call."""
        return not self.names

    def value(self) -> Any:
        """What a constant one is."""
        return eval(self.expression, dict(self.values))


def resolved(extent: Extent, fixed: Mapping[str, Any], prefix: str) -> Resolved:
    """An extent with all that is known for a Config filled in.

    Args:
        fixed: knobs, macros' defaults and the device by name.
        prefix: what the names of its values begin with, and no argument's does.
    """
    names = tuple(name for name in names_read(extent) if name not in fixed)
    values: dict[str, Any] = {}

    def named(value: Any) -> str:
        name = f"{prefix}{len(values)}"
        values[name] = value
        return name

    def written(size: Any) -> str:
        if isinstance(size, (tuple, list)):
            return f"({', '.join(written(part) for part in cast('Sequence[Size]', size))},)"
        if not callable(size):
            known = fixed.get(size, size) if isinstance(size, str) else size
            return size if size in names else named(known)
        parameters = inspect.signature(size).parameters.values()
        given = [p.name if p.name in names else named(fixed[p.name]) for p in parameters]
        keywords = [f"{p.name}=" if p.kind is p.KEYWORD_ONLY else "" for p in parameters]
        return f"{named(size)}({', '.join(map(''.join, zip(keywords, given, strict=True)))})"

    return Resolved(names, written(extent), values)


def three(value: Any, what: str) -> tuple[int, int, int]:
    """What an extent came to as three sizes; those that are not given are 1.

    Raises:
        BadInput: for anything but one to three integers from 0.
    """
    parts = cast("Sequence[Any]", value if isinstance(value, (tuple, list)) else (value,))
    try:
        sizes = [operator.index(part) for part in parts]
    except TypeError:
        sizes = []
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise BadInput(f"{what} came to {value!r}; good values: one to three integers from 0")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
