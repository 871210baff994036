"""A scripted `torch.cuda`: what is queued takes the time that a test says, and is logged in its order."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tunesmith import Config
from tunesmith.core.device import known_device
from tunesmith.core.outcome import Resources

H200 = known_device("NVIDIA H200")
FLUSH_S, KERNEL_S = 60e-6, 5e-6


@dataclass
class Gpu:
    """What was queued, on a GPU that takes fixed times; host time passes only in `launch`."""

    free: int = 100 << 30
    capturing: bool = False
    node_s: float = 0.0  # what the host takes to queue a part of a graph
    current: int = 0
    log: list[str] = field(default_factory=list)
    host_s: float = 0.0  # now
    gpu_s: float = 0.0  # when what is queued will be done
    buffers: list[int] = field(default_factory=list)

    graph: list[tuple[str, float | Callable[[], float]]] | None = None  # under capture
    invalid: bool = False  # the capture: something was done that may not be
    pools: int = 0  # so many were made
    recording: set[int] = field(default_factory=set[int])  # pools that a capture has not ended well for

    def queue(self, what: str, seconds: float | Callable[[], float]) -> None:
        """Work of fixed length, or of one that is known when its turn comes."""
        if self.graph is not None:
            self.graph.append((what, seconds))
            return
        self.log.append(what)
        took = seconds() if callable(seconds) else seconds
        self.gpu_s = max(self.gpu_s, self.host_s) + took


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

    class Graph:
        def capture_begin(self, pool: int | None, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            if pool in gpu.recording:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            gpu.pools += pool is None
            self.memory = gpu.pools if pool is None else pool
            gpu.recording.add(self.memory)
            gpu.graph = self.work = list[tuple[str, float | Callable[[], float]]]()

        def capture_end(self) -> None:
            gpu.graph = None
            if gpu.invalid:  # as torch: memory is recorded to its pool still
                gpu.invalid = False
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
            gpu.recording.remove(self.memory)

        def pool(self) -> int:
            return self.memory

        def replay(self) -> None:
            gpu.host_s += 10e-6 + gpu.node_s * len(self.work)
            for what, seconds in self.work:
                gpu.queue(what, seconds)

    @contextmanager
    def in_stream(stream: Any) -> Iterator[None]:
        yield

    def synchronize() -> None:
        gpu.host_s = max(gpu.host_s, gpu.gpu_s)

    torch: Any = types.ModuleType("torch")
    stream = types.SimpleNamespace(cuda_stream=77, synchronize=lambda: None, wait_stream=lambda other: None)
    torch.cuda = types.SimpleNamespace(
        Event=Event, device=device, current_device=lambda: gpu.current, mem_get_info=lambda index: (gpu.free, 0),
        current_stream=lambda: stream, is_initialized=lambda: True,
        is_current_stream_capturing=lambda: gpu.capturing,
        get_device_properties=lambda index: types.SimpleNamespace(uuid=f"GPU-{index}"),
        CUDAGraph=Graph, Stream=lambda: stream, stream=in_stream, synchronize=synchronize,
    )  # fmt: skip
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
    torch.empty, torch.int8 = Buffer, None
    return torch


@dataclass
class Launched:
    gpu: Gpu
    host_s: float = 4e-6
    config: Config = field(default_factory=Config)
    resources: Resources = field(default_factory=Resources)

    def launch(self, *args: Any) -> None:
        self.gpu.host_s += self.host_s
        self.gpu.queue(f"kernel on {self.gpu.current}", KERNEL_S)


def tensor(index: int, gpu: Gpu | None = None) -> Any:
    def clone() -> None:
        assert gpu is not None
        gpu.queue("read", 1e-6)

    return types.SimpleNamespace(device=types.SimpleNamespace(type="cuda", index=index), clone=clone)
