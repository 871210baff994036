"""What the benchmarks page says of results that need no GPU, or only a recording of one."""

from __future__ import annotations

from collections.abc import Mapping

from _figures import Result, Table, Wording, duration, percent


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
        f"{summary['wall_ray_s']:.0f} s on Ray, up to two goes of --resume each included; "
        f"{percent(summary['same_or_tied'])} of the choices are the same or tied, "
        f"{percent(summary['within_3_percent'])} within 3 %. Killed ten times and resumed, it chose the same or a tie "
        f"in {percent(summary['killed_same_or_tied'])}, measured {summary['measured_twice']} Trials of finished races "
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


def _transfer(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"On {summary['problems']} recorded matrix products, searches that start from the others' times take at most "
        f"{percent(summary['launches_fraction'])} of the timed launches of a search alone "
        f"({percent(summary['total_fraction'])} in all) and lose at most {percent(summary['worst_regret'])}. Without a "
        f"performance model they lose up to {percent(summary['without_model_worst_regret'])}. One after the other by "
        f"rising M, each from those before it, they take up to {percent(summary['chain_launches_fraction'])} and lose "
        f"at most {percent(summary['chain_worst_regret'])}.",
    ]


def _distill(result: Result) -> list[str]:
    summary = result["summary"]
    recording, sweep = ({name: summary[f"{of}_{name}"] for name in _DISTILLED} for of in ("recording", "sweep"))
    return [
        _of_one(f"Of {recording['problems']} recorded matrix products", recording),
        _of_one(f"Of the {sweep['problems']} that the sweep tuned, with what it measured of each", sweep),
        f"Without a model, which says what to expect between the tuned sizes, the smallest tables have "
        f"{recording['without_model_rows']} and {sweep['without_model_rows']} rows, and what was held back loses "
        f"{percent(recording['without_model_held_back_p90'])} and {percent(sweep['without_model_held_back_p90'])} at "
        "the 90th percentile.",
    ]


_DISTILLED = (
    "problems", "rows", "tree_ends", "table_worst_loss", "tree_worst_loss", "held_back_p90", "held_back_worst",
    "tree_held_back_p90", "tree_held_back_worst", "without_model_rows", "without_model_held_back_p90",
)  # fmt: skip


def _of_one(begin: str, figures: Mapping[str, float]) -> str:
    return (
        f"{begin}, a table of {figures['rows']} rows, the fewest there can be, loses at most "
        f"{percent(figures['table_worst_loss'])}; a tree of {figures['tree_ends']} Configs at most "
        f"{percent(figures['tree_worst_loss'])}. What was held back, a fifth at a time, loses "
        f"{percent(figures['held_back_p90'])} at the 90th percentile with the table, "
        f"{percent(figures['held_back_worst'])} at worst; {percent(figures['tree_held_back_p90'])} and "
        f"{percent(figures['tree_held_back_worst'])} with the tree."
    )


def _curve(result: Result) -> Table:
    """A row for each rule and bound, beside each other what both sources need."""
    found: dict[tuple[str, str, float], dict[str, tuple[int, float]]] = {}
    for row in result["rows"]:
        if row["kind"] == "curve":
            found.setdefault((row["rule"], row["sizes"], row["bound"]), {})[row["of"]] = row["rows"], row["worst"]
    head = ["rule", "sizes", "at most lost", "rows of the recording", "its worst", "rows of the sweep", "its worst"]
    return [
        head,
        *(
            [f"`{rule}`", sizes, percent(bound),
             *(cell for of in ("recording", "sweep") for cell in (str(both[of][0]), percent(both[of][1])))]
            for (rule, sizes, bound), both in found.items()
        ),
    ]  # fmt: skip


def _report(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"The report of a recorded space of 480 configurations is {summary['bytes'] / 1e6:.1f} MB and shows all of it "
        f"{summary['load_s']:.1f} s after it is opened in headless Chromium, with {summary['console_errors']:.0f} "
        f"errors on the console. The largest here is {summary['largest_bytes'] / 1e6:.1f} MB, the slowest takes "
        f"{summary['slowest_load_s']:.1f} s.",
    ]


def _reports(result: Result) -> Table:
    rows = [["report of", "problems", "configurations", "MB", "to open", "to write"]]
    for row in result["rows"]:
        rows.append([row["case"], str(row["problems"]), f"{row['trials']:,}", f"{row['bytes'] / 1e6:.1f}",
                     duration(row["load_s"]), duration(row["made_s"])])  # fmt: skip
    return rows


#: benchmark → how it is told
WORDING = {
    "dispatch": Wording("What a warm call adds", _dispatch, _added),
    "race": Wording("How sure, at what cost", _race, _rules),
    "search": Wording("Strategies for large spaces", _search, _strategies),
    "bad_candidates": Wording("What bad candidates cost", _bad_candidates, _fates),
    "tables": Wording("Tables of serving engines", _tables, _lookups),
    "moe_tables": Wording("Tables that the engines find", _moe_tables),
    "sweep_cpu": Wording("A sweep, killed and resumed", _sweep_cpu),
    "scaling": Wording("How far a sweep scales", _scaling, _scaled),
    "transfer": Wording("A search that starts from solved problems", _transfer),
    "distill": Wording("Few rows for many problems", _distill, _curve),
    "cpu_matmul": Wording("Kernels in C against numpy", _cpu_matmul, _over_numpy),
    "report": Wording("How large and fast a report is", _report, _reports),
}
