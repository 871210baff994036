"""What the benchmarks page says of results that are about GPUs."""

from __future__ import annotations

from _figures import Result, Table, Wording, duration, percent

from tunesmith.core.stats import geometric_mean

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

_SEARCHES = {
    "ours480": "**tunesmith**, 48 of the 480 tried (`model=Tiles(), candidates=48`)",
    "ours480_all": "tunesmith, all 480 tried",
    "stock": "`triton.autotune`, 64 of the 480",
    "ours": "tunesmith, the same 64",
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


def _sweep(result: Result) -> list[str]:
    summary, checked = result["summary"], [row for row in result["rows"] if row["job"] == "checked"]
    return [
        f"A sweep of {summary['problems']} shapes of a matrix product took {summary['wall_s']:.0f} s on one GPU, "
        f"nothing compiled or known before: {summary['sweep_s_per_shape']:.1f} s a shape, of whose 480 configurations "
        f"the model said which 120 are tried. `triton.autotune` needs {summary['autotune_s_per_shape']:.0f} s a shape "
        "for all 480 (scaled from 16 of them).",
        f"Of {len(checked)} shapes all configurations were timed afterwards: what the sweep chose is at most "
        f"{percent(summary['worst_regret'])} slower than the fastest.",
    ]


def _checked(result: Result) -> Table:
    return [
        ["shape", "ran of 480", "chosen", "the fastest", "chosen over the fastest", "time to tune"],
        *(
            [f"`{row['shape']}`", str(row["ran"]), duration(row["chosen_s"]), duration(row["best_s"]),
             f"{1 + row['regret']:.3f}", _time_to_tune(result, row["shape"])]
            for row in result["rows"]
            if row["job"] == "checked"
        ),
    ]  # fmt: skip


def _time_to_tune(result: Result, shape: str) -> str:
    """Of one shape, its fields in any order."""
    swept = (row for row in result["rows"] if row["job"] == "sweep")
    found = next(row for row in swept if set(row["problem"].split(",")) == set(shape.split(",")))
    return f"{found['seconds']:.1f} s"


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


def _model(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        "Among the first 32 of 480 configurations of a matrix product, in the model's order before compiling, the "
        f"fastest is {percent(summary['worst_top32_before'])} slower than the fastest of all, at worst; among the "
        f"first 16 after compiling {percent(summary['worst_top16_after'])}; among the first 8 % of a row-wise "
        f"kernel's {percent(summary['worst_rows'])}. Each problem is judged by constants fitted to the others."
    ]


_CUDA_LAUNCHERS = {
    "ours": "**tunesmith**",
    "executable": "a loaded Config's own launch, without the key",
    "cuda_core": "`cuda.core.launch`, stream and configuration kept",
    "cuda_core_config": "`cuda.core.launch`, its configuration made for each launch",
    "cuda_core_ready": "`cuda.core.launch`, everything ready, which no caller with tensors has",
}


def _cuda(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"Tuned kernels in CUDA C++ take {summary['sgemm_tuned_over_default']:.2f} (a float32 matrix product) and "
        f"{summary['row_sums_tuned_over_default']:.2f} (sums of rows) of their default's time in the geometric mean; "
        f"{summary['sgemm_tuned_over_cublas']:.2f} of cuBLAS's time, {summary['sgemm_4096_tuned_over_cublas']:.2f} at "
        f"4096³, and {summary['row_sums_tuned_over_torch']:.2f} of `torch.sum`'s. The longest search took "
        f"{summary['longest_tune_s']:.0f} s.",
        f"A warm launch costs the host {summary['launch_over_bare']:.2f} times what `cuda.core.launch` does.",
    ]


def _cuda_kernels(result: Result) -> Table:
    head = ["kernel", "problem", "ran", "time to tune", "tuned", "over its default", "over torch's call"]
    tuned = [row for row in result["rows"] if "kernel" in row]
    return [
        head,
        *(
            [row["kernel"], f"`{row['problem']}`", str(row["counts"]["measured"]),
             f"{row['tune_s']:.1f} s{', cold' if row['cold'] else ''}", duration(row["tuned_s"]),
             f"{row['tuned_over_default']:.2f}", f"{row['tuned_over_torch']:.2f}"]
            for row in tuned
        ),
        *(
            [_CUDA_LAUNCHERS[row["contender"]], "one warm launch", "", "", f"{row['us']:.1f} µs of the host", "", ""]
            for row in result["rows"]
            if "contender" in row
        ),
    ]  # fmt: skip


def _serve(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"A table of {summary['rows']} rows, made in {summary['offline_s']:.0f} s, serves every M from 1 to 8192 of a "
        f"matrix product. Of {summary['sizes_checked']} sizes, {percent(summary['share_within_3'])} are within 3 % of "
        f"what a search of their own chose, the worst {percent(summary['worst_over_own_search'] - 1)} slower. While "
        f"serving, {summary['measured_while_serving']} candidates were measured.",
        f"A warm call that the table serves takes {summary['warm_over_memory']:.2f} of one whose choice was in memory "
        f"from the start ({summary['warm_table_us']:.1f} and {summary['warm_memory_us']:.1f} µs of the host).",
    ]


def _cute(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"A CuTe DSL RMSNorm: what tunesmith chooses takes {summary['tuned_over_own_tuner']:.3f} of the time of what "
        f"CuTe DSL's own tuner chooses of the same Configs, {summary['tuned_over_default']:.2f} of the default's and "
        f"{summary['tuned_over_torch']:.2f} of torch's. To tune the first problem took {summary['tune_s']:.1f} s "
        f"against {summary['own_tuner_tune_s']:.1f} s, the second {summary['second_tune_s']:.1f} s against "
        f"{summary['own_tuner_second_tune_s']:.1f} s, as its binaries were there.",
    ]


def _cute_norms(result: Result) -> Table:
    head = ["rows of 4096", "ran", "time to tune", "own tuner's", "tuned", "own tuner's choice", "default", "torch"]
    return [
        head,
        *(
            [str(row["M"]), str(row["counts"]["measured"]), f"{row['tune_s']:.1f} s",
             f"{row['own_tuner_tune_s']:.1f} s",
             *(duration(row[f"{name}_s"]) for name in ("tuned", "own_tuner", "default", "torch"))]
            for row in result["rows"]
        ),
    ]  # fmt: skip


def _scale(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"A sweep of {summary['problems']} matrix products on up to {summary['gpus']} GPUs of one host does, for each "
        f"GPU, at least {percent(summary['efficiency'])} of the problems per second that one GPU alone does; "
        f"{percent(summary['efficiency_begun'])} when the workers' start is left out.",
        f"Of {summary['compared']} choices compared with those of the first sweep, {summary['disagreements']} differ "
        f"by more than 1 %. {summary['left_undone']} problems were left undone, one GPU taken away in the middle "
        f"included, and the ranks of a job disagreed on {summary['rank_disagreements']}.",
    ]


def _scaled(result: Result) -> Table:
    head = ["workers", "GPUs", "time", "problems per second", "measuring", "waiting for compilers", "compilations"]
    return [
        head,
        *(
            [row["executor"], str(row["gpus"]), f"{row['wall_s']:.0f} s", f"{row['per_s']:.2f}",
             percent(row["shares"]["measure_s"]), percent(row["shares"]["compile_s"]), str(row["compilations"])]
            for row in result["rows"]
            if row["job"] == "sweep"
        ),
    ]  # fmt: skip


def _gemm(result: Result) -> list[str]:
    summary, rows = result["summary"], result["rows"]
    lows = [row["eager"]["low"] for row in rows]
    slow = sum(low > 1.02 for low in lows)
    called = f"{slow} of them are slower by more than 2 %" if slow else "none is slower by more than 2 %"
    mean = geometric_mean([row["eager"]["ratio"] for row in rows])
    return [
        f"Of {summary['shapes']} products of open models `ops.matmul` takes {1 / summary['geomean_speedup']:.2f} of "
        f"`torch.mm`'s time in CUDA graphs in the geometric mean, and in none more than "
        f"{summary['worst_over_torch']:.2f}, by the lower 95 % bound; those of at most 64 rows are "
        f"{summary['geomean_speedup_small_m']:.2f} times as fast. Tuning took {summary['tune_s'] / len(rows):.1f} s "
        "each.",
        f"Called back to back from Python, the host's part counted, they take {mean:.2f} of torch's time; {called} "
        f"({max(lows):.3f} at worst).",
    ]


def _rows(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"On {summary['shapes']} inputs of more than 64 MB softmax, RMSNorm, LayerNorm and RMSNorm of a sum move "
        f"{percent(summary['geomean_bandwidth_fraction'])} of what a device copy of as many bytes moves in the "
        f"geometric mean, and {percent(summary['worst_bandwidth_fraction'])} at least. They are "
        f"{summary['geomean_speedup_over_torch']:.2f} times as fast as torch's"
        + (f" and {summary['geomean_speedup_over_liger']:.2f} times as fast as Liger's kernels."
           if "geomean_speedup_over_liger" in summary else ".")
    ]  # fmt: skip


def _moe(result: Result) -> list[str]:
    summary = result["summary"]
    return [
        f"A layer of experts by `fused_moe` takes {summary['over_torch_loop']:.2f} of the time of a loop of torch's "
        "products over the experts, in the geometric mean."
    ]


#: benchmark → how it is told
WORDING = {
    "triton_dispatch": Wording("What a warm launch costs the host", _triton_dispatch, _launches),
    "triton_cold_search": Wording("A cold search", _cold_search, _cold_searches),
    "tune": Wording("How good the choice is", _tune, _tuned),
    "sweep": Wording("Many shapes in one sweep", _sweep, _checked),
    "one_config": Wording("Why one configuration is not enough", _one_config, _one_configs),
    "model": Wording("What the model knows before anything runs", _model),
    "gemm": Wording("Library or kernel", _gemm),
    "scale": Wording("A sweep on several GPUs of one host", _scale, _scaled),
    "serve": Wording("All sizes from one table", _serve),
    "cuda": Wording("Kernels in CUDA C++", _cuda, _cuda_kernels),
    "cute": Wording("Kernels in CuTe DSL", _cute, _cute_norms),
    "rows": Wording("Norms and softmax", _rows),
    "moe": Wording("Layers of experts", _moe),
}
