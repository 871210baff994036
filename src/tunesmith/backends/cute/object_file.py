"""What an object file that CuTe DSL exports, and the host code behind it, say of the kernels in it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ELF = b"\x7fELF\x02\x01"
#: ELF's number of NVIDIA's GPUs as a machine
_CUDA_MACHINE = 190
#: a launch's configuration in the host code: grid, block, bytes of dynamic shared memory, stream, attributes
_CONFIGURATION = re.escape("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>")
_FIELD = re.compile(
    rf"(%\d+) = llvm\.getelementptr (%\d+)\[0, (1, [012]|[012])\] : \(!llvm\.ptr\) -> !llvm\.ptr, {_CONFIGURATION}"
)
_STORE = re.compile(r"llvm\.store (%\d+), (%\d+) :")
_CONSTANT = re.compile(r"(%\d+) = llvm\.mlir\.constant\((\d+) : i(?:32|64)\)")
#: the launch of a kernel without attributes: grid, block, arguments, bytes, stream
_PLAIN = re.compile(r"@_cudaLaunchKernel\((?:%\w+, ){4}(%\w+), (%\w+), (%\w+), %\w+, (%\w+), %\w+\)")


@dataclass(frozen=True)
class Launch:
    """One launch of the host code, `None` for what depends on a call."""

    threads: int | None
    shared_bytes: int | None


def cubin_in(content: bytes) -> bytes:
    """The cubin that lies in an object file as a constant; empty where there is none."""
    at = content.find(_ELF, 1)
    while at >= 0:
        if struct.unpack_from("<H", content, at + 18)[0] == _CUDA_MACHINE:
            table = struct.unpack_from("<Q", content, at + 0x28)[0]
            entry, count = struct.unpack_from("<HH", content, at + 0x3A)
            return content[at : at + table + entry * count]
        at = content.find(_ELF, at + 1)
    return b""


def launches_in(module: str) -> list[Launch]:
    """The launches of a compiled module's host code.

    Args:
        module: MLIR's text, lowered to LLVM.
    """
    return [launch for body in module.split("llvm.func ")[1:] for launch in _launches(body)]


def _launches(body: str) -> Iterator[Launch]:
    """Of one function: values are numbered within it."""
    if "_cudaLaunchKernel" not in body.partition("{")[2]:
        return
    constants = {name: int(number) for name, number in _CONSTANT.findall(body)}
    stored = {where: value for value, where in _STORE.findall(body)}
    configurations: dict[str, dict[str, int | None]] = {}
    for where, of, field in _FIELD.findall(body):
        configurations.setdefault(of, {})[field.replace(" ", "")] = constants.get(stored.get(where, ""))
    for fields in configurations.values():
        yield Launch(_product([fields.get(f"1,{axis}") for axis in range(3)]), fields.get("2"))
    for x, y, z, shared in _PLAIN.findall(body):
        yield Launch(_product([constants.get(one) for one in (x, y, z)]), constants.get(shared))


def _product(sizes: list[int | None]) -> int | None:
    product = 1
    for size in sizes:
        if size is None:
            return None
        product *= size
    return product
