"""Keeping a caller's arrays as they were while a search launches kernels that write them in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunesmith.errors import BadInput


class Snapshot:
    """Copies of the arrays a kernel writes in place, put back before every launch of a search and after it.

    Args:
        arguments: the call's arguments by name; `None` is skipped.
        restore: names whose content is put back before each launch.
        zero: names that are set to zero before each launch. After the search they too are as the caller left them.
    """

    def __init__(self, arguments: Mapping[str, Any], restore: Sequence[str], zero: Sequence[str]) -> None:
        self._restored: list[tuple[Any, Any]] = []
        self._zeroed: list[tuple[Any, Any]] = []
        seen: set[int] = set()  # the same array under two names is copied once
        for names, kept in ((restore, self._restored), (zero, self._zeroed)):
            for name in names:
                array = arguments[name]
                if array is not None and id(array) not in seen:
                    seen.add(id(array))
                    kept.append(_copied(name, array))

    @property
    def before_launch(self) -> Callable[[], None] | None:
        """What runs before each launch, `None` when there is nothing to do."""
        return self._prepare if self._restored or self._zeroed else None

    def _prepare(self) -> None:
        for array, original in self._restored:
            _write(array, original)
        for array, _ in self._zeroed:
            _zero(array)

    def put_back(self) -> None:
        """Everything as the caller left it."""
        for array, original in (*self._restored, *self._zeroed):
            _write(array, original)


def _copied(name: str, array: Any) -> tuple[Any, Any]:
    """(what is written to, its content now).

    Raises:
        BadInput: naming the argument, for what is no array or can't be written.
    """
    if not hasattr(array, "dtype") or not (hasattr(array, "clone") or hasattr(array, "flags")):
        raise _refused(name, f"{type(array).__name__}, not an array")
    if hasattr(array, "clone"):  # torch; a parameter is written beside its autograd history
        array = array.detach()
        if any(stride == 0 and size > 1 for stride, size in zip(array.stride(), array.shape, strict=True)):
            raise _refused(name, "an expanded tensor, whose elements share memory")
        return array, array.clone()
    if not hasattr(array, "__setitem__") or not array.flags.writeable:
        raise _refused(name, "read-only")
    return array, array.copy()


def _refused(name: str, what: str) -> BadInput:
    return BadInput(f"argument {name!r} is listed in restore_value or reset_to_zero and is {what}")


def _write(array: Any, value: Any) -> None:
    if hasattr(array, "copy_"):  # torch
        array.copy_(value)
    else:
        array[...] = value


def _zero(array: Any) -> None:
    if hasattr(array, "zero_"):  # torch
        array.zero_()
    else:
        array[...] = 0
