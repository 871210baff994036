"""`Space`: the Configs worth trying. Axes and constraints, an explicit list, or a sum of both."""

from __future__ import annotations

import hashlib
import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeAlias

from tunesmith.core.axis import Axis, axis_of, show
from tunesmith.core.config import Config, KnobValue
from tunesmith.errors import BadInput, SpaceError, unknown


@dataclass(frozen=True, slots=True)
class Constraint:
    """What makes a Config legal, and why.

    Attributes:
        holds: called with the knobs its parameters name (or with one `config`); true means legal.
        reason: what is wrong where it does not hold, as a user would read it.
        knobs: the knobs it reads; `None` when it takes the whole Config.
    """

    holds: Callable[..., object] = field(repr=False)
    reason: str
    knobs: tuple[str, ...] | None

    @classmethod
    def of(cls, holds: Callable[..., object], reason: str) -> Constraint:
        names = tuple(inspect.signature(holds).parameters)
        return cls(holds, reason, None if names == ("config",) else names)

    def __call__(self, knobs: Mapping[str, KnobValue]) -> bool:
        """Whether a Config is legal.

        Raises:
            SpaceError: when the function fails, or reads a knob that the Config does not have.
        """
        try:
            if self.knobs is None:
                return bool(self.holds(knobs if isinstance(knobs, Config) else Config(knobs)))
            return bool(self.holds(*[knobs[name] for name in self.knobs]))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise SpaceError(
                f"constraint {self.reason!r} fails for {Config(knobs)!r}: {type(error).__name__}: {error}"
            ) from error


#: A Space of more points than this is never enumerated unasked: it takes seconds of constraint calls.
ENUMERATED = 100_000

AxisLike: TypeAlias = "Axis | Iterable[object]"


@dataclass(frozen=True)
class Grid:
    """The product of some axes, less what its constraints cut."""

    axes: Mapping[str, Axis]
    constraints: tuple[Constraint, ...] = ()
    #: constraints that can be decided once the first i+1 axes are set
    _ready: tuple[tuple[Constraint, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for constraint in self.constraints:
            for name in constraint.knobs or ():
                if name not in self.axes:
                    what = f"constraint {constraint.reason!r}: {unknown('knob', name, self.axes)}"
                    raise SpaceError(f"{what}; a constraint takes knobs by their names, or the whole `config`")
        order = list(self.axes)
        at = [
            max((order.index(name) for name in c.knobs), default=0) if c.knobs is not None else len(order) - 1
            for c in self.constraints
        ]
        ready = tuple(
            tuple(c for c, i in zip(self.constraints, at, strict=True) if i == depth) for depth in range(len(order))
        )
        object.__setattr__(self, "_ready", ready)

    @property
    def cardinality(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes.values())

    def walk(self, cut: Callable[[str, int], None] | None = None) -> Iterator[dict[str, KnobValue]]:
        """Every legal point, depth first in the axes' order; `cut(reason, count)` hears of every subtree left out."""
        names, axes = list(self.axes), list(self.axes.values())
        below = [math.prod(len(axis.values) for axis in axes[i + 1 :]) for i in range(len(axes))]

        def descend(depth: int, knobs: dict[str, KnobValue]) -> Iterator[dict[str, KnobValue]]:
            if depth == len(axes):
                yield dict(knobs)
                return
            for value in axes[depth].values:
                knobs[names[depth]] = value
                broken = next((c for c in self._ready[depth] if not c(knobs)), None)
                if broken is None:
                    yield from descend(depth + 1, knobs)
                elif cut is not None:
                    cut(broken.reason, below[depth])
            del knobs[names[depth]]

        yield from descend(0, {})

    def draw(self, rng: random.Random, tries: int) -> dict[str, KnobValue] | None:
        """One legal point: uniform by rejection, else by randomised backtracking (then not uniform), else `None`."""
        for _ in range(tries):
            knobs = {name: axis.values[rng.randrange(len(axis.values))] for name, axis in self.axes.items()}
            if all(constraint(knobs) for constraint in self.constraints):
                return knobs
        return self._backtrack(rng)

    def _backtrack(self, rng: random.Random) -> dict[str, KnobValue] | None:
        names, axes = list(self.axes), list(self.axes.values())
        budget = 100_000  # nodes: some milliseconds of constraint calls, then the space counts as empty

        def descend(depth: int, knobs: dict[str, KnobValue]) -> dict[str, KnobValue] | None:
            nonlocal budget
            if depth == len(axes):
                return dict(knobs)
            values = axes[depth].values
            for i in rng.sample(range(len(values)), min(len(values), 64)):
                budget -= 1
                if budget < 0:
                    return None
                knobs[names[depth]] = values[i]
                if all(constraint(knobs) for constraint in self._ready[depth]):
                    found = descend(depth + 1, knobs)
                    if found is not None:
                        return found
            knobs.pop(names[depth], None)
            return None

        return descend(0, {})

    def fault(self, config: Config) -> str | None:
        """Why a Config is not of this Grid, `None` if it is."""
        for name in config:
            if name not in self.axes:
                return unknown("knob", name, self.axes)
        for name, axis in self.axes.items():
            if name not in config:
                return f"knob {name!r} is missing; good values: {axis}"
            if config[name] not in axis:
                return f"knob {name!r} cannot be {show(config[name])}; good values: {axis}"
        return next((c.reason for c in self.constraints if not c(config)), None)

    def neighbours(self, config: Config) -> Iterator[Config]:
        for name, axis in self.axes.items():
            for value in axis.neighbours(config[name]):
                near = config.replace(**{name: value})
                if self.fault(near) is None:
                    yield near


@dataclass(frozen=True)
class Listed:
    """An explicit list of Configs, in the order given."""

    configs: tuple[Config, ...]
    _index: frozenset[Config] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", frozenset(self.configs))

    @property
    def cardinality(self) -> int:
        return len(self.configs)

    def fault(self, config: Config) -> str | None:
        if config in self._index:
            return None
        shown = "; ".join(repr(good) for good in self.configs[:4])
        more = f"; … ({len(self.configs)} Configs)" if len(self.configs) > 4 else ""
        return f"{config!r} is not in the list of Configs; good ones: {shown}{more}"

    def neighbours(self, config: Config) -> Iterator[Config]:
        for other in self.configs:
            names = {*config, *other}
            if (
                sum(
                    config.get(n, ...) != other.get(n, ...) or type(config.get(n)) is not type(other.get(n))
                    for n in names
                )
                == 1
            ):
                yield other


class Space:
    """The Configs worth trying.

    >>> from tunesmith.core.axis import powers_of_two
    >>> space = Space(BLOCK=powers_of_two(64, 256), num_warps=[4, 8])
    >>> space = space.where(lambda BLOCK, num_warps: BLOCK >= 32 * num_warps, "a warp needs 32 elements")
    >>> space.cardinality, space.size
    (6, 3)
    >>> next(iter(space))
    Config(BLOCK=128, num_warps=4)

    An explicit list is a Space too (`Space.of`), and Spaces add.
    """

    def __init__(self, axes: Mapping[str, AxisLike] | None = None, /, **named: AxisLike) -> None:
        given = {**(axes or {}), **named}
        made = {name: axis if isinstance(axis, Axis) else axis_of(name, axis) for name, axis in given.items()}
        self._parts: tuple[Grid | Listed, ...] = (Grid(made),) if made else (Listed((Config(),)),)

    @classmethod
    def of(cls, configs: Iterable[Config | Mapping[str, object]]) -> Space:
        """A Space that is just these Configs, in this order; repeated ones count once."""
        unique = dict.fromkeys(c if isinstance(c, Config) else Config(c) for c in configs)
        if not unique:
            raise SpaceError("a Space needs at least one Config; got an empty list")
        return cls._from((Listed(tuple(unique)),))

    @classmethod
    def _from(cls, parts: tuple[Grid | Listed, ...]) -> Space:
        space = cls.__new__(cls)
        space._parts = parts
        return space

    def where(self, holds: Callable[..., object], reason: str) -> Space:
        """This Space less the Configs for which `holds` is false.

        Args:
            holds: a function of some knobs by name, or of one `config`.
            reason: what is wrong with a Config that is cut, for reports.
        """
        constraint = Constraint.of(holds, reason)
        parts: list[Grid | Listed] = []
        for part in self._parts:
            if isinstance(part, Grid):
                parts.append(Grid(part.axes, (*part.constraints, constraint)))
            else:
                kept = tuple(c for c in part.configs if constraint(c))
                if not kept:
                    raise SpaceError(f"{reason}: no Config of the list is left")
                parts.append(Listed(kept))
        return self._from(tuple(parts))

    def fix(self, **knobs: object) -> Space:
        """This Space with some knobs held at one of their values.

        Raises:
            SpaceError: for an unknown knob or a value that is not of its axis.
        """
        parts = [_fix(part, Config(knobs)) for part in self._parts]
        left = tuple(part for part in parts if not isinstance(part, str))
        if not left:
            raise SpaceError(next(part for part in parts if isinstance(part, str)))
        return self._from(left)

    def having(self, **knobs: object) -> Space:
        """This Space with knobs of one value each put before its own: what tells it from others in a sum.

        >>> Space(BLOCK=[64, 128]).having(by="ours").size
        2

        Raises:
            SpaceError: for a knob that it has already.
        """
        for name in knobs:
            if name in self.knobs:
                raise SpaceError(f"knob {name!r} is there already; good ones: any name but {', '.join(self.knobs)}")
        held = {name: axis_of(name, [value]) for name, value in knobs.items()}
        parts: list[Grid | Listed] = []
        for part in self._parts:
            if isinstance(part, Grid):
                parts.append(Grid({**held, **part.axes}, part.constraints))
            else:
                parts.append(Listed(tuple(Config({**knobs, **config}) for config in part.configs)))
        return self._from(tuple(parts))

    def __add__(self, other: Space) -> Space:
        return self._from((*self._parts, *other._parts))

    @property
    def cardinality(self) -> int:
        """How many points there are before constraints; a point that stands in two added Spaces counts twice."""
        return sum(part.cardinality for part in self._parts)

    @property
    def size(self) -> int:
        """How many legal Configs there are. Enumerates."""
        return sum(1 for _ in self)

    @cached_property
    def only(self) -> Config | None:
        """The legal Config, if there is just one; `None` too for a Space too large to look through for it."""
        if self.cardinality > ENUMERATED:
            return None
        found = list(islice(self.points(), 2))
        return found[0] if len(found) == 1 else None

    @property
    def knobs(self) -> tuple[str, ...]:
        """The names of all knobs."""
        names: dict[str, None] = {}
        for part in self._parts:
            for source in (part.axes,) if isinstance(part, Grid) else part.configs:
                names.update(dict.fromkeys(source))
        return tuple(names)

    def axis(self, knob: str) -> Axis:
        """The values of a knob before constraints, those of added Spaces and lists together.

        Raises:
            SpaceError: for an unknown knob.
        """
        if knob not in self.knobs:
            raise SpaceError(unknown("knob", knob, self.knobs))
        axes = [part.axes[knob] for part in self._parts if isinstance(part, Grid) and knob in part.axes]
        listed = [c[knob] for part in self._parts if isinstance(part, Listed) for c in part.configs if knob in c]
        if len(axes) == 1 and not listed:
            return axes[0]
        unique = {Config({knob: value}): value for axis in (*axes, Axis(listed, False)) for value in axis.values}
        return Axis(tuple(unique.values()), all(axis.ordered for axis in axes) and not listed)

    def __iter__(self) -> Iterator[Config]:
        return self.points()

    def points(self, cut: Callable[[str, int], None] | None = None) -> Iterator[Config]:
        """Every legal Config once, in the Space's own order.

        Args:
            cut: called with (reason, how many points) for what is left out; what it is told
                and what is yielded add up to `cardinality`.
        """
        seen: set[Config] = set()
        for part in self._parts:
            source = part.configs if isinstance(part, Listed) else map(Config, part.walk(cut))
            for config in source:
                if len(self._parts) > 1:
                    if config in seen:
                        if cut is not None:
                            cut("listed twice in the added Spaces", 1)
                        continue
                    seen.add(config)
                yield config

    def sample(self, n: int, seed: int = 0) -> list[Config]:
        """Up to `n` different legal Configs, at random; only a small Space is enumerated for it."""
        rng = random.Random(seed)
        if self.cardinality <= max(1000, 4 * n):
            legal = list(self)
            return rng.sample(legal, min(n, len(legal)))
        found: dict[Config, None] = {}
        weights = [part.cardinality for part in self._parts]
        for _ in range(20 * n):  # repeats are rare unless few points are legal: then fewer are found
            if len(found) == n:
                break
            part = rng.choices(self._parts, weights)[0]
            knobs = rng.choice(part.configs) if isinstance(part, Listed) else part.draw(rng, tries=200)
            if knobs is not None:
                found[knobs if isinstance(knobs, Config) else Config(knobs)] = None
        return list(found)

    def fault(self, config: Config) -> str | None:
        """Why a Config does not belong to this Space, naming the good values; `None` if it does."""
        faults = [part.fault(config) for part in self._parts]
        return None if None in faults else faults[0]

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.fault(config) is None

    def check(self, config: Config) -> Config:
        """The Config itself.

        Raises:
            SpaceError: when it does not belong, naming the good values.
        """
        fault = self.fault(config)
        if fault is not None:
            raise SpaceError(fault)
        return config

    def neighbours(self, config: Config) -> list[Config]:
        """The legal Configs one change away, in the Space's order."""
        near: dict[Config, None] = {}
        for part in self._parts:
            if part.fault(config) is None:
                near.update(dict.fromkeys(part.neighbours(config)))
        return list(near)

    @cached_property
    def digest(self) -> str:
        """A name for the set of legal Configs, whatever their order.

        Enumerates up to `ENUMERATED` points; above that it names axes and constraints' reasons.
        """
        if self.cardinality <= ENUMERATED:
            texts = sorted(config.text for config in self)
        else:
            texts = [repr(part) for part in self._parts]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        parts = [
            f"{len(p.configs)} Configs"
            if isinstance(p, Listed)
            else " × ".join(f"{n}[{len(a.values)}]" for n, a in p.axes.items())
            for p in self._parts
        ]
        return f"<Space {' + '.join(parts)}>"


def _fix(part: Grid | Listed, fixed: Config) -> Grid | Listed | str:
    """A part with some knobs held, or why it can't be."""
    if isinstance(part, Listed):
        kept = tuple(
            c
            for c in part.configs
            if all(name in c and Config({name: c[name]}) == Config({name: fixed[name]}) for name in fixed)
        )
        return Listed(kept) if kept else f"no Config of the list has {fixed!r}"
    axes = dict(part.axes)
    for name, value in fixed.items():
        if name not in axes:
            return unknown("knob", name, axes)
        if value not in axes[name]:
            return f"knob {name!r} cannot be {show(value)}; good values: {axes[name]}"
        axes[name] = Axis((value,), axes[name].ordered)
    return Grid(axes, part.constraints)


def space_from(space: Space | None, configs: Iterable[Config | Mapping[str, object]] | None) -> Space:
    """What `autotune(space=…)` or `autotune(configs=…)` means.

    Raises:
        BadInput: when both or neither are given.
    """
    if (space is None) == (configs is None):
        raise BadInput("give either space=Space(…) or configs=[Config(…), …]" + (", not both" if space else ""))
    return space if space is not None else Space.of(configs or ())
