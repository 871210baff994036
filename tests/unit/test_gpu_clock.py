"""The GPU's clocks on a scripted torch.cuda: order of work, cold cache, the host's cost hidden, graphs, refusals."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fake_gpu import H200, KERNEL_S, Gpu, Launched, fake_torch, tensor

from tunesmith.backends.cpu import cpu
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Run
from tunesmith.measure import gpu_clock as clocks
from tunesmith.measure.clock import clock_for, protocol_for
from tunesmith.measure.gpu_clock import EventClock
from tunesmith.measure.gpu_state import GpuState


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(made))
    monkeypatch.setattr(clocks, "perf_counter", lambda: made.host_s)
    return made


def test_restore_then_flush_then_time(gpu: Gpu) -> None:
    clock = clock_for(H200)
    assert isinstance(clock, EventClock)
    run = Run(Launched(gpu), ((1,), tensor(0)), before=lambda: gpu.log.append("restore"))
    clock.sample(run)
    gpu.log.clear()
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    assert gpu.log == ["restore", "flush", "event", "kernel on 0", "event"]


@pytest.mark.parametrize(("host_s", "call_s"), [(2e-6, KERNEL_S), (11e-6, 11e-6)])
def test_calls_back_to_back_take_the_longer_of_host_and_gpu(gpu: Gpu, host_s: float, call_s: float) -> None:
    clock = clock_for(H200, "graph")
    launched, seen = Launched(gpu, host_s), list[Any]()
    many = [(tensor(1), number) for number in range(3)]

    def launch(*args: Any) -> None:
        seen.append(args[1])
        launched.launch(*args)

    assert isinstance(clock, clocks.GpuClock)
    assert clock.back_to_back(launch, many, 1000) == pytest.approx(call_s, rel=0.01)
    assert seen[:7] == [0, 1, 2, 0, 1, 2, 0]
    assert set(gpu.log) == {"kernel on 1"}
    gpu.capturing = True
    with pytest.raises(BadInput, match="inside a CUDA graph's capture"):
        clock.back_to_back(launch, many, 1000)


@pytest.mark.parametrize("before_14", [False, True])
@pytest.mark.parametrize("name", ["events", "graph"])
def test_cupys_kernels_are_timed_in_the_stream_of_the_events(
    name: str, before_14: bool, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = [5]  # a stream of the caller's

    @contextmanager
    def external(pointer: int) -> Iterator[None]:
        current.append(pointer)
        yield
        current.pop()

    cupy: Any = types.ModuleType("cupy")
    stream = types.SimpleNamespace(synchronize=lambda: gpu.log.append(f"wait for {current[-1]}"))
    from_external = {} if before_14 else {"from_external": lambda told: external(told.__cuda_stream__()[1])}
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: stream, Stream=types.SimpleNamespace(**from_external))
    if before_14:
        cupy.cuda.ExternalStream = external
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    launched, seen = Launched(gpu), set[int]()
    original = launched.launch
    launched.launch = lambda *args: (seen.add(current[-1]), original(*args))  # type: ignore[method-assign]
    clock_for(H200, name).sample(Run(launched, (tensor(0),)))
    assert seen == {77}
    assert current == [5]
    assert gpu.log[0] == "wait for 5"


def test_the_first_launch_is_not_timed(gpu: Gpu) -> None:
    EventClock(H200).sample(Run(Launched(gpu), (tensor(0),)))
    assert gpu.log.count("kernel on 0") == 2


def test_it_times_on_the_tensors_gpu(gpu: Gpu) -> None:
    EventClock(H200).sample(Run(Launched(gpu), ((8,), 4, (tensor(1),))))
    assert "kernel on 1" in gpu.log
    assert "kernel on 0" not in gpu.log
    assert gpu.current == 0


@pytest.mark.parametrize("launch_s", [50e-6, 300e-6])
def test_a_slow_launch_gets_more_flushes_until_it_is_hidden(gpu: Gpu, launch_s: float) -> None:
    clock, run = EventClock(H200), Run(Launched(gpu, launch_s), (tensor(0),))
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    gpu.log.clear()
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    assert gpu.log.count("kernel on 0") == 1


def test_the_buffer_is_four_times_the_cache_and_never_more_than_half_of_what_is_free(gpu: Gpu) -> None:
    EventClock(H200).sample(Run(Launched(gpu), (tensor(0),)))
    gpu.free = 1 << 20
    EventClock(H200).sample(Run(Launched(gpu), (tensor(0),)))
    assert gpu.buffers == [4 * H200.l2_bytes, 1 << 19]


def test_it_refuses_inside_a_capture_and_queues_nothing(gpu: Gpu) -> None:
    clock = EventClock(H200)
    gpu.capturing = True
    with pytest.raises(BadInput, match="capture"):
        clock.sample(Run(Launched(gpu), (tensor(0),)))
    assert gpu.log == []


def test_without_torch_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingEngine, match="pip install"):
        clock_for(H200)


def test_what_is_declared_hot_is_read_after_the_cache_is_emptied(gpu: Gpu) -> None:
    clock, x = EventClock(H200), tensor(0, gpu)
    run = Run(Launched(gpu), (x,), hot=(x,))
    clock.sample(run)
    gpu.log.clear()
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    assert gpu.log == ["flush", "read", "event", "kernel on 0", "event"]


def test_hot_is_after_a_launch_that_is_not_timed(gpu: Gpu) -> None:
    clock, run = (
        clock_for(H200, "events-hot"),
        Run(Launched(gpu), (tensor(0),), before=lambda: gpu.log.append("restore")),
    )
    clock.sample(run)
    gpu.log.clear()
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    assert gpu.log == ["flush", "restore", "kernel on 0", "restore", "event", "kernel on 0", "event"]


def test_each_way_of_timing_has_its_protocol_and_a_wrong_name_the_good_ones() -> None:
    names = ["events", "events-hot", "graph", "graph-hot"]
    assert len({protocol_for(H200, name) for name in names}) == 4
    assert protocol_for(H200) == protocol_for(H200, "events")
    with pytest.raises(BadInput, match="unknown way of timing 'graphs': did you mean 'graph'"):
        protocol_for(H200, "graphs")
    with pytest.raises(BadInput, match="wall"):
        clock_for(cpu(), "graph")


# --- the chip's state ---


class Nvml(types.ModuleType):
    NVMLError, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = RuntimeError, 1, 0

    def __init__(self, reasons: int) -> None:
        super().__init__("pynvml")
        self.reasons, self.asked = reasons, 0

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self.asked += 1
        return 1605

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 687_000

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons


def test_a_long_kernel_is_launched_until_the_gpu_is_in_the_state_it_works_in(gpu: Gpu) -> None:
    clock = EventClock(H200)
    restored = list[int]()
    run = Run(Launched(gpu), (tensor(0),), before=lambda: restored.append(1))
    clock.settle(run, 2e-3, lambda: False)
    launches = gpu.log.count("kernel on 0")
    assert len(restored) == launches  # what a kernel adds to in place must not grow without end


def test_a_short_kernel_does_not_load_a_gpu_and_a_budget_that_has_ended_is_kept(gpu: Gpu) -> None:
    clock = EventClock(H200)
    clock.settle(Run(Launched(gpu), (tensor(0),)), clocks.LONG_S / 2, lambda: False)
    clock.settle(Run(Launched(gpu), (tensor(0),)), 2e-3, lambda: True)
    assert gpu.log == []


@pytest.mark.parametrize(("bits", "limits"), [(0x4, ("the power limit",)), (0x1, ()), (0, ())])
def test_a_sample_carries_the_clock_and_a_reading_says_what_holds_it_back(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, bits: int, limits: tuple[str, ...]
) -> None:
    nvml = Nvml(bits)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("tunesmith.measure.gpu_state.perf_counter", lambda: gpu.host_s)
    clock, run = EventClock(H200), Run(Launched(gpu), (tensor(0),))
    assert clock.sample(run).clock_hz == 1605e6
    assert clock.limits == set(limits)
    clock.sample(run)
    assert nvml.asked == 1  # a reading serves some milliseconds
    reading = GpuState().reading(0)
    assert (reading.power_w, reading.temperature_c, reading.limits) == (687.0, 61.0, limits)


def test_without_nvml_a_sample_has_no_clock(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert EventClock(H200).sample(Run(Launched(gpu), (tensor(0),))).clock_hz is None
