"""The time of one launch: `WallClock` for a kernel that runs on the CPU, `EventClock` for one on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import Any, cast

from tunesmith.core.device import Device
from tunesmith.core.outcome import Sample
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Clock, Run
from tunesmith.measure.allowed import why_not_to_measure

#: A timed stretch lasts at least this: 10,000 ticks of a 100 ns timer, and ten times a thread's wake-up.
STRETCH_S = 1e-3
#: ... but is never made of more launches than this, so that a kernel of 50 ns costs 0.2 ms a sample.
MOST_LAUNCHES = 4096
#: A launch shorter than this is timed three times before it decides how many make a stretch: one of them may have
#: been interrupted for a scheduler's time slice (4 to 10 ms), hardly all.
INTERRUPTED_S = 10e-3

#: A buffer so many times as large as the L2 cache leaves nothing of the arguments in it, whatever its policy.
L2_TIMES = 4
#: ... and where the cache's size is not known: four times the largest of the GPUs before 2024.
USUAL_FLUSH_BYTES = 256 * 1024**2
#: The GPU must still be flushing when the host has queued the launch: with this much to spare.
SPARE = 1.5
#: ... but is never kept busy with more flushes than this (some milliseconds): a launch that takes longer waits itself.
MOST_FLUSHES = 64


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


class EventClock:
    """Time between two events of the GPU around one launch, its L2 cache cold, on the arguments' device and in the
    stream that is current there.

    Before each launch a large buffer is overwritten: that empties the cache, and keeps the GPU busy until the host
    has queued the launch, so that its own cost is in no sample. Where one pass is too short for that, as a launch
    takes its time, more of them are made. The first sample of a Run is preceded by a launch that is not timed (lazy
    loading). Waits for the GPU in `sample` alone. The buffer goes when the clock does.

    Args:
        device: what the kernels run on.

    Raises:
        MissingEngine: without torch.
    """

    protocol = "cuda-events-cold-l2/1"

    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError:
            raise MissingEngine("kernels on a GPU are timed through torch: pip install 'tunesmith[torch]'") from None
        self._cuda: Any = torch.cuda
        self._torch: Any = torch
        self._l2_bytes = device.l2_bytes
        self._flushes: dict[int, tuple[Any, float]] = {}

    def sample(self, run: Run) -> Sample:
        why = why_not_to_measure()
        if why:
            raise BadInput(f"a kernel can't be timed {why}: what is queued there does not run yet")
        index = _device_index(run.args)
        with self._cuda.device(self._cuda.current_device() if index is None else index):
            buffer, flush_s = self._flush()
            if "flushes" not in run.state:
                self._launch_alone(run)
                run.state["flushes"] = 1
            seconds, queued_s = self._timed(run, buffer)
            wanted = math.ceil(SPARE * queued_s / flush_s)
            if wanted > run.state["flushes"] and run.state["flushes"] < MOST_FLUSHES:
                run.state["flushes"] = min(wanted, MOST_FLUSHES)
                seconds, _ = self._timed(run, buffer)
        return Sample(max(seconds, 1e-9))  # below the events' tick: said to be a nanosecond, not nothing

    def _launch_alone(self, run: Run) -> None:
        if run.before is not None:
            run.before()
        run()
        self._cuda.current_stream().synchronize()

    def _timed(self, run: Run, buffer: Any) -> tuple[float, float]:
        """(seconds on the GPU, seconds the host took to queue the launch)."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        if run.before is not None:
            run.before()
        for _ in range(run.state["flushes"]):
            buffer.zero_()
        begun = perf_counter()
        start.record()
        run()
        end.record()
        queued_s = perf_counter() - begun
        end.synchronize()
        return start.elapsed_time(end) * 1e-3, queued_s

    def _flush(self) -> tuple[Any, float]:
        """The buffer of the current device, and how long a pass over it takes."""
        index = int(self._cuda.current_device())
        if index not in self._flushes:
            l2 = self._l2_bytes or getattr(self._cuda.get_device_properties(index), "L2_cache_size", 0)
            free = self._cuda.mem_get_info(index)[0]
            size = max(1, min(L2_TIMES * l2 or USUAL_FLUSH_BYTES, free // 2))
            buffer = self._torch.empty(size, dtype=self._torch.int8, device=f"cuda:{index}")
            start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            buffer.zero_()
            start.record()
            buffer.zero_()
            end.record()
            end.synchronize()
            self._flushes[index] = buffer, max(start.elapsed_time(end) * 1e-3, 1e-6)
        return self._flushes[index]


def _device_index(args: Iterable[Any]) -> int | None:
    """The GPU that the first tensor among the arguments is on, `None` if there is no tensor."""
    for value in _flat(args):
        device: Any = getattr(value, "device", None)
        if getattr(device, "type", None) == "cuda":
            return device.index
    return None


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    """Arguments, the items of tuples and lists, and the tensors under tensor descriptors."""
    for value in args:
        if isinstance(value, (tuple, list)):
            yield from _flat(cast("Iterable[Any]", value))
        else:
            yield value
            if hasattr(value, "block_shape") and hasattr(value, "base"):
                yield value.base


#: kind of device → how its kernels are timed, in words: known without a Clock, for the Key of a call that only looks up
PROTOCOLS = {"cpu": WallClock.protocol, "cuda": EventClock.protocol, "hip": EventClock.protocol}


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
    if device.kind in ("cuda", "hip"):
        return EventClock(device)
    raise MissingEngine(
        f"no clock for {device.kind} devices in this version ({device.name}): pass clock= to autotune, "
        "or use policy('lookup') or policy('default'): export TUNESMITH_POLICY=lookup"
    )
