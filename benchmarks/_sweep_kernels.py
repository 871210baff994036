"""The shipped CPU kernels with most knobs held, for quick searches; and a problem that kills its worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import tunesmith
from tunesmith import Problem
from tunesmith.kernels import conv2d as conv
from tunesmith.kernels import matmul as product
from tunesmith.kernels import softmax as rows

softmax = rows.kernel.fix(PREFETCH=0, march="native", ROWS=16)
matmul = product.kernel.fix(VEC=8, PACK_A=0, PACK_B=1, KC=128)
small = matmul.fix(NR=16)  # 4 configurations
conv2d = conv.kernel.fix(VEC=8, PB=4, FLAT=0)

#: the size at which `poisoned` kills whoever makes its inputs
DEADLY = 13


def deadly_inputs(problem: Problem) -> Mapping[str, Any]:
    if problem["n"] == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": problem["n"]}


@tunesmith.autotune(configs=[{"step": 1}, {"step": 4}], key=["n"], make_inputs=deadly_inputs)
def poisoned(n: int, *, step: int) -> int:
    return sum(range(0, 200 * n, step))
