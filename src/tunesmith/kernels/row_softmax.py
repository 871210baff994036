"""`row_softmax`: softmax along the rows of a matrix on a GPU, in Triton, whether a row fits a block or not.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Rows
from tunesmith.core.problem import Problem
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

KNOBS = ("SPLIT", *shared.KNOBS)
_hints = shared.hints()
space = shared.with_split(shared.held_space(_hints, shared.held_or_none))


def default(problem: Problem, device: Device) -> Config:
    """What was fastest on an H200 of rows that are too long to be held, where the chip has that."""
    usual, legal = _hints.default(problem, device).replace(SPLIT=1), space(problem, device)
    better = (usual.replace(**knobs) for knobs in _long(problem.dims["rows"], problem.dims["n"], device.units))
    return next((config for config in better if config in legal), usual)


def _long(rows: int, n: int, units: int) -> Iterator[dict[str, int]]:
    """Knobs for so many rows, where the usual ones are not the best."""
    alone = {"ROWS": 1, "PER_UNIT": 0, "num_warps": 8}
    if n > shared.SPLIT_BEYOND:  # multiprocessors that would have nothing to do
        for split in sorted(shared.SPLITS, reverse=True):
            if rows * split <= units:
                yield {**alone, "SPLIT": split, "BLOCK": 4096, "STAGES": 1}
    if n > shared.MOST_SEVERAL:
        yield {"STAGES": 2}
    elif n > shared.SEVERAL and rows > 2 * units:
        yield {**alone, **({"BLOCK": 4096, "STAGES": 1} if n <= 2 * shared.SEVERAL else {"BLOCK": 8192, "STAGES": 2})}


def reference(x: Any, **_: Any) -> Any:  # x: (rows, n)
    """The same in float64: (rows, n)."""
    return x.double().softmax(-1)


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """x, four times standard normal: some of each row counts, and not all."""
    [x] = shared.normal(problem, device, ["x"], seed)
    return {"x": x * 4, "rows": x.shape[0], "n": x.shape[1]}


kernel = autotune(
    space=space, knobs=KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs, reference=reference,
    model=shared.holding(Rows(operations=12.0, looped=24.0, reductions=2), shared.held_or_none),
    candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel(
    "row_softmax", ["x"], ["x"], KNOBS, module="tunesmith.kernels.rows.softmax", holds=shared.held_or_none,
    anywhere=True,
))  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "row_softmax", near=("rows",)))


def softmax(x: Any) -> Any:  # (…, n)
    """exp(x) over its sum along the last dimension, with the Config that is known for its shape, else the default.

    Raises:
        BadInput: for tensors that are not on a GPU, or have no dimensions.
    """
    flat = shared.matrix("x", x)
    return kernel(flat, *flat.shape).view(x.shape)
