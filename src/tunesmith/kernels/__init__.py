"""Kernels that ship with their Space, default, reference and inputs; each is a module of its own."""

from __future__ import annotations

from tunesmith.tuned import TunedKernel


def shipped() -> dict[str, TunedKernel]:
    """Every shipped kernel by name."""
    from tunesmith.kernels import (
        add_rmsnorm,
        cluster_softmax,
        conv2d,
        decode_attention,
        fused_moe,
        gemm,
        layernorm,
        matmul,
        rmsnorm,
        rmsnorm_backward,
        row_softmax,
        silu_and_mul,
        skinny_gemm,
        softmax,
    )

    of_rows = (row_softmax, cluster_softmax, rmsnorm, rmsnorm_backward, add_rmsnorm, layernorm, silu_and_mul)
    modules = (matmul, softmax, conv2d, gemm, skinny_gemm, *of_rows, fused_moe, decode_attention)
    return {module.kernel.kernel.name: module.kernel for module in modules}
