"""A small decision tree that no tuned problem loses much with: grown by what its leaves lose, then pruned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunesmith.core.config import Config
from tunesmith.core.problem import FieldValue
from tunesmith.distill.tuned import Tuned
from tunesmith.errors import BadInput
from tunesmith.heuristic import Node, Split, is_number

#: A Config that is unknown for a problem counts as losing so much; so does whatever loses more.
MOST = 1.0
#: What is lost beyond the bound counts so many times.
BEYOND = 10.0


def grow(tuned: Sequence[Tuned], max_loss: float) -> Node:
    """A tree with which no problem loses more than `max_loss`, if its fields tell the problems apart.

    Each question is the one after which the leaves lose least in all; it goes on until each leaf is within the bound.
    Then ends that one Config can serve are joined.

    Raises:
        BadInput: for no problems, and for two that no field tells apart and no Config serves both.
    """
    if not tuned:
        raise BadInput("a tree of no problems: give at least one")
    known = dict.fromkeys(config for one in tuned for config in one.losses)
    configs = [config for config in known if any(one.surely(config) <= max_loss for one in tuned)]
    return _pruned(_grown(list(tuned), configs, max_loss), list(tuned), configs, max_loss)


def cost(loss: float, max_loss: float) -> float:
    """What a loss counts."""
    bounded = min(loss, MOST)
    return bounded + BEYOND * max(0.0, bounded - max_loss)


def best_of(tuned: Sequence[Tuned], configs: Sequence[Config], max_loss: float) -> Config:
    """The Config with which these lose least in all, beyond doubt: small differences that are expected of many sizes
    would outvote what was measured of few. The first of equals."""
    return min(configs, key=lambda config: sum(cost(one.surely(config), max_loss) for one in tuned))


def worst(tuned: Sequence[Tuned], config: Config) -> float:
    """The most that one of these loses beyond doubt."""
    return max(one.surely(config) for one in tuned)


def _grown(tuned: list[Tuned], configs: Sequence[Config], max_loss: float) -> Node:
    leaf = best_of(tuned, configs, max_loss)
    if worst(tuned, leaf) <= max_loss:
        return leaf
    question = _question(tuned, configs, max_loss)
    if question is None:
        names = "; ".join(one.problem.text for one in tuned[:3])
        raise BadInput(f"no field tells these problems apart, and no Config is good for all of them: {names}")
    yes = [one for one in tuned if question.holds(one.problem)]
    no = [one for one in tuned if not question.holds(one.problem)]
    return Split(question.field, question.value, _grown(yes, configs, max_loss), _grown(no, configs, max_loss))


@dataclass(frozen=True)
class _Sorted:
    """Problems in the order of one field, and after which of them a question can fall."""

    field: str
    tuned: Sequence[Tuned]
    cuts: Sequence[tuple[int, FieldValue]]


def _question(tuned: Sequence[Tuned], configs: Sequence[Config], max_loss: float) -> Split | None:
    """The question after which the two sides lose least; `None` where no field has two values."""
    costs = {id(one): [cost(one.surely(config), max_loss) for config in configs] for one in tuned}
    total = [sum(column) for column in zip(*costs.values(), strict=True)]
    best: tuple[float, Split] | None = None
    for ordered in _orders(tuned):
        left, at = [0.0] * len(configs), 0
        for end, value in ordered.cuts:
            for one in ordered.tuned[at:end]:
                left = [have + more for have, more in zip(left, costs[id(one)], strict=True)]
            at = end
            both = min(left) + min(all_ - have for all_, have in zip(total, left, strict=True))
            if best is None or both < best[0] - 1e-12:
                best = both, Split(ordered.field, value, Config(), Config())
    return None if best is None else best[1]


def _orders(tuned: Sequence[Tuned]) -> Iterator[_Sorted]:
    """By each field that all have and that differs: numbers in their order, of others each value against the rest."""
    names = [name for name in tuned[0].problem if all(name in one.problem for one in tuned)]
    for name in names:
        values = [one.problem[name] for one in tuned]
        if all(is_number(value) for value in values):
            ordered = sorted(tuned, key=lambda one: float(str(one.problem[name])))
            cuts = [
                (i, ordered[i - 1].problem[name])
                for i in range(1, len(ordered))
                if ordered[i - 1].problem[name] != ordered[i].problem[name]
            ]
            yield _Sorted(name, ordered, cuts)
        elif not any(is_number(value) for value in values):
            for value in dict.fromkeys(values):
                yes = [one for one in tuned if one.problem[name] == value]
                if len(yes) < len(tuned):
                    rest = [one for one in tuned if one.problem[name] != value]
                    yield _Sorted(name, [*yes, *rest], [(len(yes), value)])


def _pruned(node: Node, tuned: list[Tuned], configs: Sequence[Config], max_loss: float) -> Node:
    """The same with ends joined that one Config can serve within the bound."""
    if isinstance(node, Config):
        return node
    yes = [one for one in tuned if node.holds(one.problem)]
    no = [one for one in tuned if not node.holds(one.problem)]
    sides = _pruned(node.yes, yes, configs, max_loss), _pruned(node.no, no, configs, max_loss)
    if sides[0] == sides[1]:
        return sides[0]
    fitting = [config for config in configs if worst(tuned, config) <= max_loss]
    return best_of(tuned, fitting, max_loss) if fitting else _joined(Split(node.field, node.value, *sides))


def _joined(node: Split) -> Split:
    """The same answers without a question whose two sides, next to it, end in one Config."""
    yes, no = node.yes, node.no
    if not is_number(node.value):
        return node
    if isinstance(no, Split) and no.field == node.field and no.yes == yes:  # x <= 1: A, x <= 2: A, else B
        return no
    if isinstance(yes, Split) and yes.field == node.field and yes.no == no:
        return yes
    return node
