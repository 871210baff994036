"""The matrix product as it runs on a GPU, in Triton. Imports Triton: only what compiles or launches it imports this."""
# pyright: basic

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

#: what the L2 fetches at once, and how much of each column is asked for before the kernel before has ended
LINE_BYTES, LINES_AHEAD = tl.constexpr(128), tl.constexpr(4)
PARTS_AT_ONCE = tl.constexpr(4)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """float32 in, float32 out; the spellings are `torch.nn.functional`'s, or anything else for none."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0.0, x)  # and not maximum, which would make 0 of NaN
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
def _finish(total, bias, c, m, n, M, N, WIDE: tl.constexpr, ACTIVATION: tl.constexpr):
    """Bias, activation, the output's dtype: one tile of c, whose rows lie one after the other."""
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    total = _activated(total, ACTIVATION)
    inside = (m[:, None] < M) & (n[None, :] < N)
    rows = (m.to(tl.int64) if WIDE else m) * N
    tl.store(c + rows[:, None] + n[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def _sum(
    a, b, m, n, K, stride_am, stride_ak, stride_bk, stride_bn, first, last,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    """A tile of a · b over the steps [first, last) of K, in float32. m and n are rows and columns that are there.

    SWAPPED: as the transpose of bᵀ · aᵀ. The matrix units want a tall tile: where a has few rows, b has them.
    """
    k, step = first * BLOCK_K + tl.arange(0, BLOCK_K), BLOCK_K
    if WIDE:  # offsets of 2^31 elements and more
        m, n, k, step = m.to(tl.int64), n.to(tl.int64), k.to(tl.int64), tl.full((), BLOCK_K, tl.int64)
    if SWAPPED:
        x = b + n[:, None] * stride_bn + k[None, :] * stride_bk
        y = a + k[:, None] * stride_ak + m[None, :] * stride_am
        step_x, step_y = step * stride_bk, step * stride_ak
        total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    else:
        x = a + m[:, None] * stride_am + k[None, :] * stride_ak
        y = b + k[:, None] * stride_bk + n[None, :] * stride_bn
        step_x, step_y = step * stride_ak, step * stride_bk
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(first, last):
        if EVEN_K:
            p, q = tl.load(x), tl.load(y)
        else:
            left = K - i * BLOCK_K
            p = tl.load(x, mask=tl.arange(0, BLOCK_K)[None, :] < left, other=0.0)
            q = tl.load(y, mask=tl.arange(0, BLOCK_K)[:, None] < left, other=0.0)
        total = tl.dot(p, q, total, input_precision=PRECISION)
        x += step_x
        y += step_y
    if SWAPPED:
        total = total.T
    return total


@triton.jit
def _described(x, rows, columns, stride_row, stride_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
               TURNED: tl.constexpr):  # fmt: skip
    """A descriptor of a matrix by tiles of (ROWS, COLUMNS); of its transpose where it lies column by column."""
    if TURNED:
        made = tl.make_tensor_descriptor(x, [columns, rows], [stride_column, 1], [COLUMNS, ROWS])
    else:
        made = tl.make_tensor_descriptor(x, [rows, columns], [stride_row, 1], [ROWS, COLUMNS])
    return made


@triton.jit
def _sum_described(
    a, b, m, n, first, last, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """What `_sum` is, of the tile that begins at row m and column n, through descriptors: 0 is what lies outside."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(first, last):
        k = i * BLOCK_K
        if A_TURNED:
            p = a.load([k, m]).T
        else:
            p = a.load([m, k])
        if B_TURNED:
            q = b.load([n, k]).T
        else:
            q = b.load([k, n])
        total = tl.dot(p, q, total, input_precision=PRECISION)
    return total


@triton.jit
def _place(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(row, column) of a tile: GROUP_M rows of tiles are gone through column by column, so that programs that run at
    the same time share what they read in the L2."""
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP_M * across)
    rows = tl.minimum(down - group * GROUP_M, GROUP_M)
    return group * GROUP_M + tile % (GROUP_M * across) % rows, tile % (GROUP_M * across) // rows


@triton.jit
def _wait(b, n, k, K, stride_bk, stride_bn, DEPENDENT: tl.constexpr):
    """Wait until the kernel before has ended, whose memory is then seen, where this one was launched earlier than that.

    Until then nothing may be read, not even what seems constant: that kernel may be writing it. But what a program's
    columns n of b begin with, from k on, is brought into the L2, which sees what is written.

    DEPENDENT: launched so (`launch_pdl`).
    """
    if DEPENDENT:
        if stride_bk == 1:
            line: tl.constexpr = 8 * LINE_BYTES // b.dtype.element_ty.primitive_bitwidth
            ahead = tl.minimum(k + tl.arange(0, LINES_AHEAD) * line, K - 1)
            at = (b + n.to(tl.int64)[:, None] * stride_bn + ahead[None, :]).to(tl.int64)
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
            )
        gdc_wait()


@triton.jit
def _let_begin(DEPENDENT: tl.constexpr):
    """Let the kernel behind this one be launched, as soon as every program is here or has ended. It waits in turn.

    By then nothing is read any more but a bias, and no workspace is used: the kernel behind may be somebody else's, and
    write before it waits to memory that was given back when this one was launched.
    """
    if DEPENDENT:
        gdc_launch_dependents()


@triton.jit
def gemm(
    a, b, bias, c, partial, arrived, M, N, K,
    stride_az, stride_am, stride_ak, stride_bz, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    DESCRIBED: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, SWAPPED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """c (Z, M, N) = activation(a (Z, M, K) · b (Z, K, N) + bias (N,)): a program for each tile and part of K.

    Where the sum is split, programs write their parts to `partial`, and the one that arrives last adds them up, always
    in the same order: the result does not depend on who that was. It leaves `arrived` at zero, as it was.

    DESCRIBED: one product (Z = 1) whose a and b are read by the GPU's copy engine (TMA): each has a dimension of
    stride 1 (the first where it is TURNED), and all else in it is divisible by 16 bytes.
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    tile, part, z = program % tiles, program // tiles % SPLIT_K, program // (tiles * SPLIT_K)
    row, column = _place(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = row * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    each = tl.cdiv(steps, SPLIT_K)
    _wait(b + z.to(tl.int64) * stride_bz, n % N, part * each * BLOCK_K, K, stride_bk, stride_bn, DEPENDENT)
    c += z.to(tl.int64) * M * N
    if DESCRIBED:
        total = _sum_described(
            _described(a, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_TURNED),
            _described(b, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, B_TURNED),
            row * BLOCK_M, column * BLOCK_N, part * each, tl.minimum(part * each + each, steps),
            BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, A_TURNED, B_TURNED,
        )  # fmt: skip
    else:
        total = _sum(
            a + z.to(tl.int64) * stride_az, b + z.to(tl.int64) * stride_bz, m % M, n % N, K, stride_am, stride_ak,
            stride_bk, stride_bn, part * each, tl.minimum(part * each + each, steps), BLOCK_M, BLOCK_N, BLOCK_K,
            EVEN_K, WIDE, PRECISION, SWAPPED,
        )  # fmt: skip
    if SPLIT_K == 1:
        _let_begin(DEPENDENT)
        _finish(total, bias, c, m, n, M, N, WIDE, ACTIVATION)
    else:
        mine = z * tiles + tile
        inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        parts = partial + mine.to(tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N) + inner
        tl.store(parts + part * (BLOCK_M * BLOCK_N), total)
        tl.debug_barrier()  # all threads' stores come before the arrival is made known
        before = tl.atomic_add(arrived + mine, 1, sem="acq_rel")
        if before == SPLIT_K - 1:
            tl.store(arrived + mine, 0)
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            # past the L1, which does not see what others wrote; some at a time, as each takes a trip to the L2
            for i in tl.range(0, SPLIT_K, num_stages=1, loop_unroll_factor=PARTS_AT_ONCE):
                total += tl.load(parts + i * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
            _finish(total, bias, c, m, n, M, N, WIDE, ACTIVATION)


@triton.jit
def gemm_persistent(
    a, b, bias, c, M, N, K, batch, programs,
    stride_az, stride_am, stride_ak, stride_bz, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    DESCRIBED: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The same with as many programs as the GPU runs at once, each of which takes one tile after the other."""
    tiles, steps = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    if DEPENDENT:
        gdc_wait()
    if DESCRIBED:
        a = _described(a, M, K, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_TURNED)
        b = _described(b, K, N, stride_bk, stride_bn, BLOCK_K, BLOCK_N, B_TURNED)
    for number in tl.range(tl.program_id(0), tiles * batch, programs, flatten=DESCRIBED):
        z = (number // tiles).to(tl.int64)
        row, column = _place(number % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = row * BLOCK_M + tl.arange(0, BLOCK_M), column * BLOCK_N + tl.arange(0, BLOCK_N)
        if DESCRIBED:
            total = _sum_described(
                a, b, row * BLOCK_M, column * BLOCK_N, 0, steps, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION, A_TURNED,
                B_TURNED,
            )  # fmt: skip
        else:
            total = _sum(
                a + z * stride_az, b + z * stride_bz, m % M, n % N, K, stride_am, stride_ak, stride_bk, stride_bn,
                0, steps, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, WIDE, PRECISION, False,
            )  # fmt: skip
        _finish(total, bias, c + z * M * N, m, n, M, N, WIDE, ACTIVATION)
    _let_begin(DEPENDENT)


@triton.jit
def gemv(
    a, b, bias, c, N, K, stride_az, stride_ak, stride_bz, stride_bk, stride_bn,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The same of one row, c (Z, 1, N), without matrix units: a program for each BLOCK_N columns. b is read once, and
    as fast as memory gives it; an element of the sum for each of its BLOCK_K places, which are added up at the end."""
    across = tl.cdiv(N, BLOCK_N)
    column, z = tl.program_id(0) % across * BLOCK_N, (tl.program_id(0) // across).to(tl.int64)
    n, k, step = column + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K), BLOCK_K
    there = n % N
    if WIDE:
        there, k, step = there.to(tl.int64), k.to(tl.int64), tl.full((), BLOCK_K, tl.int64)
    _wait(b + z * stride_bz, there, 0, K, stride_bk, stride_bn, DEPENDENT)
    x = a + z * stride_az + k * stride_ak
    y = b + z * stride_bz + there[:, None] * stride_bn + k[None, :] * stride_bk
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for i in range(tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            p, q = tl.load(x), tl.load(y, eviction_policy="evict_first")
        else:
            inside = tl.arange(0, BLOCK_K) < K - i * BLOCK_K
            p = tl.load(x, mask=inside, other=0.0)
            q = tl.load(y, mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        total += p.to(tl.float32)[None, :] * q.to(tl.float32)
        x += step * stride_ak
        y += step * stride_bk
    _let_begin(DEPENDENT)
    total = tl.sum(total, 1)
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(c + z * N + n, _activated(total, ACTIVATION).to(c.dtype.element_ty), mask=n < N)


@triton.jit
def epilogue(c, bias, M, N, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    """c (M, N), row-major, in place: activation(c + bias), for a product that was made by something else."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.full((), 1, tl.int64) * M * N
    x = tl.load(c + place, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + place % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(c + place, _activated(x, ACTIVATION).to(c.dtype.element_ty), mask=inside)
