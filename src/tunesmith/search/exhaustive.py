"""`exhaustive`: the whole Space in one batch; the race decides how much time each Config gets."""

from __future__ import annotations

from collections.abc import Generator

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import Space


def exhaustive(space: Space, seed: int) -> Generator[list[Config], list[Trial], None]:
    """Every legal Config, in the Space's order."""
    yield list(space)
