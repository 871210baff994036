"""How much slower a device has become since a search's first race, by those who are timed again in a later one.

A GPU at its power limit may take a fifth longer for everything a minute later. Within a race that meets all alike;
medians of different races are no proof of anything until it is taken out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured
from tunesmith.core.stats import median


def drift(outcome: Measured, race: Mapping[Config, Measured | Failed], levels: Mapping[Config, float]) -> float:
    """How many times as long launches took in a race as in the first, while one of its candidates was in it.

    Args:
        outcome: that candidate's. race: everybody's.
        levels: of those timed before, their seconds at the clock of the first race.

    Returns:
        By who was in the most of its rounds, of several the geometric mean; 1 where nobody was timed before.
    """
    mine = {sample.round for sample in outcome.samples if sample.round >= 0}
    found: dict[Config, list[float]] = {}
    for config in race.keys() & levels.keys():
        anchor = race[config]
        samples = [s for s in anchor.samples if s.round >= 0] if isinstance(anchor, Measured) else []
        found[config] = [s.seconds for s in samples if s.round in mine] or [s.seconds for s in samples]
    most = max(map(len, found.values()), default=0)
    if not most:
        return 1.0
    logs = [math.log(median(s) / levels[config]) for config, s in found.items() if len(s) == most]
    return math.exp(math.fsum(logs) / len(logs))
