"""CUDA without a GPU: a driver that reads a launch's arguments as the GPU would, and arrays whose memory is the host's.

Kernels are compiled in earnest, for an H200. What a launch does is a function of Python's, by the kernel's name.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tunesmith.backends.cuda import driver
from tunesmith.core.device import known_device

H200 = known_device("NVIDIA H200")


class Code(IntEnum):
    """CUresult, as far as it is given."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201


OK = Code.CUDA_SUCCESS


class GpuArray:
    """An array that says it is on a GPU, by `__cuda_array_interface__`; its content is a numpy array's."""

    def __init__(self, host: Any, index: int = 0) -> None:
        self.host, self.index = host, index
        self.dtype, self.shape = host.dtype, host.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.host.__array_interface__, "version": 3}


@dataclass(frozen=True)
class Launch:
    """What the driver was given. `arguments`: the address of each in turn. `dependent`: it may begin early."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    arguments: tuple[int, ...]
    dependent: bool = False

    def read(self, number: int, ctype: Any) -> Any:
        """An argument, as the kernel would see it."""
        return ctype.from_address(self.arguments[number]).value

    def array(self, number: int, n: int, ctype: Any) -> Any:
        """What an argument points to, as numpy's array."""
        import numpy as np

        return np.ctypeslib.as_array((ctype * n).from_address(self.read(number, ctypes.c_uint64)))


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, as far as it is used."""

    class Value(ctypes.Structure):
        _fields_ = [("programmaticStreamSerializationAllowed", ctypes.c_int), ("pad", ctypes.c_char * 60)]

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", Value)]

    def getPtr(self) -> int:
        return ctypes.addressof(self)


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_uint64), ("attributes", ctypes.POINTER(LaunchAttribute)), ("n_attributes", ctypes.c_uint),
    ]  # fmt: skip

    def getPtr(self) -> int:
        return ctypes.addressof(self)


class FakeDriver(ModuleType):
    """`cuda.bindings.driver` of some H200s. A thread has no context until it is given one.

    Attributes:
        acts: what a launch of a kernel does, by the kernel's name in its cubin, or its beginning.
        launches: all so far. attributes: what functions were allowed.
        refuses: what a launch is answered.
    """

    def __init__(self, n_devices: int = 1) -> None:
        super().__init__("cuda.bindings.driver")
        self.n_devices = n_devices
        self.acts: dict[str, Callable[[Launch], None]] = {}
        self.launches: list[Launch] = []
        self.attributes: list[tuple[str, int]] = []
        self.refuses = OK
        self._threads = threading.local()
        self._n_arguments: dict[str, int] = {}
        self.CUlaunchAttribute, self.CUlaunchConfig = LaunchAttribute, LaunchConfig
        self.CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION=6)
        self.CUdevice_attribute = self.CUpointer_attribute = self.CUfunction_attribute = _Names()

    @property
    def stack(self) -> list[int]:
        """This thread's contexts; that of device n is n + 1."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        return self._threads.stack

    def takes(self, entry: str, n_arguments: int, act: Callable[[Launch], None] = lambda launch: None) -> None:
        """Say what a kernel whose name begins so takes and does."""
        self.acts[entry], self._n_arguments[entry] = act, n_arguments

    def cuInit(self, flags: int) -> tuple[Any]:
        return (OK,)

    def cuGetErrorName(self, code: Any) -> tuple[Any, bytes]:
        return OK, Code(code).name.encode()

    def cuGetErrorString(self, code: Any) -> tuple[Any, bytes]:
        return OK, b"in words"

    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return OK, self.n_devices

    def cuDeviceGet(self, index: int) -> tuple[Any, int]:
        return OK, index

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, bytes]:
        return OK, b"NVIDIA H200\0\0"

    def cuDeviceTotalMem(self, device: int) -> tuple[Any, int]:
        return OK, H200.memory_bytes

    def cuDeviceGetAttribute(self, name: str, device: int) -> tuple[Any, int]:
        values = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132}
        return OK, values[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, int]:
        return OK, device + 1

    def cuCtxGetDevice(self) -> tuple[Any, int]:
        return (OK, self.stack[-1] - 1) if self.stack else (Code.CUDA_ERROR_INVALID_CONTEXT, 0)

    def cuCtxGetCurrent(self) -> tuple[Any, int]:
        return OK, self.stack[-1] if self.stack else 0

    def cuCtxSetCurrent(self, context: int) -> tuple[Any]:
        self.stack[-1:] = [context]
        return (OK,)

    def cuCtxPushCurrent(self, context: int) -> tuple[Any]:
        self.stack.append(context)
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[Any, int]:
        return OK, self.stack.pop()

    def cuPointerGetAttribute(self, name: str, address: int) -> tuple[Any, int]:
        return OK, 0

    def cuModuleLoadData(self, cubin: bytes) -> tuple[Any, bytes]:
        assert cubin.startswith(b"\x7fELF")
        return OK, cubin

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[Any, Any]:
        assert name in module
        return OK, SimpleNamespace(entry=name.decode(), context=self.stack[-1])

    def cuFuncSetAttribute(self, function: Any, name: str, value: int) -> tuple[Any]:
        self.attributes.append((name.removeprefix("CU_FUNC_ATTRIBUTE_"), value))
        return (OK,)

    def cuLaunchKernel(
        self, function: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
        parameters: int, extra: int, dependent: bool = False,
    ) -> tuple[Any]:  # fmt: skip
        if not self.stack:
            return (Code.CUDA_ERROR_INVALID_CONTEXT,)
        if self.refuses or self.stack[-1] != function.context:
            return (self.refuses or Code.CUDA_ERROR_INVALID_VALUE,)
        known = next(entry for entry in self._n_arguments if function.entry.startswith(entry))
        pointers = (ctypes.c_uint64 * self._n_arguments[known]).from_address(parameters)
        launch = Launch(function.entry, (gx, gy, gz), (bx, by, bz), shared, stream, tuple(pointers), dependent)
        self.launches.append(launch)
        self.acts[known](launch)
        return (OK,)

    def cuLaunchKernelEx(self, config: LaunchConfig, function: Any, parameters: int, extra: int) -> tuple[Any]:
        given = [config.attributes[i] for i in range(config.n_attributes)]
        dependent = [(one.id, one.value.programmaticStreamSerializationAllowed) for one in given] == [(6, 1)]
        return self.cuLaunchKernel(
            function, *config.grid, *config.block, config.shared, config.stream, parameters, extra, dependent
        )


class _Names:
    """An enumeration of the driver's, in which every name stands for itself."""

    def __getattr__(self, name: str) -> str:
        return name


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch, n_devices: int = 1) -> Iterator[FakeDriver]:
    """Within this scope CUDA has this driver."""
    fake = FakeDriver(n_devices)
    cached = (driver.driver, driver.device_count, driver.device_at, driver._context, driver.dependent_attribute)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "cuda.bindings.driver", fake)
        for function in cached:
            function.cache_clear()
        try:
            yield fake
        finally:
            for function in cached:
                function.cache_clear()
