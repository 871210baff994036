"""Operations for torch that take the fastest way known, a library's call or our own kernels: here `matmul`, `linear`;
what goes over rows is in row_ops.py.

They are torch operators: `torch.compile` takes them whole, and they can be differentiated. Without a table or a search
of their own they are torch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch.library import custom_op

from tunesmith import ops_products
from tunesmith import row_ops as rows
from tunesmith.chooser import Chooser
from tunesmith.chooser.eager import PLAIN, dual, is_eager, is_torchs, modes, traced
from tunesmith.chooser.recent import Recent
from tunesmith.chooser.settings import allows_reduced, allows_tf32, tf32_state
from tunesmith.errors import BadInput, unknown
from tunesmith.events import Summary
from tunesmith.kernel import settled
from tunesmith.kernels import gemm
from tunesmith.kernels.gemm import ACTIVATIONS, SAME
from tunesmith.ops_attention import decode_attention
from tunesmith.ops_moe import fused_moe, route
from tunesmith.ops_products import ACTIVATED
from tunesmith.options import scoped_policy
from tunesmith.row_ops import add_rms_norm_, layer_norm, rms_norm, silu_and_mul, softmax

__all__ = [
    "ACTIVATIONS", "add_rms_norm_", "chooser", "decode_attention", "fused_moe", "layer_norm", "linear", "matmul",
    "rms_norm", "route", "rows", "scores", "silu_and_mul", "softmax", "tune",
]  # fmt: skip

_operation: Any = custom_op  # torch's own types leave half of it unsaid
#: what torch allows its libraries for a dtype, as it says it: read on every call
_ALLOWED: dict[Any, Callable[[], object]] = {
    torch.float16: torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    torch.bfloat16: torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    torch.float32: tf32_state(),
}
_grad, _policy = torch.is_grad_enabled, scoped_policy.get
#: what does a kind of calls, given its tensors alone
_Run: TypeAlias = "Callable[..., Any]"
#: calls that are remembered in front of the dispatcher, which knows more kinds of arguments, and takes longer
_REMEMBERED = 4096


# --- what people call ---


def matmul(a: Any, b: Any, out_dtype: Any = None) -> Any:  # (…, M, K), (K, N) or (batch, K, N)
    """a @ b, by what is fastest for its shape: (…, M, N).

    Args:
        out_dtype: of the result; the inputs' if not given.
    """
    if not traced():
        # `Recent.find` of two tensors, written out: of ten microseconds that a call takes, its own call would be seen.
        for holds, asked, ungraded, allowed, was, policy, run in _of_product(id(b), ()):
            if (
                asked is out_dtype
                and type(a) in PLAIN and type(b) in PLAIN and not a.is_nested and not b.is_nested
                and holds(a, b)
                and (ungraded or not _grad()) and allowed() == was and _policy() is policy and dual._current_level < 0
                and not modes()
            ):  # fmt: skip
                return run(a, b)
        if is_eager(a, b):
            return _product(a, b, None, None, out_dtype, _products, ((a, b), out_dtype))
    return _operated(a, b, None, None, out_dtype)


def linear(
    x: Any,  # (…, K)
    w: Any,  # (N, K), or (batch, N, K) where x is (batch, M, K)
    bias: Any = None,  # (N,)
    activation: str | None = None,
    out_dtype: Any = None,
) -> Any:
    """activation(x · wᵀ + bias), by what is fastest for its shape: (…, N).

    Args:
        activation: `relu`, `gelu` or `silu`, as `torch.nn.functional` computes it; `None` for none.
        out_dtype: of the result; x's if not given.

    Raises:
        BadInput: for an activation that does not exist, and shapes that do not fit.
    """
    if not traced():
        options = activation, out_dtype
        if bias is None:
            recent, tensors = _layers, (x, w)
            for holds, asked, ungraded, allowed, was, policy, run in _of_layer(id(w), ()):  # as in `matmul`
                if (
                    asked == options
                    and type(x) in PLAIN and type(w) in PLAIN and not x.is_nested and not w.is_nested
                    and holds(x, w)
                    and (ungraded or not _grad()) and allowed() == was and _policy() is policy
                    and dual._current_level < 0 and not modes()
                ):  # fmt: skip
                    return run(x, w)
        else:
            recent, tensors = _biased, (x, bias, w)
            run = recent.find(tensors, options)
            if run is not None:
                return run(x, w, bias)
        if is_eager(x, w, bias):
            return _product(x, w.mT, bias, activation, out_dtype, recent, (tensors, options))
    return _operated(x, w.mT, bias, activation, out_dtype)


# --- as an operator ---


def _operated(a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any) -> Any:
    kind = a.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        to = torch.get_autocast_dtype(kind)
        a, b, bias = a.to(to), b.to(to), None if bias is None else bias.to(to)
    if min(a.ndim, b.ndim) < 2 or is_torchs(a, b, bias):  # torch's own rules for vectors
        return _plainly(a, b, bias, activation, out_dtype)
    return torch.ops.tunesmith.gemm(a, b, bias, activation, out_dtype)


@_operation(
    "tunesmith::gemm", mutates_args=(),
    schema="(Tensor a, Tensor b, Tensor? bias, str? activation, ScalarType? out_dtype) -> Tensor",
)  # fmt: skip
def _operator(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype | None
) -> torch.Tensor:
    return _product(a, b, bias, activation, out_dtype).contiguous()


@_operator.register_fake
def _(a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any) -> Any:
    shape: Any = torch.matmul(a, b).shape
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, ctx.activation, _ = inputs
    ctx.save_for_backward(a, b, bias)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """What an activation was given is computed again; the products are torch's own."""
    a, b, bias = ctx.saved_tensors
    if ctx.activation is not None:  # in float32, of half precision too: rounded once
        wide = torch.promote_types(a.dtype, torch.float32)
        before = (a @ b).to(wide)
        grad = _derived(ctx.activation, before if bias is None else before + bias.to(wide), grad.to(wide))
    grad = grad.to(a.dtype)
    of_a, of_b, of_bias = ctx.needs_input_grad[:3]
    grad_a = (grad @ b.mT).sum_to_size(a.shape) if of_a else None
    grad_bias = grad.sum_to_size(bias.shape) if of_bias and bias is not None else None
    if b.ndim == 2:  # one product of all rows, and no sum over products
        a, grad = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
    grad_b = (a.mT @ grad).sum_to_size(b.shape) if of_b else None
    return grad_a, grad_b, grad_bias, None, None


def _derived(activation: str, before: Any, grad: Any) -> Any:
    """The gradient before an activation."""
    if activation == "relu":
        return torch.where(before > 0, grad, 0)
    if activation == "gelu":
        density = torch.exp(-0.5 * before * before) / math.sqrt(2 * math.pi)
        return grad * (0.5 * (1 + torch.erf(before / math.sqrt(2))) + before * density)
    sigmoid = torch.sigmoid(before)
    return grad * sigmoid * (1 + before * (1 - sigmoid))


_operator.register_autograd(_backward, setup_context=_remember)


# --- from a call to a candidate ---


@dataclass(frozen=True, slots=True)
class _Known:
    """How a kind of call is done.

    Attributes:
        launch: takes the tensors, then `rest`.
        alignment: what `_alignment` of the tensors has to be for `launch`.
        bare: takes the tensors alone, and sees to their alignment; `None` where `launch` has to be called.
        layer: the same of a layer's weights, which are transposed.
    """

    launch: Callable[..., Any]
    rest: tuple[Any, ...]
    alignment: int
    bare: _Run | None
    layer: _Run | None

    def run(self, a: Any, b: Any, bias: Any = None) -> Any:
        if self.bare is not None:
            return self.bare(a, b) if bias is None else self.bare(a, b, bias)
        addresses = a.data_ptr() | b.data_ptr() if bias is None else a.data_ptr() | b.data_ptr() | bias.data_ptr()
        if (self.alignment or addresses & 15) and self.alignment != _alignment(a, b, bias):
            return _found(None, a, b, bias, *_asked(self.rest))
        return self.launch(a, b, bias, *self.rest)

    def run_layer(self, x: Any, w: Any, bias: Any = None) -> Any:
        return self.run(x, w.mT, bias)


#: what two tensors and a call's options are → how it is done
_known: dict[tuple[object, ...], _Known] = {}
#: the same of calls whose weights come again: of `matmul`, of `linear` without and with a bias
_products, _layers, _biased = Recent[_Run](), Recent[_Run](), Recent[_Run]()
_of_product, _of_layer = _products.found.get, _layers.found.get
_clears: list[int] = [0]
#: torch's calls that settled launches are, and what takes rows in any number of dimensions in their place
_TORCHS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.mm: torch.matmul, torch._C._nn.linear: torch._C._nn.linear
}  # fmt: skip


def _forget() -> None:
    for known in (_known, _products, _layers, _biased):
        known.clear()
    _clears[0] += 1


def _asked(rest: tuple[Any, ...]) -> tuple[Any, Any]:
    """(activation, dtype of the output; `None` for the inputs') of what follows a call's tensors."""
    *_, activation, out, _ = rest
    return activation, None if out == SAME else getattr(torch, out)


def _product(
    a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any,
    recent: Recent[_Run] | None = None, call: tuple[tuple[Any, ...], object] = ((), None),
) -> Any:  # fmt: skip
    """A call that nobody but its caller sees.

    Args:
        recent: remembers how it is done, by its weights. call: (tensors, other arguments) as the caller has them.
    """
    allowed = _ALLOWED.get(a.dtype)
    if allowed is None:
        return _plainly(a, b, bias, activation, out_dtype)
    name = (
        a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.get_device(), b.get_device(),
        a.is_neg(), b.is_neg(), activation, out_dtype, allowed(), scoped_policy.get(),
        bias is None or (bias.shape, bias.stride(), bias.dtype, bias.get_device(), bias.is_neg()),
    )  # fmt: skip
    known = _known.get(name)
    if known is None:
        return _found(name, a, b, bias, activation, out_dtype)
    if recent is not None:
        run = known.bare or known.run if recent is _products else known.layer or known.run_layer
        recent.note(*call, allowed, name, run)
        if _known.get(name) is not known:  # something new has become known meanwhile
            _forget()
    return known.run(a, b, bias)


def _alignment(a: Any, b: Any, bias: Any) -> int:
    """Which of the addresses are not divisible by 16, a bit for each: 0 where all are."""
    addresses = a.data_ptr(), b.data_ptr(), 0 if bias is None else bias.data_ptr()
    if not (addresses[0] | addresses[1] | addresses[2]) & 15:
        return 0
    return sum((address & 15 != 0) << place for place, address in enumerate(addresses))


def _found(name: tuple[object, ...] | None, a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any) -> Any:
    """A call of which nothing is remembered yet; from now on it is, under its name."""
    args, shape = _arguments(a, b, bias, activation, out_dtype)
    if args is None:
        return _plainly(a, b, bias, activation, out_dtype)
    chosen, clears = chooser(a.device.type), _clears[0]
    made = chosen(*args)
    launch = chosen.dispatcher.known(*args)
    same = args[1] is b and args[2] is bias and (args[0] is a or a.is_contiguous())
    if name is not None and launch is not None and same:
        if len(_known) >= _REMEMBERED:
            _known.clear()
        if clears == _clears[0]:  # nothing new has become known meanwhile
            _known[name] = _known_of(launch, args, shape)
    return made if shape is None else made.view(shape)


def _known_of(launch: Callable[..., Any], args: tuple[Any, ...], shape: tuple[int, ...] | None) -> _Known:
    """How a call is done that candidates see as these arguments.

    Args:
        shape: of the result, where the call's rows are in more than one dimension, and follow each other.
    """
    rest, asked = args[3:], _asked(args[3:])

    def otherwise(a: Any, b: Any, bias: Any = None) -> Any:
        return _found(None, a, b, bias, *asked)

    def otherwise_by_layer(x: Any, w: Any, bias: Any = None) -> Any:
        return _found(None, x, w.mT, bias, *asked)

    bare, layer = settled(launch, args, otherwise), settled(launch, args, otherwise_by_layer, turned=True)
    alignment, k = _alignment(*args[:3]), args[6]
    if shape is None:
        return _Known(launch, rest, alignment, bare, layer)
    return _Known(
        _of_rows(launch, k, shape), rest, alignment, bare and _of_rows(bare, k, shape),
        layer and _of_rows(layer, k, shape),
    )  # fmt: skip


def _of_rows(run: Callable[..., Any], k: int, shape: tuple[int, ...]) -> Callable[..., Any]:
    """The same for a first tensor whose rows of k elements are in more than one dimension."""
    if run in _TORCHS:
        return _TORCHS[run]

    def of_rows(a: Any, *more: Any) -> Any:
        return run(a.view(-1, k), *more).view(shape)

    return of_rows


def _arguments(a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any) -> tuple[Any, Any]:
    """(what the candidates take; `None` where there is nothing to choose, the result's shape where it is another)."""
    dtype, shape = a.dtype, None
    if dtype not in _ALLOWED or b.dtype is not dtype or not (a.is_cuda or a.is_cpu) or not a.numel() or not b.numel():
        return None, None
    if any(
        x is not None and (x.layout is not torch.strided or x.is_neg()) for x in (a, b, bias)
    ):  # of these only torch knows how they are read
        return None, None
    if a.ndim != 2:
        if a.ndim < 2 or (b.ndim != 2 and a.ndim > 3):
            return None, None
        if b.ndim == 2:
            shape = (*a.shape[:-1], b.shape[-1])
            a = a.reshape(-1, a.shape[-1])
    if b.ndim not in (2, 3) or (a.ndim == b.ndim == 3 and a.shape[0] != b.shape[0]):
        return None, None
    if dtype is torch.float32:
        precision = "tf32" if a.is_cuda and allows_tf32() else "ieee"
    else:
        precision = "reduced" if a.is_cuda and allows_reduced(dtype) else "ieee"
    out = SAME if out_dtype is None else str(out_dtype).rpartition(".")[2]
    return gemm.arguments(a, b, bias, activation, out, precision), shape


def _plainly(a: Any, b: Any, bias: Any, activation: str | None, out_dtype: Any) -> Any:
    """By torch, what no candidate is for."""
    if activation not in ACTIVATED:
        raise BadInput(f"linear: {unknown('activation', activation, ACTIVATIONS)}")
    product = torch.matmul(a, b)
    if bias is not None:
        product = product + bias
    made = ACTIVATED[activation](product)
    return made if out_dtype is None else made.to(out_dtype)


def tune(x: Any, w: Any, bias: Any = None, activation: str | None = None, out_dtype: Any = None) -> Summary:
    """Search for the fastest way of a call of `linear` now, and store it; for `matmul(a, b)` pass `b.mT`.

    Raises:
        BadInput: where there is nothing to choose: no elements, a dtype that only torch computes.
    """
    chosen, args = _call(x, w, bias, activation, out_dtype)
    return chosen.tune(*args)


def scores(
    x: Any, w: Any, bias: Any = None, activation: str | None = None, out_dtype: Any = None, top: int = 10
) -> str:
    """What is known of each way of a call of `linear`, as a table. Measures nothing."""
    chosen, args = _call(x, w, bias, activation, out_dtype)
    return chosen.scores(*args, top=top)


def _call(x: Any, w: Any, bias: Any, activation: str | None, out_dtype: Any) -> tuple[Chooser, tuple[Any, ...]]:
    args, _ = _arguments(x, w.mT, bias, activation, out_dtype)
    if args is None:
        raise BadInput(
            f"linear of {tuple(x.shape)} and {tuple(w.shape)} in {x.dtype} is torch's: there is nothing to choose"
        )
    return chooser(x.device.type), args


def chooser(device: str) -> Chooser:
    """What chooses for a kind of device, `cuda` or `cpu`: its candidates, tables and stored Choices."""
    return _chooser("gpu" if device == "cuda" else "cpu")


@cache
def _chooser(kind: str) -> Chooser:
    made = ops_products.gpu() if kind == "gpu" else ops_products.cpu()
    made.dispatcher.on_clear.append(_forget)
    return made


def __getattr__(name: str) -> Any:
    """`tunesmith.ops:gpu` and `tunesmith.ops:cpu` for the command line."""
    if name in ("gpu", "cpu"):
        return _chooser(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
