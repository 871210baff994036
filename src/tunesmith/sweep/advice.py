"""The place where whoever knows something of a problem's neighbours says so before it is searched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.store import Store
from tunesmith.subject import Subject

#: An adviser is told of so many neighbours, the nearest first.
NEIGHBOURS = 8


@dataclass(frozen=True, slots=True)
class Solved:
    """A problem of the same kernel, on the same kind of device, that has a Choice."""

    key: Key
    choice: Choice


@dataclass(frozen=True, slots=True)
class Advice:
    """How a problem is to be searched. What is `None` is as the task and the kernel's author say.

    Attributes:
        first: Configs to begin with.
        budget_s, launches, strategy: as of `TunedKernel.tune`.
    """

    first: tuple[Config, ...] = field(default=())
    budget_s: float | None = None
    launches: int | None = None
    strategy: str | None = None


#: (what is to be searched, its solved neighbours) → how, `None` for as usual. It runs in the worker, beside the store.
Adviser: TypeAlias = "Callable[[Subject, Sequence[Solved]], Advice | None]"


def neighbours(subject: Subject, store: Store) -> list[Solved]:
    """The nearest problems that have a Choice, the nearest first."""
    found = [(key, store.choice(key)) for key in store.near(subject.key, NEIGHBOURS)]
    return [Solved(key, stored.choice) for key, stored in found if stored is not None]
