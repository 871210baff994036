"""Softmax and RMSNorm over rows, in Triton, each with a space of its own for every row length.

tunesmith tune examples/triton_rows.py:softmax --problem rows=4096,n=4096           on a GPU
tunesmith tune examples/triton_rows.py:rms_norm --problem rows=16,n=7168
tunesmith compile examples/triton_rows.py:softmax --target sm_90 --problem rows=4096,n=4096       on any machine
python examples/triton_rows.py                                                      calls, checked against torch
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tunesmith
from tunesmith import Device, Problem, Rows, Space

EPS = 1e-6
#: Elements a thread may hold: more of them would spill.
MOST_EACH = 256
KNOBS = ["ROWS", "BLOCK", "LOOP", "num_warps", "num_stages"]


def grid(meta: dict[str, Any]) -> tuple[int]:
    """One program for so many rows."""
    return (-(-meta["rows"] // meta["ROWS"]),)


def space(problem: Problem, device: Device) -> Space:
    """Rows at once, columns at once (all of a row, or fewer in a loop), warps, stages of the loop."""
    n = int(str(problem["n"]))
    whole = triton.next_power_of_2(n)
    return (
        Space(
            ROWS=[1, 2, 4, 8, 16],
            BLOCK=sorted({min(whole, block) for block in (256, 1024, 4096, 16384, 32768)}),
            LOOP=[False, True],
            num_warps=[1, 2, 4, 8, 16],
            num_stages=[1, 3],
        )
        .where(lambda ROWS, BLOCK, num_warps: 32 * num_warps <= ROWS * BLOCK, "threads without an element")
        .where(lambda ROWS, BLOCK, num_warps: MOST_EACH * 32 * num_warps >= ROWS * BLOCK, "would spill")
        .where(lambda BLOCK, LOOP: (n > BLOCK) == LOOP, "a loop where the row does not fit, and only there")
        .where(lambda LOOP, num_stages: LOOP or num_stages == 1, "no loop, nothing to pipeline")
    )


def sized(problem: Problem) -> dict[str, Any]:
    """x (rows, n) in float16, random; y like it, to be written."""
    rows, n = (int(str(problem[name])) for name in ("rows", "n"))
    x = torch.randn((rows, n), device="cuda", dtype=torch.float16)
    return {"grid": grid, "x": x, "y": torch.empty_like(x), "rows": rows, "n": n}


def normed(problem: Problem) -> dict[str, Any]:
    """As `sized`, and w (n,), the weight."""
    made = sized(problem)
    return {**made, "w": torch.randn(made["n"], device="cuda", dtype=torch.float16)}


@tunesmith.autotune(
    space=space, knobs=KNOBS, key=["rows", "n"], make_inputs=sized,
    model=Rows(reads=1, writes=1, again=1, operations=12, looped=40),
)  # fmt: skip
@triton.jit
def softmax(x, y, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr):
    """y = softmax(x) over each row, in float32; a row that does not fit is read twice."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x += tl.minimum(row, rows - 1).to(tl.int64) * n  # a row that is not there computes the last one, and writes nothing
    y += row.to(tl.int64) * n
    if LOOP:
        top = tl.full((ROWS, 1), float("-inf"), tl.float32)
        total = tl.zeros((ROWS, 1), tl.float32)
        for start in range(0, n, BLOCK):
            value = tl.load(x + start + column, mask=start + column < n, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(value, 1)[:, None])
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher), 1)[:, None]
            top = higher
        for start in range(0, n, BLOCK):
            inside = start + column < n
            value = tl.load(x + start + column, mask=inside, other=float("-inf")).to(tl.float32)
            result = tl.exp(value - top) / total
            tl.store(y + start + column, result.to(tl.float16), mask=(row < rows) & inside)
    else:
        value = tl.load(x + column, mask=column < n, other=float("-inf")).to(tl.float32)
        raised = tl.exp(value - tl.max(value, 1)[:, None])
        result = raised / tl.sum(raised, 1)[:, None]
        tl.store(y + column, result.to(tl.float16), mask=(row < rows) & (column < n))


@tunesmith.autotune(
    space=space, knobs=KNOBS, key=["rows", "n"], make_inputs=normed,
    model=Rows(reads=1, writes=1, again=1, operations=6, looped=8),
)  # fmt: skip
@triton.jit
def rms_norm(x, w, y, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr, eps: tl.constexpr = EPS):
    """y = x / sqrt(mean(x²) + eps) · w over each row, in float32; a row that does not fit is read twice."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    x += row.to(tl.int64) * n
    y += row.to(tl.int64) * n
    if LOOP:
        total = tl.zeros((ROWS, 1), tl.float32)
        for start in range(0, n, BLOCK):
            inside = (row < rows) & (start + column < n)
            value = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
            total += tl.sum(value * value, 1)[:, None]
        scale = tl.rsqrt(total / n + eps)
        for start in range(0, n, BLOCK):
            inside = (row < rows) & (start + column < n)
            value = tl.load(x + start + column, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(w + start + column, mask=start + column < n, other=0.0).to(tl.float32)
            tl.store(y + start + column, (value * scale * weight).to(tl.float16), mask=inside)
    else:
        inside = (row < rows) & (column < n)
        value = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, 1)[:, None] / n + eps)
        weight = tl.load(w + column, mask=column < n, other=0.0).to(tl.float32)
        tl.store(y + column, (value * scale * weight).to(tl.float16), mask=inside)


def reference(kernel: str, x: torch.Tensor, w: torch.Tensor | None) -> torch.Tensor:
    """In float64."""
    wide = x.double()
    if kernel == "softmax":
        return wide.softmax(1)
    assert w is not None
    return wide * (wide.square().mean(1, keepdim=True) + EPS).rsqrt() * w.double()


if __name__ == "__main__":
    for kernel, make in ((softmax, sized), (rms_norm, normed)):
        made = make(Problem({"rows": 1000, "n": 3000}))
        kernel[made.pop("grid")](**made)
        expected = reference(kernel.__name__, made["x"], made.get("w"))
        torch.testing.assert_close(made["y"].double(), expected, rtol=2e-3, atol=2e-3)
        kernel.explain(**made, grid=grid)
