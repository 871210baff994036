"""`Use`: what a device of a sweep did with its time, so that what holds a sweep up can be read off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunesmith.sweep.task import Result

#: what a device's time goes to → how it is told, in this order; together they are the time of the sweep
PARTS: Mapping[str, str] = {
    "measure_s": "measured", "compile_s": "waited for compilers", "store_s": "waited for the store",
    "wait_s": "waited for others on it", "search_s": "made inputs and searched", "start_s": "started workers",
    "lost_s": "lost with workers", "idle_s": "had nothing to do",
}  # fmt: skip


@dataclass(slots=True)
class Use:
    """Seconds of one device, from the begin of the sweep to its end. The thread that serves the device writes them.

    Attributes:
        device: its name, `gpu:0`.
        problems: that came to an end on it. lost: workers that were lost on it.
        measure_s: its lock was held and candidates ran. compile_s: its worker waited for a compiled candidate, or
            loaded it. store_s: it waited for the store to have written. wait_s: another search held the lock.
        search_s: the rest of its problems' time: inputs, the strategy, processes for candidates.
        start_s: workers began. lost_s: spent on problems whose worker was lost then. idle_s: the rest.
    """

    device: str
    problems: int = 0
    lost: int = 0
    measure_s: float = 0.0
    compile_s: float = 0.0
    store_s: float = 0.0
    wait_s: float = 0.0
    search_s: float = 0.0
    start_s: float = 0.0
    lost_s: float = 0.0
    idle_s: float = 0.0

    def ended(self, result: Result, took_s: float, anew: bool = True) -> None:
        """A problem came to its end after so long, as the driver saw it; or another look at it, which is not `anew`."""
        self.problems += anew and result.fate != "elsewhere"
        known_s = result.measure_s + result.compile_s + result.store_s + result.wait_s
        self.measure_s += result.measure_s
        self.compile_s += result.compile_s
        self.store_s += result.store_s
        self.wait_s += result.wait_s
        self.search_s += max(0.0, took_s - known_s)

    def lose(self, took_s: float) -> None:
        """The worker is lost, so long after it was given a problem."""
        self.lost += 1
        self.lost_s += took_s

    def close(self, wall_s: float) -> None:
        """The sweep has ended after so long: what is not accounted for, there was nothing to do."""
        self.idle_s = 0.0
        self.idle_s = max(0.0, wall_s - sum(getattr(self, part) for part in PARTS))

    @property
    def shares(self) -> dict[str, float]:
        """Of the device's time, by part; all 0 where there was none."""
        total_s = sum(getattr(self, part) for part in PARTS)
        return {part: getattr(self, part) / total_s if total_s > 0 else 0.0 for part in PARTS}


def mean_shares(uses: Sequence[Use]) -> dict[str, float]:
    """Of all devices' time together, by part."""
    total = Use("all")
    for use in uses:
        for part in PARTS:
            setattr(total, part, getattr(total, part) + getattr(use, part))
    return total.shares
