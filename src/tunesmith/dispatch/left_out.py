"""`LeftOut`: notices a key that forgets an argument, by far the commonest mistake in a key."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.dispatch.spec import KeySpec, names_taken
from tunesmith.errors import TunesmithWarning
from tunesmith.kernel import Kernel

#: Keys whose first call is remembered
REMEMBERED = 4096


class LeftOut:
    """Compares the calls of one Key and exact Problem that come by the slow path: their integers and their grids.

    By that path comes every call with an integer that decides the binary, or a grid given as a tuple, of a value not
    seen before, up to the number of values that a warm key holds as they are. It holds integers only, never a caller's
    arrays. What a bucket makes one is not compared: that its calls differ is meant.
    """

    def __init__(self, kernel: Kernel, spec: KeySpec) -> None:
        self._kernel = kernel.name
        self._names = list(kernel.signature.parameters)
        parameters = [name for name in self._names if name not in spec.opaque]
        taken = names_taken(kernel.name, spec.names, parameters, ()) if callable(spec.names) else spec.names
        self._in_key = {*taken, *spec.specialised.values}
        self._first: OrderedDict[tuple[Key, Problem], dict[str, object]] = OrderedDict()
        self._found: dict[Key, dict[str, None]] = {}
        self._said = False
        self._lock = threading.Lock()

    def of(self, key: Key) -> tuple[str, ...]:
        """The arguments in which calls of this Key are known to have differed."""
        return tuple(self._found.get(key, ()))

    def note(self, key: Key, exact: Problem, args: Sequence[Any]) -> None:
        """One more call of a Key, with its Problem before bucketing."""
        values: dict[str, object] = {
            name: value
            for name, value in zip(self._names, args, strict=True)
            if name not in self._in_key and (type(value) is int or _is_grid(value))
        }
        with self._lock:
            first = self._first.setdefault((key, exact), values)
            if len(self._first) > REMEMBERED:
                self._found.pop(self._first.popitem(last=False)[0][0], None)
            new = [n for n, value in values.items() if n in first and first[n] != value and n not in self.of(key)]
            if not new:
                return
            self._found.setdefault(key, {}).update(dict.fromkeys(new))
            say, self._said = not self._said, True
        if say:
            shown = ", ".join(f"{n} ({first[n]}, then {values[n]})" for n in new)
            warnings.warn(
                f"{self._kernel}({key.problem}): calls with one tuning key differ in arguments that are not in key=: "
                f"{shown}. They share a Config; name those that decide which Config is best",
                TunesmithWarning, stacklevel=2,
            )  # fmt: skip


def _is_grid(value: object) -> bool:
    return isinstance(value, tuple) and all(type(part) is int for part in cast("tuple[object, ...]", value))
