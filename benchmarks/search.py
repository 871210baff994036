"""How near to the best a search comes in 20, 50, 100 and 200 evaluations: ours and Kernel Tuner's, on recorded spaces.

Every Config of the spaces in `tests/data/kernel_tuner_spaces` was measured by other people. A search asks for a Config
and is told its recorded mean time, or that it failed; a failure costs an evaluation. A run's figure is the best time
found over the best time of the space.

    pip install kernel-tuner==1.5.0 'tunesmith[search]'
    python benchmarks/search.py --seeds 100
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import _results
from _recorded_spaces import FOLDER, RecordedSpace, recorded_spaces
from _search_peers import MODULES, peer

from tunesmith import Config, Failed, Measured, Sample, Space, Trial
from tunesmith.core.outcome import Stage
from tunesmith.search import strategy

BUDGETS = (20, 50, 100, 200)
OURS = ("auto", "descent", "evolution")
#: Within this factor of the best counts as found.
NEAR = 1.05
#: What a run has found whose every Config failed.
NOTHING = 1000.0
RESAMPLES = 2000

Run = list[float | None]


def ours(space: RecordedSpace, name: str, budget: int) -> Callable[[int], Run]:
    """(seed) → the milliseconds of one run in the order of its evaluations, `None` for a failed Config."""
    knobs = list(space.axes)
    trials = {Config(dict(zip(knobs, point, strict=True))): _trial(point, space, knobs) for point in space.times}
    legal = Space(space.axes).where(lambda config: config in trials, "was not recorded")
    listed = list(legal)
    cast(Any, legal).points = lambda cut=None: iter(listed)  # enumerated once, not in each of hundreds of runs

    def once(seed: int) -> Run:
        steps, found = strategy(name, legal, seed, most=budget), Run()
        try:
            batch = next(steps)
            while True:
                answers = [trials[config] for config in batch]
                found += [t.outcome.median_s * 1e3 if isinstance(t.outcome, Measured) else None for t in answers]
                batch = steps.send(answers)
        except StopIteration:
            return found

    return once


def _trial(point: tuple[Any, ...], space: RecordedSpace, knobs: Sequence[str]) -> Trial:
    time_ms = space.times[point]  # or the stage at which it failed
    if isinstance(time_ms, str):
        outcome = Failed(cast(Stage, time_ms), "recorded as failed")
    else:
        outcome = Measured((Sample(time_ms / 1e3),))
    return Trial(Config(dict(zip(knobs, point, strict=True))), outcome)


def ratios(run: Run, best: float) -> list[float]:
    """Best found over best of all after each budget; a run that ended early keeps what it had."""
    found = list(accumulate((math.inf if ms is None else ms for ms in run), min))
    return [min(found[min(budget, len(found)) - 1] / best, NOTHING) for budget in BUDGETS]


# --- running ------------------------------------------------------------------------------------------


def all_runs(
    spaces: Sequence[RecordedSpace], seeds: int, kept: Path | None, peers: Iterable[str]
) -> dict[tuple[str, str], list[list[float]]]:
    """(space, strategy) → for each seed its ratio at each budget. Runs already in the file `kept` are not repeated."""
    known = {}
    if kept is not None and kept.exists():
        for line in kept.read_text().splitlines():
            row = json.loads(line)
            known[row["space"], row["strategy"], row["seed"]] = row["times"]
    table: dict[tuple[str, str], list[list[float]]] = {}
    for space in spaces:
        for make, name in [(ours, name) for name in OURS] + [(peer, name) for name in peers]:
            label, begun, once = f"ours:{name}" if make is ours else name, time.perf_counter(), None
            rows = table.setdefault((space.name, label), [])
            for seed in range(seeds):
                if (space.name, label, seed) not in known:
                    once = once or make(space, name, max(BUDGETS))
                    known[space.name, label, seed] = once(seed)
                    if kept is not None:
                        row = {"space": space.name, "strategy": label, "seed": seed}
                        with kept.open("a") as file:
                            file.write(json.dumps({**row, "times": known[space.name, label, seed]}) + "\n")
                rows.append(ratios(known[space.name, label, seed], space.best))
            medians = " ".join(f"{statistics.median(column):.3f}" for column in zip(*rows, strict=True))
            print(f"{space.name:18} {label:24} {medians}  {time.perf_counter() - begun:6.1f} s", flush=True)
    return table


# --- figures ------------------------------------------------------------------------------------------


def figure(rows_of_spaces: Sequence[Sequence[Sequence[float]]], at: int) -> float:
    """Geometric mean over spaces of the median over seeds."""
    return statistics.geometric_mean([statistics.median(row[at] for row in rows) for rows in rows_of_spaces])


def upper_bound(
    mine: Sequence[Sequence[Sequence[float]]], other: Sequence[Sequence[Sequence[float]]], at: int
) -> float:
    """The 95th percentile of the figures' ratio over resampled seeds."""
    rng = random.Random(0)
    found = []
    for _ in range(RESAMPLES):
        drawn = [[rng.choices(rows, k=len(rows)) for rows in side] for side in (mine, other)]
        found.append(figure(drawn[0], at) / figure(drawn[1], at))
    return sorted(found)[int(0.95 * RESAMPLES)]


def summarise(
    spaces: Sequence[str], table: dict[tuple[str, str], list[list[float]]], peers: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """(a row for each space and strategy and one for each strategy over all, the summary)."""
    labels = [*(f"ours:{name}" for name in OURS), *peers]
    by_label = {label: [table[space, label] for space in spaces] for label in labels}
    rows: list[dict[str, Any]] = []
    for label in labels:
        for space, runs in [*zip(spaces, by_label[label], strict=True), ("all", None)]:
            row: dict[str, Any] = {"space": space, "strategy": label}
            for at, budget in enumerate(BUDGETS):
                if runs is None:
                    row[f"figure_{budget}"] = round(figure(by_label[label], at), 4)
                    near = [run[at] <= NEAR for some in by_label[label] for run in some]
                else:
                    column = sorted(run[at] for run in runs)
                    row[f"median_{budget}"] = round(statistics.median(column), 4)
                    row[f"p90_{budget}"] = round(column[math.ceil(0.9 * len(column)) - 1], 4)
                    near = [run[at] <= NEAR for run in runs]
                row[f"within_5pct_{budget}"] = round(sum(near) / len(near), 3)
            rows.append(row)
    mine, summary = by_label["ours:auto"], dict[str, float]()
    for at, budget in enumerate(BUDGETS):
        best = min(peers, key=lambda label: figure(by_label[label], at))
        summary[f"auto_{budget}"] = round(figure(mine, at), 4)
        summary[f"best_peer_{budget}"] = round(figure(by_label[best], at), 4)
        summary[f"upper_bound_{budget}"] = round(upper_bound(mine, by_label[best], at), 4)
        summary[f"within_5pct_{budget}"] = round(statistics.fmean(run[at] <= NEAR for some in mine for run in some), 3)
        worst = [max(statistics.median(run[at] for run in table[space, label]) for label in peers) for space in spaces]
        ranks = [statistics.median(run[at] for run in table[space, "ours:auto"]) for space in spaces]
        summary[f"last_on_{budget}"] = sum(own > other for own, other in zip(ranks, worst, strict=True))
    together = {label: statistics.geometric_mean([figure(by_label[label], at) for at in range(4)]) for label in labels}
    summary["auto_together"] = round(together["ours:auto"], 4)
    summary["best_peer_together"] = round(min(together[label] for label in peers), 4)
    return rows, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--spaces", type=Path, default=FOLDER, help="a folder of recorded spaces")
    parser.add_argument("--keep", type=Path, help="a file that collects runs; those in it are not run again")
    parser.add_argument("--write", action="store_true", help="write search-recorded.json")
    parser.add_argument("--folder", type=Path, default=_results.FOLDER, help="where the result goes")
    options = parser.parse_args()
    spaces, peers = recorded_spaces(options.spaces), list(MODULES)
    table = all_runs(spaces, options.seeds, options.keep, peers)
    rows, summary = summarise([space.name for space in spaces], table, peers)
    print(json.dumps(summary, indent=2))
    if options.write:
        path = _results.write(
            "search", "recorded",
            protocol={
                "figure": "geometric mean over spaces of the median over seeds of best found / best of the space",
                "evaluations": "failed Configs count; times are recorded means, without noise",
                "seeds": options.seeds,
                "peers": "default options, kernel_tuner's simulation runner, one process a run",
                "upper_bound": f"95th percentile of auto / best peer over {RESAMPLES} resamplings of the seeds",
                "last_on": "spaces on which auto's median is worse than every peer's",
                "together": "geometric mean of the four budgets' figures",
            },
            command=f"python benchmarks/search.py --seeds {options.seeds} --write",
            rows=rows, summary=summary,
            folder=options.folder,
            versions={name: _results.version(name) for name in ("kernel-tuner", "numpy", "scipy")},
        )  # fmt: skip
        print(path)


if __name__ == "__main__":
    main()
