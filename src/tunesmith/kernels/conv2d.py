"""`conv2d`: direct convolution in float32 on the CPU, stride 1, no padding. See c/conv2d.c."""

from __future__ import annotations

from typing import Any

from tunesmith.api import autotune
from tunesmith.backends import cc
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import ProblemError
from tunesmith.kernels import cpu
from tunesmith.tables import Packaged

DIMS = ("N", "C", "H", "W", "K", "R", "S")


def default(problem: Problem, device: Device) -> Config:
    """Eight channels by one vector of 8 floats, a row at a time: few registers, rarely far from the best."""
    return Config(VEC=8, KB=8, QV=1, PB=4, FLAT=0, threads=cpu.thread_counts(device)[-1])


def space(problem: Problem, device: Device) -> Space:
    """Register tiles of all shapes, lines of one row or of several."""
    axes = Space(
        VEC=[4, 8, 16], KB=[2, 4, 8, 16], QV=[1, 2, 3, 4, 6], PB=[4, 16], FLAT=[0, 1],
        threads=cpu.thread_counts(device),
    )  # fmt: skip
    return axes.where(
        _hides_latency, "a tile of fewer than 6 vectors does not hide the latency of a multiply-add"
    ).where(_fits_registers, "a tile of more than 24 vectors does not fit 32 registers with its inputs")


def _hides_latency(KB: int, QV: int) -> bool:
    return KB * QV >= 6


def _fits_registers(KB: int, QV: int) -> bool:
    return KB * QV <= 24


def _blocks(N: int, H: int, K: int, R: int, KB: int, PB: int) -> int:
    return N * -(-K // KB) * -(-(H - R + 1) // PB)


def _rows(H: int, R: int) -> int:
    return H - R + 1


def _columns(W: int, S: int) -> int:
    return W - S + 1


def reference(x: Any, w: Any, **_: Any) -> Any:  # x: (N, C, H, W), w: (K, C, R, S)
    """The same in float64: (N, K, H - R + 1, W - S + 1)."""
    import numpy as np

    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), w.shape[2:], axis=(2, 3))
    return np.tensordot(windows, w.astype(np.float64), ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def make_inputs(problem: Problem) -> dict[str, Any]:
    """Standard normal x and w; y full of NaN.

    Raises:
        ProblemError: when the window is larger than the image.
    """
    n, c, h, w, k, r, s = (problem.dims[name] for name in DIMS)
    if r > h or s > w:
        raise ProblemError(
            f"a window of R={r}, S={s} does not fit an image of H={h}, W={w}; good values: R <= H, S <= W"
        )
    x, weights = cpu.normal(n, c, h, w, seed=1), cpu.normal(k, c, r, s, seed=2)
    return {
        "x": x,
        "w": weights,
        "y": cpu.unwritten(n, k, h - r + 1, w - s + 1),
        **{name: problem[name] for name in DIMS},
    }


kernel = autotune(
    space=space, default=default, key=DIMS, make_inputs=make_inputs, reference=reference, outputs=["y"],
    policy="lookup",
)(
    cc.kernel(
        cpu.source("conv2d"),
        shapes={
            "x": ("N", "C", "H", "W"),
            "w": ("K", "C", "R", "S"),
            "y": ("N", "K", _rows, _columns),
        },
        work=_blocks,
    )
)  # fmt: skip
kernel.use_table(Packaged("tunesmith.kernels", "conv2d"))


def conv2d(x: Any, w: Any, out: Any = None) -> Any:  # x: (N, C, H, W), w: (K, C, R, S), float32
    """x convolved with w, with the Config that is known for its shape, else the default.

    Raises:
        ValueError: when the shapes do not fit.
    """
    x, w = cpu.float32("x", x, 4), cpu.float32("w", w, 4)
    n, c, height, width = x.shape
    k, channels, r, s = w.shape
    if c != channels or r > height or s > width:
        raise ValueError(f"x is {x.shape} and w is {w.shape}: needs as many channels, and a window inside the image")
    y = cpu.empty(n, k, height - r + 1, width - s + 1) if out is None else out
    kernel(x, w, y, n, c, height, width, k, r, s)
    return y
