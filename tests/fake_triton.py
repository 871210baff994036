"""Triton without a GPU: a driver whose launcher only notes what it is given, and tensors that say they are on a GPU.

Kernels are compiled in earnest; nothing runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler import CompiledKernel
from triton.runtime import driver

from tunesmith.backends import cpu
from tunesmith.core.device import Device, known_device

H200 = known_device("NVIDIA H200")
# From 3.9 on a kernel that goes unloads its module through the driver in force then: here there is nothing to unload.
if hasattr(CompiledKernel, "__del__"):
    CompiledKernel.__del__ = lambda self: None

_addresses = itertools.count(1 << 32, 1 << 20)


class GpuTensor:
    """A tensor that is said to be on a GPU: its shape, strides, dtype and address, and no content."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float16, index: int = 0, offset: int = 0) -> None:
        self.shape, self.dtype, self.device = torch.Size(shape), dtype, torch.device("cuda", index)
        self._address = next(_addresses) + offset

    def data_ptr(self) -> int:
        return self._address

    def get_device(self) -> int:
        return int(self.device.index)

    def stride(self, dim: int | None = None) -> Any:
        strides = [1]
        for size in self.shape[:0:-1]:
            strides.insert(0, strides[0] * size)
        return tuple(strides) if dim is None else strides[dim]

    def element_size(self) -> int:
        return self.dtype.itemsize


@dataclass
class Launch:
    """What a launcher was given."""

    grid: tuple[int, int, int]
    stream: int
    function: int
    hooks: tuple[Any, Any]
    args: tuple[Any, ...]
    device: int
    kernel: str


@dataclass
class FakeDriver(DriverBase):
    """Two H200s, of which one is current."""

    max_shared: int = 232448
    current: int = 0
    launches: list[Launch] = field(default_factory=list)
    loaded: list[tuple[str, int]] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fake = self

        class Launcher:
            def __init__(self, src: Any, metadata: Any) -> None:
                self.kernel = metadata.name

            def __call__(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
                metadata, enter, leave, *args = rest
                if enter is not None:
                    enter(metadata)
                hooks = (enter, leave)
                fake.launches.append(Launch((x, y, z), stream, function, hooks, tuple(args), fake.current, self.kernel))
                if leave is not None:
                    leave(metadata)

        self.launcher_cls = Launcher
        self.utils = self

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return self.current

    def set_current_device(self, index: int) -> None:
        self.current = index

    def get_current_stream(self, index: int) -> int:
        return self.streams.get(index, 0)

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self.current)

    def get_benchmarker(self) -> Any:
        raise AssertionError("nothing is timed through the driver")

    # --- utils ---

    def get_device_properties(self, index: int) -> dict[str, int]:
        return {"max_shared_mem": self.max_shared}

    def load_binary(self, name: str, binary: bytes, shared: int, index: int) -> tuple[int, int, int, int, int]:
        self.loaded.append((name, index))
        number = len(self.loaded)
        return number, 1000 + number, 32, 0, 1024

    def unload_module(self, module: int) -> None:
        pass


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch, device: Device = H200) -> Iterator[FakeDriver]:
    """Within this scope Triton has this driver, and tunesmith takes `cuda:N` for `device`."""
    from triton.compiler import compiler

    fake = FakeDriver(device.shared_bytes_per_block)
    compiler.max_shared_mem.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(driver, "_active", fake)
        patched.setattr(cpu, "gpu_at", lambda index: device)
        yield fake
    compiler.max_shared_mem.cache_clear()


def launch_args(launch: Launch, names: Sequence[str]) -> dict[str, Any]:
    """What a kernel was launched with, by parameter."""
    return dict(zip(names, launch.args, strict=True))
