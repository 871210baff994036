"""In which order a sweep's tasks are done: neighbours after each other, the largest first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunesmith.sweep.task import Task


def runs(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks in runs that one device does after each other.

    A run is what differs in one dimension alone, that of the most values (the rows of a product whose weights stay):
    its binaries are the same but for a few specialisations, and what is chosen for one is a good start for the next.
    Within a run the largest comes first, so that the memory its inputs were given serves all that follow; so does the
    run that is largest as a whole: what is last is short, and devices end at about the same time.
    """
    found: dict[tuple[str, tuple[tuple[str, object], ...]], list[Task]] = {}
    by_kernel: dict[str, list[Task]] = {}
    for task in tasks:
        by_kernel.setdefault(task.target, []).append(task)
    for target, mine in by_kernel.items():
        along = _most_values(mine)
        for task in mine:
            rest = tuple((name, value) for name, value in task.fields.items() if name != along)
            found.setdefault((target, rest), []).append(task)
    ordered = [sorted(run, key=_size, reverse=True) for run in found.values()]
    return sorted(ordered, key=lambda run: sum(map(_size, run)), reverse=True)


def _most_values(tasks: Sequence[Task]) -> str:
    """The dimension that has the most values; of equals, the first by name."""
    values: dict[str, set[int]] = {}
    for task in tasks:
        for name, value in task.fields.dims.items():
            values.setdefault(name, set()).add(value)
    return max(sorted(values), key=lambda name: len(values[name]), default="")


def _size(task: Task) -> float:
    """Grows with the work and the memory of a problem: the product of its dimensions."""
    return math.prod(max(1, value) for value in task.fields.dims.values())
