"""`decode_attention` for torch: one new token of each sequence, by torch's attention or our own kernel.

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
from tunesmith.kernels import decode_attention as ours
from tunesmith.kernels.decode_attention.launch import PARAMETERS
from tunesmith.kernels.programs import FLOATS
from tunesmith.tables import Packaged

__all__ = ["chooser", "decode_attention", "scores", "tune"]

#: how many Configs a search tries, torch's way among them
TRIED = 96
_operation: Any = custom_op  # torch's own types leave half of it unsaid


def decode_attention(
    q: Any,  # (B, HQ, D)
    k: Any,  # (B, S, HKV, D), or (pages of all sequences, page_size, HKV, D)
    v: Any,  # as k
    lens: Any,  # (B,), int32 or int64: how many keys each sequence has
    pages: Any = None,  # (B, most pages of a sequence), int32 or int64: which page of k and v holds its keys
    scale: float | None = None,
    max_len: int | None = None,
) -> Any:
    """softmax(scale q · kᵀ) · v, each sequence over its own keys, by what is fastest for its shape: (B, HQ, D).

    Args:
        scale: 1/√D if not given.
        max_len: that no sequence is longer than; what k or `pages` can hold if not given. Longer ones are cut there.

    A sequence without keys gets zeros. On a GPU it never waits for the host, so it can be captured into a CUDA graph.

    Raises:
        BadInput: for shapes, dtypes and strides that do not fit, and where a forward-mode derivative is wanted.
    """
    refuse_tangents("decode_attention", q, k, v)
    return torch.ops.tunesmith.decode_attention(q, k, v, lens, pages, scale, max_len)


@_operation(
    "tunesmith::decode_attention", mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor lens, Tensor? pages, float? scale, SymInt? max_len) -> Tensor",
)  # fmt: skip
def _operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lens: torch.Tensor, pages: torch.Tensor | None,
    scale: float | None, max_len: int | None,
) -> torch.Tensor:  # fmt: skip
    args = ours.arguments(q, k, v, lens, pages, scale, max_len)
    if not q.shape[0] or not args[PARAMETERS.index("S")]:
        return q.new_zeros(q.shape)
    if not _is_chosen(q):
        return _by_torch(*args)
    return chooser(q.device.type)(*args)


@_operator.register_fake
def _(q: Any, k: Any, v: Any, lens: Any, pages: Any, scale: Any, max_len: Any) -> Any:
    return q.new_empty(q.shape)


def _is_chosen(q: Any) -> bool:
    return (q.is_cuda or q.is_cpu) and str(q.dtype).rpartition(".")[2] in FLOATS


def tune(q: Any, k: Any, v: Any, lens: Any, pages: Any = None, max_len: int | None = None) -> Summary:
    """Search for the fastest way of a call of `decode_attention` now, and store it."""
    return chooser(q.device.type).tune(*ours.arguments(q, k, v, lens, pages, None, max_len))


def scores(
    q: Any, k: Any, v: Any, lens: Any, pages: Any = None, max_len: int | None = None, top: int = 10
) -> str:  # fmt: skip
    """What is known of each way of a call of `decode_attention`, as a table. Measures nothing."""
    return chooser(q.device.type).scores(*ours.arguments(q, k, v, lens, pages, None, max_len), top=top)


def chooser(device: str) -> Chooser:
    """What chooses for a kind of device, `cuda` or `cpu`: its candidates, tables and stored Choices."""
    return _gpu() if device == "cuda" else _cpu()


# --- torch's way ---


def _by_torch(
    q: Any, k: Any, v: Any, lens: Any, pages: Any, scale: float, B: int, HQ: int, HKV: int, D: int, S: int,
    page_size: int,
) -> Any:  # fmt: skip
    """Torch's attention, the heads that share keys as the queries of one; a cache in pages is copied into one piece."""
    return _attention(q, _pieces(k, pages, S), _pieces(v, pages, S), lens, scale, HKV, S)


def _attention(q: Any, k: Any, v: Any, lens: Any, scale: float, HKV: int, S: int) -> Any:
    B, HQ, D = q.shape
    there = torch.arange(S, device=q.device) < lens[:, None]
    # A sequence without keys sees one, so that nothing is not a number, and gets its zeros afterwards.
    seen = there | ((torch.arange(S, device=q.device) == 0) & (lens[:, None] <= 0))
    values = torch.where(there[:, :, None, None], v, 0)  # what lies behind a sequence may be anything, NaN too
    keys = torch.where(there[:, :, None, None], k, 0)
    made = torch.nn.functional.scaled_dot_product_attention(
        q.reshape(B, HKV, HQ // HKV, D), keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None, :],
        scale=scale,
    )  # fmt: skip
    return made.reshape(B, HQ, D)


def _pieces(cache: Any, pages: Any, S: int) -> Any:
    """Each sequence's keys or values in one piece: (B, S, HKV, D)."""
    if pages is None:
        return cache[:, :S]
    used = pages[:, : -(-S // cache.shape[1])]
    return cache[used.clamp(0, cache.shape[0] - 1).long()].flatten(1, 2)[:, :S]


def _by_cut(
    q: Any, k: Any, v: Any, lens: Any, pages: Any, scale: float, B: int, HQ: int, HKV: int, D: int, S: int,
    page_size: int,
) -> Any:  # fmt: skip
    """Torch's attention over no more than the longest sequence, which the host has to know."""
    longest = int(lens.max().clamp(0, S))
    return _attention(q, _pieces(k, pages, longest), _pieces(v, pages, longest), lens, scale, HKV, longest)


class _Torch(LibraryCall):
    """`_by_torch`, which says what dtypes the operation takes."""

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return ours.kernel.kernel.dtypes()


# --- candidates ---


def _choose(kind: str, candidates: dict[str, Any], **more: Any) -> Chooser:
    torchs = _Torch("torch", _by_torch, ours.kernel.kernel.signature)
    made = choose(
        f"decode_attention_{kind}", {"torch": Candidate(torchs), **candidates}, args=_by_torch, reference=_reference,
        key=["B", "HQ", "HKV", "D", "S", "page_size"], dims=["B", "HQ", "HKV", "D", "S"], buckets={"S": "pow2"},
        flags=ours.kernel.flags, policy="lookup", most=TRIED, depends=["torch"], isolate=False,
        **more,
    )  # fmt: skip
    made.use_table(Packaged("tunesmith.kernels", f"decode_attention_{kind}", near=("B",)))
    return made


def _reference(
    q: Any, k: Any, v: Any, lens: Any, pages: Any, scale: float, B: int, HQ: int, HKV: int, D: int, S: int,
    page_size: int,
) -> Any:  # fmt: skip
    return ours.reference(q, k, v, lens, pages, scale, S)


def _default(problem: Problem, device: Device) -> Config:
    """Our kernel: torch's reads all that a cache can hold, and copies one that lies in pages."""
    return Config({BY: "decode_attention", **ours.default(problem, device)})


@cache
def _gpu() -> Chooser:
    kernel = Candidate(ours.kernel.kernel, ours.space, ours.kernel.declared.model, devices=("cuda", "hip"))
    return _choose(
        "gpu", {"decode_attention": kernel}, default=_default, make_inputs=ours.make_inputs, clock="graph",
        hot=["q", "lens", "pages"],
    )  # fmt: skip


@cache
def _cpu() -> Chooser:
    cut = LibraryCall("torch, cut", _by_cut, ours.kernel.kernel.signature)
    return _choose("cpu", {cut.name: Candidate(cut)}, make_inputs=partial(ours.make_inputs, device="cpu"))


def __getattr__(name: str) -> Any:
    """`tunesmith.ops_attention:gpu` and `tunesmith.ops_attention:cpu` for the command line."""
    if name in ("gpu", "cpu"):
        return cast(Any, _gpu if name == "gpu" else _cpu)()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
