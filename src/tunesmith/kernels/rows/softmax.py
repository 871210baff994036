"""Softmax along rows on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this.

ROWS, BLOCK, PER_UNIT, STAGES, HELD, LOOP, VECTOR: see `kernels.rows.device`.
"""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl

from tunesmith.kernels.rows.device import _as_read, _places, _told


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
        place = tl.arange(0, 16)[None, :]
        ahead = ((first_x + 7) // 8 * 8 - first_x).to(tl.int32)
        end = (n - ahead) // 8 * 8
        at = tl.where(place < 8, place, ahead + end + place - 8)
        is_end = there & (at < n) & (((place < 8) & (at < ahead)) | ((place >= 8) & (at >= ahead)))
        ends = tl.load(x + first_x + at, mask=is_end, other=float("-inf")).to(tl.float32)
        at_y = first_y + at
        first_x, first_y, end = (first_x + 7) // 8 * 8, (first_y + 7) // 8 * 8, end[:, :, None]
    x, to, there = x + first_x[:, :, None], y + first_y[:, :, None], there[:, :, None]
    GROUP: tl.constexpr = min(BLOCK, 128 // y.dtype.element_ty.primitive_bitwidth)
    column = (tl.arange(0, BLOCK // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :])[None, :, :]
    # from the least number: what is -inf has a power of 0 then, and a row of nothing else a sum of 0
    largest = tl.full((ROWS, BLOCK // GROUP), -3.4028234663852886e38, tl.float32)
    total = tl.zeros((ROWS, BLOCK // GROUP), tl.float32)
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


@triton.jit(do_not_specialize=["rows"])
def row_softmax(
    x, y, stride_x, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_UNIT: tl.constexpr, STAGES: tl.constexpr,
    HELD: tl.constexpr, LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = exp(x) over its sum along each row of x (rows, n)."""
    stride_x, n = _told(stride_x, VECTOR), _told(n, VECTOR)
    if LOOP or HELD > 1 or (VECTOR == 0 and PER_UNIT == 0):
        _softmax_held(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK, STAGES, HELD, LOOP, VECTOR)
    elif PER_UNIT == 0:
        _softmax_whole(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _softmax_whole(x, y, stride_x, rows, n, tile, ROWS, BLOCK)
