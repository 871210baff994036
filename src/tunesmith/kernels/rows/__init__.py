"""What the Triton kernels over rows share: their knobs, the matrix that a tensor is to them, random inputs.

Imports neither torch nor Triton until a kernel is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from tunesmith.core.axis import Axis
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


#: (elements of a row, rows of a program, elements of a block, warps) → how many blocks of a row the program holds.
Holds: TypeAlias = Callable[[int, int, int, int], int]


def holding(model: Rows, holds: Holds) -> WorkOf:
    """The work of a kernel that holds blocks of a row: where these are all, it does not read any again.

    Each of the programs that share a row has one of its own to the model, of a part of the columns.
    """

    def work(problem: Problem, config: Config) -> Work:
        rows, n, split = cast(int, problem["rows"]), cast(int, problem["n"]), _split(config)
        if split == 1:
            held = _held(n, config, holds)
            return model(problem, Config({**config, "BLOCK": held}) if held >= n else config)
        part = part_of(n, split)
        held = -(-part // cast(int, config["BLOCK"])) * cast(int, config["BLOCK"])
        shared = model(Problem({**problem, "rows": rows * split, "n": part}), Config({**config, "BLOCK": held}))
        return replace(shared, setup_s=MEETING_S, reductions=shared.reductions + 1)

    return work


def held_space(usual: Hints, holds: Holds) -> Callable[[Problem, Device], Space]:
    """The Configs of a kernel that holds blocks of a row: where these are all, there is no loop that has stages."""

    def space(problem: Problem, device: Device) -> Space:
        n = cast(int, problem["n"])

        def loops(config: Config) -> bool:
            return config["STAGES"] == 1 or config["PER_UNIT"] != 0 or _held(n, config, holds) < n

        return usual.space(problem, device).where(loops, "stages: of a loop over what a program does not hold")

    return space


def with_split(whole: Callable[[Problem, Device], Space]) -> Callable[[Problem, Device], Space]:
    """The same, and Configs with SPLIT programs for each row where rows are long, and fewer than multiprocessors: on an
    H200 16 rows of 151936 take a third of the time so, and 256 rows 30 % more."""

    def space(problem: Problem, device: Device) -> Space:
        n, alone = cast(int, problem["n"]), whole(problem, device).having(SPLIT=1)
        if n <= SPLIT_BEYOND or cast(int, problem["rows"]) > device.units:
            return alone

        def fits(config: Config) -> bool:
            block, warps = cast(int, config["BLOCK"]), cast(int, config["num_warps"])
            part = part_of(n, _split(config))
            held, each = -(-part // block), block // (32 * warps)
            return 8 <= each <= 32 and 3 * held * block <= 4 * part and held <= _room(warps, block)

        shared = Space(
            SPLIT=Axis(SPLITS, ordered=True), BLOCK=Axis((2048, 4096, 8192, 16384), ordered=True),
            num_warps=Axis((4, 8, 16, 32), ordered=True),
        ).where(fits, "the part of a row that a program holds: in its registers, and most of its blocks")  # fmt: skip
        return alone + shared.having(ROWS=1, PER_UNIT=0, STAGES=1)

    return space


#: Rows of more elements than this may be split, over so many programs. Seconds that these take to hear of each other.
SPLIT_BEYOND, SPLITS, MEETING_S = 32768, (2, 3, 4, 5, 6, 8, 12, 16), 2e-6


def part_of(n: int, split: int) -> int:
    """Columns of each of so many programs: whole lines of memory."""
    return -(-n // (64 * split)) * 64


def _split(config: Config) -> int:
    return cast(int, config.get("SPLIT", 1))


def _held(n: int, config: Config, holds: Holds) -> int:
    """Elements of a row that a program keeps in its registers."""
    block, rows, warps = (cast(int, config[knob]) for knob in ("BLOCK", "ROWS", "num_warps"))
    return block * holds(n, rows, block, warps)


#: Blocks of a row that a program holds at most: each is code of its own. Elements that a thread holds, two in a
#: register, and where a program has 32 warps.
MOST_BLOCKS, MOST_HELD, MOST_HELD_OF_32_WARPS = 16, 128, 64


def held_blocks(n: int, rows: int, block: int, warps: int) -> int:
    """How many blocks of `rows` rows a program of so many warps keeps in its registers."""
    return max(1, min(-(-n // block), _room(warps, rows * block)))


def held_or_none(n: int, rows: int, block: int, warps: int) -> int:
    """The same, but none of rows that several programs of a multiprocessor read twice faster than one that holds them.

    On an H200 a softmax of 12288 to 50257 columns was 8 to 40 % faster with nothing held and 8 warps.
    """
    some = block < n and (SEVERAL < n <= MOST_SEVERAL or (n > MOST_SEVERAL and warps < 32))
    return 0 if some else held_blocks(n, rows, block, warps)


#: Elements of a row: beyond the first several programs are faster, beyond the second only where they are small.
SEVERAL, MOST_SEVERAL = 8192, 65536


def _room(warps: int, elements: int) -> int:
    """How many blocks of so many elements fit the registers of a program."""
    return min(32 * warps * (MOST_HELD if warps < 32 else MOST_HELD_OF_32_WARPS) // elements, MOST_BLOCKS)


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

    draw = random_source(device, seed)
    rows, n = problem.dims["rows"], problem.dims["n"]
    made = [torch.randn(rows, wide * n, generator=draw, device=device) for _ in names]
    return [array.to(_dtype(problem, name)) for array, name in zip(made, names, strict=True)]


def weight(problem: Problem, device: str, name: str, seed: int = 0) -> Any:
    """A vector (n,) near 1 of the Problem's dtype; `None` where the Problem has none of this name."""
    import torch

    if problem.get(f"{name}.dtype") is None:
        return None
    draw = random_source(device, 1000 + seed)
    made = 1 + torch.randn(problem.dims["n"], generator=draw, device=device) / 4
    return made.to(_dtype(problem, name))


def random_source(device: str, seed: int) -> Any:
    """A source of random numbers; `None` where arrays have no content (compiling for a GPU that is not here)."""
    import torch

    where = torch.empty(0, device=device).device
    return None if where.type == "meta" else torch.Generator(device=where).manual_seed(seed)


def _dtype(problem: Problem, name: str) -> Any:
    import torch

    return getattr(torch, str(problem[f"{name}.dtype"]))
