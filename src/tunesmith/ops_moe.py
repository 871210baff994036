"""`fused_moe` for torch: a layer of experts by what is fastest for its shape, torch's products or our own kernel.

A torch operator: `torch.compile` takes it whole. It has no gradient. See `tunesmith.ops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from torch.library import custom_op

from tunesmith.chooser import BY, Candidate, Chooser, LibraryCall, choose
from tunesmith.chooser.eager import refuse_tangents
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.events import Summary
from tunesmith.kernels import fused_moe as ours
from tunesmith.kernels.fused_moe import route
from tunesmith.kernels.programs import FLOATS
from tunesmith.tables import Packaged

__all__ = ["chooser", "fused_moe", "route", "scores", "tune"]

#: how many Configs a search tries, torch's way among them
TRIED = 96
_operation: Any = custom_op  # torch's own types leave half of it unsaid
#: torch's product of groups wants rows at addresses divisible by so many bytes, of this dtype, and GPUs from here on
_ALIGNED, _GROUPED_DTYPE, _GROUPED_FROM = 16, torch.bfloat16, (8, 0)


def fused_moe(
    x: Any,  # (M, K)
    w1: Any,  # (E, 2 N, K): the gates' rows, then the ups'
    w2: Any,  # (E, K, N)
    topk_weights: Any,  # (M, top_k)
    topk_ids: Any,  # (M, top_k), int32 or int64
) -> Any:
    """Each token's experts, silu(x · gateᵀ) * (x · upᵀ) times w2ᵀ, summed with its weights: (M, K).

    `route` makes weights and ids of a router's logits. An id that is none of the E experts counts for nothing. On a GPU
    it never waits for the host, so it can be captured into a CUDA graph.

    Raises:
        BadInput: for shapes and dtypes that do not fit, and where a forward-mode derivative is wanted.
    """
    refuse_tangents("fused_moe", x, w1, w2, topk_weights)
    return torch.ops.tunesmith.fused_moe(x, w1, w2, topk_weights, topk_ids)


@_operation("tunesmith::fused_moe", mutates_args=())
def _operator(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> torch.Tensor:
    args = ours.arguments(x, w1, w2, topk_weights, topk_ids)
    if not x.shape[0]:
        return x.new_empty(x.shape)
    if not _is_chosen(x):
        return _by_torch(*args)
    return chooser(x.device.type)(*args)


@_operator.register_fake
def _(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any) -> Any:
    return x.new_empty(x.shape)


def _is_chosen(x: Any) -> bool:
    return (x.is_cuda or x.is_cpu) and str(x.dtype).rpartition(".")[2] in FLOATS


def tune(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any) -> Summary:
    """Search for the fastest way of a call of `fused_moe` now, and store it."""
    return chooser(x.device.type).tune(*ours.arguments(x, w1, w2, topk_weights, topk_ids))


def scores(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, top: int = 10) -> str:
    """What is known of each way of a call of `fused_moe`, as a table. Measures nothing."""
    return chooser(x.device.type).scores(*ours.arguments(x, w1, w2, topk_weights, topk_ids), top=top)


def chooser(device: str) -> Chooser:
    """What chooses for a kind of device, `cuda` or `cpu`: its candidates, tables and stored Choices."""
    return _gpu() if device == "cuda" else _cpu()


# --- torch's ways ---


def _by_torch(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, M: int, E: int, N: int, K: int, top_k: int
) -> Any:
    """By torch's products: of groups where it has such a product, else expert by expert."""
    if _has_groups(x, w1, w2):
        return _by_groups(x, w1, w2, topk_weights, topk_ids, M, E, N, K, top_k)
    if x.is_cpu:
        return _by_loop(x, w1, w2, topk_weights, topk_ids, M, E, N, K, top_k)
    return _by_all(x, w1, w2, topk_weights, topk_ids, M, E, N, K, top_k)


def _by_loop(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, M: int, E: int, N: int, K: int, top_k: int
) -> Any:
    """Each expert's own tokens: the least work, but the host has to know how many they are."""
    out = torch.zeros((M, K), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    for expert in range(E):
        tokens, choices = torch.where(topk_ids == expert)
        if len(tokens):
            made = _expert(x[tokens], w1[expert], w2[expert])
            out.index_add_(0, tokens, made * topk_weights[tokens, choices].to(out.dtype)[:, None])
    return out.to(x.dtype)


def _by_all(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, M: int, E: int, N: int, K: int, top_k: int
) -> Any:
    """Every expert on all tokens: the most work, but nothing that the host has to know."""
    total = torch.promote_types(x.dtype, torch.float32)
    ids = torch.where((topk_ids >= 0) & (topk_ids < E), topk_ids, E).long()
    weights = torch.zeros((M, E + 1), dtype=total, device=x.device).scatter_add_(1, ids, topk_weights.to(total))
    asked = torch.zeros((M, E + 1), dtype=torch.bool, device=x.device).scatter_(1, ids, True)
    out = torch.zeros((M, K), dtype=total, device=x.device)
    for expert in range(E):
        made = _expert(x, w1[expert], w2[expert]) * weights[:, expert, None]
        out += torch.where(asked[:, expert, None], made, 0.0)  # of a token that is not its own it may well be infinite
    return out.to(x.dtype)


def _expert(x: Any, w1: Any, w2: Any) -> Any:
    gate, up = (x @ w1.mT).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up) @ w2.mT


def _by_groups(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, M: int, E: int, N: int, K: int, top_k: int
) -> Any:
    """Tokens sorted by expert, and torch's product of groups."""
    ids = topk_ids.flatten()
    known = (ids >= 0) & (ids < E)
    chosen, order = torch.where(known, ids, E).sort(stable=True)
    ends = torch.searchsorted(chosen, torch.arange(E, dtype=chosen.dtype, device=x.device), right=True, out_int32=True)
    product = _grouped()
    gate, up = product(x[order // top_k], w1.mT, offs=ends).chunk(2, -1)
    made = product(torch.nn.functional.silu(gate) * up, w2.mT, offs=ends)
    parts = torch.empty((M * top_k, K), dtype=torch.float32, device=x.device)
    parts[order] = made.float()
    parts = torch.where(known[:, None], parts * topk_weights.reshape(-1, 1), 0.0)
    return parts.view(M, top_k, K).sum(1).to(x.dtype)


def _grouped() -> Any:
    """Torch's product of groups of rows, each with a matrix of its own; `None` in older versions.

    Asked for by name: a table that was made beside another torch is no table of another source.
    """
    return getattr(torch.nn.functional, "grouped_mm", None)


def _has_groups(x: Any, w1: Any, w2: Any) -> bool:
    if _grouped() is None or x.dtype is not _GROUPED_DTYPE or not (x.is_cuda or x.is_cpu):
        return False
    if x.is_cuda and torch.cuda.get_device_capability(x.device) < _GROUPED_FROM:
        return False
    sides = (x.shape[1], w2.shape[2], *w1.stride()[:2], *w2.stride()[:2])
    aligned = all(side * x.element_size() % _ALIGNED == 0 for side in sides)
    return aligned and w1.stride(2) == w2.stride(2) == 1 and not (w1.data_ptr() | w2.data_ptr()) % _ALIGNED


class _Torch(LibraryCall):
    """`_by_torch`, which says what dtypes the operation takes."""

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return ours.kernel.kernel.dtypes()


# --- candidates ---


def _choose(kind: str, candidates: dict[str, Any], **more: Any) -> Chooser:
    torchs = _Torch("torch", _by_torch, ours.kernel.kernel.signature)
    made = choose(
        f"fused_moe_{kind}", {"torch": Candidate(torchs), **candidates}, args=_by_torch, reference=_reference,
        key=["M", "E", "N", "K", "top_k"], strides=["w1", "w2"], flags=ours.kernel.flags, policy="lookup", most=TRIED,
        depends=["torch"], isolate=False, **more,
    )  # fmt: skip
    made.use_table(Packaged("tunesmith.kernels", f"fused_moe_{kind}", near=("M",)))
    return made


def _reference(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, M: int, E: int, N: int, K: int, top_k: int
) -> Any:
    return ours.reference(x, w1, w2, topk_weights, topk_ids)


def _default(problem: Problem, device: Device) -> Config:
    """Our kernel: torch's way is many launches, and many times the work where it has no product of groups."""
    return Config({BY: "fused_moe", **ours.default(problem, device)})


@cache
def _gpu() -> Chooser:
    kernel = Candidate(ours.kernel.kernel, ours.space, ours.kernel.declared.model, devices=("cuda", "hip"))
    return _choose(
        "gpu", {"fused_moe": kernel}, default=_default, make_inputs=ours.make_inputs, clock="graph",
        hot=["x", "topk_weights", "topk_ids"],
    )  # fmt: skip


@cache
def _cpu() -> Chooser:
    loop, everything = (
        LibraryCall(name, function, ours.kernel.kernel.signature)
        for name, function in (("torch, by loop", _by_loop), ("torch, all experts", _by_all))
    )
    return _choose(
        "cpu",
        {
            loop.name: Candidate(loop, applies=_beside_groups),
            everything.name: Candidate(everything, applies=_nearly_all),
        },
        make_inputs=partial(ours.make_inputs, device="cpu"),
    )  # fmt: skip


def _beside_groups(problem: Problem, device: Device) -> bool:
    """Whether the loop may be another way than torch's usual one."""
    return problem["x.dtype"] == "bfloat16"


def _nearly_all(problem: Problem, device: Device) -> bool:
    """Whether a token goes to so many experts that all of them are no more than twice the work."""
    return 2 * cast(int, problem["top_k"]) >= cast(int, problem["E"])


def __getattr__(name: str) -> Any:
    """`tunesmith.ops_moe:gpu` and `tunesmith.ops_moe:cpu` for the command line."""
    if name in ("gpu", "cpu"):
        return cast(Any, _gpu if name == "gpu" else _cpu)()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
