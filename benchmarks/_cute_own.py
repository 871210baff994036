"""The kernel of `examples/cute_rmsnorm.py` as CuTe DSL's own tuner takes it: keyed by a number, with N a constant.

CuTe DSL reads annotations of this file as objects, so none is put off.
"""

from pathlib import Path

import cutlass.cute as cute
from cutlass import Constexpr, Float32, Int32

from tunesmith.places import load_file

N = 4096
example = load_file(Path(__file__).parents[1] / "examples" / "cute_rmsnorm.py")  # the benchmark has the same name


@cute.jit
def own(
    x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, eps: Float32, M: Int32,
    THREADS: Constexpr[int] = 128, ROWS: Constexpr[int] = 1, VEC: Constexpr[int] = 4, KEEP: Constexpr[bool] = True,
):  # fmt: skip
    grouped = cute.make_layout((M, N // VEC, VEC), stride=(N, VEC, 1))
    norm = example.rows(
        cute.make_tensor(x.iterator, grouped),
        cute.make_tensor(w.iterator, cute.make_layout((N // VEC, VEC), stride=(VEC, 1))),
        cute.make_tensor(y.iterator, grouped),
        eps, N, THREADS, ROWS, VEC, KEEP,
    )  # fmt: skip
    norm.launch(grid=[cute.ceil_div(M, ROWS), 1, 1], block=[THREADS, ROWS, 1])
