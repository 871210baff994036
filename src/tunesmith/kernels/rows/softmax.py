"""Softmax along rows on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this.

ROWS, BLOCK, PER_UNIT, STAGES, HELD, LOOP, VECTOR: see `kernels.rows.device`. SPLIT, PATIENCE: see `_softmax_split`.
"""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl

from tunesmith.kernels.rows.device import _as_read, _places, _told

#: What largest elements begin from, the least number: what is -inf has a power of 0 then, and a row of nothing else a
#: sum of 0.
LEAST = tl.constexpr(-3.4028234663852886e38)
#: Parts of a row at most.
PARTS = tl.constexpr(16)


@triton.jit
def _softmax_whole(x, y, stride_x, rows, n, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
    value = tl.load(x + row * stride_x + column, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    power = power * (1.0 / tl.sum(power, 1))[:, None]
    tl.store(y + row * n + column, power.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_block(p, start, column, end, there, POLICY: tl.constexpr):
    return tl.load(
        p + start + column, mask=there & (start + column < end), other=float("-inf"), eviction_policy=POLICY
    )  # fmt: skip


@triton.jit
def _softmax_joined(value, largest, total):
    """Largest elements and sums of powers, with another block's (ROWS, BLOCK / GROUP, GROUP): a thread's own."""
    value = value.to(tl.float32)
    above = tl.maximum(largest, tl.max(value, 2))
    return above, total * tl.exp(largest - above) + tl.sum(tl.exp(value - above[:, :, None]), 2)


@triton.jit
def _softmax_stored(p, start, column, end, there, value, top, scale):
    power = tl.exp(value.to(tl.float32) - top) * scale
    tl.store(
        p + start + column, power.to(p.dtype.element_ty), mask=there & (start + column < end),
        eviction_policy="evict_first",
    )  # fmt: skip


@triton.jit
def _softmax_ends(first, n, there):
    """What lies ahead of a row's first multiple of 8 elements, and behind its last one.

    Args:
        first: elements ahead of the row, (ROWS, 1). there: whether there is such a row.

    Returns:
        (their places in the row (ROWS, 16), which of them are there, elements between those multiples (ROWS, 1))
    """
    place = tl.arange(0, 16)[None, :]
    ahead = ((first + 7) // 8 * 8 - first).to(tl.int32)
    end = (n - ahead) // 8 * 8
    at = tl.where(place < 8, place, ahead + end + place - 8)
    return at, there & (at < n) & (((place < 8) & (at < ahead)) | ((place >= 8) & (at >= ahead))), end


@triton.jit
def _softmax_columns(BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """(1, BLOCK / GROUP, GROUP) of what a thread has at once."""
    GROUP: tl.constexpr = min(BLOCK, 128 // DTYPE.primitive_bitwidth)
    return (tl.arange(0, BLOCK // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :])[None, :, :]


@triton.jit
def _softmax_none(ROWS: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Largest elements and sums of powers of nothing: a thread's own."""
    GROUP: tl.constexpr = min(BLOCK, 128 // DTYPE.primitive_bitwidth)
    return tl.full((ROWS, BLOCK // GROUP), LEAST, tl.float32), tl.zeros((ROWS, BLOCK // GROUP), tl.float32)


@triton.jit
def _softmax_held(
    x, y, stride_x, rows, n, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, HELD: tl.constexpr,
    LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """HELD blocks of each row are read once. What is behind them is read again from its end: the L2 still has that.

    With VECTOR 0 rows begin anywhere, in x as far from a multiple of 8 as in y: what lies ahead of the first and behind
    the last such multiple are the row's `ends`, up to 7 elements each. With 2 STAGES, a thread asks for its part of
    the next block ahead of computing; with more, that lies in the shared memory.
    """
    row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
    there = row < rows
    row = row.to(tl.int64)
    first_x, first_y, end = row * stride_x, row * n, n  # of the part in blocks
    if VECTOR == 0:
        at, is_end, end = _softmax_ends(first_x, n, there)
        ends = tl.load(x + first_x + at, mask=is_end, other=float("-inf")).to(tl.float32)
        at_y = first_y + at
        first_x, first_y, end = (first_x + 7) // 8 * 8, (first_y + 7) // 8 * 8, end[:, :, None]
    x, to, there = x + first_x[:, :, None], y + first_y[:, :, None], there[:, :, None]
    column = _softmax_columns(BLOCK, y.dtype.element_ty)
    largest, total = _softmax_none(ROWS, BLOCK, y.dtype.element_ty)
    held = ()
    for i in tl.static_range(HELD):
        held += (_softmax_block(x, i * BLOCK, column, end, there, "evict_first"),)
    behind: tl.constexpr = HELD * BLOCK
    if LOOP and STAGES == 2:
        coming = _softmax_block(x, behind, column, end, there, "evict_last")
    for i in tl.static_range(HELD):
        largest, total = _softmax_joined(held[i], largest, total)
    if LOOP:
        for start in tl.range(behind, n, BLOCK, num_stages=1 if STAGES == 2 else STAGES):
            if STAGES == 2:
                value = coming
                coming = _softmax_block(x, start + BLOCK, column, end, there, "evict_last")
            else:
                value = _softmax_block(x, start, column, end, there, "evict_last")
            largest, total = _softmax_joined(value, largest, total)
        last = behind + (n - behind - 1) // BLOCK * BLOCK
        if STAGES == 2:
            coming = _softmax_block(x, last, column, end, there, "evict_first")
    top = tl.max(largest, 1)
    if VECTOR == 0:
        top = tl.maximum(top, tl.max(ends, 1))
    whole = tl.sum(total * tl.exp(largest - top[:, None]), 1)
    if VECTOR == 0:
        ends = tl.exp(ends - top[:, None])
        whole += tl.sum(ends, 1)
        tl.store(y + at_y, (ends * (1.0 / whole)[:, None]).to(y.dtype.element_ty), mask=is_end)
    top, scale = top[:, None, None], (1.0 / whole)[:, None, None]
    if LOOP:
        for done in tl.range(0, n - behind, BLOCK, num_stages=1 if STAGES == 2 else STAGES):
            start = last - done
            if STAGES == 2:
                value = coming
                more = there & (start - BLOCK + column >= behind)
                coming = _softmax_block(x, start - BLOCK, column, end, more, "evict_first")
            else:
                value = _softmax_block(x, start, column, end, there, "evict_first")
            _softmax_stored(to, start, column, end, there, value, top, scale)
    for i in tl.static_range(HELD):
        _softmax_stored(to, i * BLOCK, column, end, there, _as_read(held[i], rows >> 31), top, scale)


# --- rows that are split ---


@triton.jit
def _softmax_summed(largest, total, ends, VECTOR: tl.constexpr):
    """(largest element, sum of powers) of a part of a row, from a thread's own and what counts of the row's ends."""
    top = tl.max(tl.max(largest, 1), 0)
    if VECTOR == 0:
        top = tl.maximum(top, tl.max(tl.max(ends, 1), 0))
    whole = tl.sum(tl.sum(total * tl.exp(largest - top), 1), 0)
    if VECTOR == 0:
        whole += tl.sum(tl.sum(tl.exp(ends - top), 1), 0)
    return top, whole


@triton.jit
def _softmax_again(x, each, end, column, there, ends, BLOCK: tl.constexpr, HELD: tl.constexpr, SPLIT: tl.constexpr,
                   VECTOR: tl.constexpr):  # fmt: skip
    """(largest elements, sums of powers) of all parts of a row (PARTS,), computed as each part's program does."""
    tops, sums = tl.full((PARTS,), LEAST, tl.float32), tl.zeros((PARTS,), tl.float32)
    for part in tl.range(0, SPLIT, num_stages=1):
        largest, total = _softmax_none(1, BLOCK, x.dtype.element_ty)
        for start in tl.range(0, HELD * BLOCK, BLOCK, num_stages=1):
            value = _softmax_block(
                x, part * each + start, column, tl.minimum(part * each + each, end), there, "evict_last"
            )  # fmt: skip
            largest, total = _softmax_joined(value, largest, total)
        top, whole = _softmax_summed(largest, total, tl.where(part == 0, ends, float("-inf")), VECTOR)
        tops = tl.where(tl.arange(0, PARTS) == part, top, tops)
        sums = tl.where(tl.arange(0, PARTS) == part, whole, sums)
    return tops, sums


@triton.jit
def _softmax_arrived(arrived, SPLIT: tl.constexpr, PATIENCE: tl.constexpr):
    """Say that this program's part of a row is in memory; whether that of all SPLIT programs is, having waited for it.

    `arrived` is 0 or SPLIT when a launch begins, and the other one when it has ended: who waits sees the round end, and
    nobody has to put the count back while others wait.

    A program may wait for one that is not running yet, as the GPU is full. GPUs start programs in the order of their
    numbers, and a row's have numbers that follow each other: then only the last row that has begun is not complete, all
    others end, and make room for it. But no GPU promises that order, and launches in enough other streams could wait in
    the same way, until all that runs waits. So nobody waits for ever: a program that has asked PATIENCE times returns
    False, and goes on without the others, which find all as if it had waited.
    """
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    before_end = before // SPLIT
    if before == 2 * SPLIT - 1:
        tl.atomic_xchg(arrived, 0, sem="acq_rel")
    count, asked = before + 1, 0
    while (count // SPLIT == before_end) & (asked < PATIENCE):
        count = tl.atomic_add(arrived, 0, sem="acquire")
        asked += 1
    return count // SPLIT != before_end


@triton.jit
def _softmax_split(
    x, y, partial, arrived, stride_x, rows, n, BLOCK: tl.constexpr, HELD: tl.constexpr, SPLIT: tl.constexpr,
    PATIENCE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """A row's SPLIT parts are held by as many programs, which tell each other their largest elements and sums.

    Each reads its part once. The parts' sums are added in the same order everywhere: the result is always the same.

    partial (rows, SPLIT, 2) in float32 is what they tell. arrived (rows,) counts those that have: see
    `_softmax_arrived`.
    """
    part, number = tl.program_id(0) % SPLIT, tl.program_id(0) // SPLIT
    row = tl.full((1, 1), number, tl.int64)
    there = row >= 0  # always: as many programs run as there are parts
    each = tl.cdiv(n, 64 * SPLIT) * 64
    first_x, first_y, end, ends = row * stride_x, row * n, n, 0.0
    if VECTOR == 0:
        at, is_end, end = _softmax_ends(first_x, n, there)
        ends = tl.load(x + first_x + at, mask=is_end, other=float("-inf")).to(tl.float32)
        at_y = first_y + at
        first_x, first_y, end = (first_x + 7) // 8 * 8, (first_y + 7) // 8 * 8, end[:, :, None]
    x, to, there = x + first_x[:, :, None], y + first_y[:, :, None], there[:, :, None]
    column = _softmax_columns(BLOCK, y.dtype.element_ty)
    largest, total = _softmax_none(1, BLOCK, y.dtype.element_ty)
    start, stop = part * each, tl.minimum(part * each + each, end)
    held = ()
    for i in tl.static_range(HELD):
        held += (_softmax_block(x, start + i * BLOCK, column, stop, there, "evict_first"),)
    for i in tl.static_range(HELD):
        largest, total = _softmax_joined(held[i], largest, total)
    top, whole = _softmax_summed(largest, total, tl.where(part == 0, ends, float("-inf")), VECTOR)
    told = partial + number.to(tl.int64) * (2 * SPLIT)
    tl.store(told + 2 * part, top)
    tl.store(told + 2 * part + 1, whole)
    tl.debug_barrier()  # the stores come before the arrival is made known
    if _softmax_arrived(arrived + number, SPLIT, PATIENCE):  # past the L1, which does not see what others wrote
        parts = tl.arange(0, PARTS)
        tops = tl.load(told + 2 * parts, mask=parts < SPLIT, other=LEAST, cache_modifier=".cg")
        sums = tl.load(told + 2 * parts + 1, mask=parts < SPLIT, other=0.0, cache_modifier=".cg")
    else:
        tops, sums = _softmax_again(x, each, end, column, there, ends, BLOCK, HELD, SPLIT, VECTOR)
    top = tl.max(tops, 0)
    scale = 1.0 / tl.sum(sums * tl.exp(tops - top), 0)
    if VECTOR == 0:
        mine = is_end & (tl.full((1, 1), part, tl.int32) == 0)
        tl.store(y + at_y, (tl.exp(ends - top) * scale).to(y.dtype.element_ty), mask=mine)
    for i in tl.static_range(HELD):
        value = _as_read(held[i], rows >> 31)
        _softmax_stored(to, start + i * BLOCK, column, stop, there, value, top, scale)


@triton.jit(do_not_specialize=["rows"])
def row_softmax(
    x, y, partial, arrived, stride_x, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_UNIT: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, PATIENCE: tl.constexpr, HELD: tl.constexpr, LOOP: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = exp(x) over its sum along each row of x (rows, n)."""
    stride_x, n = _told(stride_x, VECTOR), _told(n, VECTOR)
    if SPLIT > 1:
        _softmax_split(x, y, partial, arrived, stride_x, rows, n, BLOCK, HELD, SPLIT, PATIENCE, VECTOR)
    elif LOOP or HELD > 1 or (VECTOR == 0 and PER_UNIT == 0):
        _softmax_held(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK, STAGES, HELD, LOOP, VECTOR)
    elif PER_UNIT == 0:
        _softmax_whole(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _softmax_whole(x, y, stride_x, rows, n, tile, ROWS, BLOCK)
