"""What clocks of a GPU share, and the usual one: the time of one launch between two of the GPU's events.

Measured on an H200 (Triton 3.6, torch 2.11): two events with nothing between are 1.3 µs apart, and an empty kernel
between them makes 2.7 µs, where in a row of launches in a graph it takes 0.8. So events add about 2 µs to each launch,
the same to all: nothing to a kernel of 100 µs, two thirds of the figure for one of 1 µs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from time import perf_counter
from typing import Any, cast

from tunesmith.core.device import Device
from tunesmith.core.outcome import Sample
from tunesmith.core.stats import SHORTEST_S
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Run
from tunesmith.measure.allowed import why_not_to_measure
from tunesmith.measure.gpu_state import GpuState

#: A buffer so many times as large as the L2 cache leaves nothing of the arguments in it, whatever its policy.
L2_TIMES = 4
#: ... and where its size is not known: more than the largest of the GPUs before 2024 has.
USUAL_L2_BYTES = 64 * 1024**2
#: The GPU must still be flushing when the host has queued the launch: with this much to spare.
SPARE = 1.5
#: ... but is never kept busy with more flushes than this (some milliseconds): a launch that takes longer waits itself.
MOST_FLUSHES = 64
#: Kernels that take longer are compared under the load they make: at its power limit an H200 clocks a fifth lower than
#: in the first launches, and who computes densest falls furthest.
LONG_S = 300e-6
#: ... after so much of it: its power averages over about a second.
SETTLING_S = 1.0
#: ... queued in stretches of this, so that a budget that ends, or Ctrl-C, is noticed.
STRETCH_S = 0.05


class GpuClock:
    """What the GPU's clocks share: the arguments' device, the buffer that empties the cache, the state of the chip.

    Args:
        device: what the kernels run on.
        cold: whether the L2 cache holds none of the arguments when a launch begins, but those of `Run.hot`.

    Attributes:
        cold: the same.
        limits: what held the chip's clock back in any sample so far, in NVML's words.

    Raises:
        MissingEngine: without torch.
    """

    def __init__(self, device: Device, *, cold: bool = True) -> None:
        try:
            import torch
        except ImportError:
            raise MissingEngine("kernels on a GPU are timed through torch: pip install 'tunesmith[torch]'") from None
        self._cuda: Any = torch.cuda
        self._torch: Any = torch
        self.cold, self._l2_bytes = cold, device.l2_bytes
        self._flushes: dict[int, tuple[Any, float]] = {}
        self._state = GpuState()
        self.limits: set[str] = set()
        self.protocol = self.protocol_of(cold)

    @classmethod
    def protocol_of(cls, cold: bool) -> str:
        """What the Key says of it."""
        raise NotImplementedError

    def sample(self, run: Run) -> Sample:
        """Time one launch, alone on the GPU.

        Raises:
            BadInput: inside a CUDA graph's capture and while torch.compile traces.
        """
        why = why_not_to_measure()
        if why:
            raise BadInput(f"a kernel can't be timed {why}: what is queued there does not run yet")
        index = _device_index(run.args)
        with self._cuda.device(self._cuda.current_device() if index is None else index), self._cupy_follows():
            seconds = self._seconds(run)
            reading = self._state.reading(int(self._cuda.current_device()))
        self.limits.update(reading.limits)
        return Sample(max(seconds, SHORTEST_S), clock_hz=reading.clock_hz)  # below the events' tick

    def back_to_back(self, launch: Callable[..., Any], many: Sequence[Sequence[Any]], number: int) -> float:
        """Seconds of one of so many calls by the host's clock, from the first to when the GPU has done the last.

        Args:
            many: arguments by position; each call takes the next of them.

        Raises:
            BadInput: inside a CUDA graph's capture and while torch.compile traces.
        """
        why = why_not_to_measure()
        if why:
            raise BadInput(f"calls can't be timed {why}: what is queued there does not run yet")
        index = _device_index(many[0])
        with self._cuda.device(self._cuda.current_device() if index is None else index), self._cupy_follows():
            self._cuda.synchronize()
            start = perf_counter()
            for args in islice(cycle(many), number):
                launch(*args)
            self._cuda.synchronize()
            return (perf_counter() - start) / number

    def settle(self, run: Run, seconds: float, over: Callable[[], bool]) -> None:
        """Bring the GPU into the state in which long kernels run: launch one of them until its power and clock settle.

        Args:
            seconds: what a launch takes. A kernel of less than LONG_S is left alone: it does not load a GPU for long.
            over: whether there is time left.
        """
        if seconds < LONG_S:
            return
        index = _device_index(run.args)
        with self._cuda.device(self._cuda.current_device() if index is None else index), self._cupy_follows():
            end = perf_counter() + SETTLING_S
            while perf_counter() < end and not over():
                for _ in range(max(1, math.ceil(STRETCH_S / seconds))):
                    if run.before is not None:
                        run.before()
                    run()
                self._cuda.current_stream().synchronize()

    @contextmanager
    def _cupy_follows(self) -> Generator[None]:
        """Within this scope cupy's current stream is torch's, where the events are: so kernels go there too."""
        cupy: Any = sys.modules.get("cupy")
        if cupy is None:
            yield
            return
        cupy.cuda.get_current_stream().synchronize()  # what the caller has queued there
        with _in_cupy(cupy, int(self._cuda.current_stream().cuda_stream)):
            yield

    def _seconds(self, run: Run) -> float:
        raise NotImplementedError

    def _launch_alone(self, run: Run) -> None:
        if run.before is not None:
            run.before()
        run()
        self._cuda.current_stream().synchronize()

    def _warm(self, run: Run) -> None:
        """Put what the caller declared hot into the cache, after it was emptied."""
        for tensor in run.hot:
            tensor.clone()

    def _cache_bytes(self) -> int:
        """The size of the current device's L2."""
        index = int(self._cuda.current_device())
        known = self._l2_bytes or getattr(self._cuda.get_device_properties(index), "L2_cache_size", 0)
        return known or USUAL_L2_BYTES

    def _flush(self) -> tuple[Any, float]:
        """The buffer of the current device, and how long a pass over it takes."""
        index = int(self._cuda.current_device())
        if index not in self._flushes:
            size = max(1, min(L2_TIMES * self._cache_bytes(), self._cuda.mem_get_info(index)[0] // 2))
            buffer = self._torch.empty(size, dtype=self._torch.int8, device=f"cuda:{index}")
            buffer.zero_()
            self._flushes[index] = buffer, max(self._between(buffer.zero_), 1e-6)
        return self._flushes[index]

    def _queue_s(self, act: Callable[[], object]) -> float:
        """Seconds that the host takes to queue something on a GPU that has nothing to do."""
        begun = perf_counter()
        act()
        queued_s = perf_counter() - begun
        self._cuda.current_stream().synchronize()
        return queued_s

    def _between(self, act: Callable[[], object]) -> float:
        """Seconds on the GPU from before to after what `act` queues."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        act()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3


class EventClock(GpuClock):
    """Time between two events of the GPU around one launch, on the arguments' device and in its current stream.

    Before each launch a large buffer is overwritten: that empties the cache, and keeps the GPU busy until the host
    has queued the launch, so that its own cost is in no sample. Where one pass is too short for that, as a launch
    takes its time, more of them are made. With `cold=False` a launch that is not timed follows the buffer. The first
    sample of a Run is preceded by a launch that is not timed (lazy loading). Waits for the GPU in `sample` alone. The
    buffer goes when the clock does.
    """

    @classmethod
    def protocol_of(cls, cold: bool) -> str:
        return "cuda-events-cold-l2/1" if cold else "cuda-events-hot/1"

    def _seconds(self, run: Run) -> float:
        buffer, flush_s = self._flush()
        if "flushes" not in run.state:
            self._launch_alone(run)
            run.state["flushes"] = 1
        seconds, queued_s = self._timed(run, buffer)
        wanted = math.ceil(SPARE * queued_s / flush_s)
        if wanted > run.state["flushes"] and run.state["flushes"] < MOST_FLUSHES:
            run.state["flushes"] = min(wanted, MOST_FLUSHES)
            seconds, _ = self._timed(run, buffer)
        return seconds

    def _timed(self, run: Run, buffer: Any) -> tuple[float, float]:
        """(seconds on the GPU, seconds the host took to queue the launch)."""
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        if not self.cold:
            self._untimed(run, buffer)
        if run.before is not None:
            run.before()
        if self.cold:
            for _ in range(run.state["flushes"]):
                buffer.zero_()
            self._warm(run)
        begun = perf_counter()
        start.record()
        run()
        end.record()
        queued_s = perf_counter() - begun
        end.synchronize()
        return start.elapsed_time(end) * 1e-3, queued_s

    def _untimed(self, run: Run, buffer: Any) -> None:
        """Keep the GPU busy, then have the arguments read."""
        for _ in range(run.state["flushes"]):
            buffer.zero_()
        if run.before is not None:
            run.before()
        run()


class _TorchsStream:
    """torch's current stream, to those who ask for its address by the protocol of CUDA's Python libraries."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address  # the protocol's version first


def _in_cupy(cupy: Any, address: int) -> Any:
    """A scope in which cupy's current stream is the one at this address."""
    take_in = getattr(cupy.cuda.Stream, "from_external", None)  # none before cupy 14, which warns of the other way
    return cupy.cuda.ExternalStream(address) if take_in is None else take_in(_TorchsStream(address))


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
