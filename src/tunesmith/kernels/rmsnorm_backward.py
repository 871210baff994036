"""`rmsnorm_backward`: the gradient of rmsnorm(x) · w by x, and by w added to what is there, on a GPU, in Triton.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from typing import Any

from tunesmith.api import autotune
from tunesmith.core.model import Rows
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rmsnorm import EPS
from tunesmith.kernels.rows.autograd import tell_autograd
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

_hints = shared.hints(reads=2, stays=True)
space, default = _hints.space, _hints.default


def reference(dy: Any, x: Any, w: Any = None, eps: float = EPS, **_: Any) -> Any:  # dy, x: (rows, n), w: (n,)
    """(dx (rows, n), dw (n,)) in float64; dw as it is where it was zero."""
    return formula(dy.double(), x.double(), None if w is None else w.double(), eps)


def formula(slope: Any, wide: Any, w: Any, eps: float) -> tuple[Any, Any]:  # (rows, n), (rows, n), (n,)
    """The same by torch, in the dtype of what is given."""
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    along = wide * scale
    of_w = (slope * along).sum(0)
    slope = slope if w is None else slope * w
    return (slope - along * (slope * along).mean(-1, keepdim=True)) * scale, of_w


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Standard normal dy and x, w near 1, dx full of NaN, dw of zeros."""
    import torch

    dy, x = shared.normal(problem, device, ["dy", "x"], seed)
    w, n = shared.weight(problem, device, "w", seed), x.shape[1]
    return {
        "dy": dy, "x": x, "w": w, "dx": torch.full_like(x, float("nan")), "dw": torch.zeros(n, device=device),
        "rows": x.shape[0], "n": n, "eps": EPS,
    }  # fmt: skip


kernel = autotune(
    space=space, knobs=shared.KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference,
    outputs=["dx", "dw"], reset_to_zero=["dw"], model=Rows(reads=2, writes=1, again=2, operations=12.0, values=2.0),
    candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel(
    "rmsnorm_backward", ["dy", "x", "w", "dx", "dw"], ["dy", "x"], shared.KNOBS, numbers=["eps"],
    makes=False, typed=["dy", "x", "w"], module="tunesmith.kernels.rows.gradient",
))  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "rmsnorm_backward", near=("rows",)))


def rmsnorm_backward(
    dy: Any,  # (…, n)
    x: Any,  # (…, n)
    w: Any = None,  # (n,)
    eps: float = EPS,
    dw: Any = None,  # (n,) float32
) -> tuple[Any, Any]:
    """(dx (…, n), dw): the gradient of `rmsnorm(x, w, eps)` for dy, with the Config known for its shape, else the
    default. What w's gradient is gets added to dw, which is made of zeros where it is not given; in float32, in an
    order that differs from launch to launch. Under `torch.use_deterministic_algorithms(True)` it is torch's formula.

    Raises:
        BadInput: for tensors that are not on a GPU, or do not fit.
    """
    import torch

    if dy.shape != x.shape or dy.dtype != x.dtype:
        raise BadInput(
            f"rmsnorm_backward of dy {tuple(dy.shape)} {dy.dtype} and x {tuple(x.shape)} {x.dtype}: "
            "needs one shape and one dtype"
        )
    flat, slope = shared.matrix("x", x), shared.matrix("dy", dy)
    n = int(flat.shape[1])
    if dw is None:
        dw = torch.zeros(n, device=x.device, dtype=torch.float32)
    elif tuple(dw.shape) != (n,) or dw.dtype != torch.float32 or not dw.is_contiguous():
        raise BadInput(f"dw is {tuple(dw.shape)} {dw.dtype}; needs ({n},) torch.float32, without gaps")
    if torch.are_deterministic_algorithms_enabled():
        wide = None if w is None else shared.vector("w", w, n).float()
        of_x, of_w = formula(slope.float(), flat.float(), wide, float(eps))
        return of_x.to(x.dtype).view(x.shape), dw.add_(of_w)
    dx = torch.empty(tuple(flat.shape), device=x.device, dtype=x.dtype)
    kernel(slope, flat, shared.vector("w", w, n), dx, dw, *flat.shape, float(eps))
    tell_autograd((dw,))
    return dx.view(x.shape), dw
