"""A CUDA kernel some of whose Configs crash, hang or compute nonsense, where a worker can import it."""

from __future__ import annotations

import inspect
from typing import Any

import tunesmith
from tunesmith import Problem, Space

SOURCE = """
#ifndef FAULT
#define FAULT 0
#endif
#ifndef BLOCK
#define BLOCK 128
#endif
extern "C" __global__ void __launch_bounds__(BLOCK) twice(const float *x, float *y, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (FAULT == 1) *(volatile float *)8 = 1;           // an illegal address
    if (FAULT == 2) while (*(volatile const float *)x < 1e30f) {}  // a hang: every x is below
    if (FAULT == 3) __trap();
    if (i < n) y[i] = FAULT == 4 ? x[i] : 2 * x[i];     // a wrong result
}
"""
#: what a search may be told to survive; before isolation there is none of it
SURVIVES: dict[str, Any] = {
    name: value
    for name, value in {"isolate": True, "reference": lambda x, y, n: 2 * x, "outputs": ["y"]}.items()
    if name in inspect.signature(tunesmith.autotune).parameters
}


def inputs(problem: Problem) -> dict[str, Any]:
    import torch

    n = int(str(problem["n"]))
    return {"x": torch.randn(n, device="cuda").clamp(-8, 8), "y": torch.empty(n, device="cuda"), "n": n}


kernel = tunesmith.cuda.kernel(SOURCE, grid=lambda n, BLOCK: -(-n // BLOCK), block="BLOCK")
twice = tunesmith.autotune(
    space=Space(FAULT=[0, 1, 2, 3, 4], BLOCK=[128, 256]), key=["n"], make_inputs=inputs, **SURVIVES
)(kernel)
