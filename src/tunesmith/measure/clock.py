"""The time of one launch on the host's own clock, for kernels on the CPU; and which clock times which device."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tunesmith.core.device import Device
from tunesmith.core.outcome import Sample
from tunesmith.core.stats import SHORTEST_S
from tunesmith.core.stopping import BRIEF_ON_CPU, ROUNDS, SCREENS_OF_CPU
from tunesmith.errors import BadInput, MissingEngine, unknown
from tunesmith.kernel import Clock, Run, bound
from tunesmith.measure.gpu_clock import EventClock
from tunesmith.measure.graph_clock import GraphClock
from tunesmith.measure.pace import QuietMoments

#: A timed stretch lasts at least this: ten times a thread's wake-up ...
STRETCH_S = 1e-3
#: ... and so many steps of the timer, so that one more or less is a tenth of the usual margin.
STEPS = 1000
#: ... but is never made of more launches than this, so that a kernel of 50 ns costs 0.2 ms ...
MOST_LAUNCHES = 4096
#: ... or this, where a timer is too coarse to see so many.
MOST_FOR_COARSE = 1 << 18
#: A launch shorter than this is timed three times before it decides how many make a stretch: one of them may have
#: been interrupted for a scheduler's time slice (4 to 10 ms), hardly all.
INTERRUPTED_S = 10e-3
#: A core that used no vectors of 512 bits a moment ago often runs them a fifth slower at first, mostly for less than a
#: millisecond (a Xeon of the fifth generation): behind others, samples of them would be up to 20 % too long. That is no
#: more than a hundredth, most of the time, of launches of INTERRUPTED_S and more.
LEAD_IN_S = 1e-3


class WallClock:
    """Host time around a stretch of launches, arguments hot in cache; in quiet moments, where any come soon.

    The first sample of a Run is preceded by one launch that is not timed (first touch of memory, lazy
    loading) and a few that decide how many launches make a stretch: more of them where the timer's steps are long.

    Args:
        timer: seconds since whenever.
        lead_in_s: of launches ahead of each stretch that are not timed, so that what was timed before does not matter.
            At least one; none for launches of 10 ms and more, nor where each follows on something else, as arguments
            are put back before it.

    Attributes:
        paces: how fast the core was around each sample so far, as `QuietMoments` has it.
    """

    #: A sample takes a millisecond, and is a mean of many launches: hundreds of rounds would cost seconds.
    rounds = ROUNDS
    screens = SCREENS_OF_CPU
    brief = BRIEF_ON_CPU

    def __init__(self, timer: Callable[[], float] = perf_counter, lead_in_s: float = 0.0) -> None:
        self._timer, self._lead_in_s = timer, lead_in_s
        self.protocol = self.protocol_of(lead_in_s)
        self._step_s = _step_of(timer)
        self._moments = QuietMoments()
        self.paces = self._moments.paces

    @staticmethod
    def protocol_of(lead_in_s: float) -> str:
        """How such a Clock times: part of a Key."""
        led = f"-led-{lead_in_s * 1e3:g}ms" if lead_in_s else ""
        return f"wall-hot-{STRETCH_S * 1e3:g}ms{led}/2"

    def sample(self, run: Run) -> Sample:
        before_s, start = self._moments.wait(), perf_counter()
        sample = self._sample(run)
        self._moments.sampled(before_s, perf_counter() - start)
        return sample

    def _sample(self, run: Run) -> Sample:
        launches = run.state.get("launches")
        if launches is None:
            if "long" not in run.state:
                self._stretch(run, 1)
            estimate = self._stretch(run, 1)
            if estimate >= max(INTERRUPTED_S, STEPS * self._step_s):  # long enough to be a sample
                if run.state.get("long"):  # twice, so that it was no interruption
                    run.state["launches"] = 1
                run.state["long"] = True
                return Sample(estimate)
            estimate = min(estimate, self._stretch(run, 1), self._stretch(run, 1))
            launches, lead_in = self._launches(run, estimate)
            run.state["launches"] = launches
            run.state["lead_in"] = lead_in if estimate < INTERRUPTED_S and run.before is None else 0
        if lead_in := run.state.get("lead_in"):
            self._stretch(run, lead_in)
        return Sample(max(self._stretch(run, launches) / launches, SHORTEST_S))

    def _launches(self, run: Run, estimate_s: float) -> tuple[int, int]:
        """How many launches make (a stretch that is long enough, and that the timer sees well enough, a lead-in)."""
        most = MOST_FOR_COARSE if run.before is None else MOST_LAUNCHES  # restoring takes its time
        one_s, launches = estimate_s, 1
        while one_s * launches < 10 * self._step_s and launches < most:  # not to be seen yet
            launches *= 4
            one_s = self._stretch(run, launches) / launches
        one_s = max(one_s, SHORTEST_S)
        usual = min(MOST_LAUNCHES, math.ceil(STRETCH_S / one_s))
        lead_in = min(MOST_FOR_COARSE, math.ceil(self._lead_in_s / one_s))
        return max(1, usual, min(most, math.ceil(STEPS * self._step_s / one_s))), lead_in

    def _stretch(self, run: Run, launches: int) -> float:
        if run.before is not None:
            return math.fsum(self._alone(run) for _ in range(launches))
        launch, timer = _launch_of(run), self._timer
        start = timer()
        for _ in range(launches):
            launch()
        return timer() - start

    def _alone(self, run: Run) -> float:
        """One launch, with what has to be put back before it left out."""
        assert run.before is not None
        launch, timer = _launch_of(run), self._timer
        run.before()
        start = timer()
        launch()
        return timer() - start


def _launch_of(run: Run) -> Callable[[], Any]:
    """What is timed: arguments are checked before, as that takes many times as long as a small kernel of C."""
    if "launch" not in run.state:
        run.state["launch"] = bound(run.executable.launch, run.args)
    return run.state["launch"]


def _lead_in_of(device: Device) -> float:
    """Seconds that stretches are led in with: it doubles what brief launches cost, and only Intel's cores with vectors
    of 512 bits are known to need it."""
    return LEAD_IN_S if "intel" in device.name.lower() and "avx512f" in device.arch.split() else 0.0


def _step_of(timer: Callable[[], float]) -> float:
    """The least step that the timer is seen to make: what it resolves, or what asking it takes where that is more."""
    steps: list[float] = []
    for _ in range(5):
        start = now = timer()
        while now <= start:
            now = timer()
        steps.append(now - start)
    return min(steps)


#: ways of timing by the names that `clock=` takes; the first is the usual one of its kind of device
_NAMED = {
    "cpu": {"wall": (WallClock, True)},
    "gpu": {
        "events": (EventClock, True), "events-hot": (EventClock, False), "graph": (GraphClock, True),
        "graph-hot": (GraphClock, False),
    },
}  # fmt: skip
CLOCK_NAMES = tuple(name for names in _NAMED.values() for name in names)


def protocol_for(device: Device, name: str | None = None) -> str:
    """How kernels on a device are timed, as its Clock would say: for the Key of a call that only looks up.

    Raises:
        BadInput: for a way of timing that the device does not know.
    """
    if device.kind == "cpu":
        _named(device, name)
        return WallClock.protocol_of(_lead_in_of(device))
    if device.kind not in ("cuda", "hip"):
        return f"none for {device.kind}"
    kind, cold = _named(device, name)
    return kind.protocol_of(cold)


def clock_for(device: Device, name: str | None = None) -> Clock:
    """The Clock that times kernels on a device.

    Args:
        name: one of `CLOCK_NAMES`; the device's usual one if not given.

    Raises:
        BadInput: for a way of timing that the device does not know.
        MissingEngine: for a kind of device that this version cannot time.
    """
    if device.kind == "cpu":
        _named(device, name)
        return WallClock(lead_in_s=_lead_in_of(device))
    if device.kind in ("cuda", "hip"):
        kind, cold = _named(device, name)
        return kind(device, cold=cold)
    raise MissingEngine(
        f"no clock for {device.kind} devices in this version ({device.name}): pass clock= to autotune, "
        "or use policy('lookup') or policy('default'): export TUNESMITH_POLICY=lookup"
    )


def _named(device: Device, name: str | None) -> tuple[Any, bool]:
    known = _NAMED["cpu" if device.kind == "cpu" else "gpu"]
    if name is None:
        return next(iter(known.values()))
    if name not in known:
        raise BadInput(f"clock={name!r} on {device.name}: {unknown('way of timing', name, known)}")
    return known[name]
