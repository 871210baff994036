"""A matrix product in Triton that finds its own fastest configuration.

tunesmith tune examples/triton_gemm.py:gemm --problem M=4096,N=4096,K=4096          on a GPU
tunesmith compile examples/triton_gemm.py:gemm --target sm_90 --problem M=4096,N=4096,K=4096      on any machine
python examples/triton_gemm.py                                                      a call, checked against torch
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tunesmith
from tunesmith import Problem, Space, Tiles


def grid(meta: dict[str, Any]) -> tuple[int]:
    """One program for each tile of c."""
    return (-(-meta["M"] // meta["BLOCK_M"]) * -(-meta["N"] // meta["BLOCK_N"]),)


def inputs(problem: Problem) -> dict[str, Any]:
    """a (M, K) and b (K, N), row-major, random; c (M, N) to be written."""
    M, N, K = (int(str(problem[name])) for name in ("M", "N", "K"))
    a, b = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((M, K), (K, N)))
    c = torch.empty((M, N), device="cuda", dtype=torch.float16)
    return {"grid": grid, "a": a, "b": b, "c": c, "M": M, "N": N, "K": K}


SPACE = Space(
    BLOCK_M=[64, 128, 256], BLOCK_N=[64, 128, 256], BLOCK_K=[32, 64], num_warps=[4, 8], num_stages=[3, 4]
).where(lambda BLOCK_M, BLOCK_N: BLOCK_M * BLOCK_N <= 128 * 256, "an accumulator of more would spill")  # fmt: skip


@tunesmith.autotune(space=SPACE, key=["M", "N", "K"], make_inputs=inputs, model=Tiles())
@triton.jit
def gemm(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr = 8
):  # fmt: skip
    """c = a · b in float16, accumulated in float32; programs grouped so that neighbours share tiles in the L2."""
    program, down, across = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (GROUP * across) * GROUP
    rows = min(down - first, GROUP)
    m = (first + program % (GROUP * across) % rows) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = program % (GROUP * across) // rows * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x, y = a + (m % M)[:, None] * K + k[None, :], b + k[:, None] * N + (n % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        total = tl.dot(
            tl.load(x, mask=k[None, :] < K - start, other=0.0),
            tl.load(y, mask=k[:, None] < K - start, other=0.0),
            total,
        )
        x += BLOCK_K
        y += BLOCK_K * N
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), mask=inside)


if __name__ == "__main__":
    made = inputs(Problem({"M": 1000, "N": 2000, "K": 3000}))
    gemm[grid](*list(made.values())[1:])  # the first call searches and stores; later ones, in any process, launch
    torch.testing.assert_close(made["c"], made["a"] @ made["b"], rtol=1e-2, atol=1e-1)
    gemm.explain(*list(made.values())[1:], grid=grid)
