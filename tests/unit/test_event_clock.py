"""The GPU's clock on a scripted torch.cuda: order of work, cold cache, the host's cost hidden, refusals."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tunesmith import Config
from tunesmith.core.device import known_device
from tunesmith.core.outcome import Resources
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.kernel import Run
from tunesmith.measure import clock as clocks
from tunesmith.measure.clock import EventClock, clock_for

H200 = known_device("NVIDIA H200")
FLUSH_S, KERNEL_S = 60e-6, 5e-6


@dataclass
class Gpu:
    """What was queued, on a GPU that takes fixed times; host time passes only in `launch`."""

    free: int = 100 << 30
    capturing: bool = False
    current: int = 0
    log: list[str] = field(default_factory=list)
    host_s: float = 0.0  # now
    gpu_s: float = 0.0  # when what is queued will be done
    buffers: list[int] = field(default_factory=list)

    def queue(self, what: str, seconds: float) -> None:
        self.log.append(what)
        self.gpu_s = max(self.gpu_s, self.host_s) + seconds


def fake_torch(gpu: Gpu) -> types.ModuleType:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            gpu.log.append("event")
            self.at = max(gpu.gpu_s, gpu.host_s)

        def synchronize(self) -> None:
            gpu.host_s = max(gpu.host_s, gpu.gpu_s)

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1e3

    class Buffer:
        def __init__(self, size: int, **_: Any) -> None:
            gpu.buffers.append(size)

        def zero_(self) -> None:
            gpu.queue("flush", FLUSH_S)

    @contextmanager
    def device(index: int) -> Iterator[None]:
        before, gpu.current = gpu.current, index
        yield
        gpu.current = before

    torch: Any = types.ModuleType("torch")
    stream = types.SimpleNamespace(synchronize=lambda: None)
    torch.cuda = types.SimpleNamespace(
        Event=Event, device=device, current_device=lambda: gpu.current, mem_get_info=lambda index: (gpu.free, 0),
        current_stream=lambda: stream, is_initialized=lambda: True,
        is_current_stream_capturing=lambda: gpu.capturing,
        get_device_properties=lambda index: types.SimpleNamespace(),
    )  # fmt: skip
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
    torch.empty, torch.int8 = Buffer, None
    return torch


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(made))
    monkeypatch.setattr(clocks, "perf_counter", lambda: made.host_s)
    return made


@dataclass
class Launched:
    gpu: Gpu
    host_s: float = 4e-6
    config: Config = field(default_factory=Config)
    resources: Resources = field(default_factory=Resources)

    def launch(self, *args: Any) -> None:
        self.gpu.host_s += self.host_s
        self.gpu.queue(f"kernel on {self.gpu.current}", KERNEL_S)


def tensor(index: int) -> Any:
    return types.SimpleNamespace(device=types.SimpleNamespace(type="cuda", index=index))


def test_restore_then_flush_then_time(gpu: Gpu) -> None:
    clock = clock_for(H200)
    assert isinstance(clock, EventClock)
    run = Run(Launched(gpu), ((1,), tensor(0)), before=lambda: gpu.log.append("restore"))
    clock.sample(run)
    gpu.log.clear()
    assert clock.sample(run).seconds == pytest.approx(KERNEL_S)
    assert gpu.log == ["restore", "flush", "event", "kernel on 0", "event"]


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
