"""`WallClock`: the time of one launch of a kernel that runs on the CPU."""

from __future__ import annotations

import math
from time import perf_counter

from tunesmith.core.device import Device
from tunesmith.core.outcome import Sample
from tunesmith.errors import MissingEngine
from tunesmith.kernel import Clock, Run

#: A timed stretch lasts at least this: 10,000 ticks of a 100 ns timer, and ten times a thread's wake-up.
STRETCH_S = 1e-3
#: ... but is never made of more launches than this, so that a kernel of 50 ns costs 0.2 ms a sample.
MOST_LAUNCHES = 4096


class WallClock:
    """Host time around a stretch of launches, arguments hot in cache.

    The first sample of a Run is preceded by one launch that is not timed (first touch of memory, lazy
    loading) and one that decides how many launches make a stretch.
    """

    protocol = f"wall-hot-{STRETCH_S * 1e3:g}ms/1"

    def sample(self, run: Run) -> Sample:
        launches = run.state.get("launches")
        if launches is None:
            self._stretch(run, 1)
            estimate = self._stretch(run, 1)
            launches = max(1, min(MOST_LAUNCHES, math.ceil(STRETCH_S / max(estimate, 1e-9))))
            run.state["launches"] = launches
            if launches == 1:  # long enough to be a sample
                return Sample(estimate)
        seconds = self._stretch(run, launches) / launches
        return Sample(max(seconds, 1e-9))  # below a timer's tick: said to be one tick, not nothing

    def _stretch(self, run: Run, launches: int) -> float:
        if run.before is not None:
            return math.fsum(self._alone(run) for _ in range(launches))
        launch, args = run.executable.launch, run.args
        start = perf_counter()
        for _ in range(launches):
            launch(*args)
        return perf_counter() - start

    def _alone(self, run: Run) -> float:
        """One launch, with what has to be put back before it left out."""
        assert run.before is not None
        run.before()
        launch, args = run.executable.launch, run.args
        start = perf_counter()
        launch(*args)
        return perf_counter() - start


def clock_for(device: Device) -> Clock:
    """The Clock that times kernels on a device.

    Raises:
        MissingEngine: for a kind of device that this version cannot time.
    """
    if device.kind == "cpu":
        return WallClock()
    raise MissingEngine(
        f"no clock for {device.kind} devices in this version ({device.name}): pass clock= to autotune, "
        "or use policy('lookup') or policy('default'): export TUNESMITH_POLICY=lookup"
    )
