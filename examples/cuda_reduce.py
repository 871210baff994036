"""Sums of rows in CUDA C++, for float32, float16 and bfloat16, each tuned for itself.

tunesmith tune examples/cuda_reduce.py:row_sums --problem rows=4096,n=8192,x.dtype=float32       on an NVIDIA GPU
tunesmith compile examples/cuda_reduce.py:row_sums --target sm_90 --problem rows=4096,n=8192     on any machine
python examples/cuda_reduce.py                                                   a call, checked against torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tunesmith
from tunesmith import Config, Problem, Space


def inputs(problem: Problem) -> dict[str, Any]:
    """x (rows, n), row-major, random, of the dtype that the Problem names; y (rows,) in float32, to be written."""
    import torch

    rows, n = (int(str(problem[name])) for name in ("rows", "n"))
    x = torch.randn((rows, n), device="cuda").to(getattr(torch, str(problem.get("x.dtype", "float32"))))
    return {"x": x, "y": torch.empty(rows, device="cuda"), "rows": rows, "n": n}


SPACE = Space(TX=[32, 64, 128, 256, 512, 1024], TY=[1, 2, 4, 8], VEC=[1, 2, 4, 8], UNROLL=[1, 2, 4]).where(
    lambda TX, TY: 64 <= TX * TY <= 1024, "two warps to what a block can have"
)

kernel = tunesmith.cuda.kernel(
    Path(__file__).with_name("cuda_reduce.cu"),
    entry="row_sums<T>",  # T is the dtype of x
    grid=lambda rows, TY: -(-rows // TY),
    block=("TX", "TY"),
)
row_sums = tunesmith.autotune(
    space=SPACE, key=["rows", "n"], default=Config(TX=256, TY=1, VEC=4, UNROLL=1), make_inputs=inputs
)(kernel)


if __name__ == "__main__":
    import torch

    for dtype in ("float32", "float16"):
        made = inputs(Problem({"rows": 1000, "n": 3001, "x.dtype": dtype}))
        row_sums(**made)  # the first call searches and stores; later ones, in any process, launch
        torch.testing.assert_close(made["y"].double(), made["x"].double().sum(1), rtol=1e-3, atol=1e-2)
        row_sums.explain(**made)
