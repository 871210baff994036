"""A matrix product in CUDA C++, in float32, that finds its own fastest configuration.

tunesmith tune examples/cuda_sgemm.py:sgemm --problem M=4096,N=4096,K=4096                       on an NVIDIA GPU
tunesmith compile examples/cuda_sgemm.py:sgemm --target sm_90 --problem M=4096,N=4096,K=4096     on any machine
python examples/cuda_sgemm.py                                                    a call, checked against torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tunesmith
from tunesmith import Config, Problem, Space


def tiles(M: int, N: int, BM: int, BN: int) -> int:
    """One block for each tile of c."""
    return -(-M // BM) * -(-N // BN)


def threads(BM: int, BN: int, TM: int, TN: int) -> int:
    return BM // TM * (BN // TN)


def shared_bytes(BM: int, BN: int, BK: int) -> int:
    """Two tiles of a, with a gap of 4 floats a column, and two of b."""
    return 2 * BK * (BM + 4 + BN) * 4


def inputs(problem: Problem) -> dict[str, Any]:
    """a (M, K) and b (K, N), row-major, random; c (M, N) to be written."""
    import torch

    M, N, K = (int(str(problem[name])) for name in ("M", "N", "K"))
    a, b = (torch.randn(shape, device="cuda") for shape in ((M, K), (K, N)))
    return {"a": a, "b": b, "c": torch.empty((M, N), device="cuda"), "M": M, "N": N, "K": K}


SPACE = (
    Space(BM=[64, 128, 256], BN=[64, 128, 256], BK=[8, 16, 32], TM=[4, 8, 16], TN=[4, 8, 16], MIN_BLOCKS=[1, 2])
    .where(lambda TM, TN: 32 <= TM * TN <= 128, "a thread's tile keeps its registers busy and fits in them")
    .where(lambda BM, BN: BM * BN <= 128 * 256, "an accumulator of more would spill")
    .where(lambda BM, BN, TM, TN: 64 <= BM // TM * (BN // TN) <= 512, "two to sixteen warps")
    .where(lambda BM, BN, BK, TM, TN: BM * BK // 4 % (BM // TM * (BN // TN)) == 0, "loads of a are shared evenly")
    .where(lambda BM, BN, BK, TM, TN: BN * BK // 4 % (BM // TM * (BN // TN)) == 0, "loads of b are shared evenly")
    .where(lambda TM, TN, MIN_BLOCKS: MIN_BLOCKS == 1 or TM * TN <= 64, "two blocks share a multiprocessor's registers")
)
#: what is usually chosen by hand
DEFAULT = Config(BM=128, BN=128, BK=8, TM=8, TN=8, MIN_BLOCKS=1)

kernel = tunesmith.cuda.kernel(
    Path(__file__).with_name("cuda_sgemm.cu"), grid=tiles, block=threads, shared=shared_bytes
)
sgemm = tunesmith.autotune(space=SPACE, key=["M", "N", "K"], default=DEFAULT, make_inputs=inputs)(kernel)


if __name__ == "__main__":
    import torch

    made = inputs(Problem({"M": 1000, "N": 2001, "K": 3003}))
    sgemm(**made)  # the first call searches and stores; later ones, in any process, launch
    torch.testing.assert_close(made["c"].double(), made["a"].double() @ made["b"].double(), rtol=1e-4, atol=1e-3)
    sgemm.explain(**made)
