"""The operations over rows as torch's operators: what torch.compile takes whole, with their gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.library import custom_op

from tunesmith.kernels import rmsnorm_backward as gradient
from tunesmith.kernels import rows
from tunesmith.kernels.rmsnorm import EPS
from tunesmith.row_ops.ways import by_add_rms_norm, by_layer_norm, by_rms_norm, by_silu_and_mul, by_softmax, suits

_operation: Any = custom_op  # torch's own types leave half of it unsaid
#: torch's operators of ours, by name
operators: Any = torch.ops.tunesmith


# --- as operators ---


@_operation("tunesmith::softmax", mutates_args=(), schema="(Tensor x) -> Tensor")
def _softmax_operator(x: torch.Tensor) -> torch.Tensor:
    return by_softmax(x).contiguous()


@_operation("tunesmith::rms_norm", mutates_args=(), schema="(Tensor x, Tensor? weight, float eps) -> Tensor")
def _rms_norm_operator(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    return by_rms_norm(x, weight, eps).contiguous()


@_operation(
    "tunesmith::rms_norm_backward", mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
)  # fmt: skip
def _rms_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(of x, of the weight, float32 or x's float64): by our kernel on a GPU."""
    if x.is_cuda and suits(x, weight, grad):
        return gradient.rmsnorm_backward(grad, x, weight, eps)
    return _rms_norm_formula(grad, x, weight, eps)


def _rms_norm_formula(grad: Any, x: Any, weight: Any = None, eps: float = EPS) -> tuple[Any, Any]:
    """The same by torch."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weight = None if weight is None else weight.to(wide)
    of_x, of_w = gradient.formula(_matrix(grad).to(wide), _matrix(x).to(wide), weight, eps)
    return of_x.to(x.dtype).view(x.shape), of_w


def _matrix(x: Any) -> Any:
    return rows.matrix("x", x)


@_operation(
    "tunesmith::layer_norm", mutates_args=(), schema="(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor"
)
def _layer_norm_operator(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return by_layer_norm(x, weight, bias, eps).contiguous()


@_operation(
    "tunesmith::add_rms_norm_", mutates_args=("x", "residual"),
    schema="(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float eps) -> ()",
)  # fmt: skip
def _add_rms_norm_operator(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float) -> None:
    by_add_rms_norm(x, residual, weight, eps)


@_operation("tunesmith::silu_and_mul", mutates_args=(), schema="(Tensor x) -> Tensor")
def _silu_and_mul_operator(x: torch.Tensor) -> torch.Tensor:
    return by_silu_and_mul(x).contiguous()


def _like(x: Any, *_: Any) -> Any:
    return x.new_empty(x.shape)


def _fake_gradient(grad: Any, x: Any, weight: Any, eps: float) -> Any:
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(x.shape), x.new_empty(x.shape[-1:], dtype=wide)


def _fake_half(x: Any) -> Any:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _nothing(*_: Any) -> None:
    """Written in place: nothing is made."""


for _one, _fake in (
    (_softmax_operator, _like), (_rms_norm_operator, _like), (_layer_norm_operator, _like),
    (_rms_norm_backward, _fake_gradient), (_silu_and_mul_operator, _fake_half), (_add_rms_norm_operator, _nothing),
):  # fmt: skip
    _one.register_fake(_fake)


# --- gradients ---


def _keep_result(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, grad: Any) -> Any:
    [result] = ctx.saved_tensors
    return torch.ops.aten._softmax_backward_data(grad, result, -1, result.dtype)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *arrays, ctx.eps = inputs
    ctx.save_for_backward(*arrays)


def _rms_norm_gradient(ctx: Any, grad: Any) -> Any:
    x, weight = ctx.saved_tensors
    of_x, of_w = operators.rms_norm_backward(grad, x, weight, ctx.eps)
    return of_x, None if weight is None else of_w.to(weight.dtype), None


def _rms_norm_second_gradient(ctx: Any, of_x: Any, of_w: Any) -> Any:
    """By torch, of the formula that the kernel computes."""
    grad, x, weight = ctx.saved_tensors
    arrays = (grad, x) if weight is None else (grad, x, weight)
    made = torch.func.vjp(partial(_rms_norm_formula, eps=ctx.eps), *arrays)[1]((of_x, of_w))
    return (*made, *[None] * (4 - len(made)))


def _layer_norm_gradient(ctx: Any, grad: Any) -> Any:
    """Torch's; the mean and the deviation are computed again."""
    x, weight, bias = ctx.saved_tensors
    n = list(x.shape[-1:])
    _, mean, scale = torch.ops.aten.native_layer_norm(x, n, weight, bias, ctx.eps)
    wanted = [
        asked and array is not None for asked, array in zip(ctx.needs_input_grad, (x, weight, bias), strict=False)
    ]
    made = torch.ops.aten.native_layer_norm_backward(grad, x, n, mean, scale, weight, bias, wanted)
    return *made, None


def _keep_input(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _silu_and_mul_gradient(ctx: Any, grad: Any) -> Any:
    """In float32, of a half-precision x too: rounded once."""
    [x] = ctx.saved_tensors
    wide = torch.promote_types(x.dtype, torch.float32)
    gate, up = x.to(wide).chunk(2, -1)
    part, grad = torch.sigmoid(gate), grad.to(wide)
    return torch.cat([grad * up * part * (1 + gate * (1 - part)), grad * gate * part], -1).to(x.dtype)


_softmax_operator.register_autograd(_softmax_backward, setup_context=_keep_result)
_rms_norm_operator.register_autograd(_rms_norm_gradient, setup_context=_keep_inputs)
_rms_norm_backward.register_autograd(_rms_norm_second_gradient, setup_context=_keep_inputs)
_layer_norm_operator.register_autograd(_layer_norm_gradient, setup_context=_keep_inputs)
_silu_and_mul_operator.register_autograd(_silu_and_mul_gradient, setup_context=_keep_input)
