"""What goes over the rows of a matrix on a GPU, in Triton: RMSNorm, and what all of them share.

Imports Triton: only what compiles or launches it imports this.

A tile is ROWS rows of BLOCK columns. Where a row fits one block (not LOOP), a program reads its tile once and keeps it
in registers; with PER_UNIT, it takes one tile after the other, and the next ones are on their way meanwhile (STAGES).
Where a row does not fit, it goes over it twice, in a loop: what it reads again is told to stay in the L2 until then.
Softmax and LayerNorm keep HELD blocks of a row in registers, as they were read; LOOP says whether there is more of it.
SPLIT programs share a row where that is more than 1.
Computed in float32. A row begins `stride` elements behind the one before it; what is allocated has no gaps.
All rows begin at a multiple of VECTOR elements, and end at one; of 0 see `_softmax_held`.
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


@triton.jit
def _told(size, VECTOR: tl.constexpr):
    """A size, of which the compiler knows what divides it: it loads and stores as many elements at once. Of itself it
    only finds out that 16 does."""
    if VECTOR > 1 and VECTOR < 16:
        return size // VECTOR * VECTOR
    else:
        return size


@triton.jit
def _as_read(value, zero):
    """The same value, of which the compiler does not know it, so that it keeps 16 bits and not a float32 of them."""
    if value.dtype.primitive_bitwidth == 16:
        return (value.to(tl.int16, bitcast=True) ^ zero.to(tl.int16)).to(value.dtype, bitcast=True)
    else:
        return value


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
    STAGES: tl.constexpr, LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """y (rows, n) = x over the root of each row's mean square, times w (n,)."""
    stride_x, n = _told(stride_x, VECTOR), _told(n, VECTOR)
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
    PER_UNIT: tl.constexpr, STAGES: tl.constexpr, LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """residual (rows, n) += x (rows, n), then x = residual over the root of each row's mean square, times w (n,)."""
    stride_x, stride_residual, n = _told(stride_x, VECTOR), _told(stride_residual, VECTOR), _told(n, VECTOR)
    if LOOP:
        _add_rmsnorm_looped(
            x, residual, w, stride_x, stride_residual, rows, n, eps, tl.program_id(0), ROWS, BLOCK, STAGES
        )  # fmt: skip
    elif PER_UNIT == 0:
        _add_rmsnorm_whole(x, residual, w, stride_x, stride_residual, rows, n, eps, tl.program_id(0), ROWS, BLOCK)
    else:
        for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
            _add_rmsnorm_whole(x, residual, w, stride_x, stride_residual, rows, n, eps, tile, ROWS, BLOCK)


# --- SiLU and product ---


@triton.jit(do_not_specialize=["rows"])
def silu_and_mul(x, y, stride_x, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """y (rows, n) = silu(the first n columns of x (rows, 2 n)) · the others: a program for each tile."""
    stride_x, n = _told(stride_x, VECTOR), _told(n, VECTOR)
    across = tl.cdiv(n, BLOCK)
    row, column, inside = _places(
        tl.program_id(0) // across, tl.program_id(0) % across * BLOCK, rows, n, ROWS, BLOCK
    )  # fmt: skip
    at = x + row * stride_x + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + n, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y + row * n + column, value.to(y.dtype.element_ty), mask=inside)
