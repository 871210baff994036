"""The least time that a chip's peak and bandwidth allow a launch: the roofline, and how much of it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith.core.device import Device
from tunesmith.core.model.work import Work


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What no Config of these tiles gets below on a chip, whatever else it does.

    Attributes:
        flops: of the launch, those of tiles that reach over an edge included.
        operations: of the vector lanes, alike.
        bytes: that memory can't be spared: each input once, each output once.
        dtype: whose peak holds.
        peak: FLOP/s. bandwidth: bytes/s.
        compute_s: the arithmetic at the peak. memory_s: the bytes at the bandwidth.
    """

    flops: float
    operations: float
    bytes: float
    dtype: str
    peak: float
    bandwidth: float
    compute_s: float
    memory_s: float

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which of the two takes longer."""
        return "compute" if self.compute_s >= self.memory_s else "memory"

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.compute_s, self.memory_s)

    def reached(self, seconds: float) -> float:
        """The part of the ceiling that a launch of so many seconds reaches; 1 is all there is."""
        return self.seconds / seconds


def ceiling(work: Work, device: Device) -> Ceiling | None:
    """The ceiling of one launch.

    Returns:
        `None` for a chip whose peak or bandwidth is not known, and for work that moves and computes nothing.
    """
    dtype = work.dtype if work.dtype in device.peak else "float32"
    peak, lanes = device.peak.get(dtype, 0.0), device.peak.get("float32", 0.0) / 2  # a multiply-add counts as two
    if not (peak and lanes and device.bandwidth):
        return None
    flops, operations = (work.blocks * work.steps * one for one in (work.flops, work.operations))
    compute_s, memory_s = flops / peak + operations / lanes, work.once_bytes / device.bandwidth
    if not max(compute_s, memory_s):
        return None
    return Ceiling(flops, operations, work.once_bytes, dtype, peak, device.bandwidth, compute_s, memory_s)
