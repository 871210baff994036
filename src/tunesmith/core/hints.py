"""`Hints`: what a kernel that goes over rows, or over elements, says of itself instead of a list of Configs.

From the sizes of a Problem and what a chip can hold they make a Space whose knobs are steps apart, and the Config that
a search begins with: made for `strategy="descent"`, which climbs one knob at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from tunesmith.core.axis import Axis
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model.work import ITEM_BYTES
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, unknown

#: Elements of a tile that the registers of a block hold in float32, with what is computed of them.
MOST_ELEMENTS = 32768
#: ... of several rows: more than one row a program only pays where rows are short
MOST_IN_ROWS = 16384
#: Elements a thread has: fewest and most worth trying, and the usual number by how a row is taken. On an H200 16 were
#: fastest, or within 2 % of that, for rows of 64 to 32768 (16 problems of softmax and of add + RMSNorm).
FEWEST_EACH, MOST_EACH = 4, 64
USUAL_EACH = {"whole": 16, "loops": 16, "split": 8}
#: A program takes as many short rows as make so many elements, but no more rows than this.
USUAL_TILE, MOST_ROWS = 2048, 16
#: A row that does not fit is taken in blocks of so many elements: two pieces of it wait for each other seldom enough.
USUAL_LOOPED = 16384
#: Blocks of a row that is shared by programs.
SPLIT_LEAST, SPLIT_MOST, USUAL_SPLIT = 128, 8192, 1024
#: Where the chip does not say: threads of a multiprocessor.
USUAL_THREADS = 2048


@dataclass(frozen=True, slots=True)
class Hints:
    """See `rowwise` and `pointwise`.

    Attributes:
        rows, columns: fields of the Problem; an integer is itself.
        how: a block holds a `whole` row, `loops` over it where it does not, or the row is `split` over programs.
        block, warps: knobs: elements of a row that a program has at once, its warps.
        tall, per_unit, stages: knobs, `None` for a kernel that does not have them.
        per_units: the values of per_unit; 0 stands for a program for each tile.
        reads: arrays that are on their way at once, for the shared memory that stages take.
        most: elements of a row that a block holds at most; longer rows are looped over.
        parts: into how many blocks a row is cut at most that one would hold.
    """

    rows: str | int
    columns: str | int
    how: Literal["whole", "loops", "split"]
    block: str = "BLOCK"
    warps: str = "num_warps"
    tall: str | None = None
    per_unit: str | None = None
    stages: str | None = None
    per_units: tuple[int, ...] = (0, 1, 2, 4, 8)
    reads: int = 1
    most: int = MOST_ELEMENTS
    parts: int = 4

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of all knobs."""
        return tuple(name for name in (self.tall, self.block, self.per_unit, self.stages, self.warps) if name)

    # --- the Space ---

    def space(self, problem: Problem, device: Device) -> Space:
        """The Configs worth trying.

        Raises:
            BadInput: for a Problem without these sizes.
        """
        rows, n = self._size(self.rows, problem), self._size(self.columns, problem)
        axes: dict[str, Axis] = {self.block: _steps(self._blocks(n)), self.warps: _steps(_warps(device))}
        if self.tall:
            axes[self.tall] = _steps([1 << e for e in range(6) if 1 << e < 2 * rows or e == 0])
        if self.per_unit:
            axes[self.per_unit] = _steps(self.per_units)
        if self.stages:
            axes[self.stages] = _steps((1, 2, 3))
        space = Space(axes).where(self._threads(device), f"{FEWEST_EACH} to {MOST_EACH} elements for each thread")
        space = space.where(self._holds, "more rows of this length than the registers hold")
        if self.per_unit:
            space = space.where(
                self._stays(rows, n, device), "programs that stay: fewer than tiles, as many as run at once"
            )
        if self.stages:
            space = space.where(self._overlaps(n, device, _item(problem)), "stages: of a loop, in the shared memory")
        return space

    def _blocks(self, n: int) -> list[int]:
        whole = _power(n)
        if self.how == "whole":
            return [whole]
        if self.how == "split":
            return [b for e in range(21) if SPLIT_LEAST <= (b := 1 << e) <= min(whole, SPLIT_MOST)] or [whole]
        if whole > self.most:
            return [self.most >> e for e in (3, 2, 1, 0)]
        return [*[whole // cut for cut in (8, 4, 2) if cut <= self.parts and whole // cut >= 1024], whole]

    def _tile(self, config: Config) -> int:
        return self._knob(config, self.tall, 1) * self._knob(config, self.block, 1)

    def _threads(self, device: Device) -> Callable[[Config], bool]:
        lanes, most = device.warp or 32, _warps(device)[-1]

        def fits(config: Config) -> bool:
            warps = self._knob(config, self.warps, 1)
            each = self._tile(config) / (lanes * warps)
            return (each >= FEWEST_EACH or warps == 1) and (each <= MOST_EACH or warps == most)

        return lambda config: fits(config)

    @property
    def _holds(self) -> Callable[[Config], bool]:
        return lambda config: self._knob(config, self.tall, 1) == 1 or self._tile(config) <= MOST_IN_ROWS

    def _stays(self, rows: int, n: int, device: Device) -> Callable[[Config], bool]:
        room = (device.threads_per_unit or USUAL_THREADS) // (device.warp or 32)

        def stays(config: Config) -> bool:
            each = self._knob(config, self.per_unit, 0)
            if each == self.per_units[0]:
                return True
            tiles = -(-rows // self._knob(config, self.tall, 1))
            looped = self._knob(config, self.block, 1) < n
            return (
                tiles > device.units * each
                and each * self._knob(config, self.warps, 1) <= room
                and not (looped and self.per_units[0] == 0)
            )

        return lambda config: stays(config)

    def _overlaps(self, n: int, device: Device, item: int) -> Callable[[Config], bool]:
        room = device.shared_bytes_per_unit

        def overlaps(config: Config) -> bool:
            stages, each = self._knob(config, self.stages, 1), self._knob(config, self.per_unit, 0)
            if stages == 1:
                return True
            loops = self._knob(config, self.block, 1) < n or each > 0
            taken = self.reads * self._tile(config) * item * (stages - 1) * max(1, each)
            return loops and (not room or taken <= room)

        return lambda config: overlaps(config)

    # --- where a search begins ---

    def default(self, problem: Problem, device: Device) -> Config:
        """The Config that one would write by hand.

        Raises:
            BadInput: for a Problem without these sizes.
        """
        rows, n = self._size(self.rows, problem), self._size(self.columns, problem)
        whole, lanes, most = _power(n), device.warp or 32, _warps(device)[-1]
        block = whole
        if self.how == "loops" and whole > self.most:
            block = min(USUAL_LOOPED, self.most)
        elif self.how == "split":
            block = min(whole, USUAL_SPLIT)
        tall = min(MOST_ROWS, max(1, USUAL_TILE // block), _power(rows)) if self.tall else 1
        while tall > 1 and -(-rows // tall) < device.units:
            tall //= 2
        warps = min(most, max(1, _power(tall * block) // (lanes * USUAL_EACH[self.how])))
        knobs = {self.block: block, self.warps: warps}
        if self.tall:
            knobs[self.tall] = tall
        if self.per_unit:
            knobs[self.per_unit] = self._usual_per_unit(-(-rows // tall), warps, device)
        if self.stages:
            knobs[self.stages] = 1
        legal, usual = self.space(problem, device), Config(knobs)
        return usual if usual in legal else next(iter(legal))

    def _usual_per_unit(self, tiles: int, warps: int, device: Device) -> int:
        """None that stay where they need not; else as many as fill half of the threads, if there are tiles for them."""
        if self.per_units[0] == 0:
            return 0
        half = (device.threads_per_unit or USUAL_THREADS) // (device.warp or 32) // 2
        fitting = [each for each in self.per_units if each * warps <= half and tiles > each * device.units]
        return max(fitting, default=self.per_units[0])

    # --- what is read ---

    @staticmethod
    def _knob(config: Config, name: str | None, usual: int) -> int:
        return usual if name is None else cast(int, config[name])

    @staticmethod
    def _size(name: str | int, problem: Problem) -> int:
        if isinstance(name, int):
            return name
        if name not in problem:
            raise BadInput(f"hints need a size of this name in the key: {unknown('field', name, problem)}")
        size = problem[name]
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadInput(f"hints take {name!r} as a size, not {size!r}: an integer of at least 0")
        return max(1, size)


def rowwise(
    rows: str | int = "rows", columns: str | int = "n", *, loops: bool = False, block: str = "BLOCK",
    tall: str | None = None, per_unit: str | None = None, stages: str | None = None, warps: str = "num_warps",
    reads: int = 1,
) -> Hints:  # fmt: skip
    """Hints for a kernel that goes over the rows of (rows, columns) arrays: softmax, a norm, a reduction.

    >>> from tunesmith.core.device import known_device
    >>> hints, problem = rowwise("M", "N"), Problem({"M": 4096, "N": 5000})
    >>> hints.default(problem, known_device("NVIDIA H200"))
    Config(BLOCK=8192, num_warps=16)

    Args:
        rows, columns: the fields of the key, or integers.
        loops: whether a program loops over its row where the block is shorter; else the block holds the row.
        block, warps: the knobs' names. tall: the knob that says how many rows a program has.
        per_unit: the knob that says how many programs a multiprocessor has, each of which takes one tile after the
            other; 0 for a program for each tile.
        stages: the knob that says how many pieces of a loop are on their way at once.
        reads: arrays that are read.
    """
    return Hints(
        rows, columns, "loops" if loops else "whole", block, warps, tall, per_unit, stages, reads=reads
    )  # fmt: skip


def pointwise(
    size: str | int = "n", rows: str | int = 1, *, block: str = "BLOCK", tall: str | None = None,
    warps: str = "num_warps", reads: int = 1,
) -> Hints:  # fmt: skip
    """Hints for a kernel that goes over elements, each for itself: a program for each block of them.

    >>> from tunesmith.core.device import known_device
    >>> pointwise("n").default(Problem({"n": 100_000}), known_device("NVIDIA H200"))
    Config(BLOCK=1024, num_warps=4)

    Args:
        size: the field of the key that says how many, or an integer. rows: where they lie in rows, how many of these.
        block, warps, tall, reads: see `rowwise`.
    """
    return Hints(rows, size, "split", block, warps, tall, reads=reads)


def _steps(values: Sequence[int]) -> Axis:
    return Axis(tuple(values), ordered=True)


def _warps(device: Device) -> list[int]:
    """What a block can have: 1024 threads at most."""
    return [1 << e for e in range(6) if (1 << e) * (device.warp or 32) <= 1024]


def _power(size: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, size - 1).bit_length()


def _item(problem: Problem) -> int:
    """Bytes of an element of the Problem's smallest dtype; of float32 where it names none."""
    dtypes = [str(value) for name, value in problem.items() if name.endswith("dtype")]
    return min((ITEM_BYTES.get(dtype, 1) for dtype in dtypes), default=4)
