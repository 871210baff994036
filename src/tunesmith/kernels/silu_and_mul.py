"""`silu_and_mul`: silu(the first half of each row) · the second half, on a GPU, in Triton.

Imports neither torch nor Triton until it is called.
"""

from __future__ import annotations

from typing import Any, cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.model import Work
from tunesmith.core.model.work import ITEM_BYTES
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernels import rows as shared
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.tables import Packaged

_hints = shared.split(reads=2)
space, default = _hints.space, _hints.default


def work(problem: Problem, config: Config) -> Work:
    """What a launch does, for the performance model."""
    rows, n = problem.dims["rows"], problem.dims["n"]
    tall, wide, warps = (cast(int, config[knob]) for knob in ("ROWS", "BLOCK", "num_warps"))
    item = ITEM_BYTES[str(problem["x.dtype"])]
    return Work(
        blocks=-(-rows // tall) * -(-n // wide), threads=32 * warps, operations=16.0 * tall * wide,
        step_bytes=3.0 * item * tall * min(wide, n), once_bytes=3.0 * item * rows * n,
        registers=16 + 3 * tall * wide // (32 * warps), dtype=str(problem["x.dtype"]),
    )  # fmt: skip


def reference(x: Any, n: int, **_: Any) -> Any:  # x: (rows, 2 n)
    """The same in float64: (rows, n)."""
    import torch

    wide = x.double()
    return torch.nn.functional.silu(wide[:, :n]) * wide[:, n:]


def make_inputs(problem: Problem, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Standard normal x: (rows, 2 n)."""
    [x] = shared.normal(problem, device, ["x"], seed, wide=2)
    return {"x": x, "rows": x.shape[0], "n": x.shape[1] // 2}


kernel = autotune(
    space=space, knobs=shared.SPLIT_KNOBS, default=default, key=["rows", "n"], make_inputs=make_inputs,
    reference=reference, model=work, candidates=shared.TRIED, policy="lookup", clock="graph",
)(RowKernel("silu_and_mul", ["x"], ["x"], shared.SPLIT_KNOBS))  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "silu_and_mul", near=("rows",)))


def silu_and_mul(x: Any) -> Any:  # (…, 2 n)
    """silu(x[…, :n]) · x[…, n:], with the Config that is known for its shape, else the default: (…, n).

    Raises:
        BadInput: for tensors that are not on a GPU, and an odd last dimension.
    """
    flat = shared.matrix("x", x)
    n = half("x", flat)
    return kernel(flat, flat.shape[0], n).view(*x.shape[:-1], n)


def half(name: str, x: Any) -> int:
    """Half of the last dimension.

    Raises:
        BadInput: where it is odd.
    """
    if not x.ndim or x.shape[-1] % 2:
        raise BadInput(f"silu_and_mul: {name} is {tuple(x.shape)}; needs an even last dimension, (…, 2 n)")
    return int(x.shape[-1]) // 2
