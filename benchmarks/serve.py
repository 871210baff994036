"""A table made offline, served in a new process: what is lost against a search for each size. Needs a GPU.

    python benchmarks/serve.py

The matrix product of `examples/triton_gemm.py` over M in 1…8192, N = K = 4096, float16, 64 configurations.

Offline, all configurations are timed briefly at the last of each class of sizes, and those near the fastest there once
more, for longer, at its last and its first. A class is the sizes that no tile tells apart: 64 of them, 128 above 4096;
below 64, where the tile is filled up with rows that are there and few rows crowd in the cache, it ends at each power of
two. The fewest ranges of classes with one configuration each that loses little at either end of any class, beyond what
its best for both ends loses, become the rows of a table, at the sizes with which the nearest row serves just these
ranges.

A new process with an empty store looks up every size that is checked, and calls it: those on each side of every row
boundary, and others up to 48. It counts what was measured or stored. Then it times warm calls of sizes that have no
row of their own, against those of the same kernel whose choice was in memory from the start: in random order, the
same calls, `warm_over_memory` the median of the rounds' ratios.

Last, each of these sizes gets a search of its own, in a kernel that knows nothing, with the defaults. Where it chose
another configuration, the two are timed in 100 rounds side by side, in random order; `over_own` is the median of the
rounds' ratios, the table's over the search's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write
from _serve_case import NAME, Case, gemm, stand_in

from tunesmith import Config, Measured
from tunesmith.core.stats import median, median_interval
from tunesmith.distill import Section, cover
from tunesmith.tables import NativeTable, load
from tunesmith.tables.lines import Entry
from tunesmith.tables.policy import RULES, Ladder

LOOK_ROUNDS, NEAR, SWEEP_ROUNDS, SIDE_BY_SIDE = 3, 0.05, 11, 100
#: what a range's configuration may lose in each of its classes: the least with which the boundaries can all be checked
TOLERANCES = (0.01, 0.0125, 0.015, 0.0175, 0.02)
CHECKED, ROUNDS, CALLS = 48, 101, 200
#: every size is measured for, so the nearest row serves however far it is
RULE = "nearest-stock"

#: of each configuration, the seconds in each round
Samples = Mapping[Config, Sequence[float]]


@dataclass(frozen=True)
class Class:
    """Sizes that no tile tells apart.

    Attributes:
        at_first, at_last: of configurations near the fastest, the seconds in each round.
    """

    first: int
    last: int
    at_first: Samples
    at_last: Samples

    def lost(self) -> dict[Config, float]:
        """What each configuration loses at the end where it loses more, beyond what one row must.

        Another one may be the fastest at either end: what the best for both loses is in every table.
        """
        first, last = over_fastest(self.at_first), over_fastest(self.at_last)
        both = {config: max(first[config], over) for config, over in last.items() if config in first}
        least = min(both.values())
        return {config: over - least for config, over in both.items()}


def over_fastest(samples: Samples) -> dict[Config, float]:
    """How much longer than the fastest, as the median of the rounds' ratios: the clock drifts from round to round."""
    fastest = min(samples.values(), key=median)
    return {
        config: median([one / best for one, best in zip(seconds, fastest, strict=True)])
        for config, seconds in samples.items()
    }


def engine(kernel: Any) -> Any:
    """The kernel that takes its grid as an argument."""
    return getattr(kernel, "tuned", kernel)


# --- offline ----------------------------------------------------------------------------------------


def timed(kernel: Any, args: Sequence[Any], only: Sequence[Config], rounds: int) -> Samples:
    """Seconds of each of these configurations that runs, side by side in rounds."""
    recording = engine(kernel).record(*args, only=only, rounds=rounds)
    return {t.config: t.outcome.samples_s for t in recording.trials if isinstance(t.outcome, Measured)}


def class_of(case: Case, kernel: Any, first: int, last: int) -> Class:
    """Times of the configurations that a short look leaves near the fastest."""
    args = case.inputs(last)
    briefly = over_fastest(timed(kernel, args, list(case.space), LOOK_ROUNDS))
    near = [config for config, over in briefly.items() if over <= 1 + NEAR]
    at_last = timed(kernel, args, near, SWEEP_ROUNDS)
    return Class(first, last, timed(kernel, case.inputs(first), near, SWEEP_ROUNDS), at_last)


def keys_for(classes: Sequence[Class], tolerance: float) -> dict[int, Config]:
    """The fewest rows with which the nearest, however far, loses at most `tolerance` more than a class must."""
    sections = [Section(one.first, one.last, one.lost()) for one in classes]
    return dict(cover(sections, RULE, tolerance).rows)


def sides(keys: Mapping[int, Config], upto: int) -> list[int]:
    """The last size of each row and the first of the next."""
    runs = list(Ladder(RULES[RULE], keys).runs(upto))
    return [size for (_, last, _), _ in pairwise(runs) for size in (last, last + 1)]


def checked_sizes(boundary: Sequence[int], upto: int) -> list[int]:
    """The sizes on each side of every boundary; with fewer than 48, others at equal ratios."""
    sizes = {1, upto, *boundary} if len(boundary) <= CHECKED - 2 else set(boundary)
    steps = 2
    while len(sizes) < CHECKED:
        steps += 1
        for i in range(steps):
            if len(sizes) < CHECKED:
                sizes.add(round(upto ** (i / (steps - 1))))
    return sorted(sizes)


def offline(case: Case, path: Path) -> tuple[list[int], dict[str, Any]]:
    """Make the table; the sizes to check, and what was done."""
    kernel, start = case.tuned(), time.perf_counter()
    firsts = [1, *(end + 1 for end in case.ends)]
    classes = [class_of(case, kernel, first, last) for first, last in zip(firsts, case.ends, strict=False)]
    upto = case.ends[-1]
    for tolerance in TOLERANCES:
        keys = keys_for(classes, tolerance)
        boundary = sides(keys, upto)
        if len(boundary) <= CHECKED:
            break
    for first, last, m in Ladder(RULES[RULE], keys).runs(upto):
        print(f"{first:5}…{last:<5} {keys[m] if m else ''}", flush=True)
    rows: dict[Any, Entry] = {}
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    for m, config in keys.items():
        of = next(one for one in classes if one.first <= m <= one.last)
        problem = engine(kernel).key(*case.inputs(m)).problem
        rows[problem] = Entry(config, median(of.at_last[config]), {"at": now, "measured_at": f"M={of.last}"})
    key = engine(kernel).key(*case.inputs(upto))
    NativeTable(NAME, key.device, rows, key.fingerprint, key.protocol, dict(key.soft)).write(path)
    told = {
        "offline_s": time.perf_counter() - start, "configs": len(list(case.space)), "classes": len(classes),
        "rows": len(keys), "tolerance": tolerance,
    }  # fmt: skip
    return checked_sizes(boundary, upto), told


# --- the new process --------------------------------------------------------------------------------


def serve(case: Case, folder: Path) -> None:
    """Serve the sizes of `asked.json` from the table; write what came of it to `served.json`."""
    from tunesmith.events import Event, Racing, Sampled, Started, watched
    from tunesmith.store import default_store

    measured: list[Event] = []

    def listen(event: Event) -> None:
        if isinstance(event, (Started, Racing, Sampled)):
            measured.append(event)

    table = load(folder / "table.json", kernel=NAME, rule=RULE, size="M")
    kernel = case.tuned(policy="lookup")
    kernel.use_table(table)
    sizes: list[int] = json.loads((folder / "asked.json").read_text())
    rows: list[dict[str, Any]] = []
    with watched(listen):
        for m in sizes:
            args = case.inputs(m)
            case.launch(kernel, args)
            case.synchronise()
            choice = engine(kernel).choice(*args)
            if not choice.source.startswith("table ") or choice.track != "lookup":
                sys.exit(f"M={m} was served by {choice.source!r} in track {choice.track!r}, not by the table")
            error = case.error(args)
            if not error < 1e-2:
                sys.exit(f"M={m}: the table's {choice.config} is wrong by {error:.1e}")
            rows.append({"M": m, "config": dict(choice.config), "exact": not choice.distance, "error": error})
        ratios, table_s, memory_s = warm_calls(case, kernel)
    store = default_store()
    keys = store.keys()
    trials = [trial for known in keys for trial in store.trials(known)]
    told = {
        "rows": rows, "measured": len(measured) + len(trials) + len(keys), "warm_ratios": ratios,
        "table_us": 1e6 * table_s, "memory_us": 1e6 * memory_s,
    }  # fmt: skip
    (folder / "served.json").write_text(json.dumps(told))


def warm_calls(case: Case, kernel: Any) -> tuple[list[float], float, float]:
    """A warm call's time through the table over that of a Choice that was always in memory, round by round."""
    chosen = {m: engine(kernel).choice(*case.inputs(m)).config for m in case.few}
    memory = case.tuned(policy="default", default=lambda problem, device: chosen[problem["M"]])
    few = {m: case.inputs(m) for m in case.few}
    calls = [few[case.few[i % len(case.few)]] for i in range(CALLS)]
    contenders = {"table": kernel, "memory": memory}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    rng = random.Random(0)
    for number in range(ROUNDS + 1):
        gc.collect()
        gc.disable()
        for name in rng.sample(list(contenders), 2):
            case.synchronise()
            one, launch = contenders[name], case.launch
            start = time.perf_counter()
            for args in calls:
                launch(one, args)
            took = (time.perf_counter() - start) / CALLS
            if number:  # the first round warms up
                seconds[name].append(took)
        gc.enable()
    ratios = [mine / theirs for mine, theirs in zip(seconds["table"], seconds["memory"], strict=True)]
    return ratios, median(seconds["table"]), median(seconds["memory"])


# --- against a search of its own --------------------------------------------------------------------


def against_own(case: Case, m: int, config: Config) -> dict[str, Any]:
    """What the table's configuration takes over what a search for just this M chooses."""
    kernel = case.tuned(name=f"own{m}")
    args = case.inputs(m)
    start = time.perf_counter()
    own = engine(kernel).tune(*args).choice
    tune_s = time.perf_counter() - start
    row: dict[str, Any] = {"own": dict(own.config), "own_s": own.median_s, "tune_s": tune_s, "over_own": 1.0}
    if own.config != config:
        both = timed(kernel, args, [own.config, config], SIDE_BY_SIDE)
        if config not in both:
            sys.exit(f"M={m}: the table's {config} does not run")
        ratios = [mine / theirs for mine, theirs in zip(both[config], both[own.config], strict=True)]
        row |= {"own_s": median(both[own.config]), "table_s": median(both[config]), "over_own": median(ratios)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    parser.add_argument("--cpu", action="store_true", help="a stand-in that needs no GPU, to try the script")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)  # what the new process is given
    options = parser.parse_args()
    if options.serve is not None:
        serve(stand_in() if options.cpu else gemm(), options.serve)
        return
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRITON_CACHE_DIR"] = f"{scratch}/triton"
        os.environ["TUNESMITH_CACHE_DIR"] = f"{scratch}/offline"
        case, folder = (stand_in() if options.cpu else gemm()), Path(scratch)
        sizes, told = offline(case, folder / "table.json")
        print(f"offline: {told}", flush=True)
        (folder / "asked.json").write_text(json.dumps(sizes))
        command = [sys.executable, __file__, "--serve", scratch, *(["--cpu"] if options.cpu else [])]
        subprocess.run(command, check=True, env={**os.environ, "TUNESMITH_CACHE_DIR": f"{scratch}/serving"})
        served = json.loads((folder / "served.json").read_text())
        print(f"served {len(served['rows'])} sizes after {time.perf_counter() - begin:.0f} s", flush=True)
        os.environ["TUNESMITH_CACHE_DIR"] = f"{scratch}/own"
        rows: list[dict[str, Any]] = []
        for row in served["rows"]:
            rows.append(row | against_own(case, row["M"], Config(row["config"])))
            print(f"M={row['M']:<5} over own {rows[-1]['over_own']:.4f}  tune {rows[-1]['tune_s']:.1f} s", flush=True)
    over = [row["over_own"] for row in rows]
    low, high = median_interval(served["warm_ratios"])
    summary = {
        "worst_over_own_search": max(over), "share_within_3": sum(one <= 1.03 for one in over) / len(over),
        "warm_over_memory": median(served["warm_ratios"]), "warm_over_memory_low": low, "warm_over_memory_high": high,
        "warm_table_us": served["table_us"], "warm_memory_us": served["memory_us"],
        "measured_while_serving": served["measured"], "rows": told["rows"], "sizes_checked": len(rows),
        "tolerance": told["tolerance"], "offline_s": told["offline_s"], "seconds": time.perf_counter() - begin,
    }  # fmt: skip
    print("  ".join(f"{name} {value:.4g}" for name, value in summary.items()))
    path = write(
        "serve", case.device, protocol=__doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        command="python benchmarks/serve.py" + (" --cpu" if options.cpu else ""), rows=rows, summary=summary,
        versions={package: version(package) for package in ("torch", "triton")}, gpu=case.gpu, folder=options.folder,
    )  # fmt: skip
    print(path)
    bad = [
        name for name, wrong in (
            ("measured_while_serving", summary["measured_while_serving"] > 0),
            ("worst_over_own_search", summary["worst_over_own_search"] > 1.06),
            ("share_within_3", summary["share_within_3"] < 0.95),
            ("warm_over_memory", summary["warm_over_memory"] > 1.1),
        ) if wrong
    ]  # fmt: skip
    if bad:
        sys.exit(f"missed: {', '.join(bad)}")


if __name__ == "__main__":
    main()
