"""A matrix product with few tiles and a long sum, in Triton: how many programs share a tile's sum is a knob.

tunesmith tune examples/triton_split_k.py:split_k --problem M=32,N=1024,K=16384     on a GPU
python examples/triton_split_k.py                                                   a call, checked against torch

Programs that share a tile add to it, so it has to be zero before each launch: `reset_to_zero` sees to that while
Configs are timed, and the caller does before a call.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tunesmith
from tunesmith import Problem, Space, Tiles


def grid(meta: dict[str, Any]) -> tuple[int, int]:
    """So many programs for each tile of c."""
    tiles = -(-meta["M"] // meta["BLOCK_M"]) * -(-meta["N"] // meta["BLOCK_N"])
    return tiles, meta["SPLIT_K"]


def inputs(problem: Problem) -> dict[str, Any]:
    """a (M, K) and b (K, N) in float16, row-major, random; c (M, N) in float32, zero."""
    M, N, K = (int(str(problem[name])) for name in ("M", "N", "K"))
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((M, K), (K, N)))
    c = torch.zeros((M, N), device="cuda", dtype=torch.float32)
    return {"grid": grid, "a": a, "b": b, "c": c, "M": M, "N": N, "K": K}


SPACE = Space(
    BLOCK_M=[16, 32, 64, 128], BLOCK_N=[32, 64, 128], BLOCK_K=[64, 128], SPLIT_K=[1, 2, 4, 8, 16, 32],
    num_warps=[4, 8], num_stages=[3, 4],
).where(lambda BLOCK_M, BLOCK_N, num_warps: 256 * num_warps <= BLOCK_M * BLOCK_N, "warps without a tile")  # fmt: skip


@tunesmith.autotune(
    space=SPACE, key=["M", "N", "K"], make_inputs=inputs, reset_to_zero=["c"], model=Tiles(split="SPLIT_K")
)
@triton.jit
def split_k(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr
):  # fmt: skip
    """c += a · b, accumulated in float32; each program takes every SPLIT_K-th stretch of K."""
    tile, share, across = tl.program_id(0), tl.program_id(1), tl.cdiv(N, BLOCK_N)
    m = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
    k = share * BLOCK_K + tl.arange(0, BLOCK_K)
    x, y = a + (m % M)[:, None] * K + k[None, :], b + k[:, None] * N + (n % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(share * BLOCK_K, K, BLOCK_K * SPLIT_K):
        left = K - start + share * BLOCK_K
        total = tl.dot(
            tl.load(x, mask=k[None, :] < left, other=0.0), tl.load(y, mask=k[:, None] < left, other=0.0), total
        )
        x += BLOCK_K * SPLIT_K
        y += BLOCK_K * SPLIT_K * N
    inside = (m[:, None] < M) & (n[None, :] < N)
    if SPLIT_K == 1:
        tl.store(c + m[:, None] * N + n[None, :], total, mask=inside)
    else:
        tl.atomic_add(c + m[:, None] * N + n[None, :], total, mask=inside)


if __name__ == "__main__":
    made = inputs(Problem({"M": 30, "N": 1000, "K": 20000}))
    split_k[made.pop("grid")](**made)
    torch.testing.assert_close(made["c"], made["a"].float() @ made["b"].float(), rtol=1e-2, atol=1e-1)
    split_k.explain(**made, grid=grid)
