"""`matmul`: c = a @ b in float32 on the CPU, blocked and packed, with a register tile. See c/matmul.c."""

from __future__ import annotations

from typing import Any

from tunesmith.api import autotune
from tunesmith.backends import cc
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.kernels import cpu
from tunesmith.tables import Packaged

#: 48 is a multiple of every MR and 256 of every NR; larger blocks fill the second cache of a small core
BLOCK = {"MC": [48], "NC": [256]}


def default(problem: Problem, device: Device) -> Config:
    """A 6×16 tile of 8-float vectors, which the registers of any core with AVX2 hold."""
    threads = cpu.thread_counts(device)[-1]
    return Config(VEC=8, MR=6, NR=16, MC=48, NC=256, KC=512, PACK_A=1, PACK_B=1, threads=threads)


def space(problem: Problem, device: Device) -> Space:
    """Register tiles of all shapes, with and without packing."""
    axes = Space(
        VEC=[4, 8, 16], MR=[2, 4, 6, 8, 12], NR=[16, 32, 64], **BLOCK, KC=[128, 512], PACK_A=[0, 1], PACK_B=[0, 1],
        threads=cpu.thread_counts(device),
    )  # fmt: skip
    return axes.where(
        _hides_latency, "a tile of fewer than 6 vectors does not hide the latency of a multiply-add"
    ).where(_fits_registers, "a tile of more than 24 vectors does not fit 32 registers with its inputs")


def _hides_latency(VEC: int, MR: int, NR: int) -> bool:
    return MR * NR // VEC >= 6


def _fits_registers(VEC: int, MR: int, NR: int) -> bool:
    return MR * NR // VEC <= 24


def _blocks(M: int, N: int, MC: int, NC: int) -> int:
    return -(-M // MC) * -(-N // NC)


def reference(a: Any, b: Any, **_: Any) -> Any:  # a: (M, K), b: (K, N)
    """The same in float64: (M, N)."""
    return a.astype("float64") @ b.astype("float64")


def make_inputs(problem: Problem) -> dict[str, Any]:
    """Standard normal a and b; c full of NaN."""
    m, n, k = (problem.dims[name] for name in ("M", "N", "K"))
    a, b = cpu.normal(m, k, seed=1), cpu.normal(k, n, seed=2)
    return {"a": a, "b": b, "c": cpu.unwritten(m, n), "M": m, "N": n, "K": k}


kernel = autotune(
    space=space, default=default, key=["M", "N", "K"], make_inputs=make_inputs, reference=reference, outputs=["c"],
    policy="lookup",
)(
    cc.kernel(
        cpu.source("matmul"),
        shapes={"a": ("M", "K"), "b": ("K", "N"), "c": ("M", "N")},
        work=_blocks,
    )
)  # fmt: skip
kernel.use_table(Packaged("tunesmith.kernels", "matmul"))


def matmul(a: Any, b: Any, out: Any = None) -> Any:  # a: (M, K), b: (K, N), out: (M, N), float32
    """a @ b with the Config that is known for its shape, else the default.

    Raises:
        ValueError: when the shapes do not fit.
    """
    a, b = cpu.float32("a", a, 2), cpu.float32("b", b, 2)
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows:
        raise ValueError(f"a is {a.shape} and b is {b.shape}: a's columns must be as many as b's rows")
    c = cpu.empty(m, n) if out is None else out
    kernel(a, b, c, m, n, k)
    return c
