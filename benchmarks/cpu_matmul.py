"""The shipped C kernels, tuned, against numpy, against a plain loop, and against the middle of their Spaces.

    python benchmarks/cpu_matmul.py

Each kernel is tuned by its own search into an empty store; then the Choice, numpy and the others are timed in
interleaved rounds in random order. numpy gets as many threads as the kernel: OpenBLAS takes its number of threads
when it is loaded, so each number runs in a process of its own, without the variables that force OpenBLAS to
another chip's code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from time import perf_counter, sleep
from typing import Any

from _results import version, write

#: rounds of side-by-side timing; of the plain loop, which takes a second, fewer
ROUNDS, FEW_ROUNDS = 15, 5
#: a timed stretch is as many calls as take this long
STRETCH_S = 5e-3
#: before it, where OpenBLAS has threads: until they have stopped spinning for work, which takes a core from whoever is
#: next (ours at 1024³ on two threads, after numpy: 20 ms when 60 ms have passed, 10.3 ms when 200 ms have)
PAUSE_S = 0.25
SOFTMAX = ("rows=4096,n=1024", "rows=512,n=32000", "rows=16384,n=128")
#: Few channels, where numpy's copies of the windows cost the most. The last two were chosen after the shapes of
#: CONV_DEEP had turned out to stay below twice numpy's speed.
CONV = ("N=1,C=3,H=226,W=226,K=16,R=7,S=7", "N=1,C=1,H=512,W=512,K=8,R=5,S=5", "N=4,C=3,H=128,W=128,K=16,R=5,S=5")
#: many channels, where numpy's matrix product does nearly all the work: shown, and not counted with the others
CONV_DEEP = ("N=1,C=32,H=58,W=58,K=32,R=3,S=3", "N=8,C=16,H=34,W=34,K=64,R=3,S=3")
MATMUL = ("M=1024,N=1024,K=1024", "M=512,N=512,K=512", "M=1000,N=1000,K=1000", "M=100,N=3000,K=512")

NAIVE = """
#include <stdint.h>
void naive(const float *a, const float *b, float *c, int64_t M, int64_t N, int64_t K) {
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            float sum = 0;
            for (int64_t k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
            c[i * N + j] = sum;
        }
}
"""

Contenders = Mapping[str, Callable[[], Any]]


def side_by_side(
    contenders: Contenders, rounds: int, rng: random.Random, pause_s: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of one call for each contender and round, in random order within a round."""
    calls: dict[str, int] = {}
    for name, call in contenders.items():
        call()
        start = perf_counter()
        call()
        calls[name] = max(1, round(STRETCH_S / (perf_counter() - start)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in rng.sample(list(contenders), len(contenders)):
            call, n = contenders[name], calls[name]
            sleep(pause_s)
            call()
            start = perf_counter()
            for _ in range(n):
                call()
            samples[name].append((perf_counter() - start) / n)
    return samples


def numpy_peer(kernel: str, x: Mapping[str, Any]) -> Contenders:
    """What a numpy user would write, in the usual ways; the fastest of them counts."""
    import numpy as np

    if kernel == "matmul":
        out = np.empty_like(x["c"])
        return {"numpy": lambda: np.matmul(x["a"], x["b"], out=out)}
    if kernel == "softmax":

        def softmax() -> Any:
            e = np.exp(x["x"] - x["x"].max(1, keepdims=True))
            e /= e.sum(1, keepdims=True)
            return e

        e, row = np.empty_like(x["x"]), np.empty((x["rows"], 1), np.float32)

        def without_temporaries() -> Any:
            np.max(x["x"], 1, keepdims=True, out=row)
            np.exp(np.subtract(x["x"], row, out=e), out=e)
            return np.divide(e, np.sum(e, 1, keepdims=True, out=row), out=e)

        return {"numpy": softmax, "numpy_out": without_temporaries}

    def windows() -> Any:
        return np.lib.stride_tricks.sliding_window_view(x["x"], (x["R"], x["S"]), axis=(2, 3))

    def im2col() -> Any:
        n, k = x["N"], x["K"]
        p, q = x["H"] - x["R"] + 1, x["W"] - x["S"] + 1
        columns = windows().transpose(0, 1, 4, 5, 2, 3).reshape(n, -1, p * q)
        return (x["w"].reshape(k, -1) @ columns).reshape(n, k, p, q)

    return {
        "numpy": im2col,
        "numpy_tensordot": lambda: np.tensordot(windows(), x["w"], ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2),
    }


def measure(threads: int) -> list[dict[str, Any]]:
    """Every row for one number of threads, in this process."""
    import tunesmith
    from tunesmith.kernels import shipped
    from tunesmith.options import usable_cores

    rng, rows = random.Random(0), list[dict[str, Any]]()
    problems = (
        [("matmul", p) for p in MATMUL] + [("softmax", p) for p in SOFTMAX] + [("conv2d", p) for p in CONV + CONV_DEEP]
    )
    for name, problem in problems:
        kernel = shipped()[name]
        if threads < usable_cores():  # with all cores, the number of threads is a knob like the others
            kernel = kernel.fix(threads=threads)
        inputs = kernel.inputs(problem)
        start = perf_counter()
        summary = kernel.tune(**inputs)
        tune_s = perf_counter() - start
        verdict = summary.verdict
        assert verdict is not None
        middle = verdict.ranking[len(verdict.ranking) // 2].config
        at_middle = kernel.fix(**middle)
        with tunesmith.policy("lookup", strict=True):
            contenders: dict[str, Callable[[], Any]] = {
                "tuned": lambda k=kernel, x=inputs: k(**x),
                "middle": lambda k=at_middle, x=inputs: k(**x),
                **numpy_peer(name, inputs),
            }
            samples = side_by_side(contenders, ROUNDS, rng, PAUSE_S if threads > 1 else 0.0)
        rows.append(row(name, problem, threads, samples, summary, tune_s))
        print(*(f"{key}={value}" for key, value in rows[-1].items() if key != "samples_s"), file=sys.stderr, flush=True)
        if threads == 1 and (name, problem) == ("matmul", MATMUL[0]):
            rows.append(naive(kernel, inputs, rng))
    return rows


def row(
    name: str, problem: str, threads: int, samples: Mapping[str, list[float]], summary: Any, tune_s: float
) -> dict[str, Any]:
    from tunesmith.core.stats import median, paired_ratio

    best_numpy = min((n for n in samples if n.startswith("numpy")), key=lambda n: median(samples[n]))
    over_numpy = paired_ratio(samples[best_numpy], samples["tuned"])
    return {
        "kernel": name,
        "problem": problem,
        "threads": threads,
        "tuned_over_numpy": round(over_numpy[0], 4),
        "interval": [round(over_numpy[1], 4), round(over_numpy[2], 4)],
        "tuned_over_middle": round(paired_ratio(samples["middle"], samples["tuned"])[0], 4),
        "peer": best_numpy,
        "config": dict(summary.choice.config),
        "space": summary.cardinality,
        "fates": summary.counts,
        "tune_s": round(tune_s, 1),
        "medians_s": {n: median(s) for n, s in samples.items()},
        "samples_s": {n: [float(f"{x:.4g}") for x in s] for n, s in samples.items()},
    }


def naive(kernel: Any, inputs: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """The tuned matmul on one thread against the plain i-j-k loop, both compiled for this machine."""
    import tunesmith
    from tunesmith.core.stats import median, paired_ratio

    plain = tunesmith.autotune(configs=[tunesmith.Config(opt_level="O3", march="native")], key=["M", "N", "K"])(
        tunesmith.cc.kernel(NAIVE)
    )
    own = {**inputs, "c": inputs["c"].copy()}
    with tunesmith.policy("lookup"):
        samples = side_by_side({"tuned": lambda: kernel(**inputs), "naive": lambda: plain(**own)}, FEW_ROUNDS, rng)
    over_naive = paired_ratio(samples["naive"], samples["tuned"])
    return {
        "kernel": "matmul", "problem": MATMUL[0], "threads": 1,
        "tuned_over_naive": round(over_naive[0], 3), "interval": [round(over_naive[1], 3), round(over_naive[2], 3)],
        "medians_s": {n: median(s) for n, s in samples.items()}, "samples_s": samples,
    }  # fmt: skip


def in_own_process(threads: int) -> list[dict[str, Any]]:
    environ = {n: v for n, v in os.environ.items() if n not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    with tempfile.TemporaryDirectory() as store:
        environ |= {"OPENBLAS_NUM_THREADS": str(threads), "TUNESMITH_CACHE_DIR": store}
        done = subprocess.run(
            [sys.executable, __file__, "--threads", str(threads)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="only this number, printed as JSON")
    threads = parser.parse_args().threads
    if threads is not None:
        print(json.dumps(measure(threads)))
        return
    from tunesmith.core.stats import geometric_mean
    from tunesmith.options import usable_cores

    rows = [row for threads in sorted({1, usable_cores()}) for row in in_own_process(threads)]
    best = [r for r in rows if r["kernel"] == "matmul" and r["problem"] == MATMUL[0] and "tuned_over_numpy" in r]
    others = [r for r in rows if r["kernel"] != "matmul" and r["problem"] not in CONV_DEEP]
    deep = [r for r in rows if r["problem"] in CONV_DEEP]
    summary = {
        "tuned_over_numpy": min(r["tuned_over_numpy"] for r in best),
        "tuned_over_naive": next(r["tuned_over_naive"] for r in rows if "tuned_over_naive" in r),
        **{f"tuned_over_numpy_{r['threads']}_threads": r["tuned_over_numpy"] for r in best},
        "worst_other_over_numpy": min(r["tuned_over_numpy"] for r in others),
        "worst_other_over_middle": min(r["tuned_over_middle"] for r in others),
        "worst_deep_conv_over_numpy": min(r["tuned_over_numpy"] for r in deep),
        "geomean_other_over_numpy": round(geometric_mean([r["tuned_over_numpy"] for r in others]), 3),
    }
    path = write(
        "cpu_matmul", "cpu",
        protocol=f"{ROUNDS} rounds ({FEW_ROUNDS} against the plain loop), each contender once a round in random order; "
        f"a sample is the mean of as many calls as take {STRETCH_S * 1e3:g} ms, after a call that is not timed "
        f"and, where numpy has threads, a pause of {PAUSE_S * 1e3:g} ms before it; ratios of speeds: geometric mean of "
        "the paired ratios, 95 % intervals by Student's t; numpy's threads as many as the kernel's; normal inputs",
        command="python benchmarks/cpu_matmul.py",
        rows=rows, summary=summary, versions={"numpy": version("numpy"), "cc": compiler()},
    )  # fmt: skip
    for r in rows:
        if "tuned_over_naive" in r:
            against = f"{r['tuned_over_naive']:.1f}x plain loop"
        else:
            against = f"{r['tuned_over_numpy']:.2f}x numpy, {r['tuned_over_middle']:.2f}x the middle of its space"
        print(f"{r['kernel']:8} {r['problem']:36} {r['threads']} threads: {against}")
    print(json.dumps(summary, indent=2))
    print(path)


def compiler() -> str:
    from tunesmith.backends.c_compiler import compiler as found

    return found().version


if __name__ == "__main__":
    main()
