"""`rmsnorm`: x over the root of its mean square along each row, times w, on a GPU, in Triton.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from typing import Any

from tunesmith.api import autotune
from tunesmith.core.model import Rows
from tunesmith.core.problem import Problem
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

EPS = 1e-6
_hints = shared.hints()
space, default = _hints.space, _hints.default


def reference(x: Any, w: Any = None, eps: float = EPS, **_: Any) -> Any:  # x: (rows, n), w: (n,)
    """The same in float64: (rows, n)."""
    wide = x.double()
    made = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return made if w is None else made * w.double()


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Standard normal x, w near 1."""
    [x] = shared.normal(problem, device, ["x"], seed)
    w = shared.weight(problem, device, "w", seed)
    return {"x": x, "w": w, "rows": x.shape[0], "n": x.shape[1], "eps": EPS}


kernel = autotune(
    space=space, knobs=shared.KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference,
    model=Rows(operations=6.0), candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel("rmsnorm", ["x", "w"], ["x"], shared.KNOBS, numbers=["eps"]))  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "rmsnorm", near=("rows",)))


def rmsnorm(x: Any, w: Any = None, eps: float = EPS) -> Any:  # x: (…, n), w: (n,)
    """x / √(mean(x²) + eps) · w along the last dimension, with the Config known for its shape, else the default.

    Raises:
        BadInput: for tensors that are not on a GPU, or do not fit.
    """
    flat = shared.matrix("x", x)
    w = shared.vector("w", w, flat.shape[1])
    return kernel(flat, w, *flat.shape, float(eps)).view(x.shape)
