"""How fast the core is, read off a loop: when it counts as shared, how long a quiet moment is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunesmith.kernel import Run
from tunesmith.measure import clock, pace
from tunesmith.measure.clock import WallClock
from tunesmith.measure.pace import (
    SHARED,
    QuietMoments,
    heard,
    is_shared,
    known_least_pace_s,
    least_at_first_s,
    pace_of_most,
    pace_s,
    paces_of,
    quiet_within,
)
from tunesmith.measure.race import Race


class Core:
    """Its loop takes 3 us, and 5 while somebody else is at work on it; whoever looks at the time, or waits, spends it.

    Args:
        busy: (from, to) in seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, busy: Sequence[tuple[float, float]]) -> None:
        self.now, self.busy, self.readings = 0.0, busy, 0
        monkeypatch.setattr(pace, "pace_s", self.pace_s)
        for module in (pace, clock):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        heard(3e-6)

    def spend(self, seconds: float) -> None:
        self.now += seconds

    @property
    def is_busy(self) -> bool:
        return any(start <= self.now < end for start, end in self.busy)

    def timer(self) -> float:
        self.spend(1e-8)
        return self.now

    def pace_s(self) -> float:
        self.readings += 1
        now_s = 5e-6 if self.is_busy else 3e-6
        self.spend(20e-6)
        heard(now_s)
        return now_s


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Core]:
    return lambda *busy: Core(monkeypatch, busy)


def sampled(moments: QuietMoments, core: Core, seconds: float = 1e-3) -> float:
    """Take a sample: when it began."""
    before_s, start = moments.wait(), core.now
    core.spend(seconds)
    moments.sampled(before_s, core.now - start)
    return start


def test_a_reading_is_positive_and_the_least_is_kept() -> None:
    assert known_least_pace_s() is None
    heard(None)
    assert known_least_pace_s() is None
    found = [pace_s() for _ in range(50)]
    assert 0 < min(found) == known_least_pace_s() < 1e-3
    heard(1e-9)
    assert known_least_pace_s() == 1e-9


def test_shared_is_what_takes_longer_than_the_cores_own_clock_can_explain() -> None:
    heard(2e-6)
    assert not is_shared(2e-6 * SHARED)
    assert is_shared(2e-6 * SHARED * 1.01)
    assert not is_shared(2e-6 * SHARED * 1.01, 2.1e-6)
    assert not is_shared(None)
    assert not is_shared(3e-6, math.inf)


def test_of_most_samples() -> None:
    assert pace_of_most([]) is None
    assert pace_of_most([9.0] * 2 + [1.0] * 8) == 1.0
    assert pace_of_most([9.0] * 3 + [1.0] * 7) == 9.0
    assert pace_of_most([3.0]) == 3.0


def test_a_sample_waits_for_a_moment_that_comes_soon(core: Callable[..., Core]) -> None:
    moments, here = QuietMoments(), core((0.0, 0.05), (0.06, 0.09))
    began = [sampled(moments, here) for _ in range(12)]
    assert began[0] == pytest.approx(0.05, abs=1e-4)
    assert not any(0.06 <= start < 0.09 for start in began)
    assert sum(is_shared(reading) for reading in moments.paces) <= 1  # the one that was under way at 0.06


def test_it_is_not_waited_for_again_and_again_where_none_comes(core: Callable[..., Core]) -> None:
    moments, here = QuietMoments(), core((0.0, 1000.0))
    for _ in range(100):
        sampled(moments, here)
    assert here.now < 0.1 + 100 * 1.1e-3
    assert all(map(is_shared, moments.paces))
    assert len(moments.paces) == 100


def test_patience_comes_back_with_quiet_samples_and_has_an_end(core: Callable[..., Core]) -> None:
    moments, here = QuietMoments(), core((2.0, 1000.0))
    while here.now < 2.0:
        sampled(moments, here)
    start = here.now
    assert sampled(moments, here) - start == pytest.approx(0.5, rel=0.05)
    start = here.now
    assert sampled(moments, here) - start < 1e-3


def test_long_waits_are_bounded_and_say_how_they_ended(core: Callable[..., Core]) -> None:
    here = core((1.0, 3.0), (10.0, 10.3), (10.32, 10.6))

    def waited(at: float, most_s: float) -> tuple[bool, float]:
        here.now = at
        quiet, seconds = quiet_within(most_s)
        return quiet, round(seconds, 1)

    assert waited(0.0, 5.0) == (True, 0.0)
    assert waited(1.5, 5.0) == (True, 1.5)
    assert waited(1.0, 0.5) == (False, 0.5)
    assert waited(1.0, 0.0) == (False, 0.0)
    assert waited(4.0, 0.0) == (True, 0.0)
    here.busy = [(10.0, 10.3), (10.31, 10.6)]
    assert waited(10.0, 5.0) == (True, 0.6)  # what lasts for 10 ms is no quiet moment
    assert waited(10.0, 0.3) == (False, 0.3)


def test_a_process_that_begins_sees_a_core_quiet_that_others_leave_for_a_moment(
    core: Callable[..., Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = core((0.0, 0.05), (0.051, 1000.0))
    monkeypatch.setattr(pace, "_least", [math.inf])
    assert least_at_first_s() == 3e-6
    assert here.now == pytest.approx(0.1, abs=1e-4)


class Launched:
    """Takes a millisecond of the core's time, and two while somebody else is at work on it."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def launch(self) -> None:
        self.core.spend(2e-3 if self.core.is_busy else 1e-3)


def test_the_wall_clock_times_in_quiet_moments_and_reads_the_pace_of_each(core: Callable[..., Core]) -> None:
    here = core(*[(start / 100, start / 100 + 0.005) for start in range(1000)])  # half of the time, 5 ms at a time
    wall = WallClock(here.timer)
    launched: Any = Launched(here)
    run = Run(launched, ())
    taken = [wall.sample(run).seconds for _ in range(200)]
    assert len(wall.paces) == 200
    quiet = [seconds for seconds, reading in zip(taken, wall.paces, strict=True) if not is_shared(reading)]
    assert len(quiet) > 150  # the others are those into which somebody came; without waiting it would be 100
    assert quiet == pytest.approx([1e-3] * len(quiet), rel=1e-3)
    assert paces_of(wall) is wall.paces
    assert paces_of(Race(wall)) == ()
