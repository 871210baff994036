"""What a row of a table asks of a chip, estimated from its knobs: no kernel is there to be compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tunesmith.core.device import KIB, known_devices
from tunesmith.errors import BadInput, unknown
from tunesmith.tables import devices
from tunesmith.tables.sheet import Severity

#: bytes of an element of A and of B, by the engines' names of quantisations
OPERAND_BYTES: Mapping[str, tuple[float, float]] = {
    "fp8_w8a8": (1, 1), "int8_w8a8": (1, 1), "fp8_w8a8_channelwise": (1, 1), "int8_w8a16": (2, 1), "fp8_w8a16": (2, 1),
    "int4_w4a16": (2, 0.5), "float32": (4, 4), "": (2, 2),
}  # fmt: skip
#: what Triton takes where a row does not say
USUAL_STAGES, USUAL_WARPS = 3, 4
#: a block has at most so many threads, on every chip
MOST_THREADS = 1024
#: no tile and no count of anything is larger
MOST_KNOB = 1 << 30
#: So many times a limit is beyond what an estimate may be off by: in all tables that SGLang 0.5.23 and vLLM 0.33.0 ship
#: no row for an NVIDIA chip asks for more than 1.9 times its shared memory, by the least estimate, or 256 registers.
BEYOND = 2
#: a thread of an NVIDIA chip has at most so many registers
MOST_REGISTERS = 255
#: shared memory of a block by the name in tables, of chips that are not in our own table of devices
SHARED_BYTES = {
    "NVIDIA_A100-SXM4-40GB": 163 * KIB, "NVIDIA_A100_80GB_PCIe": 163 * KIB, "NVIDIA_A800-SXM4-80GB": 163 * KIB,
    "NVIDIA_L40": 99 * KIB, "NVIDIA_L20": 99 * KIB, "NVIDIA_GeForce_RTX_4090": 99 * KIB,
    "NVIDIA_H100_PCIe": 227 * KIB, "NVIDIA_H20": 227 * KIB, "NVIDIA_H20-3e": 227 * KIB, "NVIDIA_H800": 227 * KIB,
    "NVIDIA_H200_NVL": 227 * KIB, "NVIDIA_GB200": 227 * KIB, "NVIDIA_GH200_480GB": 227 * KIB, "Tesla_T4": 64 * KIB,
}  # fmt: skip


def chip(name: str) -> tuple[int, int] | None:
    """(bytes of shared memory of a block, threads of a warp) of a chip by its name in tables; `None` if not known."""
    for device in known_devices():
        if devices.vllm(device.name) == name:
            return device.shared_bytes_per_block, device.warp
    return (SHARED_BYTES[name], 32) if name in SHARED_BYTES else None


def named(name: str) -> str:
    """The name in tables of a chip whose limits are known, as its driver reports it or as tables do.

    Raises:
        BadInput: for any other, of which no row can be said to fit or not.
    """
    spelled = devices.vllm(name)
    if chip(spelled) is None:
        ours = [device.name for device in known_devices()]
        others = [other for other in SHARED_BYTES if other not in map(devices.vllm, ours)]
        raise BadInput(unknown("chip", name, sorted([*ours, *others])))
    return spelled


@dataclass(frozen=True, slots=True)
class Needs:
    """What a matrix kernel's tile takes, by estimate.

    Attributes:
        shared_bytes: of a block, when each stage has its own tiles of both operands, as on Hopper, and the narrower
            operand is widened before it is staged: the most it can be.
        shared_bytes_least: when one stage has none, as on Ampere and Ada, and nothing is widened.
        threads: of a block.
        accumulators: 32-bit registers of a thread for the tile of the result alone.
    """

    shared_bytes: int
    shared_bytes_least: int
    threads: int
    accumulators: float


def needs(config: Mapping[str, Any], dtype: str, warp: int = 32) -> Needs | None:
    """What a row's knobs ask for; `None` for knobs that are not a matrix kernel's.

    >>> needs({"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "num_stages": 4}, "fp8_w8a8").shared_bytes
    131072
    """
    tiles = [config.get(f"BLOCK_SIZE_{axis}") for axis in "MNK"]
    stages, warps = config.get("num_stages", USUAL_STAGES), config.get("num_warps", USUAL_WARPS)
    if not all(type(n) is int and 0 < n <= MOST_KNOB for n in (*tiles, warps)):
        return None
    if type(stages) is not int or not 0 <= stages <= MOST_KNOB:
        return None
    m, n, k = (int(tile or 0) for tile in tiles)
    a, b = OPERAND_BYTES.get(dtype, (2, 2))
    most, least = max(stages, 1) * (m + n) * k * max(a, b), max(stages - 1, 1) * (m * a + n * b) * k
    threads = warps * warp
    return Needs(int(most), int(least), threads, m * n / threads)


def faults(
    config: Mapping[str, Any], dtype: str, device: str, known: tuple[int, int] | None, own: bool = False
) -> list[tuple[str, Severity, str]]:
    """(code, severity, why) a row cannot run on a chip, may not, or not well.

    Args:
        device: its name in tables.
        known: what `chip` says of it.
        own: whether the row was tuned on it. Then it ran, whatever an estimate says, unless that is beyond any doubt.
    """
    asked = needs(config, dtype, known[1] if known else 32)
    if asked is None:
        return []
    found: list[tuple[str, Severity, str]] = []
    most_bytes = known[0] if known is not None else 0
    if own:
        over = device.startswith("NVIDIA") and asked.shared_bytes_least > BEYOND * most_bytes
    else:
        over = asked.shared_bytes > most_bytes
    if most_bytes and over:
        least, most = asked.shared_bytes_least, asked.shared_bytes
        if least > most_bytes:
            said = f"needs {least} bytes of shared memory or more by estimate"
        else:
            said = f"may need up to {most} bytes of shared memory by estimate ({least} if one stage needs none)"
        severity: Severity = "error" if least > most_bytes else "warning"
        found.append(("shared-memory", severity, f"{said}, {device} has {most_bytes}"))
    if asked.threads > MOST_THREADS:
        found.append(("threads", "error", f"{asked.threads} threads of a block, at most {MOST_THREADS} can be"))
    if device.startswith("NVIDIA") and asked.accumulators > MOST_REGISTERS * (BEYOND if own else 1):
        said = f"{asked.accumulators:.0f} registers of a thread for the result alone, at most {MOST_REGISTERS} can be"
        found.append(("registers", "warning", said))
    return found
