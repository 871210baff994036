"""`random`: Configs drawn at random, for Spaces too large to enumerate."""

from __future__ import annotations

from collections.abc import Generator

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.space import Space

#: Configs in all when no budget ends the search earlier; the best of 100 random ones is, with 95 % probability,
#: among the best 3 % of any space (0.97 ** 100 < 0.05).
MOST = 100
#: one batch: enough to keep a few compilers busy
BATCH = 16


def random(space: Space, seed: int) -> Generator[list[Config], list[Trial], None]:
    """Up to `MOST` different legal Configs, `BATCH` at a time."""
    drawn = space.sample(MOST, seed)
    for start in range(0, len(drawn), BATCH):
        yield drawn[start : start + BATCH]
