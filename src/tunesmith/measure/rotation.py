"""Copies of a call's cold inputs, so many that launches in a row, each on the next one, find none in the cache."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from tunesmith.core.outcome import Failed
from tunesmith.dispatch.arguments import is_array, is_constexpr, is_descriptor, leaves, plain
from tunesmith.measure.arrays import mapped, spelled_bytes
from tunesmith.measure.failure import attempt
from tunesmith.measure.memory import (
    Twin,
    clusters,
    distinct,
    free_bytes,
    has_content,
    is_torch,
    n_bytes,
    place_of,
    span_of,
)

#: All copies together are so many times the cache. What is gone through again and again leaves of a cache that drops
#: lines at random a part h with h = exp(-times · (1 - h)): 2 % at four times, 6 % at three, 20 % at two.
CACHE_TIMES = 4
#: ... and with less than this they are gone through once only, in a row that begins with an empty cache.
LEAST_TIMES = 3
#: Copies at most: more launches than this in a row tell no more of one, however small its inputs are.
MOST_COPIES = 64
#: ... and at least, where they are gone through once: of fewer launches what a row takes to begin is seen.
LEAST_COPIES = 32
#: Of the free memory, the part that copies may take: candidates want some for themselves.
MEMORY_SHARE = 0.25


class Rotation:
    """The inputs of one search's candidates, several times (`kernel.Others`).

    Copies are made when they are first asked for, once for all candidates, and go with `close` and the graphs that
    read them.

    Args:
        arguments: the call's, by name.
        hot: names of those that are in the cache when a launch begins: the same in all.

    Attributes:
        pace_s: the Clock's own, for all candidates.
        why: there are no copies, for this reason; empty where there may be. It is the same for all candidates, or
            their times could not be compared.
        note: what a user should know of that.
    """

    def __init__(self, arguments: Mapping[str, Any], hot: Collection[str] = ()) -> None:
        self._arguments, self._hot = arguments, frozenset(hot)
        self._sets: tuple[tuple[Any, ...], ...] = ()
        self._cold_bytes = 0
        self.pace_s: float | None = None
        self.why = self.note = ""

    def refuse(self, why: str) -> None:
        """Launches can't follow each other in a row, from now on, for any of the candidates."""
        self.why = self.why or why
        self._sets = ()

    def close(self) -> None:
        """The copies go, as soon as nobody reads them any more."""
        self.refuse("the search is over")

    def sets(self, cache_bytes: int) -> Sequence[tuple[Any, ...]]:
        """Arguments by position, several times, the call's own first; none where `why` says so.

        Args:
            cache_bytes: the size of the cache that has to hold none of them.
        """
        if not self.why and not self._sets:
            self.why = self._why_not() or self._make(cache_bytes)
        return self._sets

    def again(self, cache_bytes: int) -> bool:
        """Whether the first may follow the last: it is gone from the cache by then."""
        return len(self._sets) * self._cold_bytes >= LEAST_TIMES * cache_bytes

    # --- whether they can be copied ------------------------------------------------------------------

    def _why_not(self) -> str:
        for name, value in self._arguments.items():
            why = _unlike(value)
            if why:
                return f"{name!r} {why}"
        places = {place for name in self._arguments for place in self._places(name)} - {"cpu"}
        if len(places) > 1:
            return f"arguments are on {', '.join(sorted(places))}"
        if not self._cold:
            return "no argument is a tensor, or all are hot"
        hot = [span_of(a) for name in sorted(self._hot) for _, a in leaves(name, self._arguments.get(name))]
        for name, value in self._cold.items():
            if any(span_of(array).meets(span) for _, array in leaves(name, value) for span in hot):
                return f"{name!r} shares memory with one that is hot"
        return ""

    def _places(self, name: str) -> list[str]:
        return [place_of(array) for _, array in leaves(name, self._arguments[name])]

    @property
    def _cold(self) -> dict[str, Any]:
        """What is copied: arguments of the device, beside which some may lie on the host; of the host where all do."""
        cold = {name: set(self._places(name)) for name in self._arguments if name not in self._hot}
        there = [name for name, places in cold.items() if places - {"cpu"}]
        return {name: self._arguments[name] for name in there or [n for n, places in cold.items() if places]}

    # --- copying --------------------------------------------------------------------------------------

    def _make(self, cache_bytes: int) -> str:
        """Copy what is cold so often as it takes; why that can't be."""
        cold = self._cold
        arrays = [array for name, value in cold.items() for _, array in leaves(name, value)]
        place = place_of(arrays[0])
        spans = clusters(span_of(array) for array in arrays)
        taken = sum(span.stop - span.start for span in spans)
        self._cold_bytes = min(taken, sum(n_bytes(distinct(array)) for array in arrays))
        if not self._cold_bytes:
            return "all tensors are empty"
        wanted = max(2, min(MOST_COPIES, math.ceil(CACHE_TIMES * cache_bytes / self._cold_bytes)))
        free = free_bytes(place)
        fitting = wanted if free is None else 1 + int(MEMORY_SHARE * free) // taken
        copies = min(wanted, fitting)
        enough = copies * self._cold_bytes >= LEAST_TIMES * cache_bytes
        if copies < 2 or not (enough or copies >= LEAST_COPIES):
            return self._too_little(f"{wanted - 1} copies of {spelled_bytes(taken)} are more than a quarter of what is "
                                    f"free on {place}, {spelled_bytes(free or 0)}")  # fmt: skip
        made, failure, error = attempt("launch", lambda: [self._copy(cold) for _ in range(copies - 1)])
        if made is None:  # out of memory all the same: it is in fragments, or someone else took it
            del error
            return self._too_little(failure.reason if isinstance(failure, Failed) else "")
        self._sets = (tuple(self._arguments.values()), *made)
        return ""

    def _too_little(self, why: str) -> str:
        self.note = f"each launch is timed behind a flush of the cache, not in a row on inputs in turn: {why}"
        return why

    def _copy(self, cold: Mapping[str, Any]) -> tuple[Any, ...]:
        twin = Twin(cold)
        twin.take()
        return tuple(
            _of_one_kind(value, twin.arguments[name]) if name in cold else value
            for name, value in self._arguments.items()
        )


def _unlike(value: Any) -> str:
    """Why an argument can't be copied so that a kernel would not see the difference; empty where it can."""
    if isinstance(value, (tuple, list)):
        parts = [_unlike(part) for part in cast("Sequence[object]", value)]
        return next(filter(None, parts), "")
    if is_descriptor(value):
        return "is a tensor descriptor"
    if is_array(value):
        plainly = has_content(value) and (not is_torch(value) or type(value).__name__ in ("Tensor", "Parameter"))
        return "" if plainly else f"is a {type(value).__name__} that can't be copied as it lies in memory"
    known = is_constexpr(value) or isinstance(plain(value), (int, float, complex, str, bytes, type(None)))
    return "" if known else f"is a {type(value).__name__}, which may hold tensors"


def _of_one_kind(value: Any, twin: Any) -> Any:
    """Copies that are parameters, and need gradients, where the originals do: compiled code is for one of these."""
    pairs = zip(leaves("", value), leaves("", twin), strict=True)
    alike = {id(copy): _like(array, copy) for (_, array), (_, copy) in pairs}
    return mapped(lambda part: alike.get(id(part), part), twin)


def _like(array: Any, copy: Any) -> Any:
    if not is_torch(array):
        return copy
    if type(array).__name__ == "Parameter":
        return type(array)(copy, requires_grad=array.requires_grad)
    return copy.requires_grad_() if array.requires_grad else copy
