"""Kernels in FlyDSL, for AMD's GPUs: y = a x + y in place, and RMSNorm by a function that builds it.

tunesmith compile examples/flydsl_rows.py:axpy --target gfx942 --problem n=1048576              on any machine
tunesmith compile examples/flydsl_rows.py:rms_norm --target gfx950 --problem rows=4096,n=8192   on any machine
tunesmith tune examples/flydsl_rows.py:axpy --problem n=1048576                                 on an AMD GPU
"""

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, range_constexpr
from flydsl.expr import math as fmath

import tunesmith
from tunesmith import Config, Problem, Space

FLOAT32 = 4  # bytes
LANES = 64  # of a wave


# --- a launcher whose Constexpr parameters are knobs -----------------------------------------------------


@flyc.kernel
def _axpy(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, BLOCK: fx.Constexpr[int], VEC: fx.Constexpr[int]):
    """A thread takes VEC neighbours; a block BLOCK · VEC of them. n is a multiple of that."""
    at = fx.block_idx.x * BLOCK + fx.thread_idx.x
    copy = fx.make_copy_atom(fx.UniversalCopy(32 * VEC), fx.Float32)
    mine, result = fx.make_rmem_tensor(VEC, fx.Float32), fx.make_rmem_tensor(VEC, fx.Float32)
    packs_x = fx.logical_divide(x, fx.make_layout(VEC, 1))
    packs_y = fx.logical_divide(y, fx.make_layout(VEC, 1))
    fx.copy(copy, fx.slice(packs_x, (None, at)), mine)
    fx.copy(copy, fx.slice(packs_y, (None, at)), result)
    fx.memref_store_vec(fx.memref_load_vec(mine) * a + fx.memref_load_vec(result), result)
    fx.copy(copy, result, fx.slice(packs_y, (None, at)))


@flyc.jit
def launch_axpy(
    x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32, BLOCK: fx.Constexpr[int], VEC: fx.Constexpr[int],
    stream: fx.Stream = fx.Stream(None),
):  # fmt: skip
    _axpy(x, y, a, BLOCK, VEC).launch(grid=(n // (BLOCK * VEC), 1, 1), block=(BLOCK, 1, 1), stream=stream)


def axpy_inputs(problem: Problem) -> dict[str, Any]:
    """x and y of n normal values."""
    import torch

    n = problem.dims["n"]
    return {"x": torch.randn(n, device="cuda"), "y": torch.randn(n, device="cuda"), "a": 0.5, "n": n}


axpy = tunesmith.autotune(
    space=Space(BLOCK=[64, 128, 256, 512], VEC=[1, 2, 4], waves_per_eu=[0, 2]), key=["n"],
    default=Config(BLOCK=256, VEC=4, waves_per_eu=0), restore_value=["y"], strides=["x", "y"], make_inputs=axpy_inputs,
)(tunesmith.flydsl.kernel(launch_axpy, name="axpy"))  # fmt: skip


# --- a function that builds a launcher -------------------------------------------------------------------


def build_rms_norm(n: int, BLOCK: int, eps: float = 1e-6):
    """y = x / sqrt(mean(x²) + eps), for rows of n float32: a row a block, 4 neighbours a thread at a time."""
    vec = 16 // FLOAT32
    if n % (BLOCK * vec):
        raise ValueError(f"rows of {n} are no multiple of {BLOCK} threads of {vec}")
    tiles, waves = n // (BLOCK * vec), BLOCK // LANES

    @fx.struct
    class Shared:
        parts: fx.Array[fx.Float32, waves, 16]

    @flyc.kernel
    def rms_norm(x: fx.Tensor, y: fx.Tensor):
        thread = fx.thread_idx.x
        parts = fx.SharedAllocator().allocate(Shared).peek().parts.view(fx.make_layout(waves, 1))
        copy = fx.make_copy_atom(fx.UniversalCopy(128), fx.Float32)
        packs_x = fx.logical_divide(fx.slice(x, (fx.block_idx.x, None)), fx.make_layout(vec, 1))
        packs_y = fx.logical_divide(fx.slice(y, (fx.block_idx.x, None)), fx.make_layout(vec, 1))
        kept, total = [], fx.Float32(0.0)
        for tile in range_constexpr(tiles):
            mine = fx.make_rmem_tensor(vec, fx.Float32)
            fx.copy(copy, fx.slice(packs_x, (None, thread + tile * BLOCK)), mine)
            kept.append(fx.memref_load_vec(mine))
            total = total + (kept[-1] * kept[-1]).reduce(fx.ReductionOp.ADD)
        for step in range_constexpr(6):  # 2⁶ lanes
            total = total + total.shuffle_xor(1 << step, LANES)
        fx.memref_store(total, parts, thread // LANES)  # each lane of a wave has the same
        gpu.barrier()
        total = fx.Float32(0.0)
        for wave in range_constexpr(waves):
            total = total + fx.memref_load(parts, wave)
        scale = fmath.rsqrt(total * (1.0 / n) + eps)
        for tile in range_constexpr(tiles):
            mine = fx.make_rmem_tensor(vec, fx.Float32)
            fx.memref_store_vec(kept[tile] * scale, mine)
            fx.copy(copy, mine, fx.slice(packs_y, (None, thread + tile * BLOCK)))

    @flyc.jit
    def launch(x: fx.Tensor, y: fx.Tensor, rows: fx.Int32, stream: fx.Stream = fx.Stream(None)):
        rms_norm(x, y).launch(grid=(rows, 1, 1), block=(BLOCK, 1, 1), stream=stream)

    return launch


def rms_norm_inputs(problem: Problem) -> dict[str, Any]:
    """x (rows, n) of normal values; y to be written."""
    import torch

    rows, n = problem.dims["rows"], problem.dims["n"]
    x = torch.randn((rows, n), device="cuda")
    return {"x": x, "y": torch.empty_like(x), "rows": rows, "n": n}


def rms_norm_reference(x: Any, y: Any, rows: int, n: int, eps: float) -> Any:
    """In float64."""
    return x / (x.square().mean(1, keepdim=True) + eps).sqrt()


rms_norm = tunesmith.autotune(
    space=Space(BLOCK=[64, 128, 256, 512, 1024], waves_per_eu=[0, 1, 2, 4]), key=["rows", "n"],
    default=Config(BLOCK=256, waves_per_eu=0), make_inputs=rms_norm_inputs, reference=rms_norm_reference, outputs=["y"],
)(tunesmith.flydsl.kernel(build_rms_norm, knobs=["BLOCK"], launch=["x", "y", "rows"], name="rms_norm"))  # fmt: skip


if __name__ == "__main__":
    import torch

    made = rms_norm_inputs(Problem({"rows": 4096, "n": 8192}))
    rms_norm(**made)  # the first call searches and stores; later ones, in any process, launch
    expected = rms_norm_reference(made["x"].double(), None, 4096, 8192, 1e-6)
    torch.testing.assert_close(made["y"].double(), expected, rtol=1e-4, atol=1e-4)
    rms_norm.explain(**made)
