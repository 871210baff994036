"""Search strategies: generators that yield batches of Configs and are sent back their Trials.

A strategy cannot reach a kernel, a clock or a file. Resuming is replaying recorded Trials into the same
generator; simulation is replay.

A strategy is made with (space, seed) and yields `list[Config]`; `yield` returns `list[Trial]`, one for each
Config it asked for. It ends by returning, or when the budget ends and the generator is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, unknown
from tunesmith.search.exhaustive import exhaustive
from tunesmith.search.random import random

Strategy: TypeAlias = Generator[list[Config], list[Trial], None]

STRATEGIES: Mapping[str, Callable[[Space, int], Strategy]] = {"exhaustive": exhaustive, "random": random}


def strategy(name: str, space: Space, seed: int = 0) -> Strategy:
    """The strategy of this name over a Space.

    Raises:
        BadInput: naming the known ones.
    """
    if name not in STRATEGIES:
        raise BadInput(unknown("strategy", name, STRATEGIES))
    return STRATEGIES[name](space, seed)
