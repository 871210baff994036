"""How fast this process's core runs just now: a fixed loop of Python, timed.

Who is at work on the core's other thread takes half of what it can do: what is timed then takes up to twice as long,
some Configs more than others. On a machine that others share nothing else tells: the thread may be another guest's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast

from tunesmith.core.stats import median

#: A reading is the middle one of so many loops of so many steps: 15 to 25 µs in all.
_STEPS, _LOOPS = 300, 5
#: The loop takes 1.6 to 2.0 times its least where somebody is at work on the core's other thread (an EPYC's, a Xeon's),
#: and up to 1.4 times, on the first, where it is not.
SHARED = 1.45
#: The race forgives one sample in five at each end.
_MOST_OF = 0.8
#: Waited for a quiet moment: at first, so many times what quiet samples took since, and never more at once.
_FIRST_S, _EARNED, _MOST_S = 0.1, 1.0, 0.5
#: ... where it may be waited for long, it has held for so long
_HELD_S = 0.02
#: Read for so long by a process that begins, a core that others leave and come back to is seen quiet at some time.
_AT_FIRST_S = 0.1

_least: list[float] = [math.inf]


def pace_s() -> float:
    """Seconds of the loop, now."""
    found: list[float] = []
    for _ in range(_LOOPS):
        start = perf_counter()
        for _ in range(_STEPS):
            pass
        found.append(perf_counter() - start)
    now_s = median(found)
    heard(now_s)
    return now_s


def heard(seconds: float | None) -> None:
    """So much was read, in this process or another of the same device; `None`: nothing was."""
    if seconds is not None:
        _least[0] = min(_least[0], seconds)


def known_least_pace_s() -> float | None:
    """The least that is known; `None` before the first reading."""
    return _least[0] if _least[0] < math.inf else None


def least_at_first_s() -> float | None:
    """The least of a process that has measured nothing yet: it reads for 0.1 s."""
    _readings(_AT_FIRST_S)
    return known_least_pace_s()


def is_shared(seconds: float | None, least_s: float | None = None) -> bool:
    """Whether a reading says that others were at work on the core.

    Args:
        seconds: `None` where nothing was read.
        least_s: of the device; what is known here if not given.
    """
    return seconds is not None and seconds > SHARED * (_least[0] if least_s is None else least_s)


def quiet_within(most_s: float) -> tuple[bool, float]:
    """Wait until nobody else is at work on the core: (whether it came to that, the seconds that were waited).

    It reads all the time: right after a sleep the loop takes up to twice its least on a virtual machine, others or not.

    Args:
        most_s: no longer than that, but for one stretch.
    """
    start = perf_counter()
    while True:
        quiet = not is_shared(pace_of_most(_readings(_HELD_S)))
        waited_s = perf_counter() - start
        if quiet or waited_s >= most_s:
            return quiet, waited_s


def _readings(seconds: float) -> list[float]:
    """All that fit into so many seconds, and at least one."""
    until, found = perf_counter() + seconds, [pace_s()]
    while perf_counter() < until:
        found.append(pace_s())
    return found


def paces_of(clock: object) -> Sequence[float]:
    """A Clock's readings so far, one for each sample: the longer of that before it and that after; none where it takes
    none."""
    paces = getattr(clock, "paces", ())
    return cast("Sequence[Any]", paces) if isinstance(paces, (list, tuple)) else ()


def pace_of_most(paces: Sequence[float]) -> float | None:
    """What four in five samples had at most; `None` without any."""
    return sorted(paces)[math.ceil(_MOST_OF * len(paces)) - 1] if paces else None


class QuietMoments:
    """Waits for moments in which nobody else is at work on the core, a bounded time in all.

    Where they come and go, samples are taken in them, and a race takes up to twice as long; where none comes, it goes
    on all the same after 0.1 to 0.5 s.

    Attributes:
        paces: of each sample, the longer of the readings before and after.
    """

    def __init__(self) -> None:
        self.paces: list[float] = []
        self._patience_s = _FIRST_S

    def wait(self) -> float:
        """The reading when it was quiet, or the patience was over."""
        now_s = pace_s()
        while is_shared(now_s) and self._patience_s > 0:
            start = perf_counter()
            now_s = pace_s()
            self._patience_s -= perf_counter() - start
        return now_s

    def sampled(self, before_s: float, took_s: float) -> None:
        """A sample was taken after a reading, and took so long in all."""
        pace = max(before_s, pace_s())
        self.paces.append(pace)
        if not is_shared(pace):
            self._patience_s = min(_MOST_S, self._patience_s + _EARNED * took_s)
