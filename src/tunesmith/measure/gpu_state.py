"""What a GPU does while kernels are timed on it: its clock, and why that is not higher. Through NVML, where it is."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

#: A reading serves this long: it takes 50 µs, and the driver takes a new one every few milliseconds.
FRESH_S = 5e-3
#: what NVML calls the reasons that are no fault of the load, by bit
_IDLE = 0x1
_REASONS = {
    0x2: "the clocks an application asked for", 0x4: "the power limit", 0x8: "hardware slowdown", 0x10: "boost sync",
    0x20: "the temperature limit", 0x40: "hardware: temperature", 0x80: "hardware: power brake",
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """One look at a GPU. What can't be read is `None`.

    Attributes:
        clock_hz: of the streaming multiprocessors.
        limits: why the clock is not higher; empty where nothing holds it back.
    """

    clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    limits: tuple[str, ...] = ()


class GpuState:
    """Reads the GPUs of this process. Without the package `nvidia-ml-py`, or a driver, every reading is empty."""

    def __init__(self) -> None:
        self._readings: dict[int, tuple[float, Reading]] = {}
        self._handles: dict[int, Any] = {}

    def reading(self, index: int) -> Reading:
        """The state of torch's GPU of this number, some milliseconds old at most."""
        now = perf_counter()
        known = self._readings.get(index)
        if known is None or now - known[0] > FRESH_S:
            known = self._readings[index] = now, self._read(index)
        return known[1]

    @cached_property
    def _nvml(self) -> Any | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the deprecated package of the same name
                nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        return nvml

    def _read(self, index: int) -> Reading:
        nvml = self._nvml
        if nvml is None:
            return Reading()
        try:
            if index not in self._handles:
                self._handles[index] = nvml.nvmlDeviceGetHandleByUUID(_uuid(index))
            handle = self._handles[index]
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            return Reading(
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
                nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                tuple(name for bit, name in _REASONS.items() if bits & bit and not bits & _IDLE),
            )
        except nvml.NVMLError:  # a slice of a GPU, say: it has no clock of its own
            return Reading()


def _uuid(index: int) -> str:
    """NVML counts all GPUs of the host, torch those that are visible to it: the name that both know."""
    import torch

    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
