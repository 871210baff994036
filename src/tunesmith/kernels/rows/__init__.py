"""What the Triton kernels over rows share: their knobs, the matrix that a tensor is to them, random inputs.

Imports neither torch nor Triton until a kernel is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.hints import Hints, pointwise, rowwise
from tunesmith.core.model import Rows, Work, WorkOf
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput

KNOBS = ("ROWS", "BLOCK", "PER_UNIT", "STAGES", "num_warps")
SPLIT_KNOBS = ("ROWS", "BLOCK", "num_warps")
#: Elements of a row that a program holds where it sums something beside: two inputs, their product, the sum.
MOST_SUMMED = 8192
#: how many Configs one search tries
TRIED = 48


def hints(reads: int = 1, *, stays: bool = False) -> Hints:
    """Of a kernel that holds a row, or loops over it.

    Args:
        reads: arrays that it reads.
        stays: whether a program has to go on from tile to tile, as it sums something over them.
    """
    usual = rowwise(loops=True, tall="ROWS", per_unit="PER_UNIT", stages="STAGES", reads=reads)
    return replace(usual, per_units=(1, 2, 4, 8), most=MOST_SUMMED) if stays else usual


def split(reads: int = 1) -> Hints:
    """Of a kernel that takes each element for itself."""
    return pointwise("n", "rows", tall="ROWS", reads=reads)


def holding(model: Rows) -> WorkOf:
    """The work of a kernel that holds blocks of a row: where these are all, it does not read any again."""

    def work(problem: Problem, config: Config) -> Work:
        n, held = cast(int, problem["n"]), _held(problem, config)
        return model(problem, Config({**config, "BLOCK": held}) if held >= n else config)

    return work


def held_space(usual: Hints) -> Callable[[Problem, Device], Space]:
    """The Configs of a kernel that holds blocks of a row: where these are all, there is no loop that has stages."""

    def space(problem: Problem, device: Device) -> Space:
        n = cast(int, problem["n"])

        def loops(config: Config) -> bool:
            return config["STAGES"] == 1 or config["PER_UNIT"] != 0 or _held(problem, config) < n

        return usual.space(problem, device).where(loops, "stages: of a loop over what a program does not hold")

    return space


def _held(problem: Problem, config: Config) -> int:
    """Elements of a row that a program keeps in its registers."""
    block, rows, warps = (cast(int, config[knob]) for knob in ("BLOCK", "ROWS", "num_warps"))
    return block * held_blocks(cast(int, problem["n"]), rows, block, warps)


#: Blocks of a row that a program holds at most: each is code of its own. Elements that a thread holds, two in a
#: register, and where a program has 32 warps.
MOST_BLOCKS, MOST_HELD, MOST_HELD_OF_32_WARPS = 16, 128, 64


def held_blocks(n: int, rows: int, block: int, warps: int) -> int:
    """How many blocks of `rows` rows a program of so many warps keeps in its registers."""
    room = 32 * warps * (MOST_HELD if warps < 32 else MOST_HELD_OF_32_WARPS)
    return max(1, min(-(-n // block), room // (rows * block), MOST_BLOCKS))


def matrix(name: str, x: Any) -> Any:  # (…, n)
    """A tensor as (rows, n), with no gaps within a row: a view of it where its strides allow, else a copy.

    Raises:
        BadInput: for a tensor without dimensions.
    """
    if x.ndim == 0:
        raise BadInput(f"{name} has no dimensions; good values: tensors of shape (…, n)")
    n = int(x.shape[-1])
    if x.ndim != 2:
        x = x.reshape(math.prod(x.shape[:-1]), n)
    return x if x.stride(1) == 1 or n < 2 else x.contiguous()


def written(name: str, x: Any) -> tuple[Any, bool]:  # (…, n)
    """(a tensor as (rows, n) for a kernel that writes it, whether that is a copy, to be written back).

    Raises:
        BadInput: for a tensor without dimensions, and one whose elements share memory.
    """
    within = 1  # elements from the first to behind the last, in the dimensions of smaller steps
    for step, size in () if x.is_contiguous() else sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and step < within:
            raise BadInput(
                f"{name} is written in place, and its elements share memory: it is {tuple(x.shape)} with strides "
                f"{tuple(x.stride())}; clone it first"
            )
        within += (size - 1) * step if size > 1 else 0
    made = matrix(name, x)
    return made, made.data_ptr() != x.data_ptr()


def number(name: str, value: Any) -> float:
    """As a float: of another type it would be a constant of a binary.

    Raises:
        BadInput: for what is no number.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is {value!r}; good values: numbers, 1e-6") from None


def vector(name: str, w: Any, n: int) -> Any:  # (n,)
    """A weight along the rows without gaps; `None` stays.

    Raises:
        BadInput: for another shape.
    """
    if w is None:
        return None
    if w.shape != (n,):
        raise BadInput(f"{name} is {tuple(w.shape)}; needs ({n},)")
    return w.contiguous()


def normal(problem: Problem, device: str, names: Sequence[str], seed: int = 0, wide: int = 1) -> list[Any]:
    """Standard normal arrays of a Problem's dtypes, (rows, wide · n); the same ones for the same seed.

    Raises:
        BadInput: for a dtype that torch does not have.
    """
    import torch

    draw = _draw(device, seed)
    rows, n = problem.dims["rows"], problem.dims["n"]
    made = [torch.randn(rows, wide * n, generator=draw, device=device) for _ in names]
    return [array.to(_dtype(problem, name)) for array, name in zip(made, names, strict=True)]


def weight(problem: Problem, device: str, name: str, seed: int = 0) -> Any:
    """A vector (n,) near 1 of the Problem's dtype; `None` where the Problem has none of this name."""
    import torch

    if problem.get(f"{name}.dtype") is None:
        return None
    draw = _draw(device, 1000 + seed)
    made = 1 + torch.randn(problem.dims["n"], generator=draw, device=device) / 4
    return made.to(_dtype(problem, name))


def _draw(device: str, seed: int) -> Any:
    """A source of random numbers; `None` where arrays have no content (compiling for a GPU that is not here)."""
    import torch

    where = torch.empty(0, device=device).device
    return None if where.type == "meta" else torch.Generator(device=where).manual_seed(seed)


def _dtype(problem: Problem, name: str) -> Any:
    import torch

    return getattr(torch, str(problem[f"{name}.dtype"]))
