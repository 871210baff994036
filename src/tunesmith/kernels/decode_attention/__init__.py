"""`decode_attention`: attention of one new token a sequence on a GPU, in Triton, over a cache in pages or in one piece.

Heads of queries may share heads of keys, sequences have lengths of their own, and each may be split into parts that
different programs go through, which a second program merges. Imports neither torch nor Triton until it is asked for.
"""

from __future__ import annotations

from typing import Any, cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Work
from tunesmith.core.model.work import ITEM_BYTES, TILE_REGISTERS
from tunesmith.core.problem import Problem, next_power_of_two
from tunesmith.core.space import Space
from tunesmith.errors import BadInput
from tunesmith.kernels.decode_attention.launch import KNOBS, LEAST, PARAMETERS, SIZES, attention_kernel, padded
from tunesmith.kernels.programs import drawer
from tunesmith.tables import Packaged

__all__ = ["arguments", "decode_attention", "default", "kernel", "make_inputs", "reference", "space", "work"]

_SPLITS = (1, 2, 4, 8, 16, 32, 64)
#: a GPU is busy with so many programs for each of its multiprocessors
_PROGRAMS_A_UNIT = 2
#: the longest sequence that make_inputs makes is S, the shortest a half of that: continuous batching mixes them
_SHORTEST = 0.5


# --- what is known without measuring ---


def work(problem: Problem, config: Config) -> Work:
    """What a launch does, for the performance model: every sequence as long as the longest."""
    B, HQ, HKV, D, S, page = _sizes(problem)
    knobs = cast("dict[str, int]", dict(config))
    rows, columns, splits, threads = knobs["BLOCK_H"], knobs["BLOCK_N"], knobs["SPLITS"], 32 * knobs["num_warps"]
    dtype = str(problem["q.dtype"])
    item, wide = ITEM_BYTES[dtype], padded(D)
    step_bytes = 2.0 * columns * D * item
    return Work(
        blocks=B * HKV * -(-(HQ // HKV) // rows) * splits,
        threads=threads,
        steps=max(1, -(-S // (columns * splits))),
        stages=_buffers(page, knobs["num_stages"]) + 1,
        flops=4.0 * rows * columns * wide,
        operations=10.0 * rows * columns,
        step_bytes=step_bytes,
        end_bytes=rows * D * (item if splits == 1 else 8),
        once_bytes=2.0 * B * S * HKV * D * item,
        shared_bytes=round(_buffers(page, knobs["num_stages"]) * step_bytes),
        registers=rows * (wide + columns) // threads + TILE_REGISTERS,
        dtype=dtype,
        matrix_rows=rows,
    )


def default(problem: Problem, device: Device) -> Config:
    """64 keys at a time, and each sequence in as many parts as it takes to keep the GPU busy."""
    legal = space(problem, device)
    B, HQ, HKV, _, _, page = _sizes(problem)
    programs = max(1, B * HKV)
    wanted = next_power_of_two(-(-_PROGRAMS_A_UNIT * device.units // programs))
    rows = min(64, max(LEAST, next_power_of_two(HQ // HKV)))
    splits = sorted(_SPLITS, key=lambda number: (number > wanted, abs(number - wanted)))
    for columns, depth in ((64, 2), (64, 1), (32, 2), (32, 1), (16, 1)):
        for number in splits:
            config = Config(
                BLOCK_N=columns, BLOCK_H=rows, SPLITS=number, num_warps=4, num_stages=_stages(page)[depth]
            )  # fmt: skip
            if config in legal:
                return config
    return next(iter(legal))


def space(problem: Problem, device: Device) -> Space:
    """Keys at a time, heads at a time, parts of a sequence, as fit the sizes."""
    B, HQ, HKV, D, S, page = _sizes(problem)
    item, wide = ITEM_BYTES[str(problem["q.dtype"])], padded(D)
    group = next_power_of_two(HQ // HKV)
    axes = Space(
        BLOCK_N=[16, 32, 64, 128, 256],
        BLOCK_H=[rows for rows in (16, 32, 64) if rows == LEAST or rows < 2 * group],
        SPLITS=list(_SPLITS),
        num_warps=[1, 2, 4, 8],
        num_stages=list(_stages(page)),
    )
    shared = device.shared_bytes_per_block

    def _has_keys(BLOCK_N: int) -> bool:
        return BLOCK_N == LEAST or BLOCK_N < 2 * S

    def _splits_well(BLOCK_N: int, BLOCK_H: int, SPLITS: int) -> bool:
        programs = B * HKV * -(-group // BLOCK_H)
        return SPLITS == 1 or ((SPLITS - 1) * BLOCK_N < S and SPLITS * programs <= 32 * max(programs, device.units))

    def _fits_registers(BLOCK_N: int, BLOCK_H: int, num_warps: int) -> bool:
        return BLOCK_H * (wide + BLOCK_N) * (2 if item == 4 else 1) <= 32 * num_warps * 160

    def _fits_shared(BLOCK_N: int, BLOCK_H: int, num_stages: int) -> bool:
        wanted = (2 * BLOCK_N * _buffers(page, num_stages) + BLOCK_H) * wide * item
        return not shared or wanted <= shared

    return (
        axes.where(_has_keys, "no sequence has as many keys")
        .where(_splits_well, "each part has keys of its own, and there are some tens of programs a multiprocessor")
        .where(_fits_registers, "sums and scores would spill")
        .where(_fits_shared, "even one stage less would not fit the shared memory")
    )


def _stages(page: int) -> tuple[int, ...]:
    """Depths of the pipeline, each with one more buffer: where a page is looked up first, that takes a stage of two."""
    return (1, 3, 5, 7) if page else (1, 2, 3, 4)


def _buffers(page: int, stages: int) -> int:
    """Tiles of keys, and of values, that are in shared memory at once."""
    return max(1, (stages - 1) // 2 if page else stages - 1)


def _sizes(problem: Problem) -> tuple[int, ...]:
    return tuple(cast(int, problem[name]) for name in SIZES)


# --- arguments ---


def arguments(
    q: Any,  # (B, HQ, D)
    k: Any,  # (B, S, HKV, D), or (pages of all sequences, page_size, HKV, D)
    v: Any,  # as k
    lens: Any,  # (B,), integers: how many keys each sequence has
    pages: Any = None,  # (B, most pages of a sequence), integers: which page of k and v holds its keys
    scale: float | None = None,
    max_len: int | None = None,
) -> tuple[Any, ...]:
    """A call's arguments as the kernel takes them: with sizes; lengths and pages in int32.

    Args:
        scale: of the products of queries and keys; 1/√D if not given.
        max_len: that no sequence is longer than, for the choice of a Config; what k or `pages` can hold if not given.
            Longer ones are cut there.

    Raises:
        BadInput: for shapes, dtypes and strides that do not fit.
    """
    import torch

    given = {"q": q, "k": k, "v": v, "lens": lens, **({} if pages is None else {"pages": pages})}
    said = ", ".join(f"{name} {tuple(array.shape)}" for name, array in given.items())
    if q.ndim != 3 or k.ndim != 4 or tuple(k.shape) != tuple(v.shape) or k.shape[3] != q.shape[2]:
        raise BadInput(f"decode_attention of {said}: needs q (B, HQ, D), k and v (B or pages, keys, HKV, D)")
    (B, HQ, D), HKV = q.shape, k.shape[2]
    if min(HQ, HKV, D) < 1 or HQ % HKV:
        raise BadInput(f"decode_attention of {said}: {HQ} heads of queries cannot share {HKV} heads of keys evenly")
    if tuple(lens.shape) != (B,) or (k.shape[0] != B if pages is None else pages.ndim != 2 or pages.shape[0] != B):
        raise BadInput(f"decode_attention of {said}: lens is (B,), k and v, or else pages, have B={B} first")
    if not (q.dtype == k.dtype == v.dtype) or not q.dtype.is_floating_point:
        raise BadInput(f"decode_attention: q is {q.dtype}, k {k.dtype}, v {v.dtype}; needs one dtype of floats")
    for name in ("lens", "pages"):
        if name in given and given[name].dtype not in (torch.int32, torch.int64):
            raise BadInput(f"decode_attention: {name} is {given[name].dtype}; needs int32 or int64")
    for name in ("k", "v"):
        if D > 1 and given[name].stride(3) != 1:
            raise BadInput(
                f"decode_attention: {name} has strides {given[name].stride()}: the elements of a head must lie one "
                "after the other; a copy of the cache for each token would be what takes the time"
            )
    page_size = 0 if pages is None else int(k.shape[1])
    capacity = int(k.shape[1]) if pages is None else int(pages.shape[1]) * page_size
    S = capacity if max_len is None else min(capacity, int(max_len))
    if S < 0:
        raise BadInput(f"decode_attention: max_len={max_len}; good values: integers from 0")
    lens = lens.to(torch.int32).contiguous()
    pages = None if pages is None else pages.to(torch.int32).contiguous()
    q = q if q.stride(2) == 1 else q.contiguous()
    scale = float(D) ** -0.5 if scale is None else float(scale)
    return q, k, v, lens, pages, scale, int(B), int(HQ), int(HKV), int(D), S, page_size


def reference(q: Any, k: Any, v: Any, lens: Any, pages: Any, scale: float, S: int, **_: Any) -> Any:
    """The same in float64, sequence by sequence: (B, HQ, D)."""
    import torch

    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    for b, length in enumerate(lens.clamp(0, S).tolist()):
        keys, values = (x[b] if pages is None else x[pages[b, : -(-length // x.shape[1])].long()].flatten(0, 1)
                        for x in (k, v))  # fmt: skip
        keys, values = (x[:length].double().movedim(0, 1) for x in (keys, values))  # (HKV, length, D)
        queries = q[b].double().view(keys.shape[0], -1, q.shape[2])
        if length:
            out[b] = (torch.softmax(scale * queries @ keys.mT, -1) @ values).reshape(out[b].shape)
    return out


def make_inputs(problem: Problem, seed: int = 0, device: str = "cuda") -> dict[str, Any]:
    """Standard normal q, k and v; one sequence of S keys, others of S / 2 to S; pages in random order.

    Raises:
        BadInput: for heads that cannot be shared.
    """
    import torch

    B, HQ, HKV, D, S, page = _sizes(problem)
    if page < 0 or HKV < 1 or HQ % HKV:
        raise BadInput(
            f"decode_attention of {problem}: good values: HQ a multiple of HKV, page_size from 1, or 0 for none"
        )
    draw = drawer(device, seed)
    dtype = getattr(torch, str(problem["q.dtype"]))
    many = -(-S // page) if page else 0
    shape = (B * many, page, HKV, D) if page else (B, S, HKV, D)
    q, k, v = (torch.randn(s, generator=draw, device=device, dtype=dtype) for s in ((B, HQ, D), shape, shape))
    lens = torch.randint(int(_SHORTEST * S), S + 1, (B,), generator=draw, device=device, dtype=torch.int32)
    lens[:1] = S
    pages = torch.randperm(B * many, generator=draw, device=device).view(B, many).to(torch.int32) if page else None
    return dict(zip(PARAMETERS, arguments(q, k, v, lens, pages, max_len=S), strict=True))


kernel = autotune(
    space=space, knobs=sorted(KNOBS), default=default, key=SIZES, buckets={"S": "pow2"}, flags={"page_size": 0},
    dims=[name for name in SIZES if name != "page_size"], make_inputs=make_inputs, reference=reference, model=work,
    candidates=96, policy="lookup", clock="graph", hot=["q", "lens", "pages"],
)(attention_kernel())  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "decode_attention", near=("B",)))


def decode_attention(
    q: Any, k: Any, v: Any, lens: Any, pages: Any = None, scale: float | None = None, max_len: int | None = None
) -> Any:
    """softmax(scale q · kᵀ) · v over each sequence's keys, by the Config that is known, else the default: (B, HQ, D).

    Args: see `arguments`. A sequence without keys gets zeros.

    Raises:
        BadInput: when shapes, dtypes or strides do not fit, and for tensors that are not on a GPU.
    """
    return kernel(*arguments(q, k, v, lens, pages, scale, max_len))
