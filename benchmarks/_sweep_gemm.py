"""The matrix product of `examples/` over the 480 configurations of the cold search, for a sweep's workers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parent))

import triton_gemm
from triton_cold_search import AXES

import tunesmith

SPACE = tunesmith.Space(AXES)
#: of 480, those that the model ranks first: a quarter
CANDIDATES = 120

gemm = tunesmith.autotune(
    space=SPACE, key=["M", "N", "K"], make_inputs=triton_gemm.inputs, model=tunesmith.Tiles(), candidates=CANDIDATES,
    name="sweep_gemm",
)(triton_gemm.gemm.fn)  # fmt: skip
