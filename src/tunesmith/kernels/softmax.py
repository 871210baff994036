"""`softmax` along the rows of a float32 matrix, on the CPU. See c/softmax.c."""

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


def default(problem: Problem, device: Device) -> Config:
    """Three passes over one row at a time, in vectors of 8 floats."""
    threads = cpu.thread_counts(device)[-1]
    return Config(VEC=8, UNROLL=2, ROWS=1, ONLINE=0, PREFETCH=0, march="native", threads=threads)


def space(problem: Problem, device: Device) -> Space:
    """Vector widths, how much is in flight, two passes or three, and code for this chip or for any."""
    axes = Space(
        VEC=[4, 8, 16], UNROLL=[1, 2, 4], ROWS=[1, 16], ONLINE=[0, 1], PREFETCH=[0, 16], march=["native", "generic"],
        threads=cpu.thread_counts(device),
    )  # fmt: skip
    return axes.where(_has_such_vectors, "code for any chip of this kind has vectors of 4 floats, no wider ones")


def _has_such_vectors(VEC: int, march: str) -> bool:
    return march == "native" or VEC == 4


def _groups(rows: int, ROWS: int) -> int:
    return -(-rows // ROWS)


def reference(x: Any, **_: Any) -> Any:  # x: (rows, n)
    """The same in float64: (rows, n)."""
    import numpy as np

    exact = x.astype(np.float64)
    e = np.exp(exact - exact.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def make_inputs(problem: Problem) -> dict[str, Any]:
    """Standard normal x; y full of NaN."""
    rows, n = problem.dims["rows"], problem.dims["n"]
    return {"x": cpu.normal(rows, n, seed=1), "y": cpu.unwritten(rows, n), "rows": rows, "n": n}


kernel = autotune(
    space=space, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference, outputs=["y"],
    policy="lookup",
)(
    cc.kernel(
        cpu.source("softmax"),
        shapes={"x": ("rows", "n"), "y": ("rows", "n")},
        work=_groups,
    )
)  # fmt: skip
kernel.use_table(Packaged("tunesmith.kernels", "softmax"))


def softmax(x: Any, out: Any = None) -> Any:  # x: (rows, n), out: (rows, n), float32
    """exp(x) over its sum along each row, with the Config that is known for its shape, else the default."""
    x = cpu.float32("x", x, 2)
    y = cpu.empty(*x.shape) if out is None else out
    kernel(x, y, *x.shape)
    return y
