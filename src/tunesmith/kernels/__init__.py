"""Kernels that ship with their Space, default, reference and inputs; each is a module of its own."""

from __future__ import annotations

from tunesmith.tuned import TunedKernel


def shipped() -> dict[str, TunedKernel]:
    """Every shipped kernel by name."""
    from tunesmith.kernels import conv2d, gemm, matmul, softmax

    return {module.kernel.kernel.name: module.kernel for module in (matmul, softmax, conv2d, gemm)}
