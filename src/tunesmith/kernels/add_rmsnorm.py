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
from tunesmith.kernels.rows.autograd import tell_autograd
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

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

kernel.use_table(Packaged("tunesmith.kernels", "add_rmsnorm", near=("rows",)))


def add_rmsnorm_(x: Any, residual: Any, w: Any = None, eps: float = EPS) -> tuple[Any, Any]:  # (…, n), (…, n), (n,)
    """residual += x, then x = residual / √(mean(residual²) + eps) · w along the last dimension: both in place.

    Returns:
        (x, residual), which hold the norm and the sum.

    Raises:
        BadInput: for tensors that are not on a GPU, do not fit, or share memory within.
    """
    return in_place(kernel, x, residual, w, eps)


def in_place(launch: Any, x: Any, residual: Any, w: Any, eps: float | None, *, seen: bool = False) -> tuple[Any, Any]:
    """The same by something that takes the kernel's arguments.

    Args:
        eps: `None` is for a launch that knows what to do with it.
        seen: whether torch sees what the launch writes; else it is told, and refuses a gradient for which it has saved
            one of the two.

    Raises:
        BadInput: for tensors that do not fit, or share memory within.
    """
    flat, other, w, copied = operands(x, residual, w)
    launch(flat, other, w, *flat.shape, None if eps is None else shared.number("eps", eps))
    if copied[0]:
        x.copy_(flat.view(x.shape))
    if copied[1]:
        residual.copy_(other.view(x.shape))
    if not seen:
        tell_autograd((x, residual))
    return x, residual


def operands(x: Any, residual: Any, w: Any) -> tuple[Any, Any, Any, tuple[bool, bool]]:
    """(x and residual as (rows, n), w without gaps, which of the two are copies to be written back).

    Raises:
        BadInput: for tensors that do not fit, or share memory within.
    """
    check(x, residual)
    (flat, copied), (other, other_copied) = shared.written("x", x), shared.written("residual", residual)
    return flat, other, shared.vector("w", w, flat.shape[1]), (copied, other_copied)


def check(x: Any, residual: Any) -> None:
    """Whether one can be added to the other in place.

    Raises:
        BadInput: where not.
    """
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise BadInput(
            f"add_rmsnorm of x {tuple(x.shape)} {x.dtype} and residual {tuple(residual.shape)} {residual.dtype}: "
            "needs one shape and one dtype"
        )
