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
#: A launch shorter than this is timed three times before it decides how many make a stretch: one of them may have
#: been interrupted for a scheduler's time slice (4 to 10 ms), hardly all.
INTERRUPTED_S = 10e-3


class WallClock:
    """Host time around a stretch of launches, arguments hot in cache.

    The first sample of a Run is preceded by one launch that is not timed (first touch of memory, lazy
    loading) and a few that decide how many launches make a stretch.
    """

    protocol = f"wall-hot-{STRETCH_S * 1e3:g}ms/1"

    def sample(self, run: Run) -> Sample:
        launches = run.state.get("launches")
        if launches is None:
            self._stretch(run, 1)
            estimate = self._stretch(run, 1)
            if estimate >= INTERRUPTED_S:  # long enough to be a sample
                run.state["launches"] = 1
                return Sample(estimate)
            estimate = min(estimate, self._stretch(run, 1), self._stretch(run, 1))
            launches = max(1, min(MOST_LAUNCHES, math.ceil(STRETCH_S / max(estimate, 1e-9))))
            run.state["launches"] = launches
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


#: kind of device → how its kernels are timed, in words: known without a Clock, for the Key of a call that only looks up
PROTOCOLS = {"cpu": WallClock.protocol}


def protocol_for(device: Device) -> str:
    """How kernels on a device are timed, as its Clock would say."""
    return PROTOCOLS.get(device.kind, f"none for {device.kind}")


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
