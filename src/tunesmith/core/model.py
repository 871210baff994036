"""What a compiled kernel's resources mean on a chip: how much of it can be busy at once."""

from __future__ import annotations

from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources

#: registers are given to a warp in units of so many for each thread; shared memory that CUDA keeps of each block
_REGISTER_UNIT, _SHARED_RESERVED = 8, 1024


def occupancy(device: Device, resources: Resources) -> float | None:
    """The part of a unit's threads that can be resident, by registers, shared memory, threads and blocks.

    `None` where the chip's limits or the kernel's threads are not known. Zero: not even one block fits.

    >>> from tunesmith.core.device import known_device
    >>> occupancy(known_device("NVIDIA H200"), Resources(registers=128, shared_bytes=98304, threads=128))
    0.125
    """
    threads = resources.threads
    if not threads or not device.threads_per_unit:
        return None
    blocks = device.threads_per_unit // threads
    if device.blocks_per_unit:
        blocks = min(blocks, device.blocks_per_unit)
    if resources.registers and device.registers_per_unit:
        each = -(-resources.registers // _REGISTER_UNIT) * _REGISTER_UNIT
        blocks = min(blocks, device.registers_per_unit // (each * threads))
    if resources.shared_bytes and device.shared_bytes_per_unit:
        reserved = _SHARED_RESERVED if device.kind == "cuda" else 0
        blocks = min(blocks, device.shared_bytes_per_unit // (resources.shared_bytes + reserved))
        if device.shared_bytes_per_block and resources.shared_bytes > device.shared_bytes_per_block:
            blocks = 0
    return blocks * threads / device.threads_per_unit
