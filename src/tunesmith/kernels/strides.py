"""`Others`: launches for calls of one Problem whose strides are not those that a Config was first compiled for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: Kinds of strides of one Problem whose launches are kept: views of a buffer that grows have ever new ones.
KEPT_STRIDES = 64


class Others:
    """A launch for each kind of strides, made when it is first seen.

    Args:
        launch_for: makes the one for the strides of a call's arguments.
        arrays: places of the arguments whose strides count.
    """

    def __init__(self, launch_for: Callable[[Sequence[Any]], Callable[..., Any]], arrays: Sequence[int]) -> None:
        self._launch_for, self._arrays = launch_for, tuple(arrays)
        self._known: dict[tuple[object, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        strides = tuple([args[place].stride() for place in self._arrays])
        launch = self._known.get(strides)
        if launch is None:
            launch = self._launch_for(args)
            if len(self._known) >= KEPT_STRIDES:
                self._known.clear()
            self._known[strides] = launch
        return launch(*args)
