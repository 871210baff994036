"""What was asked for in `lookup` and not known: counted, so that it can be tuned before the next start.

With TUNESMITH_CAPTURE it is also written to a list that `tunesmith tune --problems` reads: at its first call, as a
process may be killed, and with its count of calls at the process's end.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tunesmith import untuned
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.kernel import seeing_captures, sees_captures, settled, settling
from tunesmith.options import options

#: Different (kernel, Problem) pairs that are kept apart; what comes later is counted under the kernel alone.
MOST = 10_000
#: So many misses of a process are written at once, each in some milliseconds beside a compilation; a program with more
#: never settles, and is not to spend its time on this: the others wait so long for the next writing.
AT_ONCE, SELDOM_S = 1000, 5.0
#: Other processes hold the list's lock for milliseconds: a call does not wait for longer, the process's end may.
CALL_WAITS_S, END_WAITS_S = 1.0, 10.0


@dataclass(frozen=True, slots=True)
class Miss:
    """A Problem that `lookup` knew nothing of, and how many calls the default served."""

    kernel: str
    problem: Problem
    calls: int


@dataclass(slots=True)
class _Count:
    """Calls of one (kernel, Problem).

    Attributes:
        unknown: the default served; otherwise what was found was of another Problem, or the call was refused.
        wanted: the Problem as one would type it; `None` for what is not to be captured.
        calls: that were served. refused: that were not.
        written: calls that are in the list.
    """

    unknown: bool
    wanted: Problem | None
    calls: int = 0
    refused: int = 0
    written: int = 0

    @property
    def to_write(self) -> int:
        """A call that is noted is about to be made."""
        return max(1, self.calls + self.refused)


@dataclass(slots=True)
class _Capture:
    """The state of this process's writing."""

    writing: threading.Lock = field(default_factory=threading.Lock)
    times: int = 0
    last: float = 0.0
    troubled: bool = False


_lock = threading.Lock()
_counts: dict[tuple[str, Problem], _Count] = {}
_capture = _Capture()
_OTHERS = Problem({"others": True})


def misses() -> list[Miss]:
    """Every miss of this process so far, the most frequent first."""
    with _lock:
        found = [Miss(kernel, problem, count.calls) for (kernel, problem), count in _counts.items() if count.unknown]
    return sorted(found, key=lambda miss: (-miss.calls, miss.kernel, miss.problem.text))


def counted(
    kernel: str, problem: Problem, wanted: Problem, launch: Callable[..., Any], *, unknown: bool = True
) -> Callable[..., Any]:
    """The launch that serves a miss: each call counts.

    Args:
        problem: of the Key. wanted: the call's own, as one would type it.
        unknown: whether the default serves; otherwise a row for another Problem does, whose calls are counted for
            the list alone: without one they cost what any warm call does.
    """
    if not unknown and options().capture is None:
        return launch
    count = _noted(kernel, problem, wanted, unknown)

    def launch_and_count(*args: Any) -> Any:
        count.calls += 1
        return launch(*args)

    def settle(args: Sequence[Any], otherwise: Callable[..., Any], turned: bool) -> Callable[..., Any] | None:
        def not_counted(*arrays: Any) -> Any:
            count.calls -= 1  # it is counted there
            return otherwise(*arrays)

        inner = settled(launch, args, not_counted, turned)
        if inner is None:
            return None

        def count_and_launch(*arrays: Any) -> Any:
            count.calls += 1
            return inner(*arrays)

        return seeing_captures(count_and_launch) if sees_captures(inner) else count_and_launch

    return settling(launch_and_count, settle)


def refused(kernel: str, problem: Problem, wanted: Problem) -> None:
    """A call that a strict lookup ends with an error."""
    _noted(kernel, problem, wanted, unknown=False).refused += 1


def _noted(kernel: str, problem: Problem, wanted: Problem, unknown: bool) -> _Count:
    with _lock:
        name, first = (kernel, problem), (kernel, problem) not in _counts
        if first and len(_counts) >= MOST:
            name, first = (kernel, _OTHERS), False
        count = _counts.setdefault(name, _Count(unknown, wanted if first else None))
        count.unknown = count.unknown or unknown
    if first and options().capture is not None:
        if _capture.times == 0:
            atexit.register(write)
        if _capture.times < AT_ONCE or monotonic() - _capture.last > SELDOM_S:
            write(CALL_WAITS_S)
    return count


def write(wait_s: float = END_WAITS_S) -> None:
    """Bring the list of TUNESMITH_CAPTURE up to date. Never raises for a file: what can't be written is one warning."""
    path = options().capture
    if path is None:
        return
    with _capture.writing:
        with _lock:
            now = [(name[0], count, count.to_write) for name, count in _counts.items() if count.wanted is not None]
        new: dict[tuple[str, Problem], int] = {}
        for kernel, count, calls in now:
            if calls > count.written and count.wanted is not None:
                new[kernel, count.wanted] = new.get((kernel, count.wanted), 0) + calls - count.written
        if new and _added(path, new, wait_s):
            for _, count, calls in now:
                count.written = calls
        _capture.times, _capture.last = _capture.times + 1, monotonic()


def _added(path: Path, new: dict[tuple[str, Problem], int], wait_s: float) -> bool:
    try:
        untuned.add(path, new, wait_s)
    except (BadInput, OSError) as error:
        if not _capture.troubled:
            _capture.troubled = True
            warnings.warn(
                f"TUNESMITH_CAPTURE={path}: {error}; what was missed is kept, and tried again with the next miss",
                TunesmithWarning, stacklevel=2,
            )  # fmt: skip
        return False
    return True


def _after_fork() -> None:
    """A child begins with its parent's counts, which are the parent's to write, and with nobody's locks."""
    global _lock, _capture
    _lock, times = threading.Lock(), _capture.times
    _capture = _Capture(times=times)
    for count in _counts.values():
        count.written = count.to_write


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
