"""What was asked for in `lookup` and not known: counted, so that it can be tuned before the next start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tunesmith.core.problem import Problem

#: Different (kernel, Problem) pairs that are kept apart; what comes later is counted under the kernel alone.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Miss:
    """A Problem that `lookup` knew nothing of, and how many calls the default served."""

    kernel: str
    problem: Problem
    calls: int


_lock = threading.Lock()
_counts: dict[tuple[str, Problem], list[int]] = {}
_OTHERS = Problem({"others": True})


def misses() -> list[Miss]:
    """Every miss of this process so far, the most frequent first."""
    with _lock:
        found = [Miss(kernel, problem, count[0]) for (kernel, problem), count in _counts.items()]
    return sorted(found, key=lambda miss: (-miss.calls, miss.kernel, miss.problem.text))


def counted(kernel: str, problem: Problem, launch: Callable[..., Any]) -> Callable[..., Any]:
    """The launch of a default that serves a miss: each call counts."""
    with _lock:
        key = (kernel, problem)
        if key not in _counts and len(_counts) >= MOST:
            key = (kernel, _OTHERS)
        count = _counts.setdefault(key, [0])

    def launch_and_count(*args: Any) -> Any:
        count[0] += 1
        return launch(*args)

    return launch_and_count
