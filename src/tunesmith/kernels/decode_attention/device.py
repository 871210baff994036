"""Attention of one new token a sequence as it runs on a GPU, in Triton. Imports Triton: only what compiles or launches
it imports this."""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl

#: exponentials are powers of two, which GPUs compute
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _places(pages, n, first, length, stride_page, stride_n, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where the keys or values n of a sequence lie, in elements; `first` is the first of them. PAGE is 0 where they lie
    one after the other."""
    if PAGE == 0:
        place = n.to(tl.int64) * stride_n
    elif PAGE % BLOCK_N == 0:  # all of one page
        place = tl.load(pages + first // PAGE).to(tl.int64) * stride_page + (n % PAGE).to(tl.int64) * stride_n
    else:
        page = tl.load(pages + n // PAGE, mask=n < length, other=0).to(tl.int64)
        place = page * stride_page + (n % PAGE).to(tl.int64) * stride_n
    return place


@triton.jit(do_not_specialize=["S"])
def attend(
    q, k, v, lens, pages, scale, S, out, parts, sums, HQ, HKV, D, stride_qb, stride_qh, stride_kb, stride_kn, stride_kh,
    stride_vb, stride_vn, stride_vh, stride_pages,
    BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """out (B, HQ, D) = softmax(scale q · kᵀ) · v, each sequence over its first lens[b] keys, S at most.

    A program takes BLOCK_H of the heads that share a head of keys, and one of SPLITS parts of the sequence. Where there
    are several parts, it writes its result to parts (B, HQ, SPLITS, D), and to sums (B, HQ, SPLITS) the logarithm to
    the base 2 of the sum of its exponentials, which is minus infinity for a part without keys.
    """
    group = HQ // HKV
    blocks = tl.cdiv(group, BLOCK_H)
    program, part = tl.program_id(0), tl.program_id(1)
    b, shared, block = (program // (blocks * HKV)).to(tl.int64), program // blocks % HKV, program % blocks
    inner = block * BLOCK_H + tl.arange(0, BLOCK_H)
    h, d, columns = shared * group + inner, tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    inside = (inner[:, None] < group) & (d[None, :] < D)
    length = tl.minimum(tl.load(lens + b).to(tl.int32), S)
    steps = tl.cdiv(tl.maximum(length, 0), BLOCK_N)
    each = tl.cdiv(steps, SPLITS)
    query = tl.load(q + b * stride_qb + h[:, None] * stride_qh + d[None, :], mask=inside, other=0.0)
    k += shared.to(tl.int64) * stride_kh
    v += shared.to(tl.int64) * stride_vh
    if PAGE == 0:
        k += b * stride_kb
        v += b * stride_vb
    else:
        pages += b * stride_pages
    top = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    made = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    for step in range(part * each, tl.minimum(part * each + each, steps)):
        n = step * BLOCK_N + columns
        at_k = _places(pages, n, step * BLOCK_N, length, stride_kb, stride_kn, PAGE, BLOCK_N)
        at_v = _places(pages, n, step * BLOCK_N, length, stride_vb, stride_vn, PAGE, BLOCK_N)
        keys = tl.load(k + at_k[None, :] + d[:, None], mask=(n[None, :] < length) & (d[:, None] < D), other=0.0)
        values = tl.load(v + at_v[:, None] + d[None, :], mask=(n[:, None] < length) & (d[None, :] < D), other=0.0)
        scores = tl.dot(query, keys, input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(n[None, :] < length, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        e, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(top - higher)
        total = total * shrink + tl.sum(e, 1)
        made = tl.dot(e.to(values.dtype), values, made * shrink[:, None], input_precision="ieee")
        top = higher
    some = tl.where(total == 0, 1.0, total)  # of a part without keys `made` is zero; NaN stays NaN
    made /= some[:, None]
    row = b * HQ + h
    if SPLITS == 1:
        tl.store(out + row[:, None] * D + d[None, :], made.to(out.dtype.element_ty), mask=inside)
    else:
        row = row * SPLITS + part
        tl.store(parts + row[:, None] * D + d[None, :], made, mask=inside)
        known = tl.where(total == 0, float("-inf"), top + tl.log2(some))
        tl.store(sums + row, known, mask=inner < group)


@triton.jit
def merge(parts, sums, out, D, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr):
    """out (rows, D) from parts (rows, SPLITS, D) and sums (rows, SPLITS), as `attend` leaves them: a program a row."""
    row, part, d = tl.program_id(0).to(tl.int64), tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    logs = tl.load(sums + row * SPLITS + part)
    top = tl.max(logs, 0)
    weights = tl.exp2(logs - tl.where(top > float("-inf"), top, 0.0))
    there = (weights[:, None] > 0) & (d[None, :] < D)
    each = tl.load(parts + (row * SPLITS + part)[:, None] * D + d[None, :], mask=there, other=0.0)
    total = tl.sum(weights, 0)
    made = tl.sum(each * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + row * D + d, made.to(out.dtype.element_ty), mask=d < D)
