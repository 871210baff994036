"""`gemm`: activation(a · b + bias) on a GPU, in Triton: 16-bit floats and float32, any strides, batched. See device.py.

Imports neither torch nor Triton until a product is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device, known_device
from tunesmith.core.model import Model, Tiles, Work
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, unknown
from tunesmith.kernels.gemm.launch import GemmKernel
from tunesmith.kernels.gemm.plan import ACTIVATIONS, KNOBS, SAME, SIZES, TMA_BYTES, WIDE_ROWS, is_hopper, is_swapped
from tunesmith.kernels.rows import random_source
from tunesmith.tables import Packaged

__all__ = ["ACTIVATIONS", "SAME", "arguments", "default", "gemm", "kernel", "make_inputs", "reference", "space", "work"]

#: rows up to which a product is bound by reading b: tiles are low, long in K, and the sum may be split
FEW_ROWS = 64
#: Of known chips one with little shared memory: what fits there fits elsewhere.
STAND_IN = "NVIDIA GeForce RTX 3070"
#: of a thread beside its elements, where there are no matrix units
VECTOR_REGISTERS = 24
_SPLITS = (1, 2, 4, 8, 16, 32)
_ITEM_BYTES = {"float32": 4}
#: Seconds that a program takes to have its two descriptors made and seen by the copy engine: two trips to memory.
DESCRIPTORS_S = 1e-6
#: ... and that the last program of a split sum takes to make its part known and see that it is the last; for each part.
#: With `BY_THREADS`, from 72 products that were searched on an H200: of what was measured there, the model's choice is
#: 5 % slower than the fastest in the geometric mean, where without them it was 18 %.
SPLIT_S, PART_S = 1.5e-6, 0.3e-6
#: How many times as long a matrix instruction takes where the threads that issue it fetch their tiles themselves.
BY_THREADS = 1.25
#: of a row of a tile, below which lines of memory and the copy engine's are read in parts
LINE_BYTES = 128


# --- what is known without measuring ---


def work(problem: Problem, config: Config) -> Work:
    """What a launch does, for the performance model."""
    dtype = str(problem["a.dtype"])
    sizes = Problem({name: problem[name] for name in SIZES})
    split = cast(int, config["SPLIT_K"])
    if config["BLOCK_M"] == 1:
        return _vector_work(sizes, config, _ITEM_BYTES.get(dtype, 2))
    one = Tiles(split="SPLIT_K", batch="batch", dtype=dtype)(sizes, config)
    if is_swapped(config):
        one = replace(one, matrix_rows=cast(int, config["BLOCK_N"]))
    if config["PERSISTENT"]:
        return one  # a program's own descriptors serve all its tiles
    if config["TMA"]:
        one = replace(one, setup_s=DESCRIPTORS_S)
    elif cast(int, config["BLOCK_M"]) >= WIDE_ROWS:
        one = replace(one, flops=BY_THREADS * one.flops)
    if split == 1:
        return one
    # each part goes through the L2 in float32, there and back
    through = 8.0 * cast(int, config["BLOCK_M"]) * cast(int, config["BLOCK_N"])
    return replace(one, end_bytes=through, setup_s=one.setup_s + SPLIT_S + PART_S * split)


def _vector_work(sizes: Problem, config: Config, item: int) -> Work:
    """A launch for one row: an element of b is widened, multiplied and added. All of K counts as one step: there are
    so many blocks on a unit that each one's waiting is hidden."""
    n, k, batch = (sizes.dims[name] for name in ("N", "K", "batch"))
    columns, depth, threads = *(cast(int, config[name]) for name in ("BLOCK_N", "BLOCK_K")), _threads(config)
    return Work(
        blocks=-(-n // columns) * batch, threads=threads, operations=3.0 * columns * -(-k // depth) * depth,
        step_bytes=(columns + 1.0) * k * item, end_bytes=float(columns * item),
        once_bytes=float(batch * (k + k * n + n) * item), reductions=1,
        registers=VECTOR_REGISTERS + 2 * columns * depth // threads, dtype="float32",
    )  # fmt: skip


def _threads(config: Config) -> int:
    return 32 * cast(int, config["num_warps"])


def default(problem: Problem, device: Device) -> Config:
    """What the performance model thinks fastest of the Space, with what usually suits a tile of which the model knows
    little: the number of warps, and whole lines of memory.

    For a chip of which too little is known, it is what would be fastest on a small one.
    """
    model, stand_in = Model(work), known_device(STAND_IN)
    legal = list(space(problem, device))
    item = _ITEM_BYTES.get(str(problem["a.dtype"]), 2)
    usual = [
        config for config in legal
        if config["num_warps"] == _usual_warps(config, item) and cast(int, config["BLOCK_K"]) * item >= LINE_BYTES
    ]  # fmt: skip
    told = [
        (found.seconds, config)
        for config in usual or legal
        if (found := model.predict(problem, config, device) or model.predict(problem, config, stand_in))
    ]
    return min(told, key=lambda one: one[0])[1]


def _usual_warps(config: Config, item: int) -> int:
    """Those of the winners in recordings of an H200: of 12 products the model's choice among these was 3.6 % slower
    than the fastest of 480 Configs in the geometric mean, 16 % at worst."""
    tile = cast(int, config["BLOCK_M"]) * cast(int, config["BLOCK_N"])
    return 8 if tile > 128 * 128 or (item == 4 and tile >= 64 * 64) else 4


def space(problem: Problem, device: Device) -> Space:
    """Tiles that suit the problem's sizes, the sum split where there are few of them; where the chip's copy engine can
    read both matrices, by it too, and then with one program for each tile or as many as there are units."""
    rows, columns, depth, batch = (int(cast(int, problem[name])) for name in ("M", "N", "K", "batch"))
    item = _ITEM_BYTES.get(str(problem["a.dtype"]), 2)
    few = rows <= FEW_ROWS
    axes = Space(
        BLOCK_M=_tall(rows, item),
        BLOCK_N=_around(columns, (16, 32, 64, 128) if few else (32, 64, 128, 256), most=4),
        BLOCK_K=_around(depth, ((16, 32, 64) if item == 4 else (64, 128, 256) if few else (32, 64, 128)), most=3),
        GROUP_M=[1, 8],
        SPLIT_K=list(_SPLITS),
        PERSISTENT=[False, True],
        TMA=[False, True] if describable(problem, device) else [False],
        num_warps=[2, 4, 8],
        num_stages=[2, 3] if item == 4 else [3, 4, 5, 6] if few else [3, 4, 5],
    )
    shared = device.shared_bytes_per_block

    def tiles(BLOCK_M: int, BLOCK_N: int) -> int:
        return -(-rows // BLOCK_M) * -(-columns // BLOCK_N) * batch

    def _has_work(BLOCK_M: int, BLOCK_N: int, num_warps: int) -> bool:
        return 128 * num_warps <= BLOCK_M * BLOCK_N

    def _multiplies_wide(BLOCK_M: int, BLOCK_N: int, num_warps: int) -> bool:
        wide = max(BLOCK_M, BLOCK_N) >= WIDE_ROWS  # either way round
        return num_warps >= 4 or not wide or item == 4 or not is_hopper(device)

    def _fits_registers(BLOCK_M: int, BLOCK_N: int, num_warps: int) -> bool:
        return 32 * num_warps * (64 if item == 4 else 128) >= BLOCK_M * BLOCK_N

    def _fits_shared(BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, num_stages: int) -> bool:
        return not shared or (BLOCK_M + BLOCK_N) * BLOCK_K * item * (num_stages - 1) <= shared

    def _splits_well(BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, SPLIT_K: int) -> bool:
        return SPLIT_K == 1 or (
            depth >= 2 * BLOCK_K * SPLIT_K and tiles(BLOCK_M, BLOCK_N) * SPLIT_K <= 8 * device.units
        )

    def _groups(BLOCK_M: int, GROUP_M: int) -> bool:
        return (GROUP_M == 1) == (rows <= BLOCK_M)

    def _persists(
        BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, SPLIT_K: int, PERSISTENT: bool, TMA: bool, num_stages: int
    ) -> bool:
        if not PERSISTENT:
            return True
        alone = 2 * (BLOCK_M + BLOCK_N) * BLOCK_K * item * num_stages > device.shared_bytes_per_unit
        return TMA and alone and SPLIT_K == 1 and tiles(BLOCK_M, BLOCK_N) > device.units

    tiled = (
        axes.where(_has_work, "warps without a tile of 16 x 8 of their own")
        .where(_multiplies_wide, "Hopper's widest matrix instruction takes four warps")
        .where(_fits_registers, "the sums of a tile would spill")
        .where(_fits_shared, "even one stage less would not fit the shared memory")
        .where(_groups, "one row of tiles has no groups")
        .where(_splits_well, "splitting pays where tiles are few and each part is long")
        .where(_persists, "a program for each unit: where there are more tiles, one fills a unit, and none is split")
    )
    return tiled + _vectors(columns, depth) if rows == 1 and str(problem["b.strides"]).endswith("1x") else tiled


def _vectors(columns: int, depth: int) -> Space:
    """Without matrix units, for one row and a b whose columns lie in memory one after the other."""

    def _suits_threads(BLOCK_N: int, BLOCK_K: int, num_warps: int) -> bool:
        return 8 <= BLOCK_N * BLOCK_K // (32 * num_warps) <= 32

    return Space(
        BLOCK_M=[1], BLOCK_N=_around(columns, (1, 2, 4), most=3),
        BLOCK_K=_around(depth, (256, 512, 1024, 2048), most=3),
        GROUP_M=[1], SPLIT_K=[1], PERSISTENT=[False], TMA=[False], num_warps=[4], num_stages=[1],
    ).where(_suits_threads, "a thread reads 16 bytes or more, and has registers for 32 sums")  # fmt: skip


def describable(problem: Problem, device: Device) -> bool:
    """Whether tensor descriptors are worth trying: on a chip with a copy engine for them, for one product of 16-bit
    floats with many rows, whose rows or columns begin at addresses that the engine takes.

    With few rows a program lives for some microseconds, and to make its descriptors takes one. A call of the same
    Problem whose matrices are parts of others, and can't be described, reads them without.
    """
    if not is_hopper(device):
        return False
    m, n, k, batch = (int(cast(int, problem[name])) for name in ("M", "N", "K", "batch"))
    item = _ITEM_BYTES.get(str(problem["a.dtype"]), 2)
    if item != 2 or batch != 1 or m <= FEW_ROWS or not k:
        return False
    pitches = {"a.strides": {"x1": k, "1x": m}, "b.strides": {"x1": n, "1x": k}}
    found = [by_class.get(str(problem[name])) for name, by_class in pitches.items()]
    return all(pitch is not None and pitch * item % TMA_BYTES == 0 for pitch in found)


def _tall(rows: int, item: int) -> list[int]:
    """How many rows a tile may have. Of 16-bit floats 64, however few are there: less is too low for Hopper's widest
    matrix instruction, and an H200 does 16 x 4096 x 4096 8 % faster so."""
    found = _around(rows, (16, 32, 64, 128, 256), most=3)
    return sorted({*found[-2:], WIDE_ROWS}) if rows <= FEW_ROWS and item == 2 else found


def _around(size: int, values: Sequence[int], most: int) -> list[int]:
    """Of ascending powers of two, those below twice a size, the largest `most` of them; at least the first."""
    fitting = [value for value in values if value < 2 * max(size, 1)] or [values[0]]
    return fitting[-most:]


# --- arguments ---


def arguments(
    a: Any,  # (M, K) or (batch, M, K)
    b: Any,  # (K, N) or (batch, K, N)
    bias: Any = None,  # (N,)
    activation: str | None = None,
    out: str = SAME,
    precision: str = "ieee",
) -> tuple[Any, ...]:
    """A call's arguments as the kernel takes them: with sizes, and the output's dtype by name.

    Args:
        activation: one of ACTIVATIONS, as `torch.nn.functional` computes it; `None` for none.
        out: the output's dtype; `same` as a's.
        precision: of float32, `ieee` or `tf32`; anything else is part of the key and changes nothing.

    Raises:
        BadInput: for shapes, dtypes and an activation that do not fit.
    """
    if activation is not None and activation not in ACTIVATIONS:
        raise BadInput(f"gemm: {unknown('activation', activation, ACTIVATIONS)}")
    if a.ndim not in (2, 3) or b.ndim not in (2, 3) or a.dtype != b.dtype or a.shape[-1] != b.shape[-2]:
        raise BadInput(
            f"gemm of a {tuple(a.shape)} {a.dtype} and b {tuple(b.shape)} {b.dtype}: "
            "needs (M, K) and (K, N) of one dtype, either with a batch before"
        )
    batches = {array.shape[0] for array in (a, b) if array.ndim == 3}
    if len(batches) > 1:
        raise BadInput(f"gemm of batches of different sizes: a {tuple(a.shape)}, b {tuple(b.shape)}")
    if bias is not None and tuple(bias.shape) != (b.shape[-1],):
        raise BadInput(f"gemm: bias is {tuple(bias.shape)}; needs ({b.shape[-1]},)")
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    if out == str(a.dtype).rpartition(".")[2]:
        out = SAME
    batch = int(next(iter(batches), 1))
    return a, b, bias, batch, int(a.shape[-2]), int(b.shape[-1]), int(a.shape[-1]), activation, out, precision


def reference(a: Any, b: Any, bias: Any = None, activation: str | None = None, **_: Any) -> Any:
    """The same in float64: (M, N) or (batch, M, N)."""
    import torch

    product = a.double() @ b.double()
    if bias is not None:
        product += bias.double()
    return product if activation is None else getattr(torch.nn.functional, activation)(product)


def make_inputs(problem: Problem, device: str = "cuda") -> dict[str, Any]:
    """Standard normal a, b and bias, laid out as their stride classes say."""
    import torch

    draw = random_source(device, 0)

    def normal(array: str, *shape: int) -> Any:
        dtype = getattr(torch, str(problem[f"{array}.dtype"]))
        swapped = str(problem.get(f"{array}.strides", "x1")).endswith("1x")
        made = torch.randn((*shape[:-2], shape[-1], shape[-2]) if swapped else shape, generator=draw, device=device)
        return made.to(dtype).mT if swapped else made.to(dtype)

    m, n, k, batch = (problem.dims[name] for name in ("M", "N", "K", "batch"))
    lead = (batch,) if batch != 1 else ()
    kind = problem.get("bias.dtype")
    bias = None if kind is None else torch.randn(n, generator=draw, device=device).to(getattr(torch, str(kind)))
    activation, out, precision = (problem[name] for name in ("activation", "out", "precision"))
    a, b = normal("a", *lead, m, k), normal("b", *lead, k, n)
    made = arguments(a, b, bias, cast("str | None", activation), str(out), str(precision))
    return dict(zip(kernel.kernel.signature.parameters, made, strict=True))


kernel = autotune(
    space=space, knobs=sorted(KNOBS), default=default, key=[*SIZES, "activation", "out", "precision"],
    strides=["a", "b"], dims=["M", "N", "K"],
    flags={
        "batch": 1, "activation": None, "bias.dtype": None, "out": SAME, "precision": "ieee", "a.strides": "x1",
        "b.strides": "x1",
    },
    make_inputs=make_inputs, reference=reference, model=work, candidates=64, policy="lookup",
    clock="graph", hot=["a"],
)(GemmKernel())  # fmt: skip


kernel.use_table(Packaged("tunesmith.kernels", "gemm", near=("M", "N", "K")))


def gemm(
    a: Any, b: Any, bias: Any = None, activation: str | None = None, out_dtype: Any = None, precision: str = "ieee"
) -> Any:
    """activation(a · b + bias) with the Config that is known for its shape or one near it, else the default.

    Raises:
        BadInput: when shapes or dtypes do not fit, and for tensors that are not on a GPU.
    """
    out = SAME if out_dtype is None else str(out_dtype).rpartition(".")[2]
    return kernel(*arguments(a, b, bias, activation, out, precision))
