"""How long a launch should take on a chip, what bounds it, and why: `predict`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tunesmith.core.device import Device
from tunesmith.core.model.constants import FITTED, Constants
from tunesmith.core.model.occupancy import MOST_REGISTERS, REGISTER_UNIT, Residency, fault, residency
from tunesmith.core.model.prediction import Bound, Prediction
from tunesmith.core.model.work import Work
from tunesmith.core.outcome import Resources

#: What a Config whose estimate does not fit is taken to lose: it goes behind those that fit, and is not cut.
DOUBT = 2.0
#: Estimated registers are right to about a tenth: so much over what there is, and some are surely spilled.
SURE = 1.1
#: Rows below which a tile can't use the widest matrix instruction (wgmma takes 64, four warps together).
WIDE_ROWS = {"sm_90": 64}
#: A second pass finds in the L2 what the blocks under way keep there, up to this part of it.
L2_PART = 0.7


def predict(
    work: Work, device: Device, resources: Resources | None = None, constants: Constants | None = None
) -> Prediction | None:
    """What one launch should take: from the declared knobs, or from the compiled kernel's resources where known.

    Returns:
        `None` for a chip whose limits, bandwidth or peak are not known: nothing is guessed.
    """
    known = constants or FITTED
    if resources is not None and resources.registers is None and resources.shared_bytes is None:
        resources = None  # a compiler that says nothing leaves the estimates
    rate = device.peak.get(work.dtype, device.peak.get("float32", 0.0)) / device.units
    lanes = device.peak.get("float32", 0.0) / 2 / device.units  # a multiply-add counts as two
    taken = _resources(work, device, resources)
    held = residency(device, taken)
    if held is None or not rate or not lanes or not device.bandwidth:
        return None
    narrow = 0 < work.matrix_rows < WIDE_ROWS.get(device.arch, 0)
    pace = _Pace(
        flops_s=rate * known.matrix * (known.narrow if narrow else 1.0), lanes_s=lanes * known.vector, constants=known
    )
    at_once = device.units * max(1, held.blocks)
    spilled = _spilled(work, device, resources)
    full, rest = divmod(work.blocks, at_once)
    whole = pace.wave(work, max(1, held.blocks), spilled)
    partial = pace.wave(work, -(-rest // device.units), spilled) if rest else _Times(0.0, 0.0, 0.0, 0.0)
    spent = _Times(*(full * one + another for one, another in zip(whole, partial, strict=True)))
    memory_bytes = work.once_bytes + _missed(work, device, min(work.blocks, at_once))
    memory_s = memory_bytes / (device.bandwidth * known.bandwidth)
    traffic_s, latency_s = max(spent.traffic, memory_s), known.launch_s + spent.waiting
    doubts = () if resources is not None else _doubts(work, device, held)
    return Prediction(
        seconds=(known.launch_s + _beside(known.overlap, spent.all, memory_s)) * DOUBT ** len(doubts),
        bound=_bound(spent.arithmetic, traffic_s, latency_s),
        compute_s=spent.arithmetic, memory_s=traffic_s, latency_s=latency_s,
        waves=full + (rest > 0), blocks=work.blocks, resident=held.blocks, occupancy=held.part, limit=held.by,
        tiled_bytes=work.tiled_bytes, memory_bytes=memory_bytes,
        cut=(resources and fault(device, resources)) or "", doubts=doubts, compiled=resources is not None,
    )  # fmt: skip


class _Times(NamedTuple):
    """Seconds: of all that a unit does, and of each part of it, were it alone."""

    all: float
    arithmetic: float
    traffic: float
    waiting: float


@dataclass(frozen=True, slots=True)
class _Pace:
    """What one unit gets done: FLOP/s of its matrix part, operations/s of its lanes."""

    flops_s: float
    lanes_s: float
    constants: Constants

    def wave(self, work: Work, blocks: int, spilled: float) -> _Times:
        """In which one unit finishes `blocks` blocks that run at once."""
        known, steps, pipelined = self.constants, work.steps, work.stages > 1
        compute = blocks * (work.flops / self.flops_s + work.operations / self.lanes_s)
        port = blocks * (work.step_bytes + spilled) / known.port_bytes_s
        # one stage is being used while the others' loads are under way
        wait = known.stage_s / (work.stages - 1) if pipelined else work.waits * known.load_s
        step = _beside(known.step_overlap, compute, port, wait)
        # the first load has nothing to hide behind
        alone = known.block_s + work.setup_s + (known.stage_s if pipelined else 0.0)
        alone += work.reductions * known.reduce_s * work.threads / 32
        end = blocks * work.end_bytes / known.port_bytes_s
        return _Times(steps * step + alone + end, steps * compute, steps * port + end, steps * wait + alone)


def _beside(overlap: float, *times: float) -> float:
    """Times that run side by side: at least the longest, at most the sum."""
    longest = max(times)
    if longest <= 0:
        return 0.0
    return longest * math.fsum((one / longest) ** overlap for one in times) ** (1 / overlap)


def _bound(compute_s: float, memory_s: float, latency_s: float) -> Bound:
    if latency_s >= max(compute_s, memory_s):
        return "latency"
    return "compute" if compute_s >= memory_s else "memory"


def _most_registers(work: Work, device: Device) -> int:
    """What a compiler keeps a thread to, so that one block can be launched: it spills what is over."""
    each = device.registers_per_unit // work.threads // REGISTER_UNIT * REGISTER_UNIT
    return min(MOST_REGISTERS, each or MOST_REGISTERS)


def _resources(work: Work, device: Device, resources: Resources | None) -> Resources:
    """What is known of the compiled kernel, else what the knobs let expect."""
    expected = min(work.registers, _most_registers(work, device)) or None
    if resources is None:
        return Resources(registers=expected, shared_bytes=work.shared_bytes, threads=work.threads)
    return Resources(
        registers=resources.registers or expected,
        shared_bytes=work.shared_bytes if resources.shared_bytes is None else resources.shared_bytes,
        threads=resources.threads or work.threads,
    )


def _spilled(work: Work, device: Device, resources: Resources | None) -> float:
    """Bytes that a block's spilled registers move in a step: each is written and read again."""
    expected = max(0, work.registers - _most_registers(work, device))
    count = expected if resources is None or resources.spills is None else resources.spills
    return 2 * 4 * count * work.threads


def _missed(work: Work, device: Device, under_way: int) -> float:
    """Bytes read again that the L2 has lost by then."""
    kept = under_way * work.kept_bytes
    return work.again_bytes if device.l2_bytes and kept > L2_PART * device.l2_bytes else 0.0


def _doubts(work: Work, device: Device, held: Residency) -> tuple[str, ...]:
    """What the estimates speak against: more than there is, of what can't be spilled; far more registers."""
    most, doubts = _most_registers(work, device), list[str]()
    if not held.blocks:
        doubts.append(f"{held.by}: by the estimate not one block fits on a unit of {device.name}")
    if work.registers > SURE * most:
        doubts.append(f"registers: an estimated {work.registers} a thread of {most}, what is over is spilled")
    return tuple(doubts)
