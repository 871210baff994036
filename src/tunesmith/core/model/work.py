"""What a kernel does for one Problem with one Config, as its author declares it: `Work`, made by `Tiles` or `Rows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, unknown

#: bytes of one element by dtype name
ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """One launch, as blocks that go through steps one after the other.

    Attributes:
        blocks: of the whole launch.
        threads: of a block.
        steps: iterations of a block's loop.
        stages: of the loop's pipeline: one is used while the others are loaded; 1 for a loop that waits for each load.
        flops: of the matrix units, of a block in a step, padding included.
        operations: of the vector lanes, of a block in a step, padding included.
        step_bytes: that a block reads and writes in a step, wherever they come from.
        end_bytes: that a block writes when its steps are done.
        once_bytes: that the launch can't do without: every input read once, every output written once.
        again_bytes: of the launch, that are read a second time and found in the L2 if it holds what is under way.
        kept_bytes: of a block, that have to stay in the L2 for that.
        waits: loads of a step that wait for each other.
        reductions: over all threads of a block, of a block.
        setup_s: seconds that a block takes before its first load, beside what every block takes.
        shared_bytes: of a block, estimated from the knobs.
        registers: of a thread, estimated from the knobs.
        dtype: whose peak holds for `flops`.
        matrix_rows: of a tile that the matrix units work on; 0 where that does not matter.
        padding: the part of a tile's side that lies outside the arrays, where they are smaller than one tile: 0 to 1.
    """

    blocks: int
    threads: int
    steps: int = 1
    stages: int = 1
    flops: float = 0.0
    operations: float = 0.0
    step_bytes: float = 0.0
    end_bytes: float = 0.0
    once_bytes: float = 0.0
    again_bytes: float = 0.0
    kept_bytes: float = 0.0
    waits: float = 1.0
    reductions: int = 0
    setup_s: float = 0.0
    shared_bytes: int = 0
    registers: int = 0
    dtype: str = "float16"
    matrix_rows: int = 0
    padding: float = 0.0

    @property
    def tiled_bytes(self) -> float:
        """What all blocks read and write: the traffic to memory if there were no L2."""
        return self.blocks * (self.steps * self.step_bytes + self.end_bytes)


#: What `model=` of a kernel takes: `Tiles`, `Rows`, or a function.
WorkOf: TypeAlias = "Callable[[Problem, Config], Work]"

#: Registers a thread has beside the elements of its tile: addresses, counters, operands on their way.
TILE_REGISTERS = 40
#: The same for a kernel without matrix units, and registers a value takes with what is computed from it.
ROW_REGISTERS, VALUE_REGISTERS = 14, 1.6


@dataclass(frozen=True, slots=True)
class Tiles:
    """A matrix product, or what does the work of one: C (M, N) += A (M, K) · B (K, N), one tile of C a block.

    Each attribute but the last three names a knob of the Config or a field of the Problem; an integer is itself.

    Attributes:
        m, n, k: knobs: rows and columns of a block's tile, elements of K it takes in a step.
        sizes: fields of the Problem: M, N, K.
        warps, stages: knobs: warps of a block, stages of its pipeline.
        split: knob: parts of K that different blocks sum.
        batch: field of the Problem: how many such products one launch makes.
        dtype: of A and B; taken from the Problem where it has one dtype field with this value or none is given.
        warp: threads of a warp.

    >>> work = Tiles()(Problem(dict(M=4096, N=4096, K=4096)), Config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64))
    >>> work.blocks, work.steps, work.threads
    (512, 64, 128)
    """

    m: str | int = "BLOCK_M"
    n: str | int = "BLOCK_N"
    k: str | int = "BLOCK_K"
    sizes: tuple[str | int, str | int, str | int] = ("M", "N", "K")
    warps: str | int = "num_warps"
    stages: str | int = "num_stages"
    split: str | int = 1
    batch: str | int = 1
    dtype: str | None = None
    warp: int = 32

    def knobs(self) -> Mapping[str, str | int]:
        """Which knob each of these arguments names, or its value: those that a Config can't do without."""
        return {"m": self.m, "n": self.n, "k": self.k, "split": self.split}

    def __call__(self, problem: Problem, config: Config) -> Work:
        tile_m, tile_n, tile_k = (_whole(name, config, "knob") for name in (self.m, self.n, self.k))
        size_m, size_n, size_k = (_whole(name, problem, "field", least=0) for name in self.sizes)
        threads = _knob(self.warps, config, 4) * self.warp
        stages = _knob(self.stages, config, 1)
        split, batch = _whole(self.split, config, "knob"), _whole(self.batch, problem, "field", least=0)
        dtype = _dtype(self.dtype, problem)
        item = ITEM_BYTES.get(dtype, 1)
        down, across = -(-size_m // tile_m), -(-size_n // tile_n)
        stage_bytes = (tile_m + tile_n) * tile_k * item
        return Work(
            blocks=down * across * split * batch,
            threads=threads,
            steps=-(-size_k // (tile_k * split)),
            stages=stages,
            flops=2.0 * tile_m * tile_n * tile_k,
            step_bytes=stage_bytes,
            end_bytes=tile_m * tile_n * item,
            once_bytes=batch * (size_m * size_k + size_k * size_n + split * size_m * size_n) * item,
            shared_bytes=stages * stage_bytes,
            registers=tile_m * tile_n // threads + TILE_REGISTERS,
            dtype=dtype,
            matrix_rows=tile_m,
            padding=max(_padding(size_m, tile_m), _padding(size_n, tile_n)),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """A kernel that goes over the rows of (rows, n) arrays: softmax, a norm, a reduction, or element by element.

    A block takes some rows, and of each as many columns at a time as a knob says. Where these are not all, it goes
    over them in a loop, and what it reads a second time then is `again`. Where several blocks share a row it is another
    work: write a function.

    Attributes:
        rows, columns: knobs: rows of a block, columns it has at once.
        sizes: fields of the Problem: rows, n.
        warps: knob.
        reads, writes: arrays read and written once.
        again: arrays read a second time when the columns don't fit at once.
        operations: vector operations an element takes (an exponential counts for 8: a quarter-rate unit and its
            scaling); `looped` those it takes when the columns don't fit at once.
        values: live values an element has in registers.
        reductions: over a row, one after the other.
        dtype: as of Tiles.
        warp: threads of a warp.
    """

    rows: str | int = "ROWS"
    columns: str | int = "BLOCK"
    sizes: tuple[str | int, str | int] = ("rows", "n")
    warps: str | int = "num_warps"
    reads: int = 1
    writes: int = 1
    again: int = 1
    operations: float = 12.0
    looped: float | None = None
    values: float = 1.0
    reductions: int = 1
    dtype: str | None = None
    warp: int = 32

    def knobs(self) -> Mapping[str, str | int]:
        """As of Tiles."""
        return {"rows": self.rows, "columns": self.columns}

    def __call__(self, problem: Problem, config: Config) -> Work:
        tall, wide = (_whole(name, config, "knob") for name in (self.rows, self.columns))
        rows, n = (_whole(name, problem, "field", least=0) for name in self.sizes)
        threads = _knob(self.warps, config, 4) * self.warp
        dtype = _dtype(self.dtype, problem)
        item = ITEM_BYTES.get(dtype, 1)
        steps = max(1, -(-n // wide))
        again = self.again if steps > 1 else 0
        inside = n / (steps * wide)  # masked lanes compute, and move nothing
        each = max(1.0, tall * wide / threads)
        once = (self.reads + self.writes) * item
        looped = self.operations if self.looped is None else self.looped
        return Work(
            blocks=-(-rows // tall),
            threads=threads,
            steps=steps,
            operations=tall * wide * (looped if steps > 1 else self.operations),
            step_bytes=tall * wide * inside * (once + again * item),
            once_bytes=rows * n * once,
            again_bytes=rows * n * again * item,
            kept_bytes=tall * n * again * item,
            waits=2.0 if again else 1.0,
            reductions=self.reductions,
            registers=int(ROW_REGISTERS + VALUE_REGISTERS * self.values * each),
            dtype=dtype,
            padding=max(_padding(rows, tall), _padding(n, wide)),
        )


def _whole(name: str | int, where: Config | Problem, what: str, least: int = 1) -> int:
    """The integer a name stands for.

    Raises:
        BadInput: for a name that is not there, and a value that is no integer of at least `least`.
    """
    if isinstance(name, int):
        return name
    if name not in where:
        raise BadInput(f"the model has no {what} of this name: {unknown(what, name, where)}")
    value = where[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"the model takes {what} {name!r} as a size, not {value!r}: an integer of at least {least}")
    return value


def _knob(name: str | int, config: Config, usual: int) -> int:
    """A knob that a Space may leave out: the language's usual value then."""
    return usual if isinstance(name, str) and name not in config else _whole(name, config, "knob")


def _dtype(said: str | None, problem: Problem) -> str:
    """The dtype that was said, else that of the Problem's first array, else float16."""
    if said is not None:
        return said
    for name, value in problem.items():
        if (name == "dtype" or name.endswith(".dtype")) and isinstance(value, str):
            return value
    return "float16"


def _padding(size: int, tile: int) -> float:
    """The part of a tile that lies outside, where one tile is more than there is."""
    return max(0, tile - size) / tile if size else 0.0
