"""Whether two stores chose the same up to ties; where not, the two Configs are timed side by side to decide.

python benchmarks/_same_choices.py _sweep_kernels 0 < PAIRS.json  # in this process, on core 0: a line of ratios
"""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import subprocess
import sys
import time
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
    found = signed_ratio(kernel, problem, configs)
    return max(found, 1 / found)


def signed_ratio(kernel: TunedKernel, problem: str, configs: Sequence[Mapping[str, Any]]) -> float:
    """The first one's time over the second's."""
    made = kernel.inputs(kernel.typed(Problem.parse(problem)))
    recorded = kernel.record(**made, rounds=ROUNDS, only=[Config(config) for config in configs], isolate=False)
    samples = {
        trial.config: {s.round: s.seconds for s in trial.outcome.samples}
        for trial in recorded.trials if isinstance(trial.outcome, Measured)
    }  # fmt: skip
    one, other = (samples[Config(config)] for config in configs)
    shared = sorted(one.keys() & other.keys())
    return paired_ratio([one[r] for r in shared], [other[r] for r in shared])[0]


# --- in several processes -----------------------------------------------------------------------------

#: (kernel's name in its module, problem, the two Configs)
Pair = tuple[str, str, Sequence[Mapping[str, Any]]]


def told_apart(
    module: str, pairs: Sequence[Pair], processes: int, cores: int, apart_s: float
) -> list[tuple[float, float]]:
    """Of each pair of Configs, how many times as long one takes, and the lower 95 % bound of that over processes.

    Where memory and code happen to lie in a process makes one of two faster by a percent or two, in all its rounds; and
    a machine that others share has minutes in which another of two is the faster. So each process is one sample.

    Args:
        apart_s: seconds from one process to the next.
    """
    given, runs = json.dumps(list(pairs)), list[str]()
    for number in range(processes if pairs else 0):
        if number:
            time.sleep(apart_s)
        command = [sys.executable, __file__, module, str(number % cores)]
        runs.append(subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout)
    by_process = [json.loads(run.splitlines()[-1]) for run in runs]
    found: list[tuple[float, float]] = []
    for ratios in zip(*by_process, strict=True):
        middle, low, high = paired_ratio(ratios, [1.0] * processes)
        found.append((middle, low) if middle >= 1 else (1 / middle, 1 / high))
    return found


def _main(module: str, core: str) -> None:
    os.sched_setaffinity(0, {int(core)})
    kernels = importlib.import_module(module)
    print(
        json.dumps(
            [signed_ratio(getattr(kernels, name), problem, pair) for name, problem, pair in json.load(sys.stdin)]
        )
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
