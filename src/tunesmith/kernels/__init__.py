"""Kernels that ship with their Space, default, reference and inputs; each is a module of its own."""

from __future__ import annotations

from tunesmith.tuned import TunedKernel


def shipped() -> dict[str, TunedKernel]:
    """Every shipped kernel by name."""
    from tunesmith.kernels import conv2d, decode_attention, fused_moe, gemm, matmul, softmax

    modules = (matmul, softmax, conv2d, gemm, fused_moe, decode_attention)
    return {module.kernel.kernel.name: module.kernel for module in modules}
