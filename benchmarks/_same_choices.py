"""Whether two stores chose the same up to ties; where not, the two Configs are timed side by side to decide.

python benchmarks/_same_choices.py _sweep_kernels 0 < PAIRS.json  # in this process, on core 0: a line of what is found
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith import Config, Measured, Problem
from tunesmith.core.stats import paired_ratio
from tunesmith.measure.pace import heard, is_shared, known_least_pace_s, quiet_within
from tunesmith.tuned import TunedKernel

#: rounds in which two Configs are timed, and processes that can say something of them
ROUNDS, FEWEST = 60, 5
#: so long a process waits in all for its core to be quiet; and so many times as many are begun as are to count
WAIT_S, MOST = 20.0, 3
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
    found, _ = signed_ratio(kernel, problem, configs, isolate=False)
    return max(found, 1 / found)


def signed_ratio(
    kernel: TunedKernel, problem: str, configs: Sequence[Mapping[str, Any]], isolate: bool | None = None
) -> tuple[float, float | None]:
    """The first one's time over the second's, and how fast the core was, as of `tunesmith.measure.pace`.

    Args:
        isolate: as of `TunedKernel.record`.
    """
    made = kernel.inputs(kernel.typed(Problem.parse(problem)))
    recorded = kernel.record(**made, rounds=ROUNDS, only=[Config(config) for config in configs], isolate=isolate)
    samples = {
        trial.config: {s.round: s.seconds for s in trial.outcome.samples}
        for trial in recorded.trials if isinstance(trial.outcome, Measured)
    }  # fmt: skip
    one, other = (samples[Config(config)] for config in configs)
    shared = sorted(one.keys() & other.keys())
    pairs = [one[r] for r in shared], [other[r] for r in shared]
    pace_s = recorded.meta.get("pace_s")
    return paired_ratio(*pairs)[0], None if pace_s is None else float(pace_s)


# --- in several processes -----------------------------------------------------------------------------

#: (kernel's name in its module, problem, the two Configs)
Pair = tuple[str, str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Apart:
    """How many times as long one of two Configs takes as the other.

    Attributes:
        ratio, low: of the processes that were not disturbed, where those are FEWEST at least, else of all: the mean,
            at least 1, and its lower 95 % bound.
        processes: how many those are.
        ratio_of_all, low_of_all: the same of all processes.
    """

    ratio: float
    low: float
    processes: int
    ratio_of_all: float
    low_of_all: float


def told_apart(module: str, pairs: Sequence[Pair], processes: int, cores: Sequence[int], apart_s: float) -> list[Apart]:
    """Of each pair of Configs, which is the faster and how sure that is, over processes.

    Where memory and code happen to lie in a process makes one of two faster by a percent or two, in all its rounds: so
    each process is one sample. And a machine that others share has minutes in which both take up to twice as long, and
    another of the two is the faster: those processes count whose core was not shared. Until there are so many of each
    pair, more are begun, up to MOST times as many.

    Args:
        cores: a process on each of them at a time.
        apart_s: seconds from their end to the next ones.
    """
    found: list[list[tuple[float, float | None]]] = [[] for _ in pairs]
    for begun in range(0, MOST * processes, len(cores)):
        lacking = [n for n, mine in enumerate(found) if len(_undisturbed(mine)) < processes]
        if not lacking:
            break
        if begun:
            time.sleep(apart_s)
        for least_s, ratios in _at_once(module, [pairs[n] for n in lacking], cores):
            heard(least_s)
            for n, (ratio, pace_s) in zip(lacking, ratios, strict=True):
                found[n].append((ratio, pace_s))
    return [judged(mine) for mine in found]


def _at_once(
    module: str, pairs: Sequence[Pair], cores: Sequence[int]
) -> list[tuple[float, list[tuple[float, float | None]]]]:
    """What a process on each of the cores has found, each of all pairs."""
    given = json.dumps([known_least_pace_s(), pairs])

    def of(core: int) -> tuple[float, list[tuple[float, float | None]]]:
        command = [sys.executable, __file__, module, str(core)]
        run = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(run.splitlines()[-1])

    with ThreadPoolExecutor(len(cores)) as threads:
        return list(threads.map(of, cores))


def judged(found: Sequence[tuple[float, float | None]]) -> Apart:
    """By (ratio, how fast the core was) of each process."""
    undisturbed = _undisturbed(found)
    if len(undisturbed) < FEWEST:  # of so few nothing can be said
        undisturbed = found
    return Apart(*_bounds(undisturbed), len(undisturbed), *_bounds(found))


def _undisturbed(found: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    return [(ratio, pace_s) for ratio, pace_s in found if not is_shared(pace_s)]


def _bounds(found: Sequence[tuple[float, float | None]]) -> tuple[float, float]:
    middle, low, high = paired_ratio([ratio for ratio, _ in found], [1.0] * len(found))
    return (middle, low) if middle >= 1 else (1 / middle, 1 / high)


def _main(module: str, core: str) -> None:
    os.sched_setaffinity(0, {int(core)})
    kernels = importlib.import_module(module)
    least_s, pairs = json.load(sys.stdin)
    heard(least_s)
    found: list[tuple[float, float | None]] = []
    patience_s = WAIT_S
    for name, problem, pair in pairs:
        patience_s -= quiet_within(patience_s)[1]
        found.append(signed_ratio(getattr(kernels, name), problem, pair))
    print(json.dumps([known_least_pace_s(), found]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
