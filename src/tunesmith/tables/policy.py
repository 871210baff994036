"""Look-up rules as data: which row of a table serves a size, how far it is, and by which rule.

A `Rule` says how a reader goes from the size of a call (tokens, rows: `M`) to the key of a row. A `Ladder` is a rule
with the keys of one table.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeAlias

from tunesmith.core.problem import next_power_of_two
from tunesmith.errors import BadInput, unknown

Kind: TypeAlias = Literal["exact", "nearest", "floor", "ceil", "padded"]
#: A row further away than this factor says little of a call: tile sizes of 16 rows are wrong for 1000.
REACH = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a padding: what becomes of sizes up to `upto`.

    Attributes:
        upto: the largest size it holds for; `None` for all.
        to: `"pow2"` for the next power of two, `"floor-pow2"` for the last, a number for the next multiple of it, and
            a number with `fixed` for just that number.
        fixed: all sizes become `to`.
        wide: it holds only where the table's N is above this.
    """

    upto: int | None
    to: int | Literal["pow2", "floor-pow2"]
    fixed: bool = False
    wide: int = 0

    def __call__(self, size: int) -> int:
        """The padded size."""
        if self.to == "pow2":
            return next_power_of_two(size)
        if self.to == "floor-pow2":
            return 1 << (size.bit_length() - 1)
        return self.to if self.fixed else -(-size // self.to) * self.to

    def alike(self, padded: int) -> tuple[int, int | None]:
        """(the first, the last) of the sizes that become a padded size, `None` for no last one; wherever it holds."""
        if self.to == "pow2":
            return padded // 2 + 1, padded
        if self.to == "floor-pow2":
            return padded, 2 * padded - 1
        return (1, None) if self.fixed else (padded - self.to + 1, padded)


@dataclass(frozen=True, slots=True)
class Rule:
    """How a reader finds a row.

    Attributes:
        kind: `exact`; `nearest` by absolute distance, of those within reach; `floor`, the largest key at or below;
            `ceil`, the smallest at or above; `padded`, exact at one of several paddings of the size.
        paddings: of `padded`, tried in order; the first Step of each that holds is taken.
        itself: of `padded`, whether the size itself is tried first.
        tie: of `nearest`, which of two keys equally far: the one that stands `first` in the file, or the `smaller`.
        reach: the largest factor between size and key; `None` for any.
    """

    name: str
    kind: Kind
    paddings: tuple[tuple[Step, ...], ...] = ()
    itself: bool = True
    tie: Literal["first", "smaller"] = "smaller"
    reach: float | None = None

    def padded(self, size: int, level: int = 0, wide: int = 0) -> int:
        """The size that a level of `padded` looks for.

        Args:
            wide: the table's N, where a Step asks for it.
        """
        step = self._step(size, level, wide)
        return size if step is None else step(size)

    def _step(self, size: int, level: int, wide: int) -> Step | None:
        for step in self.paddings[level]:
            if (step.upto is None or size <= step.upto) and wide >= step.wide + bool(step.wide):
                return step
        return None

    def padded_runs(self, first: int, upto: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, what the first level of `padded` looks for) of the sizes first…upto, in rising order."""
        size = first
        while size <= upto:
            step, last = self._step(size, 0, 0), size
            if step is not None:
                ends = [end for end in (step.alike(step(size))[1], step.upto) if end is not None]
                last = min([upto, *ends])
            yield size, last, self.padded(size)
            size = last + 1

    def turns(self, keys: Iterable[int]) -> set[int]:
        """Sizes at which another row may serve than below them: with these keys, every such size is among them."""
        found = {step.upto + 1 for level in self.paddings for step in level if step.upto is not None}
        ordered = sorted(keys)
        for key in ordered:
            found |= {key, key + 1}
            for step in (step for level in self.paddings for step in level):
                first, last = step.alike(key) if key > 0 else (1, None)
                found |= {first} if last is None else {first, last + 1}
            if self.reach is not None and key > 0:
                ends = math.ceil(key / self.reach), math.floor(key * self.reach)
                found |= {end + beside for end in ends for beside in (-1, 0, 1, 2)}
        middles = [(one + other) // 2 for one, other in pairwise(ordered)] if self.kind == "nearest" else []
        return found | {middle + beside for middle in middles for beside in (0, 1)}

    def sought(self, size: int, wide: int = 0) -> list[int]:
        """The keys that `padded` looks for, in order."""
        levels = [self.padded(size, level, wide) for level in range(len(self.paddings))]
        return list(dict.fromkeys([size, *levels] if self.itself else levels))

    def within(self, reach: float | None) -> Rule:
        """The same rule with another limit of distance."""
        return replace(self, reach=reach)


_AITER_FINE = (Step(256, 16), Step(1024, 32), Step(4096, 64), Step(None, 128))
_AITER_COARSE = (Step(8192, "pow2"), Step(None, 8192, fixed=True, wide=4096), Step(None, "pow2"))
_AITER_FMOE = (Step(32767, "pow2"), Step(131071, 32768, fixed=True), Step(None, 131072, fixed=True))
_HYBRID = (Step(256, "pow2"), Step(2048, 256), Step(4096, 512), Step(None, "pow2"))

RULES = {
    rule.name: rule
    for rule in (
        Rule("exact", "exact"),
        Rule("nearest", "nearest", reach=REACH),
        Rule("nearest-stock", "nearest", tie="first"),
        Rule("floor", "floor"),
        Rule("ceil", "ceil"),
        Rule("aiter-gemm", "padded", (_AITER_FINE, _AITER_COARSE)),
        Rule("aiter-fmoe", "padded", (_AITER_FMOE,), itself=False),
        Rule("pow2", "padded", ((Step(None, "pow2"),),), itself=False),
        Rule("pow2-floor", "padded", ((Step(None, "floor-pow2"),),), itself=False),
        Rule("flashinfer-hybrid", "padded", (_HYBRID,), itself=False),
    )
}


def rule(name: str) -> Rule:
    """The rule of this name.

    Raises:
        BadInput: naming the known ones.
    """
    if name not in RULES:
        raise BadInput(unknown("look-up rule", name, RULES))
    return RULES[name]


@dataclass(frozen=True, slots=True)
class Hit:
    """The row that serves a size.

    Attributes:
        padded: the size that was looked for in its place, where a padding changed it.
        outside: `below the smallest key` or `above the largest key`; empty within the table's range.
    """

    size: int
    key: int
    rule: str
    padded: int | None = None
    outside: str = ""

    @property
    def distance(self) -> int:
        """How far the key is from the size."""
        return abs(self.key - self.size)

    def __str__(self) -> str:
        if not self.distance:
            return f"{self.rule}: exactly {self.key}"
        by = f" ({self.size} is padded to {self.padded})" if self.padded is not None else ""
        beyond = f", {self.outside}: extrapolated" if self.outside else ""
        return f"{self.rule}: key {self.key}, distance {self.distance}{by}{beyond}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a look-up does with a size, in words: `str` of it.

    Attributes:
        hit: the row that serves it; `None` for a miss.
        why: of a miss.
    """

    size: int
    hit: Hit | None
    why: str = ""

    def __str__(self) -> str:
        return f"M={self.size} → {self.hit if self.hit is not None else f'no row: {self.why}'}"


class Ladder:
    """A rule with the keys of one table.

    Args:
        keys: in the order of the file, which decides ties where the rule says so.
        wide: the table's N.
    """

    def __init__(self, rule: Rule, keys: Iterable[int], wide: int = 0) -> None:
        self.rule, self.wide = rule, wide
        self.keys = tuple(dict.fromkeys(keys))
        self._sorted = sorted(self.keys)
        self._set = frozenset(self.keys)
        self._first = {key: i for i, key in enumerate(self.keys)} if rule.tie == "first" else {}

    def find(self, size: int) -> Hit | None:
        """The row that serves a size, `None` for a miss."""
        key, padded = self._key(size)
        if key is None or self._too_far(size, key):
            return None
        return Hit(size, key, self.rule.name, padded, self._outside(size))

    def explain(self, size: int) -> Explanation:
        """The same, and why of a miss."""
        key, _ = self._key(size)
        if key is None:
            return Explanation(size, None, f"by rule {self.rule.name} {self._sought(size)}")
        if self._too_far(size, key):
            outside = self._outside(size)
            where = f", {outside} ({self._sorted[0]}…{self._sorted[-1]})" if outside else ""
            why = f"the nearest key is {key}, further than a factor of {self.rule.reach:g}{where}"
            return Explanation(size, None, why)
        return Explanation(size, self.find(size))

    def runs(self, upto: int) -> Iterator[tuple[int, int, int | None]]:
        """(first, last, key) of the sizes 1…upto that one row serves; key `None` where no row does."""
        start, current = 1, self._served(1)
        for size in sorted(size for size in self.rule.turns(self.keys) if 1 < size <= upto):
            key = self._served(size)
            if key != current:
                yield start, size - 1, current
                start, current = size, key
        if upto >= 1:
            yield start, upto, current

    def uncovered(self, upto: int) -> list[tuple[int, int]]:
        """The runs of sizes that no row serves."""
        return [(first, last) for first, last, key in self.runs(upto) if key is None]

    def sizes_of(self, key: int, upto: int) -> list[int]:
        """Sizes at which a row has to be right: its key, and both ends of each run that it serves."""
        ends = {size for first, last, served in self.runs(upto) if served == key for size in (first, last)}
        return sorted(ends | ({key} if self._served(key) == key else set()))

    def unread(self) -> dict[int, int]:
        """Keys that no size leads to, each with the key that is looked for in its place."""
        if self.rule.kind != "padded":
            return {key: 1 for key in self.keys if key < 1 and self.rule.kind != "nearest"}
        sought = {key: self.rule.sought(key, self.wide) if key > 0 else [1] for key in self.keys}
        return {key: wanted[0] for key, wanted in sought.items() if key not in wanted}

    def _key(self, size: int) -> tuple[int | None, int | None]:
        kind, ordered = self.rule.kind, self._sorted
        if not ordered:
            return None, None
        if kind == "exact":
            return (size if size in self._set else None), None
        if kind == "padded":
            return self._padded(size)
        i = bisect_left(ordered, size)
        above = ordered[i] if i < len(ordered) else None
        if kind == "ceil" or above == size:
            return above, None
        below = ordered[bisect_right(ordered, size) - 1] if i else None
        if kind == "floor" or above is None:
            return below, None
        if below is not None and self._too_far(size, below) != self._too_far(size, above):
            return (above if self._too_far(size, below) else below), None
        if below is None or above - size < size - below:
            return above, None
        if self._first and above - size == size - below and self._first[above] < self._first[below]:
            return above, None
        return below, None

    def _padded(self, size: int) -> tuple[int | None, int | None]:
        if size < 1:
            return None, None
        for wanted in self.rule.sought(size, self.wide):
            if wanted in self._set:
                return wanted, wanted if wanted != size else None
        return None, None

    def _served(self, size: int) -> int | None:
        key, _ = self._key(size)
        return None if key is None or self._too_far(size, key) else key

    def _too_far(self, size: int, key: int) -> bool:
        reach = self.rule.reach
        if reach is None or size == key:
            return False
        return min(size, key) <= 0 or max(size, key) > reach * min(size, key)

    def _outside(self, size: int) -> str:
        if size < self._sorted[0]:
            return "below the smallest key"
        return "above the largest key" if size > self._sorted[-1] else ""

    def _sought(self, size: int) -> str:
        if not self.keys:
            return "of a table without rows"
        if self.rule.kind == "padded" and size > 0:
            wanted = [str(key) for key in self.rule.sought(size, self.wide)]
            return f"{' and '.join(wanted)} {'is' if len(wanted) == 1 else 'are'} not there"
        return f"none of {self._sorted[0]}…{self._sorted[-1]} serves it"


def never_read(rule: Rule, sizes: Sequence[int], wide: int = 0) -> dict[int, int]:
    """Of sizes that are to be tuned: those whose row nothing would read, each with the size to tune instead."""
    return Ladder(rule, sizes, wide).unread()
