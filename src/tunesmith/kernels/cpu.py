"""What the kernels for the CPU share: their sources, counts of threads, random inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tunesmith.core.device import Device


def source(name: str) -> Path:
    """The C source of a shipped kernel."""
    return Path(__file__).parent / "c" / f"{name}.c"


def thread_counts(device: Device) -> list[int]:
    """1, 2, 4, … and all the cores of a device."""
    return sorted({min(1 << e, device.units) for e in range(device.units.bit_length() + 1)})


def normal(*shape: int, seed: int) -> Any:
    """float32 from the standard normal distribution, the same ones each time."""
    import numpy as np

    made = _aligned(shape)
    made[...] = np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
    return made


def unwritten(*shape: int) -> Any:
    """A float32 output full of NaN, so that what a kernel leaves unwritten is seen."""
    import numpy as np

    made = _aligned(shape)
    made.fill(np.nan)
    return made


def _aligned(shape: tuple[int, ...]) -> Any:
    """A float32 array that begins at a cache line, as in a worker: how fast a Config is may depend on it."""
    import numpy as np

    from tunesmith.measure.arrays import Layout

    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return Layout("numpy", shape, tuple(strides), np.dtype(np.float32), 0, "cpu").allocate(lambda array: None)


def float32(name: str, array: Any, dims: int) -> Any:
    """An argument as the kernels take it: float32, contiguous.

    Raises:
        ValueError: when it has another number of dimensions.
    """
    import numpy as np

    converted = np.ascontiguousarray(array, dtype=np.float32)
    if converted.ndim != dims:
        raise ValueError(f"{name} has {converted.ndim} dimensions; expected {dims}")
    return converted


def empty(*shape: int) -> Any:
    """A float32 output."""
    import numpy as np

    return np.empty(shape, dtype=np.float32)
