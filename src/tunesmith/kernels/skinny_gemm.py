"""`skinny_gemm`: a product of up to 64 rows in CUDA C++, for NVIDIA GPUs from sm_80 on: b is read once.

b's columns have no gaps, as a linear layer's. Imports neither torch nor what compiles CUDA until it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput
from tunesmith.kernels import gemm
from tunesmith.kernels.gemm.plan import SAME, SIZES
from tunesmith.kernels.gemm.skinny import (
    DTYPES,
    KNOBS,
    MOST_ROWS,
    MOST_SIZE,
    PIECE_BYTES,
    SkinnyKernel,
    blocks_of,
    shared_bytes,
    tiles_of,
)
from tunesmith.kernels.nvidia import has_clusters, has_matrix_units
from tunesmith.tables import Packaged

__all__ = ["applies", "default", "kernel", "make_inputs", "reference", "space"]

make_inputs, reference = gemm.make_inputs, gemm.reference
NEEDS = (
    f"it is for one product of up to {MOST_ROWS} rows, with sizes up to {MOST_SIZE}, and chips from sm_80 on whose "
    "blocks hold some steps of it"
)
#: elements of a step of K
STEP = 64
_CLUSTERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Form:
    """A block's form, and how many blocks there should be for each multiprocessor: a cluster is the smallest with which
    there are, as the sum is split over it."""

    groups: int
    spread: int
    warps: int
    depth: int
    least: float

    def config(self, problem: Problem, device: Device) -> Config:
        """With the cluster for these sizes."""
        n, k = problem.dims["N"], problem.dims["K"]
        sizes = _CLUSTERS if has_clusters(device) else _CLUSTERS[:1]

        def is_enough(size: int) -> bool:
            shortest = 2 * size * (self.warps // self.spread) > -(-k // STEP)  # twice as many would have no step each
            return shortest or blocks_of(n, self.groups, self.spread, size) >= self.least * device.units

        size = next((one for one in sizes if is_enough(one)), sizes[-1])
        return Config(
            GROUPS=self.groups, SPREAD=self.spread, WARPS=self.warps, DEPTH=self.depth, CLUSTER=size, DEPENDENT=0
        )


#: By M_TILES, of the 379 binaries that were timed for 16 products on an H200 (4 MB to 262 MB of b) some that were
#: fastest or nearly so; the others stand for sizes between those. With 0.8 blocks per multiprocessor nearly each has
#: one, with 1.6 and more several run at once where they fit.
FORMS = {
    1: (Form(2, 1, 8, 2, 0.8), Form(1, 1, 8, 2, 0.8), Form(2, 1, 8, 4, 0.8), Form(2, 1, 4, 4, 0.8),
        Form(1, 2, 8, 3, 1.6), Form(1, 1, 4, 4, 1.6), Form(2, 1, 4, 2, 1.6), Form(1, 1, 4, 2, 0.8)),
    2: (Form(1, 2, 4, 4, 1.6), Form(2, 1, 8, 4, 0.8), Form(2, 2, 8, 3, 0.8), Form(1, 2, 4, 3, 0.8),
        Form(2, 2, 4, 4, 0.8), Form(2, 1, 4, 2, 1.6), Form(1, 2, 8, 3, 1.6), Form(1, 4, 8, 4, 0.8)),
    4: (Form(1, 4, 4, 4, 1.6), Form(2, 2, 8, 4, 0.8), Form(1, 4, 4, 3, 1.6), Form(2, 2, 8, 3, 0.8),
        Form(2, 2, 4, 4, 0.8), Form(1, 4, 8, 4, 0.8)),
    8: (Form(1, 4, 4, 3, 1.6), Form(2, 2, 8, 3, 0.8), Form(1, 4, 8, 3, 2.3), Form(1, 4, 8, 4, 0.8)),
}  # fmt: skip
#: By M_TILES, the one for where each multiprocessor has one block at most, and the one for else.
USUAL = {
    1: (Form(2, 1, 8, 2, 0.8), Form(2, 1, 8, 2, 0.8)), 2: (Form(2, 1, 8, 4, 0.8), Form(1, 2, 4, 4, 1.6)),
    4: (Form(2, 2, 8, 4, 0.8), Form(1, 4, 4, 4, 1.6)), 8: (Form(2, 2, 8, 3, 0.8), Form(1, 4, 4, 3, 1.6)),
}  # fmt: skip


def space(problem: Problem, device: Device) -> Space:
    """The few block forms that are fastest for some sizes, each launched behind the kernel before it and while that
    runs. So few that a search tries all."""
    found = dict.fromkeys(_configs(problem, device))
    return Space.of(found) if found else Space({knob: [1] for knob in KNOBS}).where(_never, NEEDS)


def _never(config: Config) -> bool:
    return False


def _configs(problem: Problem, device: Device) -> Iterator[Config]:
    rows, most = problem.dims["M"], device.shared_bytes_per_block
    large = rows > MOST_ROWS or max(problem.dims["N"], problem.dims["K"]) > MOST_SIZE
    if large or problem["batch"] != 1 or not has_matrix_units(device):
        return
    tiles = tiles_of(rows)
    for form in FORMS[tiles]:
        config = form.config(problem, device)
        knobs = {knob: cast(int, config[knob]) for knob in KNOBS if knob != "DEPENDENT"}
        if not most or shared_bytes(M_TILES=tiles, **knobs) <= most:
            yield config
            if has_clusters(device):
                yield config.replace(DEPENDENT=1)


def default(problem: Problem, device: Device) -> Config:
    """One block for each multiprocessor, launched while the kernel before it runs, where the columns fit such blocks
    well; else smaller blocks, several at once.

    Raises:
        BadInput: where there is none.
    """
    legal, tiles = space(problem, device), tiles_of(problem.dims["M"])
    for form, alone in zip(USUAL.get(tiles, ()), (True, False), strict=False):
        config = form.config(problem, device)
        blocks = blocks_of(problem.dims["N"], *(cast(int, config[knob]) for knob in ("GROUPS", "SPREAD", "CLUSTER")))
        if config in legal and (not alone or blocks <= device.units):
            return config.replace(DEPENDENT=1) if alone and has_clusters(device) else config
    found = next(iter(legal), None)
    if found is None:
        raise BadInput(f"skinny_gemm({problem}) has no Config for {device.name}: {NEEDS}. gemm takes any")
    return found


def applies(problem: Problem, device: Device) -> bool:
    """Whether it may be the fastest: for one product of 16-bit floats with few rows, all of one dtype, of rows of a and
    columns of b without gaps, which begin at multiples of 16 bytes where they are packed."""
    dtype, bias = problem["a.dtype"], problem.get("bias.dtype")
    plain = problem["out"] == SAME and dtype in DTYPES and problem["b.dtype"] == dtype and bias in (None, dtype)
    lies = problem["a.strides"] == "x1" and problem["b.strides"] == "1x"
    m, n, k = (problem.dims[size] for size in ("M", "N", "K"))
    if not (plain and lies and 0 < m <= MOST_ROWS and n and k and k * 2 % PIECE_BYTES == 0):
        return False
    return next(iter(space(problem, device)), None) is not None


kernel = autotune(
    space=space, knobs=sorted(KNOBS), default=default, key=[*SIZES, "activation", "out", "precision"],
    strides=["a", "b"], dims=["M", "N", "K"], flags={**gemm.kernel.flags, "b.strides": "1x"},
    make_inputs=make_inputs, reference=reference, policy="lookup", clock="graph", hot=["a"],
)(SkinnyKernel())  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "skinny_gemm", near=("M", "N", "K")))
