"""Registers and spills of a compiled kernel, read from its binary without loading it: no GPU, no CUDA tools."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunesmith.core.outcome import Resources

#: records of a cubin's `.nv.info`: (symbol, value) of each function
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
#: the format byte of a record that carries its size; one of any other format is 4 bytes in all
_SIZED = 0x04
_ELF64 = b"\x7fELF\x02\x01"


def resources_of(metadata: Mapping[str, Any], binary: bytes, assembly: str | None = None) -> Resources:
    """What one compiled Config takes.

    Args:
        metadata: Triton's, of the compiled kernel.
        binary: a cubin or hsaco.
        assembly: AMD's, which says more than its binary.
    """
    registers, spills = _amd(assembly) if assembly is not None else _nvidia(binary)
    threads = int(metadata["num_warps"]) * int(metadata["target"]["warp_size"])
    return Resources(registers, spills, int(metadata["shared"]), threads, len(binary))


def resources_in_cache(group: Path) -> Resources:
    """The same, of what lies in Triton's cache.

    Args:
        group: the file that lists the artifacts of one compilation.
    """
    listed: Mapping[str, str] = json.loads(group.read_text())["child_paths"]
    by_suffix = {Path(name).suffix: Path(path) for name, path in listed.items()}
    metadata = json.loads(by_suffix[".json"].read_text())
    binary = by_suffix[".cubin" if ".cubin" in by_suffix else ".hsaco"].read_bytes()
    return resources_of(metadata, binary, by_suffix[".amdgcn"].read_text() if ".amdgcn" in by_suffix else None)


def _nvidia(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers of a thread, and the 4-byte words of its stack: what the driver reports as spills.

    A cubin of one kernel; functions that it calls come with records of their own, and the most of all counts.
    """
    found: dict[int, list[int]] = {_REGISTERS: [], _FRAME_BYTES: []}
    for attribute, payload in _records(_section(cubin, b".nv.info")):
        if attribute in found and len(payload) == 8:
            found[attribute].append(struct.unpack("<II", payload)[1])
    registers, frames = found[_REGISTERS], found[_FRAME_BYTES]
    return max(registers, default=None), max(frames) // 4 if frames else None


def _records(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield attribute, section[at : at + size]
            at += size


def _section(elf: bytes, name: bytes) -> bytes:
    """The content of a section of a 64-bit little-endian ELF file; empty where there is none."""
    if not elf.startswith(_ELF64):
        return b""
    table = struct.unpack_from("<Q", elf, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)

    def header(i: int) -> tuple[int, int, int]:
        """(offset of its name, offset of its content, size)."""
        named, _, _, _, offset, size = struct.unpack_from("<IIQQQQ", elf, table + i * entry)
        return named, offset, size

    strings = header(names)[1]
    for named, offset, size in map(header, range(count)):
        if elf.startswith(name + b"\0", strings + named):
            return elf[offset : offset + size]
    return b""


def _amd(assembly: str) -> tuple[int | None, int | None]:
    """Vector registers of a thread, and how many of them were spilled."""
    registers = re.search(r"\.vgpr_count:\s*(\d+)", assembly)
    spills = re.search(r"\.vgpr_spill_count:\s*(\d+)", assembly)
    return (int(registers[1]) if registers else None), (int(spills[1]) if spills else None)
