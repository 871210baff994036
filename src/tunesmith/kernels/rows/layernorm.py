"""LayerNorm along rows on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this.

ROWS, BLOCK, PER_UNIT, STAGES, HELD, LOOP, VECTOR: see `kernels.rows.device`.
"""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl

from tunesmith.kernels.rows.device import AHEAD, _as_read, _places, _told, _vector


@triton.jit
def _layernorm_whole(x, w, b, y, stride_x, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
    value = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if BLOCK <= AHEAD:
        factor, term = _vector(w, column, n, 1.0), _vector(b, column, n, 0.0)
    value = tl.where(inside, value - (tl.sum(value, 1) / n)[:, None], 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1) / n + eps)[:, None]
    if BLOCK > AHEAD:
        factor, term = _vector(w, column, n, 1.0), _vector(b, column, n, 0.0)
    value = value * factor.to(tl.float32) + term.to(tl.float32)
    tl.store(y + row * n + column, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _layernorm_held(
    x, w, b, y, stride_x, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, HELD: tl.constexpr
):  # fmt: skip
    """A row in HELD blocks, which wastes less of the registers than one of a power of two."""
    row, column, _ = _places(tile, 0, rows, n, ROWS, BLOCK)
    there, x, y = row < rows, x + row * stride_x, y + row * n
    held = ()
    for i in tl.static_range(HELD):
        at = i * BLOCK + column
        held += (tl.load(x + at, mask=there & (at < n), other=0.0, eviction_policy="evict_first"),)
    part = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(HELD):
        part += tl.cast(held[i], tl.float32)
    mean = (tl.sum(part, 1) / n)[:, None]
    part = tl.zeros((ROWS, BLOCK), tl.float32)
    for i in tl.static_range(HELD):
        off = tl.where(i * BLOCK + column < n, tl.cast(_as_read(held[i], rows >> 31), tl.float32) - mean, 0.0)
        part += off * off
    scale = tl.rsqrt(tl.sum(part, 1) / n + eps)[:, None]
    for i in tl.static_range(HELD):
        at = i * BLOCK + column
        factor, term = _vector(w, at, n, 1.0), _vector(b, at, n, 0.0)  # earlier they would be in the rows' registers
        value = (tl.cast(_as_read(held[i], (rows >> 31) & 1), tl.float32) - mean) * scale
        value = value * tl.cast(factor, tl.float32) + tl.cast(term, tl.float32)
        tl.store(
            y + at, value.to(y.dtype.element_ty), mask=there & (at < n), eviction_policy="evict_first"
        )  # fmt: skip


@triton.jit
def _layernorm_looped(
    x, w, b, y, stride_x, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """Means and squared deviations of blocks are merged (Chan, Golub, LeVeque): no difference of large numbers."""
    mean = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_last"
        ).to(tl.float32)  # fmt: skip
        before, here = start * 1.0, tl.minimum(n - start, BLOCK) * 1.0
        part = tl.sum(value, 1) / here
        off = tl.where(inside, value - part[:, None], 0.0)
        apart = part - mean
        squares += tl.sum(off * off, 1) + apart * apart * (before * (here / (before + here)))
        mean += apart * (here / (before + here))
    scale = tl.rsqrt(squares / n + eps)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)  # fmt: skip
        value = (value - mean[:, None]) * scale[:, None]
        value = value * _vector(w, column, n, 1.0).to(tl.float32) + _vector(b, column, n, 0.0).to(tl.float32)
        tl.store(
            y + row * n + column, value.to(y.dtype.element_ty), mask=inside, eviction_policy="evict_first"
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def layernorm(
    x, w, b, y, stride_x, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_UNIT: tl.constexpr,
    STAGES: tl.constexpr, HELD: tl.constexpr, LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = each row of x less its mean, over its standard deviation, times w (n,) plus b (n,)."""
    stride_x, n = _told(stride_x, VECTOR), _told(n, VECTOR)
    if LOOP:
        _layernorm_looped(x, w, b, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK, STAGES)
    elif HELD > 1:
        _layernorm_held(x, w, b, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK, HELD)
    elif PER_UNIT == 0:
        _layernorm_whole(x, w, b, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _layernorm_whole(x, w, b, y, stride_x, rows, n, eps, tile, ROWS, BLOCK)
