"""What the benchmarks page says of each result: a title, sentences with figures, and a table of ours beside others.

A result that has no entry here gets a table of its summary. An entry that asks for a figure which the result does not
have is a `KeyError` that `page.py` turns into words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]
Table = Sequence[Sequence[str]]  # the first row is the head


@dataclass(frozen=True)
class Wording:
    """How one benchmark is told: `says` gives sentences, `table` rows of text below a head."""

    title: str
    says: Callable[[Result], Sequence[str]]
    table: Callable[[Result], Table] | None = None


def percent(value: float, digits: int = 1) -> str:
    """A share in percent; what rounds to 0 has no sign."""
    text = f"{100 * value:.{digits}f} %"
    return text if any(digit in text for digit in "123456789") else text.lstrip("-")


def duration(seconds: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


# --- one warm launch -----------------------------------------------------------------------------------

_LAUNCHERS = {
    "ours": "**tunesmith**, grid function",
    "ours_static_grid": "tunesmith, grid as a tuple",
    "autotune": "`triton.autotune`, grid function",
    "jit": "`triton.jit`, grid function",
    "launcher": "the compiled kernel's own launcher, all ready",
    "launcher_pointers": "the same, with addresses in place of tensors",
    "launcher_in_c": "the C function under it, with addresses",
    "driver": "a loop in C over the driver's `cuLaunchKernel`",
    "torch_add": "`torch.add(x, x, out=x)`, for scale",
}


def _triton_dispatch(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"A warm launch through tunesmith takes {summary['over_autotune']:.2f} of the host's time that "
        f"`triton.autotune` takes, and {summary['over_jit']:.2f} of `triton.jit`'s. It is "
        f"{summary['over_launcher']:.2f} times what the compiled kernel's own launcher takes when grid, stream and "
        f"arguments are ready, and {summary['over_driver']:.2f} times a loop in C over the driver."
    ]


def _launches(result: Result) -> Table:
    rows = [["one warm launch", "µs on the host", "95 % interval", "ours over it"]]
    for row in result["rows"]:
        low, high = row["interval_us"]
        ours = "" if row["contender"] == "ours" else f"{row['ours_over']:.2f}"
        rows.append([_LAUNCHERS[row["contender"]], f"{row['us']:.1f}", f"{low:.1f} to {high:.1f}", ours])
    return rows


def _dispatch(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"On the CPU, a warm call of a Python function adds {summary['ours_added_us']:.2f} µs; `triton.autotune` adds "
        f"{summary['triton_added_us']:.2f} µs to the same call: {summary['added_over_autotune']:.3f} of it "
        f"(95 % interval {summary['added_over_autotune_low']:.3f} to {summary['added_over_autotune_high']:.3f})."
    ]


def _added(result: Result) -> Table:
    summary = result["summary"]
    told = {
        "ours": "**tunesmith**",
        "ours_mixed": "tunesmith, once called with other dtypes and `None`",
        "ours_no_strides": "tunesmith, strides not in the key",
        "triton": "`triton.autotune`",
    }
    head = ["added to a call", "µs, median", "20th to 80th percentile"]
    return [
        head,
        *(
            [words, f"{summary[f'{name}_added_us']:.2f}",
             f"{summary[f'{name}_added_p20_us']:.2f} to {summary[f'{name}_added_p80_us']:.2f}"]
            for name, words in told.items()
        ),
    ]  # fmt: skip


# --- searches ------------------------------------------------------------------------------------------

_SEARCHES = {
    "ours480": "**tunesmith**, 48 of the 480 tried (`model=Tiles(), candidates=48`)",
    "ours480_all": "tunesmith, all 480 tried",
    "stock": "`triton.autotune`, 64 of the 480",
    "ours": "tunesmith, the same 64",
}


def _cold_search(result: Result) -> list[str]:
    summary = result["summary"]
    scaled = " (its time scaled from 64 configurations)" if result["protocol"]["scaled"] else ""
    return [
        f"A cold search over 480 configurations of a matrix product is {summary['speedup_480']:.0f} times as fast "
        f"as `triton.autotune`'s{scaled} when the model says which 48 are tried, {summary['speedup_480_all']:.1f} "
        f"times when all are; over the same 64 configurations it is {summary['speedup_same_list']:.1f} times as "
        "fast.",
        f"What it chose is {percent(summary['regret'])} slower than the fastest of all 480. The next shape took "
        f"{summary['next_shape_s']:.1f} s. Twenty more searches chose {summary['distinct_winners_of_20']} different "
        f"configurations, the worst {percent(summary['worst_of_the_winners'])} slower than the fastest.",
    ]


def _cold_searches(result: Result) -> Table:
    (judged,) = (row for row in result["rows"] if row["job"] == "side_by_side")
    rows = [["cold search", "wall time", "its choice over the fastest of all"]]
    for row in result["rows"]:
        if row["job"] in _SEARCHES:
            over = judged["over"].get(row["job"])
            rows.append([_SEARCHES[row["job"]], f"{row['seconds']:.1f} s", f"{over:.3f}" if over else ""])
    return rows


def _tune(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"Of {len(result['rows'])} problems tuned with the defaults, the choice is "
        f"{percent(summary['median_regret'], 2)} slower than the fastest configuration in the median, "
        f"{percent(summary['worst_regret'], 1)} at worst. The longest search took {summary['longest_tune_s']:.0f} s."
    ]


def _tuned(result: Result) -> Table:
    head = ["kernel", "problem", "ran", "time to tune", "chosen", "over the fastest", "median over it"]
    return [
        head,
        *(
            [row["kernel"], f"`{row['problem']}`", str(row["ran"]),
             f"{row['tune_s']:.1f} s{', cold' if row['cold'] else ''}", duration(row["chosen_s"]),
             f"{1 + row['regret']:.3f}", f"{row['median_of_all_over_best']:.2f}"]
            for row in result["rows"]
        ),
    ]  # fmt: skip


def _one_config(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"One configuration for all {len(result['rows'])} matrix products, the best one there is, costs "
        f"{summary['one_over_each']:.2f} times the time of one for each in the geometric mean, "
        f"{summary['one_over_each_worst']:.2f} times at worst."
    ]


def _one_configs(result: Result) -> Table:
    head = ["M × N × K", "one for all, µs", "its own, µs", "ratio"]
    return [
        head,
        *(
            [row["problem"], f"{row['one_config_us']:.1f}", f"{row['fastest_us']:.1f}", f"{row['ratio']:.2f}"]
            for row in result["rows"]
        ),
    ]


def _search(result: Result) -> list[str]:
    summary = result["summary"]
    budgets = (20, 50, 100, 200)
    told = ", ".join(f"{summary[f'auto_{n}']:.3f} against {summary[f'best_peer_{n}']:.3f} at {n}" for n in budgets)
    return [
        "Best found over best of the space, by `auto` and by the best of Kernel Tuner's strategies at that budget: "
        f"{told} evaluations ({result['protocol']['seeds']} seeds, six recorded spaces; less is better, 1 is the "
        "optimum)."
    ]


def _strategies(result: Result) -> Table:
    rows = [["strategy", "20", "50", "100", "200", "runs within 5 % at 100"]]
    for row in result["rows"]:
        if row["space"] == "all":
            name = row["strategy"].removeprefix("ours:")
            whose = f"**tunesmith `{name}`**" if row["strategy"].startswith("ours:") else f"`{name}`"
            figures = [f"{row[f'figure_{n}']:.3f}" for n in (20, 50, 100, 200)]
            rows.append([whose, *figures, f"{100 * row['within_5pct_100']:.0f} %"])
    return rows


def _race(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f'Over 24 recorded spaces and {summary["seeds"]} seeds, the race with `pick="fastest"` is '
        f"{percent(summary['p95_regret'])} slower than the best at the 95th percentile, with "
        f"{percent(summary['gpu_time_fraction'])} of the device's time that 100 ms a candidate take. Under disturbance "
        f"(drift, outliers) it is {percent(summary['p95_regret_disturbed'])}, where `do_bench` is "
        f"{percent(summary['p95_regret_do_bench_disturbed'])}.",
        f"The usual pick, which takes the cheapest among equals, is {percent(summary['p95_regret_default_pick'])} "
        "slower at that percentile where recorded samples come again, "
        f"{percent(summary['p95_regret_default_pick_15_rounds'])} where none is used twice. On made-up spaces whose "
        "truth is known, its choice was slower than the best by more than the margin in "
        f"{percent(summary['wrong_synthetic_mean_default_pick'])} of races, "
        f"{percent(summary['wrong_synthetic_worst_default_pick'])} in the worst space.",
    ]


def _rules(result: Result) -> Table:
    rows = [["rule", "mean regret", "the same disturbed", "device time"]]
    judged = [row for row in result["rows"] if "disturbed" in row]
    for rule in dict.fromkeys(row["rule"] for row in judged):
        mean = {
            disturbed: [row for row in judged if (row["rule"], row["disturbed"]) == (rule, disturbed)]
            for disturbed in (False, True)
        }
        regrets = [sum(row["mean_regret"] for row in rows_) / len(rows_) for rows_ in mean.values()]
        time = sum(row["gpu_time_fraction"] for row in mean[False]) / len(mean[False])
        rows.append([rule, *(percent(regret, 2) for regret in regrets), percent(time)])
    return rows


def _model(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        "Among the first 32 of 480 configurations of a matrix product, in the model's order before compiling, the "
        f"fastest is {percent(summary['worst_top32_before'])} slower than the fastest of all, at worst; among the "
        f"first 16 after compiling {percent(summary['worst_top16_after'])}; among the first 8 % of a row-wise "
        f"kernel's {percent(summary['worst_rows'])}. Each problem is judged by constants fitted to the others."
    ]


# --- what may go wrong ---------------------------------------------------------------------------------


def _bad_candidates(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"In {summary['mixes']} random mixes of honest and bad candidates, {summary['honest_lost']} of "
        f"{summary['honest']} honest ones were lost, {summary['bad_unseen']} of {summary['bad']} bad ones went "
        f"unseen, and {summary['wrong_won']} wrong ones won; {summary['arrays_changed']} of the caller's arrays were "
        f"changed, {summary['contexts_poisoned']} times the device was unusable afterwards, and "
        f"{summary['processes_left']} processes were left."
    ]


def _fates(result: Result) -> Table:
    rows = [["candidate", "what became of it"]]
    for row in result["rows"]:
        rows.append([f"`{row['candidate']}`", ", ".join(f"{fate} × {n}" for fate, n in row["outcomes"].items())])
    return rows


# --- tables, sweeps, the CPU ---------------------------------------------------------------------------


def _tables(result: Result) -> list[str]:
    summary = result["summary"]
    versions = result["versions"]
    return [
        f"{summary['byte_equal']} of the {summary['files']} tuned files that SGLang {versions['sglang']} and vLLM "
        f"{versions['vllm']} ship come back to the byte when read and written, and of {summary['lookups'] / 1e6:.1f} "
        f"million look-ups {summary['lookup_mismatches']} differ from the engines' own functions. Of 40 findings of "
        f"`tunesmith table check` that were looked at by hand {summary['check_false_in_40']} were false."
    ]


def _lookups(result: Result) -> Table:
    rows = [["format", "tables", "look-ups", "that differ"]]
    for row in result["rows"]:
        if "lookups" in row:
            rows.append([f"`{row['format']}`", str(row["tables"]), f"{row['lookups']:,}", str(row["mismatches"])])
    return rows


def _moe_tables(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"Of {summary['files']} tables exported for SGLang and vLLM, {summary['found_by_the_engine']} are found by the "
        f"engine's own functions and {summary['same_rows']} give it the rows that were written; `table check` finds "
        f"{summary['check_errors']} errors."
    ]


def _sweep_cpu(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"{summary['problems']} problems took two workers {summary['wall_local_s']:.0f} s locally and "
        f"{summary['wall_ray_s']:.0f} s on Ray; {percent(summary['same_or_tied'])} of the choices are the same or "
        f"tied. Killed ten times and resumed, it measured {summary['measured_twice']} Trials of finished problems "
        f"twice and left {summary['left_undone']} problems undone."
    ]


def _scaling(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"64 workers on one store, with simulated GPUs, are {percent(summary['efficiency_64'])} as busy each as one "
        f"alone; a commit takes {summary['commit_ms_64']:.1f} ms on average. On this machine's cores the workers' "
        f"own processor time would carry {summary['h200s_by_bottleneck']:.0f} H200s."
    ]


def _scaled(result: Result) -> Table:
    rows = [["workers", "problems", "busy", "efficiency", "a commit"]]
    for row in result["rows"]:
        if "efficiency" in row:
            rows.append([str(row["workers"]), str(row["problems"]), percent(row["busy"]), percent(row["efficiency"]),
                         f"{row['commit_ms']:.1f} ms"])  # fmt: skip
    return rows


def _cpu_matmul(result: Result) -> list[str]:
    rows = [row for row in result["rows"] if "tuned_over_numpy" in row]
    lost = [row for row in rows if row["interval"][1] < 1]
    summary = result["summary"]
    return [
        f"A tuned matrix product in C of 1024³ has {summary['tuned_over_numpy_1_threads']:.2f} times numpy's "
        f"(OpenBLAS's) speed on one thread, {summary['tuned_over_numpy_2_threads']:.2f} times on two. The geometric "
        "mean over the tuned softmaxes and convolutions of few channels is "
        f"{summary['geomean_other_over_numpy']:.2f} times numpy.",
        f"Slower than numpy beyond doubt in {len(lost)} of {len(rows)} cases: "
        + "; ".join(f"{row['kernel']} `{row['problem']}` on {row['threads']} threads" for row in lost)
        + ".",
    ]


def _over_numpy(result: Result) -> Table:
    rows = [["kernel", "problem", "threads", "tuned", "numpy", "speed over numpy", "95 % interval"]]
    for row in result["rows"]:
        if "tuned_over_numpy" in row:
            low, high = row["interval"]
            medians = row["medians_s"]
            rows.append([row["kernel"], f"`{row['problem']}`", str(row["threads"]), duration(medians["tuned"]),
                         duration(medians[row["peer"]]), f"{row['tuned_over_numpy']:.2f}",
                         f"{low:.2f} to {high:.2f}"])  # fmt: skip
    return rows


#: benchmark → how it is told, in the order of the page
WORDING: dict[str, Wording] = {
    "triton_dispatch": Wording("What a warm launch costs the host", _triton_dispatch, _launches),
    "dispatch": Wording("What a warm call adds", _dispatch, _added),
    "triton_cold_search": Wording("A cold search", _cold_search, _cold_searches),
    "tune": Wording("How good the choice is", _tune, _tuned),
    "one_config": Wording("Why one configuration is not enough", _one_config, _one_configs),
    "race": Wording("How sure, at what cost", _race, _rules),
    "model": Wording("What the model knows before anything runs", _model),
    "search": Wording("Strategies for large spaces", _search, _strategies),
    "bad_candidates": Wording("What bad candidates cost", _bad_candidates, _fates),
    "tables": Wording("Tables of serving engines", _tables, _lookups),
    "moe_tables": Wording("Tables that the engines find", _moe_tables),
    "sweep_cpu": Wording("A sweep, killed and resumed", _sweep_cpu),
    "scaling": Wording("How far a sweep scales", _scaling, _scaled),
    "cpu_matmul": Wording("Kernels in C against numpy", _cpu_matmul, _over_numpy),
}
