"""RMSNorm of rows in CuTe DSL, y = x / rms(x) * w, for float32, float16 and bfloat16.

tunesmith tune examples/cute_rmsnorm.py:rmsnorm --problem M=4096,N=4096                       on an NVIDIA GPU
tunesmith compile examples/cute_rmsnorm.py:rmsnorm --target sm_90 --problem M=4096,N=4096     on any machine
python examples/cute_rmsnorm.py                                               a call, checked against torch
"""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float32

import tunesmith
from tunesmith import Config, Problem, Space

WARP = 32


@cute.kernel
def rows(
    x: cute.Tensor,  # (M, N / VEC, VEC), row-major
    w: cute.Tensor,  # (N / VEC, VEC)
    y: cute.Tensor,  # as x
    eps: Float32,
    N: Constexpr[int],
    THREADS: Constexpr[int],
    ROWS: Constexpr[int],
    VEC: Constexpr[int],
    KEEP: Constexpr[bool],
):
    """A block norms ROWS rows with THREADS threads each; a thread takes every THREADS-th group of VEC elements."""
    thread, r, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = block * ROWS + r
    warps = THREADS // WARP
    groups = -(-N // (THREADS * VEC))
    even = N % (THREADS * VEC) == 0
    partial = cutlass.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((ROWS, warps)))

    kept = cute.make_rmem_tensor((VEC, groups), x.element_type)
    scaled = cute.make_rmem_tensor((VEC,), y.element_type)
    weight = cute.make_rmem_tensor((VEC,), w.element_type)
    total = Float32(0.0)
    if row < x.shape[0]:
        for i in cutlass.range_constexpr(groups):
            group = i * THREADS + thread
            if cutlass.const_expr(not even):
                kept[None, i].fill(0.0)
            if cutlass.const_expr(even) or group < N // VEC:
                cute.autovec_copy(x[row, group, None], kept[None, i])
            part = kept[None, i].load().to(Float32)
            total += (part * part).reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
    total = cute.arch.warp_reduction(total, lambda a, b: a + b)
    if cutlass.const_expr(warps > 1):
        if thread % WARP == 0:
            partial[r, thread // WARP] = total
        cute.arch.sync_threads()
        total = Float32(0.0)
        for i in cutlass.range_constexpr(warps):
            total += partial[r, i]
    scale = cute.math.rsqrt(total / N + eps)
    if row < x.shape[0]:
        for i in cutlass.range_constexpr(groups):
            group = i * THREADS + thread
            if cutlass.const_expr(even) or group < N // VEC:
                cute.autovec_copy(w[group, None], weight)
                if cutlass.const_expr(not KEEP):  # fewer registers, and x once more from the cache
                    cute.autovec_copy(x[row, group, None], kept[None, i])
                normed = kept[None, i].load().to(Float32) * scale * weight.load().to(Float32)
                scaled.store(normed.to(y.element_type))
                cute.autovec_copy(scaled, y[row, group, None])


@cute.jit
def launch(
    x: cute.Tensor,  # (M, N), contiguous
    w: cute.Tensor,  # (N,), contiguous
    y: cute.Tensor,  # (M, N), contiguous, to be written
    eps: Float32,
    N: Constexpr[int],  # compiled in
    stream: cuda.CUstream,
    *,
    THREADS: Constexpr[int] = 128,
    ROWS: Constexpr[int] = 1,
    VEC: Constexpr[int] = 4,
    KEEP: Constexpr[bool] = True,
):
    M = x.shape[0]
    grouped = cute.make_layout((M, N // VEC, VEC), stride=(N, VEC, 1))
    norm = rows(
        cute.make_tensor(x.iterator, grouped),
        cute.make_tensor(w.iterator, cute.make_layout((N // VEC, VEC), stride=(VEC, 1))),
        cute.make_tensor(y.iterator, grouped),
        eps, N, THREADS, ROWS, VEC, KEEP,
    )  # fmt: skip
    norm.launch(grid=[cute.ceil_div(M, ROWS), 1, 1], block=[THREADS, ROWS, 1], stream=stream)


def inputs(problem: Problem) -> dict[str, Any]:
    """x (M, N) and w (N,), random, of the dtype that the Problem names; y as x, to be written."""
    import torch

    M, N = (int(str(problem[name])) for name in "MN")
    dtype = getattr(torch, str(problem.get("x.dtype", "bfloat16")))
    x, w = torch.randn((M, N), device="cuda").to(dtype), torch.randn(N, device="cuda").to(dtype)
    return {"x": x, "w": w, "y": torch.empty_like(x), "eps": 1e-6, "N": N}


def key(x: Any, N: int) -> dict[str, int]:
    return {"M": x.shape[0], "N": N}


def space(problem: Problem, device: object) -> Space:
    """Groups that a row is made of, and blocks of at least two warps; threads that would find nothing to do are cut."""
    N = int(str(problem["N"]))
    return Space(
        THREADS=[32, 64, 128, 256, 512, 1024], ROWS=[1, 2, 4, 8], VEC=[1, 2, 4, 8], KEEP=[True, False]
    ).where(
        lambda THREADS, ROWS: 64 <= THREADS * ROWS <= 1024, "two warps to what a block can have"
    ).where(
        lambda THREADS, VEC: N % VEC == 0 and 2 * N > THREADS * VEC, "a row is groups of VEC, for half of the threads"
    ).where(
        lambda THREADS, VEC, KEEP: N <= 64 * THREADS, "64 elements of a thread"
    )  # fmt: skip


def reference(x: Any, w: Any, eps: float) -> Any:
    return x * (x * x).mean(-1, keepdim=True).add(eps).rsqrt() * w


kernel = tunesmith.cute.kernel(launch, name="rmsnorm")
rmsnorm = tunesmith.autotune(
    space=space, key=key, knobs=["THREADS", "ROWS", "VEC", "KEEP"], dims=["M", "N"], make_inputs=inputs,
    default=Config(THREADS=128, ROWS=1, VEC=4, KEEP=True), reference=reference, outputs=["y"],
)(kernel)  # fmt: skip


if __name__ == "__main__":
    import torch

    for dtype in ("float32", "bfloat16"):
        made = inputs(Problem({"M": 1000, "N": 4096, "x.dtype": dtype}))
        rmsnorm(**made)  # the first call searches and stores; later ones, in any process, launch
        expected = reference(made["x"].double(), made["w"].double(), made["eps"])
        torch.testing.assert_close(made["y"].double(), expected, rtol=2e-2, atol=2e-2)
        rmsnorm.explain(**made)
