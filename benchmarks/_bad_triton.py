"""Triton kernels whose candidates are honest, or bad in one way each: what `bad_candidates` tunes on a GPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

import tunesmith
from tunesmith import Config, Device, Problem, Space

#: ways to be bad → the stages at which that may be found
BAD: Mapping[str, tuple[str, ...]] = {
    "illegal_address": ("launch",),
    "misaligned": ("launch",),
    "hang": ("timeout",),
    "device_assert": ("launch",),
    "trap": ("launch",),
    "out_of_shared": ("cut", "load", "launch"),
    "wrong": ("wrong",),
}
HONEST = "honest"
ROWS, N = 256, 4096


@triton.jit
def _twice(x, y, rows, n, mix, HOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        at = row * n + columns
        mask = columns < n
        value = tl.load(x + at, mask=mask)
        if HOW == "illegal_address":  # 4 TB beyond
            value += tl.load(x + at.to(tl.int64) + (1 << 40), mask=mask)
        if HOW == "misaligned":
            odd = (x.to(tl.int64) + 2).to(tl.pointer_type(tl.float32))
            value += tl.load(odd + at, mask=mask & (columns < n - 1))
        if HOW == "device_assert":  # needs TRITON_DEBUG=1
            tl.device_assert(value < -1e30, "a candidate's assertion")
        if HOW == "trap":
            value += tl.inline_asm_elementwise(
                "{ trap; mov.b32 $0, $1; }", "=r,r", [value], dtype=tl.float32, is_pure=False, pack=1
            )
        if HOW == "wrong":
            value = tl.where(row == 3, value * 1.01, value)
        tl.store(y + at, 2.0 * value, mask=mask)
    if HOW == "hang":
        flag = tl.load(x, volatile=True)
        while flag > -1e30:
            flag = tl.load(x, volatile=True)
    if HOW == "out_of_shared":  # tiles of 64 KB, two a stage
        i = tl.arange(0, 128)
        tile = x + i[:, None] * 128 + i[None, :]
        sums = tl.zeros((128, 128), tl.float32)
        for step in range(0, n, 128):
            sums = tl.dot(tl.load(tile + step), tl.load(tile + 2 * step), sums)
        tl.store(y + i[:, None] * 128 + i[None, :], sums)


def mixture(bad: list[str], mix: int) -> list[Config]:
    """Candidates of one mix: three honest ones, and a bad one of each kind that is named."""
    found = [Config(HOW=HONEST, BLOCK=block, num_warps=4, num_stages=1) for block in (128, 1024, 4096)]
    found += [Config(HOW=how, BLOCK=1024, num_warps=4, num_stages=8 if how == "out_of_shared" else 1) for how in bad]
    random.Random(mix).shuffle(found)
    return found


def bad_of(mix: int, ways: Mapping[str, object]) -> list[str]:
    """One bad way alone for each of the first mixes, then two to four at random."""
    names = list(ways)
    if mix < len(names):
        return [names[mix]]
    draw = random.Random(mix)
    return draw.sample(names, draw.randint(2, min(4, len(names))))


def how_of(config: Config) -> str:
    """In which way a candidate is bad, or `honest`."""
    return str(config["HOW"])


def space(problem: Problem, device: Device) -> Space:
    """One mix's candidates."""
    mix = problem.dims["mix"]
    return Space.of(mixture(bad_of(mix, BAD), mix))


def make_inputs(problem: Problem) -> dict[str, Any]:
    """x of normal values, y of a value that is never right, a program for each row."""
    rows, n, mix = (problem.dims[name] for name in ("rows", "n", "mix"))
    torch.manual_seed(mix)
    x = torch.randn(rows, n, device="cuda")
    return {"grid": (rows,), "x": x, "y": torch.full_like(x, 7e7), "rows": rows, "n": n, "mix": mix}


def reference(x: Any, **_: Any) -> dict[str, Any]:
    """y in float64."""
    return {"y": 2.0 * x.double()}


twice = tunesmith.autotune(
    space=space, default=Config(HOW=HONEST, BLOCK=4096, num_warps=4, num_stages=1), knobs=["HOW", "BLOCK", "num_warps",
    "num_stages"], key=["rows", "n", "mix"], make_inputs=make_inputs, reference=reference, isolate=True,
)(_twice)  # fmt: skip


# --- a candidate that takes all memory of the GPU: in Python, as a Triton kernel allocates nothing -----------

BAD_IN_PYTHON: Mapping[str, tuple[str, ...]] = {"out_of_memory": ("launch",), "asserts": ("launch",)}


def space_in_python(problem: Problem, device: Device) -> Space:
    """One mix's candidates."""
    return Space.of(
        [Config(HOW=HONEST), Config(HOW="honest_add"), *map(_named, bad_of(problem.dims["mix"], BAD_IN_PYTHON))]
    )


def _named(how: str) -> Config:
    return Config(HOW=how)


def inputs_in_python(problem: Problem) -> dict[str, Any]:
    """The same without a grid."""
    made = make_inputs(problem)
    del made["grid"]
    return made


@tunesmith.autotune(
    space=space_in_python, default=Config(HOW=HONEST), key=["rows", "n", "mix"], make_inputs=inputs_in_python,
    reference=reference, isolate=True, knobs=["HOW"],
)  # fmt: skip
def twice_in_python(x: Any, y: Any, rows: int, n: int, mix: int, *, HOW: str) -> None:
    """y = 2 x by torch."""
    if HOW == "out_of_memory":
        torch.empty(1 << 45, dtype=torch.uint8, device=x.device)
    if HOW == "asserts":
        x.view(-1)[torch.full((1,), 1 << 40, device=x.device)].clone()  # torch's own check of an index, on the device
    if HOW == "honest_add":
        torch.add(x, x, out=y)
    else:
        torch.mul(x, 2.0, out=y)
