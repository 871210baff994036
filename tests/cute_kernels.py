"""Kernels in CuTe DSL for tests: at the top of a module, where a child finds them."""

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Constexpr, Float32

import tunesmith
from tunesmith import Space


@cute.kernel
def saxpy_kernel(
    x: cute.Tensor, y: cute.Tensor, a: Float32, more: Constexpr[float], BLOCK: Constexpr[int], EACH: Constexpr[int]
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    for k in cutlass.range_constexpr(EACH):
        i = (block * EACH + k) * BLOCK + thread
        if i < x.shape[0]:
            y[i] = a * x[i] + more


@cute.jit
def saxpy(
    x: cute.Tensor, y: cute.Tensor, a: Float32, stream: cuda.CUstream, *,
    BLOCK: Constexpr[int] = 128, EACH: Constexpr[int],
):  # fmt: skip
    if cutlass.const_expr(BLOCK % 32 != 0):
        raise ValueError(f"BLOCK must be a multiple of 32, not {BLOCK}")
    kernel = saxpy_kernel(x, y, a, 1.0, BLOCK, EACH)
    kernel.launch(grid=[cute.ceil_div(x.shape[0], BLOCK * EACH), 1, 1], block=[BLOCK, 1, 1], stream=stream)


class Changed:
    @cute.jit
    def saxpy(
        x: cute.Tensor, y: cute.Tensor, a: Float32, stream: cuda.CUstream, *,
        BLOCK: Constexpr[int] = 128, EACH: Constexpr[int],
    ):  # fmt: skip
        if cutlass.const_expr(BLOCK % 32 != 0):
            raise ValueError(f"BLOCK must be a multiple of 32, not {BLOCK}")
        kernel = saxpy_kernel(x, y, a, 2.0, BLOCK, EACH)
        kernel.launch(grid=[cute.ceil_div(x.shape[0], BLOCK * EACH), 1, 1], block=[BLOCK, 1, 1], stream=stream)


class Commented:
    @cute.jit
    def saxpy(
        x: cute.Tensor, y: cute.Tensor, a: Float32, stream: cuda.CUstream, *,
        BLOCK: Constexpr[int] = 128, EACH: Constexpr[int],
    ):  # fmt: skip
        # a comment, and an empty line

        if cutlass.const_expr(BLOCK % 32 != 0):
            raise ValueError(f"BLOCK must be a multiple of 32, not {BLOCK}")
        kernel = saxpy_kernel(x, y, a, 1.0, BLOCK, EACH)  # one more
        kernel.launch(grid=[cute.ceil_div(x.shape[0], BLOCK * EACH), 1, 1], block=[BLOCK, 1, 1], stream=stream)


class Shifted:
    """A host object, as CUTLASS's own kernels are: what a `build` function makes."""

    def __init__(self, dtype: Any, more: float, block: int) -> None:
        self.dtype, self.more, self.block = dtype, more, block

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, a: Float32, stream: cuda.CUstream) -> None:
        assert x.element_type == self.dtype
        kernel = saxpy_kernel(x, y, a, self.more, self.block, 1)
        kernel.launch(grid=[cute.ceil_div(x.shape[0], self.block), 1, 1], block=[self.block, 1, 1], stream=stream)


def build_shifted(given: dict[str, Any], BLOCK: int) -> Shifted:
    return Shifted(given["x"], given["more"], BLOCK)


shifted = tunesmith.cute.built(build_shifted, signature_from=["x", "y", "a", "more"], values=["more"], name="shifted")


@tunesmith.autotune(
    params_dict={"BLOCK": [64, 128], "EACH": [1, 2]}, update_on_change=["n"], warmup_iterations=10, iterations=100
)
@cute.jit
def tuned(
    x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32, stream: cuda.CUstream,
    BLOCK: Constexpr[int] = 128, EACH: Constexpr[int] = 2,
):  # fmt: skip
    kernel = saxpy_kernel(x, y, Float32(2.0), 1.0, BLOCK, EACH)
    kernel.launch(grid=[cute.ceil_div(n, BLOCK * EACH), 1, 1], block=[BLOCK, 1, 1], stream=stream)


SPACE = Space(BLOCK=[64, 128], EACH=[1, 2])
