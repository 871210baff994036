"""`Near`: a table of ours whose rows serve problems near theirs too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.tables.base import Row
from tunesmith.tables.native import NativeTable
from tunesmith.tables.policy import REACH


class Near:
    """The row of just this Problem; else the nearest of those that differ from it in some sizes alone.

    The distance is the product of the sizes' ratios, each taken as at least 1: what is further than `REACH` is no
    neighbour, and of two equally near the one with the smaller sizes serves.

    Args:
        sizes: fields of the Problem in which a neighbour may differ.
    """

    def __init__(self, table: NativeTable, sizes: Sequence[str], reach: float = REACH) -> None:
        self.table, self._sizes, self._limit = table, tuple(sizes), math.log(reach) * (1 + 1e-9)
        self._alike: dict[tuple[tuple[str, object], ...], list[tuple[tuple[int, ...], Problem]]] = {}
        for problem in table.rows:
            sized = self._sized(problem)
            if sized is not None:
                self._alike.setdefault(self._rest(problem), []).append((sized, problem))
        for alike in self._alike.values():
            alike.sort(key=lambda one: one[0])

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        """The row for a call; its `distance` says which neighbour it is of."""
        found = self.table.lookup(key, exact, device)
        sized = self._sized(key.problem)
        if found is not None or sized is None:
            return found
        alike = self._alike.get(self._rest(key.problem), ())
        nearest = min(alike, key=lambda one: _distance(one[0], sized), default=None)
        if nearest is None or _distance(nearest[0], sized) > self._limit:
            return None
        row = self.table.lookup(replace(key, problem=nearest[1]), nearest[1], device)
        said = ",".join(f"{name}={size}" for name, size in zip(self._sizes, nearest[0], strict=True))
        return None if row is None else replace(row, distance=f"the nearest row, of {said}", median_s=None)

    def _sized(self, problem: Problem) -> tuple[int, ...] | None:
        found = [problem.get(name) for name in self._sizes]
        sizes = tuple(size for size in found if isinstance(size, int) and not isinstance(size, bool) and size > 0)
        return sizes if len(sizes) == len(self._sizes) else None

    def _rest(self, problem: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
        return tuple(sorted((name, value) for name, value in problem.items() if name not in self._sizes))


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Rounded, so that the same ratio of other sizes is the same."""
    return round(sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True)), 9)
