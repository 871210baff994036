"""`Prediction`: what the model says of one Config on one chip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Bound: TypeAlias = Literal["compute", "memory", "latency"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of one Config.

    Attributes:
        seconds: of one launch, cold L2.
        bound: which of the three times below is the largest.
        compute_s: arithmetic, were it alone. memory_s: traffic, were it alone. latency_s: waiting, were it alone.
        waves: how often the chip is filled; a last one that is partly filled counts as a whole one.
        blocks: of the launch. resident: of them on one unit at once. occupancy: of a unit's threads, 0 to 1.
        limit: what stops more blocks from being resident.
        tiled_bytes: what the blocks move. memory_bytes: what device memory has to move with the L2 in between.
        cut: why it can't run, from compiled facts; empty if it can.
        doubts: what the estimates before compiling speak against it; they cost time here, and cut nothing.
        compiled: whether real registers and shared memory were known.
    """

    seconds: float
    bound: Bound
    compute_s: float
    memory_s: float
    latency_s: float
    waves: int
    blocks: int
    resident: int
    occupancy: float
    limit: str
    tiled_bytes: float
    memory_bytes: float
    cut: str = ""
    doubts: tuple[str, ...] = ()
    compiled: bool = False
