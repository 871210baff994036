"""What one Config for all problems loses against one for each: from a recording of a whole space. Needs no GPU.

    python benchmarks/one_config.py

The recording holds, for eight matrix products on an H200, 30 samples of every Config of one Triton kernel. The one
Config is the best there is: of those that run on all eight, the one whose times, each over the fastest of its
problem, have the least geometric mean. Whoever writes a Config into the source by hand does no better than this.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _results import FOLDER, write

from tunesmith.core.stats import geometric_mean, median

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "gemm_h200.json.gz"


def medians_of(recording: Mapping[str, Any]) -> list[list[float | None]]:
    """For each problem the median time of each Config, in microseconds; `None` where it does not run."""
    return [[median(times) if times else None for times in result["times_us"]] for result in recording["results"]]


def best_for_all(medians: Sequence[Sequence[float | None]]) -> tuple[int, list[float]]:
    """(the Config, its time over the fastest of each problem)."""
    fastest = [min(one for one in problem if one is not None) for problem in medians]
    over: dict[int, list[float]] = {}
    for i, times in enumerate(zip(*medians, strict=True)):
        ran = [one for one in times if one is not None]
        if len(ran) == len(fastest):
            over[i] = [one / best for one, best in zip(ran, fastest, strict=True)]
    chosen = min(over, key=lambda i: geometric_mean(over[i]))
    return chosen, over[chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    folder = parser.parse_args().folder
    recording = json.loads(gzip.decompress(RECORDING.read_bytes()))
    medians = medians_of(recording)
    chosen, over = best_for_all(medians)
    rows: list[dict[str, Any]] = []
    for result, times, ratio in zip(recording["results"], medians, over, strict=True):
        fastest = min((one, i) for i, one in enumerate(times) if one is not None)
        rows.append({
            "problem": "x".join(map(str, result["shape"])), "one_config_us": times[chosen], "fastest_us": fastest[0],
            "ratio": ratio, "fastest": recording["configs"][fastest[1]]["config"],
        })  # fmt: skip
        print(f"{rows[-1]['problem']:>18}  {times[chosen]:8.1f} us  {fastest[0]:8.1f} us  {ratio:.2f}")
    summary = {"one_over_each": geometric_mean(over), "one_over_each_worst": max(over)}
    print(f"one Config for all: {recording['configs'][chosen]['config']}")
    print(f"over one for each: {summary['one_over_each']:.2f} in the geometric mean, {max(over):.2f} at worst")
    write(
        "one_config", "h200",
        protocol={
            "what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
            "recorded": f"on one {recording['device']}, torch {recording['torch']}, triton {recording['triton']}; "
            "the machine below only read the recording",
            "configs": len(recording["configs"]), "one_config": recording["configs"][chosen]["config"],
        },
        command="python benchmarks/one_config.py", rows=rows, summary=summary, folder=folder,
    )  # fmt: skip


if __name__ == "__main__":
    main()
