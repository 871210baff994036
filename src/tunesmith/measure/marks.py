"""NVTX marks around launches, so that Nsight Compute and Nsight Systems look at these alone."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from tunesmith.core.device import Device

#: The name of the range. No `/`, `[` or `@`, which mean something to Nsight Compute's filters.
RANGE = "tunesmith"


def can_mark(device: Device) -> bool:
    """Whether marks can be made: by torch, on whose tensors kernels of a GPU work (of ROCm's, roctx makes them)."""
    if device.kind == "cpu" or "torch" not in sys.modules:
        return False
    import torch

    return bool(torch.cuda.is_available())


@contextmanager
def marked(device: Device) -> Generator[None]:
    """Within this scope launches are in the range, where marks can be made; at its end they are done."""
    if not can_mark(device):
        yield
        return
    import torch

    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push(RANGE)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.nvtx.range_pop()
