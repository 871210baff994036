"""What the store knows of a kernel as problems that can be asked for again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel


@dataclass(frozen=True, slots=True)
class Known:
    """The stored Choices of a kernel.

    Attributes:
        problems: those that a call of today would find, as one would type them.
        left: those whose arguments can't be made again, and why.
        hard: those that no call of today finds, and what differs: another source, chip, environment or way of timing.
    """

    problems: list[Problem] = field(default_factory=list[Problem])
    left: list[tuple[Key, str]] = field(default_factory=list["tuple[Key, str]"])
    hard: list[tuple[Key, list[str]]] = field(default_factory=list["tuple[Key, list[str]]"])


def stored(kernel: TunedKernel) -> Known:
    """What the store knows of a kernel; the arguments of each problem are made once, to see which key they have."""
    from tunesmith.store import default_store

    store, known = default_store(), Known()
    now = kernel.kernel.fingerprint() + kernel.declared.spec_fingerprint
    for key in store.keys(kernel.declared.name_for(kernel.kernel.name)):
        choice = store.choice(key)
        if choice is None:
            continue
        if key.fingerprint != now:
            known.hard.append((key, [f"source: {now}, was {key.fingerprint}"]))
            continue
        try:
            problem = kernel.problem(kernel.typed(choice.choice.measured_at or key.problem))
            found = kernel.key(**kernel.inputs(problem))
        except BadInput as error:
            known.left.append((key, f"its arguments cannot be made: {error}"))
            continue
        if found == key:
            known.problems.append(problem)
        elif found.problem != key.problem:
            differences = "; ".join(found.problem.differences(key.problem))
            known.left.append((key, f"what make_inputs makes is another problem: {differences}"))
        else:
            known.hard.append((key, found.differences(key)))
    return known
