"""Which arguments does a kernel write without saying so? Found by comparing them around the first launch of a search.

An argument that is only written, an output, is harmless: each launch writes the same. One that is read and written is
not, as each launch of a search would begin with what the one before left. They are told apart by a second launch, which
begins with the first one's result: when that changes it again, and a third launch that begins with the original content
gives the first one's result once more (so the kernel is deterministic, to rounding), it was read. What is written and
stays the same however often the kernel runs is as if it had run once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunesmith.measure.memory import (
    checksum,
    copied,
    distinct,
    n_bytes,
    place_of,
    readable,
    same_bytes,
    span_of,
    too_much,
    write,
)
from tunesmith.measure.verify import allowed_for, wrong

#: Arrays up to this size are copied to be compared, larger ones are compared by a checksum: a second pool of
#: key-value pairs may not fit beside the first.
COPIED_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Mutations:
    """What a launch wrote that nobody had declared.

    Attributes:
        written: arguments that changed.
        in_place: those of them that the kernel reads, too.
        unsure: those of them that are too large to be copied, and changed again with a second launch.
        skipped: why nothing was compared, empty where it was.
    """

    written: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    skipped: str = ""


def find_mutations(
    launch: Callable[[], object],
    put_back: Callable[[], object],
    arguments: Mapping[str, Any],
    declared: Collection[str],
) -> Mutations:
    """Launch once and see what changed; launch twice more where something did.

    What changed and was copied holds its original content afterwards.

    Args:
        launch: runs the kernel on the arguments, with all that is done ahead of a launch.
        put_back: puts what is declared to be written back as the caller left it.
        declared: arguments that are known to be written.
    """
    known = [span_of(array) for name in declared for _, array in readable(name, arguments[name])]
    arrays = [
        _Watched(name, distinct(array))
        for name, value in arguments.items()
        if name not in declared
        for _, array in readable(name, value)
        if not any(span_of(array).meets(span) for span in known)
    ]
    why = too_much([(w.name, place_of(w.array), 3 * n_bytes(w.array)) for w in arrays if w.is_copied])
    if why:
        return Mutations(skipped=why)
    if not arrays:
        return Mutations()
    for watched in arrays:
        watched.look()
    try:
        return _found(launch, put_back, arrays)
    finally:
        for watched in arrays:
            watched.put_back()


def _found(launch: Callable[[], object], put_back: Callable[[], object], arrays: Sequence[_Watched]) -> Mutations:
    launch()
    put_back()
    written = [watched for watched in arrays if watched.changed()]
    if not written:
        return Mutations()
    first = [watched.now() for watched in written]
    launch()
    put_back()
    again = [w for w, before in zip(written, first, strict=True) if not w.alike(before)]
    in_place: list[str] = []
    if any(watched.is_copied for watched in again):
        for watched in written:
            watched.put_back()
        launch()
        put_back()
        known_first = dict(zip(map(id, written), first, strict=True))
        in_place = [w.name for w in again if w.is_copied and w.alike(known_first[id(w)])]
    return Mutations(_names(written), tuple(dict.fromkeys(in_place)), _names(w for w in again if not w.is_copied))


def _names(arrays: Iterable[_Watched]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(watched.name for watched in arrays))


class _Watched:
    """One array of an argument, and what it held."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array
        self.is_copied = n_bytes(array) <= COPIED_BYTES
        self._before: Any = None

    def now(self) -> Any:
        """Its content, or what stands for it."""
        return copied(self.array) if self.is_copied else checksum(self.array)

    def look(self) -> None:
        self._before = self.now()

    def changed(self) -> bool:
        return not same_bytes(self.array, self._before) if self.is_copied else checksum(self.array) != self._before

    def alike(self, content: Any) -> bool:
        """Whether it holds this, give or take what the order of additions makes of a sum."""
        if not self.is_copied:
            return checksum(self.array) == content
        return same_bytes(self.array, content) or not wrong(
            self.name, self.array, content, allowed_for(self.name, content, (), None)
        )

    def put_back(self) -> None:
        if self.is_copied and self._before is not None and self.changed():
            write(self.array, self._before)
