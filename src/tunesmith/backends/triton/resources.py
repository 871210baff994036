"""Registers and spills of a compiled kernel, read from its binary without loading it: no GPU, no CUDA tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunesmith.backends.cubin import usage
from tunesmith.core.outcome import Resources


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
    found = usage(cubin)
    return found.registers, found.stack_words


def _amd(assembly: str) -> tuple[int | None, int | None]:
    """Vector registers of a thread, and how many of them were spilled."""
    registers = re.search(r"\.vgpr_count:\s*(\d+)", assembly)
    spills = re.search(r"\.vgpr_spill_count:\s*(\d+)", assembly)
    return (int(registers[1]) if registers else None), (int(spills[1]) if spills else None)
