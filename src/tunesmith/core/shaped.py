"""`Shaped`: an array that is not there, described by shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tunesmith.core.problem import DTYPES
from tunesmith.errors import BadInput, unknown


@dataclass(frozen=True)
class Shaped:
    """An array's shape and dtype, for `kernel.prepare`.

    >>> Shaped((1024, 4096), "float16")
    Shaped(shape=(1024, 4096), dtype='float16', strides=None, device=None)

    Attributes:
        shape: of at least 0 each.
        dtype: its name; numpy's and torch's own dtypes are taken too.
        strides: in elements, of at least 0; row-major if not given.
        device: `cpu` or `cuda:N`; the kernel's usual one if not given.

    Raises:
        BadInput: naming the bad value and the good ones.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        given: object = self.dtype
        name = given.__name__ if isinstance(given, type) else str(given).rpartition(".")[2]
        if name not in DTYPES:
            raise BadInput(f"Shaped: {unknown('dtype', name, DTYPES)}")
        set_once = object.__setattr__
        set_once(self, "dtype", name)
        set_once(self, "shape", _sizes("shape", self.shape))
        if self.strides is None:
            return
        set_once(self, "strides", _sizes("strides", self.strides))
        if len(self.strides) != len(self.shape):
            raise BadInput(f"Shaped: strides={self.strides} and shape={self.shape}: give a stride for each dimension")

    @property
    def element_strides(self) -> tuple[int, ...]:
        """The strides, in elements, whether given or row-major."""
        if self.strides is not None:
            return self.strides
        found: list[int] = []
        step = 1
        for size in reversed(self.shape):
            found.append(step)
            step *= max(size, 1)
        return tuple(reversed(found))


def _sizes(what: str, given: object) -> tuple[int, ...]:
    numbers = tuple(cast("Sequence[object]", given)) if isinstance(given, (tuple, list)) else (given,)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise BadInput(f"Shaped: {what}={given!r}; good values: a tuple of integers of at least 0")
    return cast("tuple[int, ...]", numbers)
