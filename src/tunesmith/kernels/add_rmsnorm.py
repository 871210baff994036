"""`add_rmsnorm`: residual += x, then x = rmsnorm(residual) · w, both in place, on a GPU, in Triton.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from typing import Any

from tunesmith.api import autotune
from tunesmith.core.model import Rows
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernels import rmsnorm as plain
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rows.launch import RowKernel

EPS = plain.EPS
_hints = shared.hints(reads=2)
space, default = _hints.space, _hints.default


def reference(x: Any, residual: Any, w: Any = None, eps: float = EPS, **_: Any) -> Any:  # x, residual: (rows, n)
    """What x and residual hold afterwards, in float64: (rows, n) each."""
    total = x.double() + residual.double()
    return plain.reference(total, w, eps), total


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Standard normal x and residual, w near 1."""
    x, residual = shared.normal(problem, device, ["x", "residual"], seed)
    return {
        "x": x, "residual": residual, "w": shared.weight(problem, device, "w", seed), "rows": x.shape[0],
        "n": x.shape[1], "eps": EPS,
    }  # fmt: skip


kernel = autotune(
    space=space, knobs=shared.KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference,
    restore_value=["x", "residual"], outputs=["x", "residual"], model=Rows(reads=2, writes=2, operations=8.0),
    candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel(
    "add_rmsnorm", ["x", "residual", "w"], ["x", "residual"], shared.KNOBS, numbers=["eps"], makes=False,
    returns=["x", "residual"],
))  # fmt: skip


def add_rmsnorm_(x: Any, residual: Any, w: Any = None, eps: float = EPS) -> tuple[Any, Any]:  # (…, n), (…, n), (n,)
    """residual += x, then x = residual / √(mean(residual²) + eps) · w along the last dimension: both in place.

    Returns:
        (x, residual), which hold the norm and the sum.

    Raises:
        BadInput: for tensors that are not on a GPU, do not fit, or share memory within.
    """
    return in_place(kernel, x, residual, w, eps)


def in_place(launch: Any, x: Any, residual: Any, w: Any, eps: float) -> tuple[Any, Any]:
    """The same by something that takes the kernel's arguments.

    Raises:
        BadInput: for tensors that do not fit, or share memory within.
    """
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise BadInput(
            f"add_rmsnorm of x {tuple(x.shape)} {x.dtype} and residual {tuple(residual.shape)} {residual.dtype}: "
            "needs one shape and one dtype"
        )
    (flat, copied), (other, other_copied) = shared.written("x", x), shared.written("residual", residual)
    w = shared.vector("w", w, flat.shape[1])
    launch(flat, other, w, *flat.shape, float(eps))
    if copied:
        x.copy_(flat.view(x.shape))
    if other_copied:
        residual.copy_(other.view(x.shape))
    return x, residual
