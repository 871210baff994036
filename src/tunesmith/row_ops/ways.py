"""The ways of each operation over rows: torch's call and our kernels behind one chooser, and the calls that ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch

from tunesmith.chooser import Candidate, Chooser, LibraryCall, choose, returning
from tunesmith.chooser.eager import is_torchs
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, unknown
from tunesmith.kernels import add_rmsnorm as adding
from tunesmith.kernels import layernorm as layer
from tunesmith.kernels import rmsnorm as rms
from tunesmith.kernels import row_softmax, rows
from tunesmith.kernels import silu_and_mul as gating
from tunesmith.tables import Packaged
from tunesmith.tuned import TunedKernel

F = torch.nn.functional
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def suits(x: Any, *others: Any) -> bool:
    """Whether there is something to choose: elements, in one dtype and place that our kernels have."""
    if x.dtype not in _DTYPES or not (x.is_cuda or x.is_cpu) or not x.ndim or not x.numel():
        return False
    for one in others:
        if one is not None and (one.dtype is not x.dtype or one.get_device() != x.get_device()):
            return False
    return True


def ours(x: Any, *others: Any) -> bool:
    """The same, outside autocast, under which torch's own calls know in which dtype they compute, and where an operator
    of ours will do."""
    return suits(x, *others) and not torch.is_autocast_enabled(x.device.type) and not is_torchs(x, *others)


# --- from a call to a candidate ---


def by_softmax(x: Any) -> Any:
    """By what is known to be fastest, nobody else seeing it; torch's where there is nothing to choose, and where x is
    to be read with the other sign, of which only torch knows."""
    if not suits(x) or x.is_neg():
        return torch.softmax(x, -1)
    return chooser_of("softmax", _kind(x))(*_of_matrix(x)).view(x.shape)


def by_rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """See `by_softmax`."""
    if not suits(x, weight) or x.is_neg():
        return torchs_rms_norm(x, weight, eps)
    return chooser_of("rms_norm", _kind(x))(*_for_rms_norm(x, weight, eps)).view(x.shape)


def by_layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """See `by_softmax`."""
    if not suits(x, weight, bias) or x.is_neg():
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    return chooser_of("layer_norm", _kind(x))(*_for_layer_norm(x, weight, bias, eps)).view(x.shape)


def by_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float | None) -> None:
    """See `by_softmax`. Writes x and residual; with torch's own `eps` where that is None."""
    has_choice = eps is not None and suits(x, residual, weight) and not (x.is_neg() or residual.is_neg())
    by = chooser_of("add_rms_norm_", _kind(x)) if has_choice else _torch_adds
    adding.in_place(by, x, residual, weight, eps, seen=x.is_cpu or not has_choice)


def by_silu_and_mul(x: Any) -> Any:
    """See `by_softmax`."""
    if not suits(x) or x.is_neg():
        return torchs_silu_and_mul(x)
    return chooser_of("silu_and_mul", _kind(x))(*_for_silu_and_mul(x)).view(*x.shape[:-1], x.shape[-1] // 2)


def _kind(x: Any) -> str:
    return "cuda" if x.is_cuda else "cpu"


def _of_matrix(x: Any) -> tuple[Any, ...]:
    flat = rows.matrix("x", x)
    return flat, *flat.shape


def _for_rms_norm(x: Any, weight: Any = None, eps: float = rms.EPS) -> tuple[Any, ...]:
    flat, *sizes = _of_matrix(x)
    return flat, rows.vector("weight", weight, flat.shape[1]), *sizes, rows.number("eps", eps)


def _for_layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = layer.EPS) -> tuple[Any, ...]:
    flat, *sizes = _of_matrix(x)
    n = flat.shape[1]
    return flat, rows.vector("weight", weight, n), rows.vector("bias", bias, n), *sizes, rows.number("eps", eps)


def _for_add(x: Any, residual: Any, weight: Any = None, eps: float = rms.EPS) -> tuple[Any, ...]:
    flat, other, w, _ = adding.operands(x, residual, weight)
    return flat, other, w, *flat.shape, rows.number("eps", eps)


def _for_silu_and_mul(x: Any) -> tuple[Any, ...]:
    flat, height, _ = _of_matrix(x)
    return flat, height, gating.half("x", x)


# --- candidates ---


def torchs_rms_norm(x: Any, weight: Any, eps: float | None) -> Any:
    """Along the last dimension."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def torchs_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float | None) -> None:
    """In place, on tensors of any kind."""
    adding.check(x, residual)
    residual.add_(x)
    x.copy_(torchs_rms_norm(residual, weight, eps))


def torchs_silu_and_mul(x: Any) -> Any:
    """By two calls."""
    n = x.shape[-1] // 2
    return F.silu(x[..., :n]) * x[..., n:]


def _torch_softmax(x: Any, rows: int, n: int) -> Any:
    return torch.softmax(x, -1)


def _torch_rms_norm(x: Any, w: Any, rows: int, n: int, eps: float) -> Any:
    return F.rms_norm(x, (n,), w, eps)


def _torch_layer_norm(x: Any, w: Any, b: Any, rows: int, n: int, eps: float) -> Any:
    return F.layer_norm(x, (n,), w, b, eps)


def _torch_adds(x: Any, residual: Any, w: Any, rows: int, n: int, eps: float | None) -> Any:
    torchs_add_rms_norm(x, residual, w, eps)
    return x, residual


def _torch_silu_and_mul(x: Any, rows: int, n: int) -> Any:
    return F.silu(x[:, :n]) * x[:, n:]


def _by_c(x: Any, rows: int, n: int) -> tuple[tuple[Any, ...], Any]:
    """What the C kernel takes."""
    made = torch.empty((rows, n))
    return (x.detach().contiguous().numpy(), made.numpy(), rows, n), made


def _for_c(problem: Problem, device: Device) -> bool:
    return problem["x.dtype"] == "float32"


class _Torch(LibraryCall):
    """Torch's call for what one of our kernels does, in the dtypes of that."""

    def __init__(self, function: Callable[..., Any], kernel: TunedKernel) -> None:
        super().__init__("torch", function, kernel.kernel.signature)
        self._dtypes = kernel.kernel.dtypes()

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return self._dtypes


@dataclass(frozen=True)
class Way:
    """How an operation is done.

    Attributes:
        kernel: ours for a GPU, whose arguments all candidates take. torchs: torch's call.
        arguments: makes them of a call of the operation.
        make_inputs, reference: the kernel's. writes: arrays that are written in place.
        on_cpu, on_gpu: make further candidates for the CPU, for GPUs.
    """

    kernel: TunedKernel
    torchs: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]]
    writes: tuple[str, ...] = ()
    on_cpu: Callable[[], Mapping[str, Any]] = field(default=dict[str, Any])
    on_gpu: Callable[[], Mapping[str, Any]] = field(default=dict[str, Any])


def _c_softmax() -> dict[str, Any]:
    from tunesmith.kernels import softmax as in_c

    made = returning(in_c.kernel, _by_c, _torch_softmax)
    return {"C": Candidate(made, in_c.space, applies=_for_c, devices=("cpu",))}


def _softmax_of_clusters() -> dict[str, Any]:
    from tunesmith.kernels import cluster_softmax as by
    from tunesmith.kernels import nvidia

    made = Candidate(by.kernel.kernel, by.space, applies=by.applies, devices=("cuda",), missing=nvidia.missing)
    return {by.kernel.kernel.name: made}


WAYS = {
    "softmax": Way(row_softmax.kernel, _torch_softmax, _of_matrix, on_cpu=_c_softmax, on_gpu=_softmax_of_clusters),
    "rms_norm": Way(rms.kernel, _torch_rms_norm, _for_rms_norm),
    "layer_norm": Way(layer.kernel, _torch_layer_norm, _for_layer_norm),
    "add_rms_norm_": Way(adding.kernel, _torch_adds, _for_add, writes=("x", "residual")),
    "silu_and_mul": Way(gating.kernel, _torch_silu_and_mul, _for_silu_and_mul),
}
#: what `chooser`, `tune` and `scores` take
OPERATIONS = tuple(WAYS)


def way_of(operation: str) -> Way:
    """How an operation is done.

    Raises:
        BadInput: naming the known ones.
    """
    if operation not in WAYS:
        raise BadInput(unknown("operation", operation, WAYS))
    return WAYS[operation]


def chooser_of(operation: str, device: str) -> Chooser:
    """What chooses for an operation on a kind of device, `cuda` or `cpu`."""
    return _chooser(operation, "gpu" if device == "cuda" else device)


@cache
def _chooser(operation: str, kind: str) -> Chooser:
    way = way_of(operation)
    ours, declared, on_gpu = way.kernel.kernel, way.kernel.declared, kind == "gpu"
    candidates = way.on_cpu()
    if on_gpu:
        first = {ours.name: Candidate(ours, way.kernel.space, declared.model, devices=("cuda", "hip"))}
        candidates = {**first, **way.on_gpu()}
    make_inputs: Any = declared.make_inputs
    name = f"{operation.rstrip('_')}_{kind}"
    made = choose(
        name, {"torch": Candidate(_Torch(way.torchs, way.kernel)), **candidates},
        args=way.torchs, key=["rows", "n"], reference=declared.against.reference, writes=way.writes,
        make_inputs=make_inputs if on_gpu else partial(make_inputs, device="cpu"), settings=None, policy="lookup",
        most=rows.TRIED, clock="graph" if on_gpu else None, depends=["torch"], isolate=False,
    )  # fmt: skip
    made.use_table(Packaged("tunesmith.kernels", name, near=("rows",)))
    return made
