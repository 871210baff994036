"""Keeping a caller's arrays as they were while a search launches kernels that write them in place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tunesmith.dispatch.arguments import leaves
from tunesmith.errors import BadInput
from tunesmith.measure.failure import attempt
from tunesmith.measure.memory import (
    Span,
    copied,
    distinct,
    fill,
    flat_bytes,
    has_content,
    is_torch,
    n_bytes,
    place_of,
    span_of,
    too_much,
    write,
)

#: Given the call's arguments that it names (all, if it takes `**rest`), the view of an argument that the kernel
#: writes, or several; `None` in its place: the whole argument.
WrittenSlice: TypeAlias = "Callable[..., Any] | None"


@dataclass
class _Piece:
    """Memory that is put back as one. `content` is what it held."""

    name: str
    target: Any
    content: Any = None

    def put_back(self) -> None:
        write(self.target, self.content)


class Snapshot:
    """Copies of the arrays a kernel writes in place, put back before every launch of a search and after it.

    Memory that belongs to several of them (one array under two names, overlapping views) is copied once.

    Args:
        arguments: the call's arguments by name; `None` is skipped.
        restore: names whose content is put back before each launch.
        zero: names that are set to zero before each launch. After the search they too are as the caller left them.
        slices: of some of these, which part is written.

    Raises:
        BadInput: naming the argument: for what is no array or can't be written, a slice that is a copy; and when
            the copies don't fit into the free memory, with both numbers.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        restore: Sequence[str],
        zero: Sequence[str],
        slices: Mapping[str, WrittenSlice] | None = None,
    ) -> None:
        self._arguments, self._slices = arguments, slices or {}
        self._spans: list[Span] = []  # dense memory that is copied
        self._strided: set[object] = set()  # views with gaps that are copied
        self._zeros = [array for name in zero for array in self._written(name)]
        self._restored = [piece for name in restore for piece in self._pieces(name)]
        self._others = [piece for name in zero for piece in self._pieces(name)]
        _copy([*self._restored, *self._others])

    @property
    def before_launch(self) -> Callable[[], None] | None:
        """What runs before each launch, `None` when there is nothing to do."""
        return self._prepare if self._restored or self._zeros else None

    def protect(self, name: str) -> None:
        """Put one more argument back from now on, to what it holds at this moment."""
        pieces = self._pieces(name)
        _copy(pieces)
        self._restored += pieces

    def _prepare(self) -> None:
        for piece in self._restored:
            piece.put_back()
        for array in self._zeros:
            fill(array, 0)

    def put_back(self) -> None:
        """Everything as the caller left it."""
        for piece in (*self._restored, *self._others):
            piece.put_back()

    # --- what is copied --------------------------------------------------------------------------

    def _written(self, name: str) -> list[Any]:
        """The memory of an argument that is written: views of it without repeated elements."""
        return [_writable(name, array) for array in written_views(self._arguments, name, self._slices.get(name))]

    def _pieces(self, name: str) -> list[_Piece]:
        """The same, less what is copied for another argument already."""
        pieces: list[_Piece] = []
        for array in self._written(name):
            if not has_content(array):  # of an engine of its own: all that is known is how to copy it
                pieces.append(_Piece(name, array))
                continue
            span = span_of(array)
            if span.dense:
                parts = _uncovered(span, self._spans)
                whole = parts == [(span.start, span.stop)]
                pieces += [
                    _Piece(name, array if whole else flat_bytes(array, start - span.start, stop - span.start))
                    for start, stop in parts
                ]
                self._spans.append(span)
            elif not self._is_copied(array, span):
                pieces.append(_Piece(name, array))
        return pieces

    def _is_copied(self, array: Any, span: Span) -> bool:
        """Whether a view with gaps is copied already; from now on it is."""
        strides = array.stride() if is_torch(array) else array.strides
        same = (span, tuple(array.shape), tuple(strides), str(array.dtype))
        known = same in self._strided or not _uncovered(span, self._spans)
        self._strided.add(same)
        return known


def _uncovered(span: Span, others: Iterable[Span]) -> list[tuple[int, int]]:
    """The parts of a span that no other covers, as addresses."""
    parts = [(span.start, span.stop)] if span.start < span.stop else []
    for other in others:
        if other.place == span.place:
            parts = [
                (start, stop)
                for begin, end in parts
                for start, stop in ((begin, min(end, other.start)), (max(begin, other.stop), end))
                if start < stop
            ]
    return parts


def _copy(pieces: Sequence[_Piece]) -> None:
    """Copy what the pieces hold, if there is memory for all.

    Raises:
        BadInput: when there is not.
    """
    why = too_much([(p.name, place_of(p.target), n_bytes(p.target)) for p in pieces if has_content(p.target)])
    for piece in pieces if not why else ():
        content, failure, error = attempt("launch", lambda piece=piece: copied(piece.target))
        if failure is not None:  # out of memory all the same: it is in fragments, or someone else took it
            why = f"{piece.name}: {failure.reason}"
            del error
            break
        piece.content = content
    if why:
        names = list(dict.fromkeys(piece.name for piece in pieces))
        raise BadInput(
            f"{', '.join(map(repr, names))} can't be copied to be put back before each launch: {why}. Say which part "
            f"is written, restore_value={{{names[0]!r}: function of the arguments that returns a view}}, free memory, "
            "or use policy('lookup')"
        )


# --- what is written -----------------------------------------------------------------------------------


def written_views(arguments: Mapping[str, Any], name: str, part: WrittenSlice) -> list[Any]:
    """The arrays of an argument that a kernel writes, or the views of them that `part` returns.

    Raises:
        BadInput: naming the argument, where it is no array, or what `part` returned is none of its views.
    """
    value = arguments[name]
    arrays = [array for _, array in leaves(name, value)]
    if value is None:
        return []
    if not arrays:
        raise _refused(name, f"{type(value).__name__}, not an array")
    if part is None:
        return arrays
    found, failure, error = attempt("launch", lambda: part(**taken_by(part, arguments)))
    if failure is not None:
        raise BadInput(f"restore_value[{name!r}] failed: {failure.reason}") from error
    views = [view for _, view in leaves(name, found)]
    if not views and found is not None:
        raise BadInput(f"restore_value[{name!r}] returned {type(found).__name__}; expected a view of {name!r}")
    spans = [span_of(array) for array in arrays if has_content(array)]
    for view in views:
        if not has_content(view) or not any(span_of(view).within(span) for span in spans):
            raise BadInput(
                f"restore_value[{name!r}] returned an array that shares no memory with {name!r}, a copy: index with "
                "numbers and slices, not with arrays"
            )
    return views


def taken_by(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that a function of the author's takes by name."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(arguments)
    return {name: arguments[name] for name in parameters if name in arguments}


def _writable(name: str, array: Any) -> Any:
    """An array as it is written: a parameter beside its autograd history, repeated elements once.

    Raises:
        BadInput: naming the argument, for what can't be written.
    """
    if not (hasattr(array, "clone") or hasattr(array, "flags")):
        raise _refused(name, f"{type(array).__name__}, not an array")
    if not hasattr(array, "clone") and not (hasattr(array, "__setitem__") and array.flags.writeable):
        raise _refused(name, "read-only")
    return distinct(array) if has_content(array) else array


def _refused(name: str, what: str) -> BadInput:
    return BadInput(f"argument {name!r} is listed in restore_value or reset_to_zero and is {what}")
