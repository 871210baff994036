"""Whether two stores chose the same up to ties; where not, the two Configs are timed side by side to decide."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunesmith import Config, Measured, Problem
from tunesmith.core.stats import paired_ratio
from tunesmith.tuned import TunedKernel

#: rounds in which two Configs are timed
ROUNDS = 60
#: by (kernel, problem), what a store has chosen
Chosen = dict[tuple[str, str], dict[str, Any]]


def choices(store: Path) -> Chosen:
    """By kernel and problem, what a store has chosen."""
    with sqlite3.connect(store / "store.sqlite") as connection:
        found = connection.execute("SELECT k.data, c.data FROM keys k JOIN choices c ON c.key = k.id").fetchall()
    rows = [(json.loads(key), json.loads(choice)) for key, choice in found]
    return {(key["kernel"], key["problem"]): choice for key, choice in rows}


def agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two Choices are the same, or one search could not tell them apart."""
    return one["config"] in [other["config"], *other["ties"]] or other["config"] in one["ties"]


def differing(one: Chosen, other: Chosen) -> list[tuple[str, str]]:
    """Of the problems that both have chosen for, those on which they do not agree."""
    return [name for name in one if name in other and not agree(one[name], other[name])]


def ratio(kernel: TunedKernel, problem: str, configs: Sequence[Mapping[str, Any]]) -> float:
    """Of two Configs timed side by side, the slower one's time over the other's.

    Args:
        problem: as a Key has it.
    """
    made = kernel.inputs(kernel.typed(Problem.parse(problem)))
    recorded = kernel.record(**made, rounds=ROUNDS, only=[Config(config) for config in configs], isolate=False)
    samples = [
        {s.round: s.seconds for s in trial.outcome.samples}
        for trial in recorded.trials if isinstance(trial.outcome, Measured)
    ]  # fmt: skip
    shared = sorted(samples[0].keys() & samples[1].keys())
    found = paired_ratio([samples[0][r] for r in shared], [samples[1][r] for r in shared])[0]
    return max(found, 1 / found)
