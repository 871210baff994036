"""How many blocks of a compiled kernel a unit of a chip holds at once, and what stops it from holding more."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources

#: registers are given to a warp in units of so many for each thread; shared memory that CUDA keeps of each block
REGISTER_UNIT, SHARED_RESERVED = 8, 1024
#: CUDA's and HIP's limits of one block and of one thread, the same for all chips in use
MOST_THREADS, MOST_REGISTERS = 1024, 255


@dataclass(frozen=True, slots=True)
class Residency:
    """What a unit (an SM, a compute unit) holds at once.

    Attributes:
        blocks: of one kernel on one unit; 0 where not even one fits.
        by: what runs out first: `threads`, `blocks`, `registers` or `shared memory`.
        part: of the threads the unit could hold, 0 to 1.
    """

    blocks: int
    by: str
    part: float


def residency(device: Device, resources: Resources) -> Residency | None:
    """How many blocks fit on a unit by threads, blocks, registers and shared memory.

    `None` where the chip's limits or the kernel's threads are not known.
    """
    threads = resources.threads
    if not threads or not device.threads_per_unit:
        return None
    fit = {"threads": device.threads_per_unit // threads}
    if device.blocks_per_unit:
        fit["blocks"] = device.blocks_per_unit
    if resources.registers and device.registers_per_unit:
        each = -(-resources.registers // REGISTER_UNIT) * REGISTER_UNIT
        fit["registers"] = device.registers_per_unit // (each * threads)
    if resources.shared_bytes and device.shared_bytes_per_unit:
        reserved = SHARED_RESERVED if device.kind == "cuda" else 0
        fit["shared memory"] = device.shared_bytes_per_unit // (resources.shared_bytes + reserved)
        if device.shared_bytes_per_block and resources.shared_bytes > device.shared_bytes_per_block:
            fit["shared memory"] = 0
    by = min(fit, key=lambda name: fit[name])
    return Residency(fit[by], by, fit[by] * threads / device.threads_per_unit)


def occupancy(device: Device, resources: Resources) -> float | None:
    """The part of a unit's threads that can be resident, by registers, shared memory, threads and blocks.

    `None` where the chip's limits or the kernel's threads are not known. Zero: not even one block fits.

    >>> from tunesmith.core.device import known_device
    >>> occupancy(known_device("NVIDIA H200"), Resources(registers=128, shared_bytes=98304, threads=128))
    0.125
    """
    held = residency(device, resources)
    return None if held is None else held.part


def fault(device: Device, resources: Resources) -> str | None:
    """Why a compiled Config can't be launched on a chip, `None` if nothing known speaks against it.

    Only what a compiler reported belongs here: an estimate is a doubt, and cuts nothing.
    """
    shared, threads, registers = resources.shared_bytes, resources.threads, resources.registers
    most = device.shared_bytes_per_block
    if shared and most and shared > most:
        return f"shared memory: {shared:,} bytes a block, {device.name} has {most:,}"
    if threads and device.kind != "cpu" and threads > MOST_THREADS:
        return f"threads: {threads:,} a block, {MOST_THREADS:,} at most"
    if threads and registers and device.registers_per_unit and threads * registers > device.registers_per_unit:
        return f"registers: {threads:,} threads of {registers} each, {device.name} has {device.registers_per_unit:,}"
    return None
