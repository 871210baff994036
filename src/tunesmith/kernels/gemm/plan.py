"""What a Config makes of a matrix product: which program runs, how often, and what is compiled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.errors import BadInput

SIZES = ("batch", "M", "N", "K")
#: what a call is made of: see `kernels.gemm.arguments`
PARAMETERS = ("a", "b", "bias", *SIZES, "activation", "out", "precision")
KNOBS = frozenset({
    "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "SPLIT_K", "PERSISTENT", "TMA", "num_warps", "num_stages",
})  # fmt: skip
#: what is computed of a call and compiled in
COMPUTED = {
    "gemm": frozenset({
        "EVEN_K", "WIDE", "PRECISION", "ACTIVATION", "DESCRIBED", "A_TURNED", "B_TURNED", "SWAPPED", "DEPENDENT",
        "launch_pdl",
    }),
    "gemm_persistent": frozenset({
        "EVEN_K", "WIDE", "PRECISION", "ACTIVATION", "DESCRIBED", "A_TURNED", "B_TURNED", "DEPENDENT", "launch_pdl",
    }),
    "gemv": frozenset({"EVEN_K", "WIDE", "ACTIVATION", "DEPENDENT", "launch_pdl"}),
}  # fmt: skip
#: knobs that are not of device.py's programs, but say which of them it is, or how it reads
NOT_THEIRS = {
    "gemm": frozenset({"PERSISTENT", "TMA"}),
    "gemm_persistent": frozenset({"PERSISTENT", "TMA", "SPLIT_K"}),
    "gemv": frozenset({"PERSISTENT", "TMA", "SPLIT_K", "BLOCK_M", "GROUP_M"}),
}
#: of the widest matrix instruction
WIDE_ROWS = 64
#: what addresses and strides of a matrix have to be divisible by where the copy engine reads it
TMA_BYTES = 16
ACTIVATIONS = ("relu", "gelu", "silu")
#: an output of a's dtype
SAME = "same"


@dataclass(frozen=True)
class Plan:
    """What a Config makes of a call.

    Attributes:
        program: which of device.py runs. grid: so many of it.
        constants: what is compiled in, and the compiler's options.
        shape: of the output.
        partial: float32 elements of workspace, arrived: counters that are zero; 0 where the sum is whole.
        scalars: what the program takes behind the arrays.
    """

    program: str
    grid: tuple[int]
    constants: Config
    shape: tuple[int, ...]
    partial: int
    arrived: int
    scalars: tuple[int, ...]


def plan(config: Config, args: Sequence[Any], device: Device) -> Plan:
    """What a Config makes of a call's arguments (PARAMETERS) on a GPU.

    Raises:
        BadInput: for a Config that says two things.
    """
    a, b, _, batch, m, n, k, activation, _, precision = args
    knobs = cast("dict[str, int]", dict(config))
    name = "gemv" if knobs["BLOCK_M"] == 1 else "gemm_persistent" if knobs["PERSISTENT"] else "gemm"
    split = knobs["SPLIT_K"]
    if name != "gemm" and split != 1:
        raise BadInput(f"gemm: a product that is persistent, or of one row, does not split its sum: {config!r}")
    if name == "gemv" and m != 1:
        raise BadInput(f"gemm: BLOCK_M=1 is for one row, and a has {m}")
    strides = tuple(step for x in (a, b) for step in ((0, *x.stride()) if len(x.shape) == 2 else x.stride()))
    turned = [_described(x) for x in (a, b)] if knobs["TMA"] else [None]
    described = None not in turned
    computed = {
        "DESCRIBED": described,
        "A_TURNED": described and bool(turned[0]),
        "B_TURNED": described and bool(turned[-1]),
        "EVEN_K": described or k % knobs["BLOCK_K"] == 0,
        "WIDE": max(_extent(a), _extent(b), m * n) >= 2**31,
        "PRECISION": "tf32" if precision == "tf32" else "ieee",
        "ACTIVATION": activation or "none",
        "SWAPPED": is_swapped(config),
        # while the kernel before it still runs (programmatic dependent launch): on an H200 a product of 8 to 32 µs in a
        # row of others takes 1 to 6 % less so
        "DEPENDENT": is_hopper(device) and k > 0,
    }
    own = {what: value for what, value in knobs.items() if what not in NOT_THEIRS[name]}
    constants = Config({
        **own, **{what: value for what, value in computed.items() if what in COMPUTED[name]},
        **({"launch_pdl": True} if computed["DEPENDENT"] else {}),
    })  # fmt: skip
    tiles = -(-m // knobs["BLOCK_M"]) * -(-n // knobs["BLOCK_N"]) * batch
    programs = min(tiles, device.units) if name == "gemm_persistent" else tiles * split
    scalars = {
        "gemm": (m, n, k, *strides),
        "gemm_persistent": (m, n, k, batch, programs, *strides),
        "gemv": (n, k, strides[0], strides[2], *strides[3:]),
    }
    return Plan(
        name, (programs,), constants, (batch, m, n) if len(a.shape) == 3 or len(b.shape) == 3 else (m, n),
        tiles * split * knobs["BLOCK_M"] * knobs["BLOCK_N"] if split > 1 else 0, tiles if split > 1 else 0,
        scalars[name],
    )  # fmt: skip


def is_swapped(config: Config) -> bool:
    """Whether a tile is made as the transpose of bᵀ · aᵀ: where that is tall enough for the widest matrix instruction,
    and a · b is not. On an H200 products of 4 to 32 rows take 3 to 8 % less so."""
    return cast(int, config["BLOCK_M"]) < WIDE_ROWS <= cast(int, config["BLOCK_N"])


def is_hopper(device: Device) -> bool:
    """Of NVIDIA's chips Hopper, or what came after it; three digits begin with Blackwell."""
    return device.kind == "cuda" and device.arch.startswith(("sm_9", "sm_1"))


def _described(x: Any) -> bool | None:
    """Whether the copy engine can read a matrix by its columns (True) or its rows (False); `None` if by neither."""
    if len(x.shape) != 2 or x.data_ptr() % TMA_BYTES or not min(x.shape):
        return None
    row, column = x.stride()
    step = row if column == 1 else column
    if 1 not in (row, column) or step <= 0 or step * x.dtype.itemsize % TMA_BYTES:
        return None
    return column != 1


def output_dtype(args: Sequence[Any]) -> Any:
    """The output's dtype for a call's arguments."""
    import torch

    return args[0].dtype if args[-2] == SAME else getattr(torch, args[-2])


def _extent(array: Any) -> int:
    """From the first element to behind the last, in elements."""
    return 1 + sum(step * (size - 1) for step, size in zip(array.stride(), array.shape, strict=True) if size > 0)
