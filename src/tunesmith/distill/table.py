"""From tuned problems to a table, group by group, and what is lost with it: by problems that were held back, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.problem import FieldValue, Problem
from tunesmith.core.stats import quantile
from tunesmith.distill.cover import Cover, Section, cover
from tunesmith.distill.tree import grow
from tunesmith.distill.tuned import Collection, Tuned
from tunesmith.errors import BadInput
from tunesmith.heuristic import Heuristic, Node
from tunesmith.tables.lines import Entry
from tunesmith.tables.native import NativeTable
from tunesmith.tables.policy import Ladder, rule

#: Bounds of the curve of rows against loss.
LEVELS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Group:
    """Problems that differ in one size alone, in its order.

    Attributes:
        fields: what they share.
        sizes: size → the problem that was tuned for it.
    """

    fields: Mapping[str, FieldValue]
    sizes: Mapping[int, Tuned]

    def sections(self) -> list[Section[Config]]:
        """A size stands for those above the next smaller one that was tuned: the tiles that it needs, they need too."""
        found: list[Section[Config]] = []
        for size, tuned in self.sizes.items():
            first = found[-1].last + 1 if found else min(1, size)
            found.append(Section(first, size, tuned.losses, tuned.doubt))
        return found

    def without(self, held: set[Problem]) -> Group:
        """The same with some problems left out."""
        return Group(self.fields, {size: one for size, one in self.sizes.items() if one.problem not in held})


#: Adds what is expected of further sizes to groups of tuned problems.
Fill: TypeAlias = "Callable[[Sequence[Group]], Sequence[Group]]"


def groups_of(tuned: Sequence[Tuned], size: str) -> list[Group]:
    """Problems by all fields but one.

    Raises:
        BadInput: for a problem without that size, naming the sizes that it has.
    """
    by_rest: dict[Problem, dict[int, Tuned]] = {}
    for one in tuned:
        value = one.problem.get(size)
        if type(value) is not int or value < 1:
            names = ", ".join(one.problem.dims) or "none"
            raise BadInput(f"{one.problem} has no size {size!r} of at least 1; its sizes: {names}")
        rest = Problem({name: field for name, field in one.problem.items() if name != size})
        by_rest.setdefault(rest, {})[value] = one
    return [Group(dict(rest), dict(sorted(sizes.items()))) for rest, sizes in sorted(by_rest.items(), key=_text)]


def _text(pair: tuple[Problem, object]) -> str:
    return pair[0].text


@dataclass(frozen=True)
class Table:
    """The rows of all groups.

    Attributes:
        parts: each group with its rows.
        by: the rule by which they are looked up, of this size.
    """

    parts: Sequence[tuple[Group, Cover[Config]]]
    by: str
    size: str

    @property
    def rows(self) -> int:
        """How many there are in all."""
        return sum(len(found.rows) for _, found in self.parts)

    @property
    def worst(self) -> float:
        """The most that any tuned size of any group loses."""
        decide = self.decide
        losses = [
            math.inf if (config := decide(one.problem)) is None else one.loss(config)
            for group, _ in self.parts for one in group.sizes.values() if not one.doubt
        ]  # fmt: skip
        return max(losses, default=0.0)

    @property
    def decide(self) -> Callable[[Problem], Config | None]:
        """From a problem to the Config of the row that serves it: beyond the last row, that of the last."""
        parts = {Problem(group.fields): found.rows for group, found in self.parts}

        def decide(problem: Problem) -> Config | None:
            rest = Problem({name: value for name, value in problem.items() if name != self.size})
            rows, value = parts.get(rest), problem[self.size]
            if not rows or type(value) is not int:
                return None
            hit = Ladder(rule(self.by), rows).find(value)
            return rows[max(rows) if hit is None else hit.key]

        return decide

    def native(self, of: Collection) -> NativeTable:
        """As a table of ours: a row for each key, with its time where just this was measured."""
        rows: dict[Problem, Entry] = {}
        for group, found in self.parts:
            serves = {key: (first, last) for first, last, key in self._runs(group, found) if key is not None}
            for key, config in found.rows.items():
                tuned = group.sizes.get(key)
                first, last = serves.get(key, (key, key))
                rows[Problem({**group.fields, self.size: key})] = Entry(
                    config, None if tuned is None else tuned.seconds.get(config),
                    {"serves": f"{self.size}={first}…{last}", "by": self.by},
                )  # fmt: skip
        return NativeTable(of.kernel, of.device, rows, of.fingerprint, of.protocol, of.soft)

    def _runs(self, group: Group, found: Cover[Config]) -> list[tuple[int, int, int | None]]:
        return list(Ladder(rule(self.by), found.rows).runs(max(group.sizes)))


def as_they_are(groups: Sequence[Group]) -> Sequence[Group]:
    """Nothing is expected."""
    return groups


def table_of(groups: Sequence[Group], size: str, by: str, max_loss: float) -> Table:
    """The smallest table for a rule.

    Raises:
        BadInput: as of `cover`, naming the group.
    """
    parts: list[tuple[Group, Cover[Config]]] = []
    for group in groups:
        try:
            parts.append((group, cover(group.sections(), by, max_loss)))
        except BadInput as error:
            raise BadInput(f"{Problem(group.fields)}: {error}" if group.fields else str(error)) from None
    return Table(parts, by, size)


def curve(groups: Sequence[Group], size: str, by: str) -> list[tuple[float, int, float]]:
    """(bound, rows, the most that is lost) for each of `LEVELS` that can be met."""
    found: list[tuple[float, int, float]] = []
    for level in LEVELS:
        try:
            table = table_of(groups, size, by, level)
        except BadInput:  # a reader that pads can't do better
            continue
        found.append((level, table.rows, table.worst))
    return found


# --- held back ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldBack:
    """What problems lose that were left out when the table, or the tree, was made.

    Attributes:
        losses: of each problem; infinite where the Config was never measured on it, or failed, and where none could be
            told without the problem.
    """

    losses: Mapping[Problem, float]

    @property
    def known(self) -> list[float]:
        """The losses that are known."""
        return [loss for loss in self.losses.values() if loss < math.inf]

    @property
    def unknown(self) -> int:
        """Of how many the Config was not measured."""
        return len(self.losses) - len(self.known)

    def p90(self) -> float:
        """The 90th percentile of what is known."""
        return quantile(self.known, 0.9) if self.known else 0.0

    @property
    def worst(self) -> tuple[float, Problem | None]:
        """The most that is known to be lost, and by which problem."""
        return max(((loss, p) for p, loss in self.losses.items() if loss < math.inf), key=_loss, default=(0.0, None))


def _loss(pair: tuple[float, object]) -> float:
    return pair[0]


def folds_of(groups: Sequence[Group], folds: int) -> list[set[Problem]]:
    """Problems in so many parts: within a group, each part takes every so-manieth size."""
    parts = [set[Problem]() for _ in range(folds)]
    number = 0
    for group in groups:
        for one in group.sizes.values():
            parts[number % folds].add(one.problem)
            number += 1
    return [part for part in parts if part]


def held_back(
    groups: Sequence[Group], folds: int, make: Callable[[Sequence[Group]], Callable[[Problem], Config | None]]
) -> HeldBack:
    """What each problem loses with what was made of the problems of the other parts.

    Args:
        make: from groups to what decides for a problem; `None` where it can't. When it raises BadInput, nothing can be
            made of these groups.
    """
    losses: dict[Problem, float] = {}
    for held in folds_of(groups, folds):
        kept = [left for group in groups if (left := group.without(held)).sizes]
        if not kept:
            continue
        try:
            decide = make(kept)
        except BadInput:  # what is left is no reason to refuse what can be made of all
            losses.update(dict.fromkeys(held, math.inf))
            continue
        for group in groups:
            for one in group.sizes.values():
                config = decide(one.problem) if one.problem in held else None
                if config is not None:
                    losses[one.problem] = one.loss(config)
    return HeldBack(losses)


def by_table(
    size: str, by: str, max_loss: float, fill: Fill = as_they_are
) -> Callable[[Sequence[Group]], Callable[[Problem], Config | None]]:
    """For `held_back`: the smallest table; with a larger bound where a reader that pads can't meet this one without the
    problems that are held back."""

    def make(groups: Sequence[Group]) -> Callable[[Problem], Config | None]:
        filled = fill(groups)
        for bound in (max_loss, *[level for level in LEVELS if level > max_loss]):
            try:
                return table_of(filled, size, by, bound).decide
            except BadInput:
                continue
        return table_of(filled, size, by, math.inf).decide

    return make


def by_tree(
    max_loss: float, fill: Fill = as_they_are
) -> Callable[[Sequence[Group]], Callable[[Problem], Config | None]]:
    """For `held_back`: the tree."""
    return lambda groups: Heuristic("", tree_of(fill(groups), max_loss))


def tree_of(groups: Sequence[Group], max_loss: float) -> Node:
    """The tree of all problems of these groups."""
    return grow([one for group in groups for one in group.sizes.values()], max_loss)
