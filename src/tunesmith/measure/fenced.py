"""Memory of the CPU's between two pages that nobody may touch: who writes past either end dies there and then.

Otherwise such a write goes into whatever lies beside, and somebody else dies of it later. What lies between an array's
end and the page behind it, as arrays begin at a cache line, is filled with a pattern that is looked at.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

from tunesmith.measure.arrays import CACHE_LINE_BYTES, Layout

#: what no kernel is likely to write by chance: no number's bytes are all like this one
_PATTERN = 0xA5
_PROT_NONE = 0


class Fence:
    """The bytes between an array's end and the page behind it: at most 63."""

    def __init__(self, rest: Any) -> None:
        self._rest = rest
        rest[...] = _PATTERN

    def broken(self) -> bool:
        """Whether somebody has written there since the last time."""
        broken = bool((self._rest != _PATTERN).any())
        if broken:
            self._rest[...] = _PATTERN
        return broken


def fenced(layout: Layout) -> tuple[Any, Fence]:
    """An array of a layout on the CPU, with undefined content."""
    import numpy as np

    page = mmap.PAGESIZE
    size = max(CACHE_LINE_BYTES, -(-layout.n_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES)
    inner = -(-size // page) * page
    whole = np.frombuffer(mmap.mmap(-1, inner + 2 * page), np.uint8)
    for start in (0, page + inner):
        _forbid(whole.ctypes.data + start, page)
    raw, rest = whole[page + inner - size : page + inner][: layout.n_bytes], layout.n_bytes - size
    fence = Fence(whole[page + inner + rest : page + inner])
    if layout.engine == "numpy":
        flat = raw.view(layout.dtype)
        steps = [step * layout.dtype.itemsize for step in layout.strides]
        return np.lib.stride_tricks.as_strided(flat[layout.offset :], layout.shape, steps), fence
    import torch

    flat = torch.from_numpy(raw).view(layout.dtype)
    return flat.as_strided(layout.shape, layout.strides, layout.offset), fence


def _forbid(address: int, size: int) -> None:
    if sys.platform == "win32":
        return
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_NONE):
        raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")
