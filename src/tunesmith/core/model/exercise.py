"""The reference exercise's rules: a rougher model that cuts by estimates, for teaching and for comparing with it.

Time is the larger of waves × blocks a wave × FLOPs of a full tile ÷ peak and tiled bytes ÷ bandwidth, plus 5 µs.
"""

from __future__ import annotations

from tunesmith.core.device import Device
from tunesmith.core.model.occupancy import MOST_REGISTERS, residency
from tunesmith.core.model.prediction import Bound, Prediction
from tunesmith.core.model.work import Work
from tunesmith.core.outcome import Resources

OVERHEAD_S = 5e-6
#: More of a tile's side than this outside the arrays, and the Config is cut.
MOST_PADDING = 0.5


def predict_exercise(work: Work, device: Device) -> Prediction | None:
    """As `predict`, by the exercise's rules: no L2, no latency but the overhead, and estimates that cut.

    Returns:
        `None` for a chip whose limits, bandwidth or peak are not known.
    """
    peak = device.peak.get(work.dtype, 0.0)
    resources = Resources(registers=work.registers, shared_bytes=work.shared_bytes, threads=work.threads)
    held = residency(device, resources)
    if held is None or not peak or not device.bandwidth:
        return None
    a_wave = device.units * max(1, held.blocks)
    waves = -(-work.blocks // a_wave)
    compute_s = waves * a_wave * work.steps * work.flops / peak
    memory_s = work.tiled_bytes / device.bandwidth
    bound: Bound = "compute" if compute_s >= memory_s else "memory"
    return Prediction(
        seconds=max(compute_s, memory_s) + OVERHEAD_S,
        bound="latency" if max(compute_s, memory_s) <= OVERHEAD_S else bound,
        compute_s=compute_s, memory_s=memory_s, latency_s=OVERHEAD_S,
        waves=waves, blocks=work.blocks, resident=held.blocks, occupancy=held.part, limit=held.by,
        tiled_bytes=work.tiled_bytes, memory_bytes=work.tiled_bytes, cut=_cut(work, device),
    )  # fmt: skip


def _cut(work: Work, device: Device) -> str:
    """Why the exercise leaves a Config out: shared memory first, then registers, then padding."""
    if work.shared_bytes > device.shared_bytes_per_block:
        return f"shared memory: an estimated {work.shared_bytes:,} bytes a block of {device.shared_bytes_per_block:,}"
    if work.registers > MOST_REGISTERS:
        return f"registers: an estimated {work.registers} a thread of {MOST_REGISTERS}"
    if work.padding > MOST_PADDING:
        return f"padding: {work.padding:.0%} of a tile's side lies outside the arrays, {MOST_PADDING:.0%} at most"
    return ""
