"""What goes over rows, for torch, by what is fastest: softmax, norms, SiLU and product; torch's own or our kernels.

They are torch operators, as the others of `tunesmith.ops` are, which has them too. Without a table or a search of their
own they are torch's. Computed in float32 by our kernels, whatever the dtype.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from tunesmith.chooser import Chooser
from tunesmith.chooser.eager import is_eager, is_torchs
from tunesmith.errors import BadInput
from tunesmith.events import Summary
from tunesmith.kernels import layernorm as layer
from tunesmith.kernels import rmsnorm as rms
from tunesmith.kernels import silu_and_mul as gating
from tunesmith.row_ops.operators import operators
from tunesmith.row_ops.ways import (
    OPERATIONS,
    by_add_rms_norm,
    by_layer_norm,
    by_rms_norm,
    by_silu_and_mul,
    by_softmax,
    chooser_of,
    ours,
    torchs_add_rms_norm,
    torchs_rms_norm,
    torchs_silu_and_mul,
    way_of,
)

__all__ = [
    "OPERATIONS", "add_rms_norm_", "chooser", "layer_norm", "rms_norm", "scores", "silu_and_mul", "softmax", "tune",
]  # fmt: skip

F = torch.nn.functional


# --- what people call ---


def softmax(x: Any, dim: int = -1) -> Any:  # (…, n)
    """exp(x) over its sum along a dimension, by what is fastest for its shape; along any but the last it is torch's."""
    if dim not in (-1, x.ndim - 1):
        return torch.softmax(x, dim)
    if is_eager(x):
        return by_softmax(x)
    return operators.softmax(x) if ours(x) else torch.softmax(x, dim)


def rms_norm(x: Any, weight: Any = None, eps: float | None = rms.EPS) -> Any:  # x: (…, n), weight: (n,)
    """x / √(mean(x²) + eps) · weight along the last dimension, by what is fastest for its shape.

    Args:
        eps: with `None` it is torch's own call, which takes a number by the dtype.
    """
    if eps is None:
        return torchs_rms_norm(x, weight, None)
    if is_eager(x, weight):
        return by_rms_norm(x, weight, eps)
    return operators.rms_norm(x, weight, eps) if ours(x, weight) else torchs_rms_norm(x, weight, eps)


def layer_norm(
    x: Any,  # (…, n)
    weight: Any = None,  # (n,)
    bias: Any = None,  # (n,)
    eps: float = layer.EPS,
) -> Any:
    """(x - mean(x)) / √(var(x) + eps) · weight + bias along the last dimension, by what is fastest for its shape.

    Raises:
        BadInput: for a weight or bias that does not fit.
    """
    if is_eager(x, weight, bias):
        return by_layer_norm(x, weight, bias, eps)
    if ours(x, weight, bias):
        return operators.layer_norm(x, weight, bias, eps)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def add_rms_norm_(
    x: Any,  # (…, n)
    residual: Any,  # (…, n)
    weight: Any = None,  # (n,)
    eps: float | None = rms.EPS,
) -> tuple[Any, Any]:
    """residual += x, then x = residual / √(mean(residual²) + eps) · weight: both in place, by what is fastest.

    Has no gradient, as both of its inputs are overwritten. With `eps=None` it is torch's, as of `rms_norm`.

    Returns:
        (x, residual), which hold the norm and the sum.

    Raises:
        BadInput: for tensors that do not fit or whose elements share memory, and where a gradient is wanted.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, residual, weight)):
        raise BadInput("add_rms_norm_ overwrites what a gradient needs: call it under torch.no_grad()")
    if is_eager(x, residual, weight):
        by_add_rms_norm(x, residual, weight, eps)
    elif eps is None or is_torchs(x, residual, weight):
        torchs_add_rms_norm(x, residual, weight, eps)
    else:
        operators.add_rms_norm_(x, residual, weight, eps)
    return x, residual


def silu_and_mul(x: Any) -> Any:  # (…, 2 n)
    """silu(x[…, :n]) · x[…, n:], by what is fastest for its shape: (…, n).

    Raises:
        BadInput: for an odd last dimension.
    """
    gating.half("x", x)
    if is_eager(x):
        return by_silu_and_mul(x)
    return operators.silu_and_mul(x) if ours(x) else torchs_silu_and_mul(x)


# --- asking and tuning ---


def tune(operation: str, *args: Any) -> Summary:
    """Search for the fastest way of one call now, and store it: `tune("rms_norm", x, weight)`.

    Raises:
        BadInput: for an operation that does not exist, and where there is nothing to choose.
    """
    chosen, given = _call(operation, args)
    return chosen.tune(*given)


def scores(operation: str, *args: Any, top: int = 10) -> str:
    """What is known of each way of one call, as a table. Measures nothing."""
    chosen, given = _call(operation, args)
    return chosen.scores(*given, top=top)


def chooser(operation: str, device: str) -> Chooser:
    """What chooses for an operation on a kind of device, `cuda` or `cpu`: its candidates, tables, stored Choices.

    Raises:
        BadInput: for an operation that does not exist.
    """
    return chooser_of(operation, device)


def _call(operation: str, args: Sequence[Any]) -> tuple[Chooser, tuple[Any, ...]]:
    """(what chooses for a call, what its candidates take)."""
    way = way_of(operation)
    takes = list(inspect.signature(way.arguments).parameters)
    if not 1 <= len(args) <= len(takes) or not isinstance(args[0], torch.Tensor):
        said = ", ".join(type(value).__name__ for value in args)
        raise BadInput(f"{operation} takes ({', '.join(takes)}), and was given ({said})")
    given = way.arguments(*args)
    if not ours(*[value for value in args if hasattr(value, "dtype")]):
        x = args[0]
        raise BadInput(
            f"{operation} of {tuple(x.shape)} in {x.dtype} is torch's: there is nothing to choose; good ones have "
            "elements, all in bfloat16, float16 or float32, outside autocast"
        )
    return chooser(operation, args[0].device.type), given


def __getattr__(name: str) -> Any:
    """`tunesmith.row_ops:rms_norm_gpu` and the like for the command line."""
    operation, _, kind = name.rpartition("_")
    for known in OPERATIONS:
        if kind in ("gpu", "cpu") and operation == known.rstrip("_"):
            return chooser_of(known, "cuda" if kind == "gpu" else "cpu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
