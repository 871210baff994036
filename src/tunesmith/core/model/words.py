"""Each number of a Prediction in words: `explain`."""

from __future__ import annotations

from tunesmith.core.device import Device
from tunesmith.core.model.prediction import Prediction

_BOUND = {
    "compute": "arithmetic takes longest: fewer padded lanes or a faster matrix instruction would help",
    "memory": "moving data takes longest: larger tiles, or blocks ordered so that the L2 serves more, would help",
    "latency": "waiting takes longest: more stages, more blocks at once or fewer steps would help",
}


def explain(one: Prediction, device: Device) -> list[tuple[str, str]]:
    """(what, its value and what it means) for each number, for a table of two columns."""
    source = "the compiled kernel's registers and shared memory" if one.compiled else "estimates from the knobs"
    at_once = device.units * max(1, one.resident)
    last = one.blocks % at_once
    tail = f"the last of {last:,} blocks costs a whole one" if last else "the last one is full"
    lines = [
        ("predicted", f"{_us(one.seconds)}, by {source}"),
        ("bound by", f"{one.bound}: {_BOUND[one.bound]}"),
        ("compute", f"{_us(one.compute_s)} for the arithmetic of full tiles, were it alone"),
        (
            "memory",
            f"{_us(one.memory_s)} for the traffic of memory or of the L2, whichever is longer, were it alone",
        ),
        ("latency", f"{_us(one.latency_s)} for launching and for steps that wait for their loads"),
        (
            "occupancy",
            f"{one.occupancy:.0%}: {one.resident} blocks on each of {device.units} units at once, by {one.limit}",
        ),
        ("waves", f"{one.waves:,}: {one.blocks:,} blocks, {at_once:,} at once on {device.units} units; {tail}"),
        (
            "tiled bytes",
            f"{_bytes(one.tiled_bytes)} moved by all blocks together: what memory would see without an L2",
        ),
        ("memory bytes", f"{_bytes(one.memory_bytes)} left for memory where the L2 serves all it can"),
    ]
    if one.cut:
        lines.append(("cut", one.cut))
    return lines + [("doubt", f"{doubt}; it is compiled late, not cut") for doubt in one.doubts]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:,.3f} ms"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} bytes"
