"""How large a launch is: grid, block, shared memory and cluster as numbers, names or functions of a call and knobs."""

from __future__ import annotations

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
    """An extent of one Config.

    Attributes:
        names: the arguments of a call that it depends on, in the order in which `of` takes them.
        of: what makes it of them.
    """

    names: tuple[str, ...]
    of: Callable[..., Any]

    @property
    def constant(self) -> bool:
        """Whether it is the same for every call."""
        return not self.names


def resolved(extent: Extent, fixed: Mapping[str, Any]) -> Resolved:
    """An extent with all that is known for a Config filled in.

    Args:
        fixed: knobs, macros' defaults and the device by name.
    """
    names = tuple(name for name in names_read(extent) if name not in fixed)
    if isinstance(extent, (tuple, list)):
        parts = [resolved(part, fixed) for part in cast("Sequence[Size]", extent)]
        places = [[names.index(name) for name in part.names] for part in parts]

        def several(*values: Any) -> tuple[Any, ...]:
            return tuple([p.of(*[values[i] for i in at]) for p, at in zip(parts, places, strict=True)])

        return Resolved(names, several)
    if isinstance(extent, int):
        return Resolved((), lambda: extent)
    if isinstance(extent, str):
        return Resolved(names, _itself) if names else Resolved((), lambda: fixed[extent])
    function = cast("Callable[..., Any]", extent)
    known = {name: fixed[name] for name in names_read(extent) if name in fixed}

    def call(*values: Any) -> Any:
        return function(**known, **dict(zip(names, values, strict=True)))

    return Resolved(names, call)


def _itself(value: Any) -> Any:
    return value


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
