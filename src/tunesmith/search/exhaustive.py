"""`exhaustive`: the whole Space in one batch; the race decides how much time each Config gets."""

from __future__ import annotations

from collections.abc import Generator

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import ENUMERATED, Space
from tunesmith.errors import BadInput


def exhaustive(space: Space, seed: int) -> Generator[list[Config], list[Trial], None]:
    """Every legal Config, in the Space's order.

    Raises:
        BadInput: for a Space that is too large to enumerate.
    """
    if space.cardinality > ENUMERATED:
        raise BadInput(
            f"the Space has {space.cardinality:.3g} points, and strategy 'exhaustive' goes through at most "
            f"{ENUMERATED}; use strategy 'random'"
        )
    yield list(space)
