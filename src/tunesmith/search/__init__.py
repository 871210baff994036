"""Search strategies: generators that yield batches of Configs and are sent back their Trials.

A strategy cannot reach a kernel, a clock or a file. Resuming is replaying recorded Trials into the same
generator; simulation is replay.

A strategy is made of a Setting and yields `list[Config]`; `yield` returns `list[Trial]`, one for each
Config it asked for. It ends by returning, or when the budget ends and the generator is closed. It asks for no
Config twice, for legal ones only, and for its starts first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.core.stopping import MARGIN
from tunesmith.errors import BadInput, unknown
from tunesmith.search.auto import auto
from tunesmith.search.descent import descent
from tunesmith.search.evolution import evolution
from tunesmith.search.exhaustive import exhaustive
from tunesmith.search.forecast import Prior, Solved, nearest
from tunesmith.search.optuna import SAMPLERS, optuna
from tunesmith.search.random import random
from tunesmith.search.setting import BATCH, Setting, Step, Strategy
from tunesmith.search.surrogate import surrogate
from tunesmith.search.transfer import Plan, plan, transfer

__all__ = ["STRATEGIES", "Plan", "Prior", "Setting", "Solved", "Step", "Strategy", "nearest", "plan", "strategy"]

STRATEGIES: Mapping[str, Callable[[Setting], Strategy]] = {
    "auto": auto,
    "descent": descent,
    "evolution": evolution,
    "exhaustive": exhaustive,
    "random": random,
    "surrogate": surrogate,
    "transfer": transfer,
    **{f"optuna:{sampler}": optuna(sampler) for sampler in SAMPLERS},
}


def strategy(
    name: str, space: Space, seed: int = 0, *,
    starts: Sequence[Config] = (), most: int | None = None, batch: int = BATCH,
    say: Callable[[Step], None] | None = None, problem: Problem | None = None, device: str = "",
    near: Sequence[Solved] = (), prior: Prior | None = None, margin: float = MARGIN,
) -> Strategy:  # fmt: skip
    """The strategy of this name over a Space; `Setting` says what the rest means. Illegal starts are left out.

    Raises:
        BadInput: naming the known ones; for `most` and `batch` below 1.
        MissingEngine: where the strategy needs a package that is not there.
    """
    if name not in STRATEGIES:
        raise BadInput(unknown("strategy", name, STRATEGIES))
    for what, number in (("most", most), ("batch", batch)):
        if number is not None and number < 1:
            raise BadInput(f"{what}={number}: good values: 1 and more Configs")
    legal = tuple(config for config in dict.fromkeys(starts) if config in space)
    setting = Setting(
        space, seed, legal, most, batch, problem=problem, device=device, near=tuple(near), prior=prior, margin=margin
    )
    return STRATEGIES[name](setting if say is None else replace(setting, say=say))
