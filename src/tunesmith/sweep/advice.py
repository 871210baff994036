"""The place where whoever knows something of a problem's neighbours says so before it is searched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from tunesmith.core.config import Config
from tunesmith.errors import BadInput, unknown
from tunesmith.measure.failure import attempt
from tunesmith.neighbours import neighbours
from tunesmith.search import STRATEGIES, Solved
from tunesmith.store import Store
from tunesmith.subject import Subject
from tunesmith.targets import attribute_of, module_of

__all__ = ["Advice", "Adviser", "Named", "Solved", "advice_for", "adviser_at"]


@dataclass(frozen=True, slots=True)
class Advice:
    """How a problem is to be searched. What is `None` is as the task and the kernel's author say.

    Attributes:
        first: Configs to begin with.
        budget_s, launches, strategy: as of `TunedKernel.tune`.

    Raises:
        BadInput: for what makes no sense, naming what does.
    """

    first: tuple[Config, ...] = field(default=())
    budget_s: float | None = None
    launches: int | None = None
    strategy: str | None = None

    def __post_init__(self) -> None:
        first: Any = self.first  # an adviser may say anything
        budget: Any = self.budget_s
        strategy: Any = self.strategy
        if not isinstance(first, (tuple, list)) or not all(isinstance(one, Config) for one in cast("list[Any]", first)):
            raise BadInput(f"first is {first!r}; good values: a tuple of Configs")
        number = isinstance(budget, (int, float)) and not isinstance(budget, bool)
        if budget is not None and not (number and 0 < budget <= sys.float_info.max):
            raise BadInput(f"budget_s is {budget!r}; good values: a number of seconds above 0")
        if self.launches is not None and (type(self.launches) is not int or self.launches < 1):
            raise BadInput(f"launches is {self.launches!r}; good values: a number of timed launches from 1")
        if strategy is not None and (not isinstance(strategy, str) or strategy not in STRATEGIES):
            raise BadInput(unknown("strategy", strategy, STRATEGIES))


#: (what is to be searched, its solved neighbours, the nearest first) → how, `None` for as usual. It runs in the worker,
#: beside the store.
Adviser: TypeAlias = "Callable[[Subject, Sequence[Solved]], Advice | None]"
#: a function that is to be one: it may return anything
Named: TypeAlias = "Callable[[Subject, Sequence[Solved]], object]"


def adviser_at(text: str) -> Named:
    """The adviser that `module:function` or `path.py:function` names.

    Raises:
        BadInput: when there is none.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise BadInput(f"--adviser {text}: write module:function or path.py:function")
    module = module_of(place)
    try:
        found = attribute_of(module, name)
    except AttributeError:
        there = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise BadInput(f"--adviser {text}: {unknown('function', name, there)}") from None
    if not callable(found):
        raise BadInput(f"--adviser {text} is of type {type(found).__name__}, not a function of (subject, solved)")
    return found


def advice_for(subject: Subject, store: Store, adviser: Named) -> Advice:
    """What an adviser says of a search.

    Raises:
        BadInput: when it fails, or says something else.
    """
    near = neighbours(subject, store)
    said, failure, error = attempt("launch", lambda: adviser(subject, near))
    name = f"the adviser {getattr(adviser, '__module__', '')}:{getattr(adviser, '__qualname__', adviser)}"
    if failure is not None:
        raise BadInput(f"{name} failed: {failure.reason}") from error
    if said is None:
        return Advice()
    if not isinstance(said, Advice):
        raise BadInput(f"{name} returned {said!r}; good values: an Advice, None for as usual")
    return said
