"""What a search that starts from solved problems loses and saves, on recordings of whole spaces. Needs no GPU.

    python benchmarks/transfer.py benchmarks/recordings/sweep/*.json.gz

Each problem is tuned alone first, with the defaults: the race over the whole space, which is replayed sample by sample.
Then the problems are held out in two halves (every other M of each weight; one by one where there are few): each is
tuned by strategy `transfer` from what the searches of the others found, beside the same kernel's performance model.
`launches_fraction` is the largest ratio of the timed launches of the two searches of one problem (mean over the seeds),
`total_fraction` that of all together; `worst_regret` the largest median of a chosen configuration over the smallest of
the space, less 1, by all recorded samples. `without_model` does the same without a model. `chain` goes through M in
rising order: the first is tuned alone, each other one starts from what the transfers before it found.

With `--across`, between chips: convolutions that others measured on an A100 and a W7800. What is known of the one is
all its times, or its best configuration alone (a table's row); the strategy is then followed on the other's times.
`alone_regret` is the median of searches that know nothing and may try as many.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from _recorded_spaces import RecordedSpace, recorded_spaces
from _results import FOLDER, typed, version, write

from tunesmith import Config, Failed, Measured, Problem, Sample, Space, Tiles, Trial, autotune
from tunesmith.backends.replay import ReplayClock, ReplayKernel
from tunesmith.core.device import known_device
from tunesmith.core.model import Model
from tunesmith.core.outcome import Recording
from tunesmith.neighbours import prior_of, seconds_of
from tunesmith.recording import convert, load
from tunesmith.search import Solved, Strategy, strategy

HERE = Path(__file__).parent
#: where nothing else is given: products of other sizes, recorded before
USUAL = [HERE.parent / "tests" / "data" / "gemm_h200.json.gz", *sorted((HERE / "recordings").glob("*.json.gz"))]
#: fewer problems than this are held out one by one
FEW = 16
CHIPS = ("conv_A100", "conv_W7800")
#: searches from nothing that may try as many
SEEDS = 3


@dataclass
class Counting:
    """A clock that counts its samples."""

    clock: ReplayClock
    samples: int = 0
    protocol: str = ReplayClock.protocol

    def sample(self, run: Any) -> Sample:
        self.samples += 1
        return self.clock.sample(run)


@dataclass(frozen=True)
class Search:
    """What one search chose, knew and spent."""

    solved: Solved
    regret: float
    launches: int
    tried: int


def sizes(recording: Recording) -> Problem:
    return Problem({name: recording.problem[name] for name in "MNK"})


def searched(recording: Recording, name: str, seed: int, model: bool, near: Sequence[Solved] = ()) -> Search:
    """A search of a recorded problem as a user's would be, from solved ones where there are some."""
    clock = Counting(ReplayClock.of(recording, seed=seed))
    bare = ReplayKernel(replace(recording, kernel=name, problem=sizes(recording)))
    more = {"model": Tiles()} if model else {}
    kernel = autotune(configs=bare.configs, key=bare.key, clock=clock, isolate=False, **more)(bare)
    summary = kernel.tune(near=near)
    truth = seconds_of(recording.trials)[0]
    seconds, samples = seconds_of(summary.trials)
    problem, device = sizes(recording), known_device("NVIDIA H200")
    prior = prior_of(Model(Tiles()), problem, device) if model else None
    choice = summary.choice.config
    solved = Solved(problem, seconds, device.identity, prior, samples, choice)
    return Search(solved, truth[choice] / min(truth.values()) - 1, clock.samples, len(seconds))


def folds(recordings: Sequence[Recording]) -> list[list[int]]:
    """Which problems are held out together."""
    if len(recordings) < FEW:
        return [[i] for i in range(len(recordings))]
    order = sorted(range(len(recordings)), key=lambda i: _by_weight(recordings[i]))
    return [order[0::2], order[1::2]]


def _by_weight(recording: Recording) -> tuple[int, int, int]:
    dims = sizes(recording).dims
    return dims["N"], dims["K"], dims["M"]


def held_out(recordings: Sequence[Recording], seed: int, model: bool) -> list[tuple[Search, Search]]:
    """(alone, from the others) of each problem."""
    alone = [searched(one, f"alone-{seed}-{model}-{i}", seed, model) for i, one in enumerate(recordings)]
    found: dict[int, Search] = {}
    for fold in folds(recordings):
        near = [alone[i].solved for i in range(len(recordings)) if i not in fold]
        for i in fold:
            found[i] = searched(recordings[i], f"from-{seed}-{model}-{i}", seed, model, near)
    return [(alone[i], found[i]) for i in range(len(recordings))]


def chained(recordings: Sequence[Recording], alone: Sequence[Search]) -> list[tuple[Search, Search]]:
    """The same for a sweep in rising order, each from those before it alone; the first is not counted."""
    order = sorted(range(len(recordings)), key=lambda i: (sizes(recordings[i]).dims["M"], _by_weight(recordings[i])))
    known, found = [alone[order[0]].solved], list[tuple[Search, Search]]()
    for i in order[1:]:
        one = searched(recordings[i], f"chain-{i}", 0, True, known)
        known.append(one.solved)
        found.append((alone[i], one))
    return found


def rows_of(kind: str, pairs: Sequence[Sequence[tuple[Search, Search]]]) -> list[dict[str, Any]]:
    """A row for each problem, over the seeds."""
    rows: list[dict[str, Any]] = []
    for one in zip(*pairs, strict=True):
        alone, other = fmean(a.launches for a, _ in one), fmean(b.launches for _, b in one)
        rows.append({
            "kind": kind, "problem": one[0][0].solved.problem.text, "alone_launches": round(alone, 1),
            "launches": round(other, 1), "fraction": round(other / alone, 5),
            "tried": round(fmean(b.tried for _, b in one), 1), "alone_regret": round(max(a.regret for a, _ in one), 5),
            "regret": round(max(b.regret for _, b in one), 5),
        })  # fmt: skip
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    return rows


def figures(rows: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """(largest fraction, fraction of the total, worst regret)."""
    total = sum(row["launches"] for row in rows) / sum(row["alone_launches"] for row in rows)
    return max(row["fraction"] for row in rows), round(total, 5), max(row["regret"] for row in rows)


# --- across chips ------------------------------------------------------------------------------------


def across(spaces: dict[str, RecordedSpace]) -> list[dict[str, Any]]:
    """From each chip to the other, with all that is known of the one, and with its best alone."""
    rows: list[dict[str, Any]] = []
    for source, target in (CHIPS, CHIPS[::-1]):
        known = {_config(spaces[source], at): ms for at, ms in spaces[source].times.items() if not isinstance(ms, str)}
        times = {_config(spaces[target], at): ms for at, ms in spaces[target].times.items()}
        best = min(known, key=known.__getitem__)
        for what, seconds in (("all times", known), ("the best alone", {best: known[best]})):
            near, space = [Solved(Problem({}), seconds, source)], Space.of(times)
            steps = strategy("transfer", space, problem=Problem({}), device=target, near=near)
            found, tried = follow(steps, times.__getitem__)
            alone = [follow(strategy("auto", space, seed, most=tried), times.__getitem__)[0] for seed in range(SEEDS)]
            rows.append({
                "kind": "across", "problem": f"{source} to {target}", "known": what, "configs": len(times),
                "tried": tried, "regret": round(found / spaces[target].best - 1, 5),
                "alone_regret": round(median(alone) / spaces[target].best - 1, 5),
                "regret_of_the_best": None if isinstance(times.get(best), (str, type(None)))
                else round(float(times[best]) / spaces[target].best - 1, 5),
            })  # fmt: skip
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    return rows


def _config(space: RecordedSpace, point: tuple[Any, ...]) -> Config:
    return Config(dict(zip(space.axes, point, strict=True)))


def follow(steps: Strategy, ms: Callable[[Config], float | str]) -> tuple[float, int]:
    """(the best time of what a strategy tries, how many it tries)."""

    def trial(config: Config) -> Trial:
        time = ms(config)
        failed = isinstance(time, str)
        return Trial(config, Failed("launch", "recorded as failed") if failed else Measured((Sample(time),)))

    done = list[Trial]()
    try:
        answers = [trial(config) for config in next(steps)]
        while True:
            done += answers
            answers = [trial(config) for config in steps.send(answers)]
    except StopIteration:
        return min(t.outcome.median_s for t in done if isinstance(t.outcome, Measured)), len(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", type=Path, nargs="*", default=USUAL)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--across", action="store_true", help="between chips too: some minutes")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--write", action="store_true", help="write transfer-recorded.json")
    options = parser.parse_args()
    import os

    recordings: list[Recording] = []
    for path in options.recordings:
        recordings += convert(path) if path.name == "gemm_h200.json.gz" else [load(path)]
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TUNESMITH_CACHE_DIR"] = scratch
        with_model = [held_out(recordings, seed, True) for seed in range(options.seeds)]
        rows = rows_of("held out", with_model)
        bare = rows_of("without model", [held_out(recordings, seed, False) for seed in range(options.seeds)])
        chain = rows_of("chain", [chained(recordings, [alone for alone, _ in with_model[0]])])
    chips = across({space.name: space for space in recorded_spaces()}) if options.across else []
    largest, total, worst = figures(rows)
    summary = {
        "launches_fraction": largest, "total_fraction": total, "worst_regret": worst,
        **dict(zip(("without_model_launches_fraction", "without_model_total_fraction", "without_model_worst_regret"),
                   figures(bare), strict=True)),
        **dict(zip(("chain_launches_fraction", "chain_total_fraction", "chain_worst_regret"), figures(chain),
                   strict=True)),
        **({"across_worst_regret": max(row["regret"] for row in chips)} if chips else {}),
        "problems": len(recordings),
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4g}" for name, value in summary.items()))
    if options.write:
        across_too = " --across" if chips else ""
        command = f"python benchmarks/transfer.py --write{across_too}{typed(options.recordings, USUAL)}"
        print(write(
            "transfer", "recorded", protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            command=command, rows=[*rows, *bare, *chain, *chips],
            summary=summary, versions={name: version(name) for name in ("numpy",)}, folder=options.folder,
        ))  # fmt: skip


if __name__ == "__main__":
    main()
