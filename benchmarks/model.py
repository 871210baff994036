"""How good the performance model's order is: from recordings of whole spaces on an H200. Needs no GPU.

    python benchmarks/model.py
    python benchmarks/model.py --new benchmarks/recordings/*.json.gz  # products recorded since

For each recorded problem the model ranks the whole space, and the fastest among its first few is compared with the
fastest of all: of the 480 Configs of a matrix product the first 32 before compiling, and of the 424 that run the first
16 with the compiled kernels' registers and shared memory; of the row-wise kernels' Configs the first 8 %, at least 8.
A group of equal predictions that this limit would split counts as beyond it. The model's constants are fitted to the
other problems alone, from one start that belongs to no problem; beside them stands what the shipped constants give,
which are fitted to all.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from _results import FOLDER, write

from tunesmith.core.config import Config
from tunesmith.core.device import known_device
from tunesmith.core.model import FITTED, Constants, Prediction, Rows, Tiles, Work, WorkOf, predict, rank
from tunesmith.core.outcome import Failed, Measured, Resources
from tunesmith.core.problem import Problem
from tunesmith.core.stats import median
from tunesmith.recording import load

DATA = Path(__file__).parents[1] / "tests" / "data"
GEMM, ROWS = DATA / "gemm_h200.json.gz", DATA / "rows_h200.json.gz"
H200 = known_device("NVIDIA H200")
#: what the recorded kernels do; a softmax in a loop takes three exponentials an element instead of one
WORK: dict[str, WorkOf] = {
    "gemm": Tiles(),
    "softmax": Rows(reads=1, writes=1, again=1, operations=12, looped=40),
    "add_rmsnorm": Rows(reads=2, writes=2, again=1, operations=8, looped=10),
}
#: A fit that is no better for Configs this many times slower than the best is no worse for a search.
FAR = 4.0
#: Each constant starts here: round numbers within a factor of two of what a chip of this size has.
START = Constants(
    launch_s=4e-6, block_s=0.7e-6, load_s=0.5e-6, stage_s=0.9e-6, reduce_s=10e-9, bandwidth=0.85, matrix=0.9,
    narrow=0.5, port_bytes_s=100e9, vector=0.5, overlap=2.0, step_overlap=3.0,
)  # fmt: skip
SHARES = ("bandwidth", "matrix", "narrow", "vector")  # of something: at most 1


@dataclass(frozen=True)
class Recorded:
    """One problem: for each Config its work, its median in seconds and its resources, `None` where it does not run."""

    kernel: str
    problem: str
    configs: tuple[Config, ...]
    work: tuple[Work, ...]
    seconds: tuple[float | None, ...]
    resources: tuple[Resources | None, ...]

    @property
    def best_s(self) -> float:
        return min(one for one in self.seconds if one is not None)

    def predictions(self, constants: Constants, *, compiled: bool) -> dict[int, Prediction | None]:
        """By the Config's place; with `compiled`, of those alone that run."""
        given = zip(self.work, self.resources, strict=True)
        return {
            i: predict(work, H200, resources if compiled else None, constants)
            for i, (work, resources) in enumerate(given)
            if resources is not None or not compiled
        }

    def first(self, *, compiled: bool) -> int:
        """How many of the ranking are looked at."""
        if self.kernel != "gemm":
            return max(8, len(self.work) * 8 // 100)
        return 16 if compiled else 32  # of 424 that run, of 480


def read(file: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(file.read_bytes()))


def products(file: Path) -> list[Recorded]:
    recording = read(file)
    return [
        _recorded("gemm", dict(zip("MNK", result["shape"], strict=True)), recording["configs"], result["times_us"])
        for result in recording["results"]
    ]


def row_wise(file: Path) -> list[Recorded]:
    return [
        _recorded(space["kernel"], space["shape"], space["entries"], [entry["times_us"] for entry in space["entries"]])
        for space in read(file)["spaces"]
    ]


def recorded_since(file: Path) -> Recorded:
    """A matrix product from a recording of `benchmarks/record_gemm.py`."""
    recording = load(file)
    trials = [trial for trial in recording.trials if isinstance(trial.outcome, (Measured, Failed))]
    return Recorded(
        "gemm", "x".join(str(recording.problem[name]) for name in "MNK"), tuple(trial.config for trial in trials),
        work=tuple(WORK["gemm"](recording.problem, trial.config) for trial in trials),
        seconds=tuple(t.outcome.median_s if isinstance(t.outcome, Measured) else None for t in trials),
        resources=tuple(t.resources if isinstance(t.outcome, Measured) else None for t in trials),
    )  # fmt: skip


def _recorded(
    kernel: str, shape: Mapping[str, int], entries: Sequence[Mapping[str, Any]], times: Sequence[Sequence[float]]
) -> Recorded:
    configs = tuple(Config(entry["config"]) for entry in entries)
    problem = Problem(shape)
    return Recorded(
        kernel, "x".join(map(str, shape.values())), configs,
        work=tuple(WORK[kernel](problem, config) for config in configs),
        seconds=tuple(median(samples) * 1e-6 if samples else None for samples in times),
        resources=tuple(
            Resources(entry["n_regs"], entry["n_spills"], entry["shared_bytes"], 32 * entry["config"]["num_warps"])
            if samples else None
            for entry, samples in zip(entries, times, strict=True)
        ),
    )  # fmt: skip


def regret(one: Recorded, constants: Constants, *, compiled: bool) -> float:
    """The fastest of the first few over the fastest of all, less 1."""
    limit, first = one.first(compiled=compiled), list[int]()
    for group in rank(one.predictions(constants, compiled=compiled)):
        if len(first) + len(group) > limit:
            break
        first += group
    return min((t for i in first if (t := one.seconds[i]) is not None), default=math.inf) / one.best_s - 1


def needed(one: Recorded, constants: Constants, *, compiled: bool) -> int:
    """How many of the ranking have to be looked at for a Config within 2 % of the fastest (3 % of row-wise kernels)."""
    enough = one.best_s * (1.02 if one.kernel == "gemm" else 1.03)
    looked_at = 0
    for group in rank(one.predictions(constants, compiled=compiled)):
        looked_at += len(group)
        if any((t := one.seconds[i]) is not None and t <= enough for i in group):
            break
    return looked_at


def judged(one: Recorded, constants: Constants, name: str = "") -> dict[str, float]:
    return {
        f"{name}{what.__name__}_{when}": what(one, constants, compiled=when == "after")
        for what in (regret, needed)
        for when in ("before", "after")
    }


class Fit:
    """Fits the constants to problems: one constant at a time goes up or down by a factor, which shrinks to 2 %.

    The error is the mean over problems of |log(predicted / measured)|, where a Config counts by (best / its time)⁴ and
    no error for more than 1: the model has to be right about what a search would want to look at.
    """

    def __init__(self, problems: Sequence[Recorded]) -> None:
        self._near = [
            [
                (work, resources, seconds, (one.best_s / seconds) ** 4)
                for work, resources, seconds in zip(one.work, one.resources, one.seconds, strict=True)
                if seconds is not None and seconds < FAR * one.best_s
            ]
            for one in problems
        ]
        self._known: dict[tuple[Constants, int], float] = {}  # fits without one problem or another look at much alike

    def error(self, constants: Constants, problems: Sequence[int]) -> float:
        return math.fsum(self._error(constants, i) for i in problems) / len(problems)

    def _error(self, constants: Constants, i: int) -> float:
        if (constants, i) not in self._known:
            total = weights = 0.0
            for work, resources, seconds, weight in self._near[i]:
                prediction = predict(work, H200, resources, constants)
                assert prediction is not None
                total += weight * min(1.0, abs(math.log(prediction.seconds / seconds)))
                weights += weight
            self._known[constants, i] = total / weights
        return self._known[constants, i]

    def best(self, problems: Sequence[int]) -> tuple[Constants, float]:
        """(the constants, their error)."""
        best, error = START, self.error(START, problems)
        names = [one.name for one in fields(Constants)]
        direction = dict.fromkeys(names, 1)  # the one that helped last is tried first
        factor = 1.5
        while factor > 1.02:
            before = error
            for name in names:
                for sign in (direction[name], -direction[name]):
                    moved = _moved(best, name, factor**sign)
                    tried = self.error(moved, problems)
                    if tried < error - 1e-5:
                        best, error, direction[name] = moved, tried, sign
                        break
            if error == before:
                factor **= 0.5
        return best, error


def _moved(constants: Constants, name: str, factor: float) -> Constants:
    value = getattr(constants, name) * factor
    return replace(constants, **{name: min(1.0, value) if name in SHARES else value})


def rounded(constants: Constants) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in asdict(constants).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--all", action="store_true", help="only fit the constants to all problems, and print them")
    parser.add_argument("--new", type=Path, nargs="*", default=[], help="recordings of further matrix products")
    given = parser.parse_args()
    problems = products(GEMM) + row_wise(ROWS)
    fit, places = Fit(problems), range(len(problems))
    if given.all:
        constants, error = fit.best(places)
        print(f"error {error:.4f}: {rounded(constants)}")
        return
    rows: list[dict[str, Any]] = []
    for i, one in enumerate(problems):
        constants, _ = fit.best([j for j in places if j != i])
        rows.append({**row_of(one, constants), **judged(one, FITTED, "shipped_"), "constants": rounded(constants)})
    new = [row_of(recorded_since(file), FITTED) for file in given.new]
    of_gemm, of_rows = ([row for row in rows if (row["kernel"] == "gemm") is kind] for kind in (True, False))
    summary = {
        "worst_top32_before": max(row["regret_before"] for row in of_gemm),
        "worst_top16_after": max(row["regret_after"] for row in of_gemm),
        "worst_rows": max(row["regret_before"] for row in of_rows),
        "worst_rows_after": max(row["regret_after"] for row in of_rows),
        "error": fit.error(FITTED, places),
    }
    if new:
        summary["worst_new_top32_before"] = max(row["regret_before"] for row in new)
        summary["worst_new_top16_after"] = max(row["regret_after"] for row in new)
    print("  ".join(f"{name} {value:.4f}" for name, value in summary.items()))
    source = read(GEMM)
    write(
        "model", "h200",
        protocol={
            "what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            "recorded": f"on one {source['device']}, torch {source['torch']}, triton {source['triton']}; "
            "the machine below only read the recordings",
            "regret": "fastest of the first few over the fastest of all, less 1; medians of 30 samples",
            "needed": "how many of the ranking hold a Config within 2 % (row-wise kernels: 3 %) of the fastest",
            "limits": "the model's form was chosen with these recordings at hand: only its constants are judged on "
            "problems they were not fitted to",
            "shipped": rounded(FITTED), "start": rounded(START),
        },
        command="python benchmarks/model.py" + (" --new benchmarks/recordings/*.json.gz" if new else ""),
        rows=rows + [{**row, "new": True} for row in new], summary=summary, folder=given.folder,
    )  # fmt: skip


def row_of(one: Recorded, constants: Constants) -> dict[str, Any]:
    """What is written of one problem; it is printed too."""
    row = {
        "kernel": one.kernel, "problem": one.problem, "configs": len(one.configs),
        "first_before": one.first(compiled=False), "first_after": one.first(compiled=True), **judged(one, constants),
    }  # fmt: skip
    print(
        f"{one.kernel:>12} {one.problem:>16}  before {row['regret_before']:6.1%} of the first {row['first_before']} "
        f"({row['needed_before']} needed)  after {row['regret_after']:6.1%} of the first {row['first_after']} "
        f"({row['needed_after']} needed)  of {len(one.configs)}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
