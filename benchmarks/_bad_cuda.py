"""A kernel in CUDA C++ whose candidates are honest, or bad in one way each: what `bad_candidates` tunes on a GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch

import tunesmith
from tunesmith import Config, Device, Problem, Space

#: ways to be bad → the stages at which that may be found
BAD: Mapping[str, tuple[str, ...]] = {
    "illegal_address": ("launch",),
    "misaligned": ("launch",),
    "hang": ("timeout",),
    "device_assert": ("launch",),
    "trap": ("launch",),
    "out_of_memory": ("launch",),
    "out_of_shared": ("cut",),
    "static_shared": ("compile",),
    "grid_too_large": ("launch",),
    "wrong": ("wrong",),
}
HONEST = "honest"
ROWS, N = 256, 4096

SOURCE = (
    "enum { honest, "
    + ", ".join(BAD)
    + r""" };
#ifndef HOW
#define HOW honest
#endif
#ifndef BLOCK
#define BLOCK 1024
#endif
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
__device__ char *volatile kept;

extern "C" __global__ void __launch_bounds__(BLOCK) twice(const float *x, float *y, int rows, int n, int mix) {
    __shared__ volatile char own[HOW == static_shared ? 1 << 20 : 1];
    const long long from = (long long)blockIdx.x * n;
    own[0] = 0;
    if (HOW == static_shared) own[threadIdx.x * 1000] = 1;
    if (HOW == out_of_memory) { // a kernel's own memory: of 1 TiB malloc returns 0, which this does not look at
        kept = (char *)malloc(1LL << 40);
        *(volatile char *)kept = 1;
    }
    if (HOW == hang) while (*(volatile const float *)x > -1e30f) {}
    for (int i = threadIdx.x; i < n; i += BLOCK) {
        float value = x[from + i];
        if (HOW == illegal_address) value += *(volatile const float *)(x + from + i + (1LL << 40)); // 4 TiB beyond
        if (HOW == misaligned && i + 1 < n) value += *(volatile const float *)((const char *)(x + from + i) + 2);
        if (HOW == device_assert && !(value < -1e30f))
            __assertfail("a candidate's assertion", "twice.cu", 1, "twice", 1);
        if (HOW == trap) __trap();
        if (HOW == wrong && blockIdx.x == 3) value *= 1.01f;
        y[from + i] = 2 * value;
    }
}
"""
)


def mixture(bad: list[str], mix: int) -> list[Config]:
    """Candidates of one mix: three honest ones, and a bad one of each kind that is named."""
    found = [Config(HOW=HONEST, BLOCK=block) for block in (128, 256, 1024)]
    found += [Config(HOW=how, BLOCK=1024) for how in bad]
    random.Random(mix).shuffle(found)
    return found


def bad_of(mix: int) -> list[str]:
    """Three bad ways in turn for each of the first mixes, until all have been; then two to four at random."""
    names = list(BAD)
    if mix < FIRST:
        return names[mix::FIRST]
    draw = random.Random(mix)
    return draw.sample(names, draw.randint(2, 4))


#: mixes until each way has been seen
FIRST = -(-len(BAD) // 3)


def how_of(config: Config) -> str:
    """In which way a candidate is bad, or `honest`."""
    return str(config["HOW"])


def space(problem: Problem, device: Device) -> Space:
    """One mix's candidates."""
    mix = problem.dims["mix"]
    return Space.of(mixture(bad_of(mix), mix))


def make_inputs(problem: Problem) -> dict[str, Any]:
    """x of normal values, y of a value that is never right."""
    rows, n, mix = (problem.dims[name] for name in ("rows", "n", "mix"))
    torch.manual_seed(mix)
    x = torch.randn(rows, n, device="cuda")
    return {"x": x, "y": torch.full_like(x, 7e7), "rows": rows, "n": n, "mix": mix}


def reference(x: Any, **_: Any) -> dict[str, Any]:
    """y in float64."""
    return {"y": 2.0 * x.double()}


kernel = tunesmith.cuda.kernel(
    SOURCE,
    grid=lambda rows, HOW: (rows, 1 << 20) if HOW == "grid_too_large" else rows,
    block="BLOCK",
    shared=lambda HOW: 1 << 20 if HOW == "out_of_shared" else 0,
)
twice = tunesmith.autotune(
    space=space, default=Config(HOW=HONEST, BLOCK=1024), key=["rows", "n", "mix"], make_inputs=make_inputs,
    reference=reference, isolate=True,
)(kernel)  # fmt: skip
