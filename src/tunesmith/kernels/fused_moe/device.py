"""A layer of experts as it runs on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this."""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _chunk(ids, start, assignments, E, CHUNK: tl.constexpr):
    """(numbers of assignments, their experts): what is none of the E is E, as is what lies behind the last."""
    i = start + tl.arange(0, CHUNK)
    expert = tl.load(ids + i, mask=i < assignments, other=-1).to(tl.int32)
    return i, tl.where((expert >= 0) & (expert < E), expert, E)


@triton.jit
def align(
    ids, order, experts, padded, assignments, E,
    BLOCK_SIZE_M: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sort assignments by expert, each expert's padded to whole blocks: a program for each expert.

    An assignment is a token's choice of an expert, ids (assignments,); one that chose none of the E experts is left
    out. Of `order` each block holds BLOCK_SIZE_M numbers of assignments, or `assignments` where there are no more;
    `experts` names each block's expert, and `padded` (1,) is how many places of `order` are filled. EXPERTS is a power
    of two above E. Every program counts all experts' assignments: that is less than waiting for each other.
    """
    expert = tl.program_id(0)
    bins = tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for start in range(0, assignments, CHUNK):
        _, chosen = _chunk(ids, start, assignments, E, CHUNK)
        counts += tl.histogram(chosen, EXPERTS)
    blocks = tl.where(bins < E, tl.cdiv(counts, BLOCK_SIZE_M), 0)
    first = tl.sum(tl.where(bins < expert, blocks, 0))
    own = tl.sum(tl.where(bins == expert, blocks, 0))
    if expert == 0:
        tl.store(padded, tl.sum(blocks) * BLOCK_SIZE_M)
    for block in range(own):
        tl.store(experts + first + block, expert)
    place = first * BLOCK_SIZE_M
    for start in range(0, assignments, CHUNK):
        i, chosen = _chunk(ids, start, assignments, E, CHUNK)
        mine = (chosen == expert).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, 0) - 1, i, mask=mine > 0)
        place += tl.sum(mine)
    rest = place + tl.arange(0, BLOCK_SIZE_M)
    tl.store(order + rest, tl.zeros((BLOCK_SIZE_M,), tl.int32) + assignments, mask=rest < (first + own) * BLOCK_SIZE_M)


@triton.jit
def grouped_gemm(
    a, b, c, weights, order, experts, padded, N, K, most, assignments, sharers,
    stride_am, stride_ae, stride_bn, stride_bk,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    EVEN_K: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """c (assignments, N): each row is a row of a (rows, K), row-major, times its expert's b (E, N, K) transposed.

    Row i of c comes from row i // sharers of a. Where WEIGHTED, it is multiplied by weights[i]. `most` is as many
    places as `order` has for any routing; programs behind `padded` have nothing to do. Rows of blocks are gone through
    in groups of GROUP_SIZE_M, column by column.
    """
    program = tl.program_id(0)
    down, across = tl.cdiv(most, BLOCK_SIZE_M), tl.cdiv(N, BLOCK_SIZE_N)
    group = program // (GROUP_SIZE_M * across)
    rows = tl.minimum(down - group * GROUP_SIZE_M, GROUP_SIZE_M)
    block = group * GROUP_SIZE_M + program % (GROUP_SIZE_M * across) % rows
    column = program % (GROUP_SIZE_M * across) // rows
    if block * BLOCK_SIZE_M >= tl.load(padded):
        return
    m = tl.load(order + block * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    there = m < assignments
    expert = tl.load(experts + block).to(tl.int64)
    n = column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    k = tl.arange(0, BLOCK_SIZE_K)
    x = a + (m // sharers).to(tl.int64)[:, None] * stride_am + k[None, :]
    y = b + expert * stride_ae + (n % N).to(tl.int64)[None, :] * stride_bn + k.to(tl.int64)[:, None] * stride_bk
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), tl.float32)
    for i in range(tl.cdiv(K, BLOCK_SIZE_K)):
        if EVEN_K:
            p, q = tl.load(x, mask=there[:, None], other=0.0), tl.load(y)
        else:
            left = K - i * BLOCK_SIZE_K
            p = tl.load(x, mask=there[:, None] & (k[None, :] < left), other=0.0)
            q = tl.load(y, mask=k[:, None] < left, other=0.0)
        total = tl.dot(p, q, total, input_precision="ieee")
        x += BLOCK_SIZE_K
        y += BLOCK_SIZE_K * stride_bk
    if WEIGHTED:
        total *= tl.load(weights + m, mask=there, other=0.0).to(tl.float32)[:, None]
    place = c + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(place, total.to(c.dtype.element_ty), mask=there[:, None] & (n[None, :] < N))


@triton.jit
def silu_and_mul(x, y, N, BLOCK: tl.constexpr):
    """y (rows, N) = silu(x[:, :N]) * x[:, N:], x (rows, 2 N), both row-major: a program for each part of a row."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * N + n, mask=n < N, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * N + N + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + row * N + n, (gate / (1.0 + tl.exp(-gate)) * up).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def combine(parts, ids, out, K, E, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out (M, K): the sum of each token's rows of parts (M * TOP_K, K), in their order. What chose none of the E
    experts was never computed, and does not count."""
    token = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(TOP_K):
        expert = tl.load(ids + token * TOP_K + i)
        wide = tl.where((expert >= 0) & (expert < E), K, 0)
        total += tl.load(parts + (token * TOP_K + i) * K + k, mask=k < wide, other=0.0).to(tl.float32)
    tl.store(out + token * K + k, total.to(out.dtype.element_ty), mask=k < K)
