"""Which GPU is the current one: kernels are launched on their tensors' device, whichever that is."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import cast


def only_device() -> bool:
    """Whether there is one GPU, so that it is always the current one."""
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() == 1


def current_device() -> Callable[[], int]:
    """What tells the current device, past torch's Python where that is what Triton would ask."""
    import torch
    from triton.runtime import driver

    asked = driver.active.get_current_device
    return cast("Callable[[], int]", torch._C._cuda_getDevice if asked is torch.cuda.current_device else asked)


@contextmanager
def on_device(index: int | None) -> Generator[None]:
    """Within this scope a device is the current one."""
    from triton.runtime import driver

    before = driver.active.get_current_device()
    if index is None or index == before:
        yield
        return
    driver.active.set_current_device(index)
    try:
        yield
    finally:
        driver.active.set_current_device(before)
