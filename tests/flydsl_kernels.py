"""Kernels in FlyDSL where a compiler's child process can import them."""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

import tunesmith


@flyc.kernel
def _saxpy(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, BLOCK: fx.Constexpr[int], VEC: fx.Constexpr[int]):
    at = fx.block_idx.x * BLOCK + fx.thread_idx.x
    copy = fx.make_copy_atom(fx.UniversalCopy(32 * VEC), fx.Float32)
    mine = fx.make_rmem_tensor(VEC, fx.Float32)
    fx.copy(copy, fx.slice(fx.logical_divide(x, fx.make_layout(VEC, 1)), (None, at)), mine)
    fx.memref_store_vec(fx.memref_load_vec(mine) * a + 1.0, mine)
    fx.copy(copy, mine, fx.slice(fx.logical_divide(y, fx.make_layout(VEC, 1)), (None, at)))


@flyc.jit
def saxpy(
    x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32, BLOCK: fx.Constexpr[int], VEC: fx.Constexpr[int] = 1,
    stream: fx.Stream = fx.Stream(None),
):  # fmt: skip
    if BLOCK % 64:
        raise ValueError(f"BLOCK is {BLOCK}: no whole number of waves")
    _saxpy(x, y, a, BLOCK, VEC).launch(grid=(n // (BLOCK * VEC), 1, 1), block=(BLOCK, 1, 1), stream=stream)


@flyc.kernel
def _transpose(x: fx.Tensor, y: fx.Tensor, n: fx.Constexpr[int]):
    copy = fx.make_copy_atom(fx.UniversalCopy32b(), fx.Float32)
    mine = fx.make_rmem_tensor(1, fx.Float32)
    row, column = fx.slice(x, (fx.block_idx.x, None)), fx.slice(y, (None, fx.block_idx.x))
    fx.copy(copy, fx.slice(fx.logical_divide(row, fx.make_layout(1, 1)), (None, fx.thread_idx.x)), mine)
    fx.copy(copy, mine, fx.slice(fx.logical_divide(column, fx.make_layout(1, 1)), (None, fx.thread_idx.x)))


def build_transpose(n: int, BLOCK: int) -> Any:
    """y = xᵀ, both (n, n)."""
    if n % BLOCK:
        raise ValueError(f"{n} columns are no multiple of {BLOCK} threads")

    @flyc.jit
    def launch(x: fx.Tensor, y: fx.Tensor, stream: fx.Stream = fx.Stream(None)):
        _transpose(x, y, n).launch(grid=(n, 1, 1), block=(BLOCK, 1, 1), stream=stream)

    return launch


@tunesmith.autotune(space=tunesmith.Space(BLOCK=[64, 128]), key=["n"])
@flyc.jit
def decorated(
    x: fx.Tensor, y, a: fx.Float32, n: fx.Int32, BLOCK: fx.Constexpr[int], VEC: fx.Constexpr[int] = 1,
    stream: fx.Stream = fx.Stream(None),
):  # fmt: skip
    _saxpy(x, y, a, BLOCK, VEC).launch(grid=(n // (BLOCK * VEC), 1, 1), block=(BLOCK, 1, 1), stream=stream)
