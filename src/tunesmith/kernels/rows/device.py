"""What goes over the rows of a matrix on a GPU, in Triton. Imports Triton: only what compiles or launches it does.

A tile is ROWS rows of BLOCK columns. Where a row fits one block (not LOOP), a program reads its tile once and keeps it
in registers; with PER_UNIT, it takes one tile after the other, and the next ones are on their way meanwhile (STAGES).
Where a row does not fit, it goes over it twice, in a loop: what it reads again is told to stay in the L2 until then.
Computed in float32. A row begins `stride` elements behind the one before it; what is allocated has no gaps.
"""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _places(tile, start, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """(rows (ROWS, 1) in 64 bits, columns (1, BLOCK), which of them are there) of a tile that begins at a column."""
    row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
    column = (start + tl.arange(0, BLOCK))[None, :]
    return row.to(tl.int64), column, (row < rows) & (column < n)


#: A vector along the columns is asked for ahead of the sum that its use waits for, in blocks of up to so many elements:
#: beyond, the registers do not hold it as well.
AHEAD = tl.constexpr(8192)


@triton.jit
def _vector(w, column, n, usual: tl.constexpr):
    """A vector along the columns; where there is none, a number."""
    if w is None:
        return tl.full((1, 1), usual, tl.float32)
    else:  # what follows a return is compiled nevertheless
        return tl.load(w + column, mask=column < n, other=0.0)


# --- softmax ---


@triton.jit
def _softmax_whole(x, y, stride_x, rows, n, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
    value = tl.load(x + row * stride_x + column, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    power = power * (1.0 / tl.sum(power, 1))[:, None]
    tl.store(y + row * n + column, power.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_looped(x, y, stride_x, rows, n, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=float("-inf"), eviction_policy="evict_last"
        ).to(tl.float32)  # fmt: skip
        above = tl.maximum(largest, tl.max(value, 1))
        finite = tl.where(above == float("-inf"), 0.0, above)  # nothing but -inf so far: -inf - -inf would be NaN
        total = total * tl.exp(largest - finite) + tl.sum(tl.exp(value - finite[:, None]), 1)
        largest = above
    scale = 1.0 / total
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)  # fmt: skip
        power = tl.exp(value - largest[:, None]) * scale[:, None]
        tl.store(
            y + row * n + column, power.to(y.dtype.element_ty), mask=inside, eviction_policy="evict_first"
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def row_softmax(
    x, y, stride_x, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_UNIT: tl.constexpr, STAGES: tl.constexpr,
    LOOP: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = exp(x) over its sum along each row of x (rows, n)."""
    if LOOP:
        _softmax_looped(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK, STAGES)
    elif PER_UNIT == 0:
        _softmax_whole(x, y, stride_x, rows, n, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _softmax_whole(x, y, stride_x, rows, n, tile, ROWS, BLOCK)


# --- RMSNorm ---


@triton.jit
def _rmsnorm_whole(x, w, y, stride_x, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
    value = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if BLOCK <= AHEAD:
        factor = _vector(w, column, n, 1.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1) / n + eps)[:, None]
    if BLOCK > AHEAD:
        factor = _vector(w, column, n, 1.0)
    tl.store(y + row * n + column, (value * factor.to(tl.float32)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _scaled(
    x, w, y, stride_x, stride_y, scale, rows, n, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """y = x · scale · w, column after column; scale (ROWS,)."""
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_first"
        ).to(tl.float32)  # fmt: skip
        value = value * scale[:, None] * _vector(w, column, n, 1.0).to(tl.float32)
        tl.store(
            y + row * stride_y + column, value.to(y.dtype.element_ty), mask=inside, eviction_policy="evict_first"
        )  # fmt: skip


@triton.jit
def _rmsnorm_looped(
    x, w, y, stride_x, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    squares = tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = tl.load(
            x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_last"
        ).to(tl.float32)  # fmt: skip
        squares += tl.sum(value * value, 1)
    _scaled(x, w, y, stride_x, n, tl.rsqrt(squares / n + eps), rows, n, tile, ROWS, BLOCK, STAGES)


@triton.jit(do_not_specialize=["rows"])
def rmsnorm(
    x, w, y, stride_x, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, PER_UNIT: tl.constexpr,
    STAGES: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = x over the root of each row's mean square, times w (n,)."""
    if LOOP:
        _rmsnorm_looped(x, w, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK, STAGES)
    elif PER_UNIT == 0:
        _rmsnorm_whole(x, w, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _rmsnorm_whole(x, w, y, stride_x, rows, n, eps, tile, ROWS, BLOCK)


# --- add, then RMSNorm, in place ---


@triton.jit
def _sum_stored(x, residual, stride_x, stride_residual, row, column, inside):
    """residual += x, in memory, and what is stored there now, in float32."""
    at = residual + row * stride_residual + column
    value = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    rounded = value.to(residual.dtype.element_ty)
    tl.store(at, rounded, mask=inside)
    return rounded.to(tl.float32)


@triton.jit
def _add_rmsnorm_whole(
    x, residual, w, stride_x, stride_residual, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
    value = _sum_stored(x, residual, stride_x, stride_residual, row, column, inside)
    if BLOCK <= AHEAD:
        factor = _vector(w, column, n, 1.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1) / n + eps)[:, None]
    if BLOCK > AHEAD:
        factor = _vector(w, column, n, 1.0)
    tl.store(
        x + row * stride_x + column, (value * factor.to(tl.float32)).to(x.dtype.element_ty), mask=inside
    )  # fmt: skip


@triton.jit
def _add_rmsnorm_looped(
    x, residual, w, stride_x, stride_residual, rows, n, eps, tile, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    squares = tl.zeros((ROWS,), tl.float32)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
        value = _sum_stored(x, residual, stride_x, stride_residual, row, column, inside)
        squares += tl.sum(value * value, 1)
    tl.debug_barrier()  # what other threads have stored is read now
    scale = tl.rsqrt(squares / n + eps)
    _scaled(residual, w, x, stride_residual, stride_x, scale, rows, n, tile, ROWS, BLOCK, STAGES)


@triton.jit(do_not_specialize=["rows"])
def add_rmsnorm(
    x, residual, w, stride_x, stride_residual, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PER_UNIT: tl.constexpr, STAGES: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """residual (rows, n) += x (rows, n), then x = residual over the root of each row's mean square, times w (n,)."""
    if LOOP:
        _add_rmsnorm_looped(
            x, residual, w, stride_x, stride_residual, rows, n, eps, tl.program_id(0), ROWS, BLOCK, STAGES
        )  # fmt: skip
    elif PER_UNIT == 0:
        _add_rmsnorm_whole(x, residual, w, stride_x, stride_residual, rows, n, eps, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _add_rmsnorm_whole(x, residual, w, stride_x, stride_residual, rows, n, eps, tile, ROWS, BLOCK)


# --- LayerNorm ---


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
    STAGES: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = each row of x less its mean, over its standard deviation, times w (n,) plus b (n,)."""
    if LOOP:
        _layernorm_looped(x, w, b, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK, STAGES)
    elif PER_UNIT == 0:
        _layernorm_whole(x, w, b, y, stride_x, rows, n, eps, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _layernorm_whole(x, w, b, y, stride_x, rows, n, eps, tile, ROWS, BLOCK)


# --- SiLU and product ---


@triton.jit(do_not_specialize=["rows"])
def silu_and_mul(x, y, stride_x, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """y (rows, n) = silu(the first n columns of x (rows, 2 n)) · the others: a program for each tile."""
    across = tl.cdiv(n, BLOCK)
    row, column, inside = _places(
        tl.program_id(0) // across, tl.program_id(0) % across * BLOCK, rows, n, ROWS, BLOCK
    )  # fmt: skip
    at = x + row * stride_x + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + n, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row * n + column, value.to(y.dtype.element_ty), mask=inside)
