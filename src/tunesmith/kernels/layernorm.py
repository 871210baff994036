"""`layernorm`: x less its mean, over its standard deviation, along each row, times w plus b, on a GPU, in Triton.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Rows
from tunesmith.core.problem import Problem
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

EPS = 1e-5
_hints = replace(shared.hints(), parts=8)
space = shared.held_space(_hints, shared.held_blocks)


def default(problem: Problem, device: Device) -> Config:
    """A row that is no power of two in blocks: on an H200 up to 36 % faster than in one that is too long for it."""
    n, usual = problem.dims["n"], _hints.default(problem, device)
    whole = 1 << max(0, n - 1).bit_length()
    block = max(1024, whole // 8)
    blocks = usual.replace(ROWS=1, BLOCK=block, PER_UNIT=0, STAGES=1, num_warps=block // 256)
    suits = 2 * block < n < whole <= _hints.most
    return blocks if suits and blocks in space(problem, device) else usual


def reference(x: Any, w: Any = None, b: Any = None, eps: float = EPS, **_: Any) -> Any:  # x: (rows, n), w, b: (n,)
    """The same in float64: (rows, n)."""
    off = x.double() - x.double().mean(-1, keepdim=True)
    made = off * (off.square().mean(-1, keepdim=True) + eps).rsqrt()
    made = made if w is None else made * w.double()
    return made if b is None else made + b.double()


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Standard normal x, w and b near 1."""
    [x] = shared.normal(problem, device, ["x"], seed)
    w, b = shared.weight(problem, device, "w", seed), shared.weight(problem, device, "b", seed + 1)
    return {"x": x, "w": w, "b": b, "rows": x.shape[0], "n": x.shape[1], "eps": EPS}


kernel = autotune(
    space=space, knobs=shared.KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference,
    model=shared.holding(Rows(operations=10.0, reductions=2), shared.held_blocks),
    candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel(
    "layernorm", ["x", "w", "b"], ["x"], shared.KNOBS, numbers=["eps"], holds=shared.held_blocks,
    module="tunesmith.kernels.rows.layernorm",
))  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "layernorm", near=("rows",)))


def layernorm(x: Any, w: Any = None, b: Any = None, eps: float = EPS) -> Any:  # x: (…, n), w, b: (n,)
    """(x - mean(x)) / √(var(x) + eps) · w + b along the last dimension, with the Config known for its shape, else the
    default.

    Raises:
        BadInput: for tensors that are not on a GPU, or do not fit.
    """
    flat = shared.matrix("x", x)
    w, b = shared.vector("w", w, flat.shape[1]), shared.vector("b", b, flat.shape[1])
    return kernel(flat, w, b, *flat.shape, float(eps)).view(x.shape)
