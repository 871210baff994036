"""What a cubin says of its kernels, read without loading it: no GPU, no CUDA tools."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

#: records of a cubin's `.nv.info`: (symbol, value) of each function
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
#: the format byte of a record that carries its size; one of any other format is 4 bytes in all
_SIZED = 0x04
_ELF64 = b"\x7fELF\x02\x01"
#: bytes of a symbol
_SYMBOL = 24
#: kind of a section that has a size and no content
_NO_BITS = 8
#: from sm_90 on, CUDA keeps the first bytes of a block's shared memory; a kernel's own section begins with them
_RESERVED, _RESERVED_BYTES = ".nv.shared.reserved.0", 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel takes, `None` where the cubin does not say.

    Attributes:
        registers: of a thread.
        stack_words: 4-byte words of a thread's stack: what the driver reports as spills.
        shared_bytes: of a block, known at compile time.
    """

    registers: int | None
    stack_words: int | None
    shared_bytes: int


def usage(cubin: bytes, entry: str | None = None) -> Usage:
    """Registers, stack and static shared memory.

    Args:
        entry: the kernel's name in the cubin. Without it, of a cubin of one kernel: functions that it calls come with
            records of their own, and the most of all counts.
    """
    sections = _sections(cubin)
    wanted = None if entry is None else _symbol(sections, entry)
    found: dict[int, list[int]] = {_REGISTERS: [], _FRAME_BYTES: []}
    for attribute, payload in _records(sections.get(".nv.info", b"")):
        if attribute in found and len(payload) == 8:
            symbol, value = struct.unpack("<II", payload)
            if wanted is None or symbol == wanted:
                found[attribute].append(value)
    registers, frames = found[_REGISTERS], found[_FRAME_BYTES]
    shared = len(sections.get(f".nv.shared.{entry}", b""))
    if shared and _RESERVED in sections:
        shared -= _RESERVED_BYTES
    return Usage(max(registers, default=None), max(frames) // 4 if frames else None, shared)


def _records(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, at)
        at += 4
        if form == _SIZED:
            yield attribute, section[at : at + size]
            at += size


def _symbol(sections: dict[str, bytes], name: str) -> int:
    """The number of a symbol; one that no record has where there is none of this name."""
    symbols, names = sections.get(".symtab", b""), sections.get(".strtab", b"")
    for number in range(len(symbols) // _SYMBOL):
        start = struct.unpack_from("<I", symbols, number * _SYMBOL)[0]
        if names[start : names.find(b"\0", start)] == name.encode():
            return number
    return -1


def _sections(elf: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit little-endian ELF file by name; of one that takes no place in it, as many zeros."""
    if not elf.startswith(_ELF64):
        return {}
    table = struct.unpack_from("<Q", elf, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    found: dict[str, bytes] = {}
    for named, kind, _, _, offset, size in headers:
        start = strings + named
        name = elf[start : elf.index(b"\0", start)].decode(errors="replace")
        found[name] = bytes(size) if kind == _NO_BITS else elf[offset : offset + size]
    return found
