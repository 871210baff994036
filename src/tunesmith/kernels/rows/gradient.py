"""The gradient of RMSNorm on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this."""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl

from tunesmith.kernels.rows.device import _places, _told, _vector


@triton.jit
def _whole(
    dy, x, w, dx, dw, stride_dy, stride_x, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program's tiles one after the other; what they add to dw stays in registers, and is added to it once."""
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row, column, inside = _places(tile, 0, rows, n, ROWS, BLOCK)
        value = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(dy + row * stride_dy + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 1) / n + eps)[:, None]
        value = tl.where(inside, value * scale, 0.0)  # without eps a row that is not there would be 0 times infinity
        if dw is not None:
            total += slope * value
        slope = slope * _vector(w, column, n, 1.0).to(tl.float32)
        slope = (slope - value * (tl.sum(slope * value, 1) / n)[:, None]) * scale
        tl.store(dx + row * n + column, slope.to(dx.dtype.element_ty), mask=inside)
    if dw is not None:
        column = tl.arange(0, BLOCK)
        tl.atomic_add(dw + column, tl.sum(total, 0), mask=column < n, sem="relaxed")


@triton.jit
def _looped(
    dy, x, w, dx, dw, stride_dy, stride_x, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Rows that do not fit one block: each is gone over twice, and each block of ROWS rows adds to dw."""
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=1):
        squares = tl.zeros((ROWS,), tl.float32)
        product = tl.zeros((ROWS,), tl.float32)
        for start in tl.range(0, n, BLOCK, num_stages=STAGES):
            row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
            value = tl.load(
                x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_last"
            ).to(tl.float32)  # fmt: skip
            slope = tl.load(
                dy + row * stride_dy + column, mask=inside, other=0.0, eviction_policy="evict_last"
            ).to(tl.float32)  # fmt: skip
            squares += tl.sum(value * value, 1)
            slope = slope * _vector(w, column, n, 1.0).to(tl.float32)
            product += tl.sum(slope * value, 1)
        scale = tl.rsqrt(squares / n + eps)
        along = (product * scale * scale / n)[:, None]
        for start in tl.range(0, n, BLOCK, num_stages=STAGES):
            row, column, inside = _places(tile, start, rows, n, ROWS, BLOCK)
            value = tl.load(
                x + row * stride_x + column, mask=inside, other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)  # fmt: skip
            slope = tl.load(
                dy + row * stride_dy + column, mask=inside, other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)  # fmt: skip
            if dw is not None:
                at = start + tl.arange(0, BLOCK)
                part = tl.sum(tl.where(inside, slope * value * scale[:, None], 0.0), 0)
                tl.atomic_add(dw + at, part, mask=at < n, sem="relaxed")
            slope = slope * _vector(w, column, n, 1.0).to(tl.float32)
            slope = (slope - value * along) * scale[:, None]
            tl.store(dx + row * n + column, slope.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def rmsnorm_backward(
    dy, x, w, dx, dw, stride_dy, stride_x, rows, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PER_UNIT: tl.constexpr, STAGES: tl.constexpr, LOOP: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """dx (rows, n) of y = rmsnorm(x) · w for dy (rows, n); dw (n,), float32, has the sum over all rows added to it."""
    stride_dy, stride_x, n = _told(stride_dy, VECTOR), _told(stride_x, VECTOR), _told(n, VECTOR)
    if LOOP:
        _looped(dy, x, w, dx, dw, stride_dy, stride_x, rows, n, eps, ROWS, BLOCK, STAGES)
    else:
        _whole(dy, x, w, dx, dw, stride_dy, stride_x, rows, n, eps, ROWS, BLOCK, STAGES)
