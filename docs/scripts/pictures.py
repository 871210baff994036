"""Draws the pictures of `docs/how-it-works.md` from a committed recording of a real H200 and from the results.

pip install matplotlib
python docs/scripts/pictures.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

from tunesmith import Config, Model, Tiles, autotune, known_device
from tunesmith.backends.replay import ReplayClock, ReplayKernel
from tunesmith.core.outcome import Measured, Recording
from tunesmith.core.problem import Problem
from tunesmith.core.stats import median
from tunesmith.events import Sampled, Summary, watched
from tunesmith.recording import load

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
RECORDING = ROOT / "benchmarks" / "recordings" / "gemm_M3072_N1536_K2304_h200.json.gz"
#: legible on white and on the dark theme's background alike
INK, QUIET, STRONG, SECOND = "#7d8590", "#9aa4b0", "#e8590c", "#1c7ed6"

plt.rcParams.update({
    "svg.fonttype": "none",  # text stays text: small, and in the reader's font
    "svg.hashsalt": "tunesmith",  # the same picture makes the same file
    "font.family": "sans-serif", "font.size": 11,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False,
    "savefig.transparent": True, "figure.figsize": (8, 3.6), "figure.constrained_layout.use": True,
})  # fmt: skip


def race() -> tuple[dict[Config, int], Summary]:
    """Search the recording as on the device: the last round of each candidate, and what came out."""
    recording = load(RECORDING)
    kernel = ReplayKernel(recording)
    last: dict[Config, int] = {}

    def hear(event: Any) -> None:
        if isinstance(event, Sampled):
            last[event.config] = event.round + 1  # 0: timed at its arrival, and no more

    clock = ReplayClock.of(recording, seed=1)
    with tempfile.TemporaryDirectory() as folder, watched(hear):
        os.environ["TUNESMITH_CACHE_DIR"] = folder
        tuned = autotune(configs=kernel.configs, key=kernel.key, clock=clock, isolate=False)(kernel)
        return last, tuned.tune()


def draw_race(last: dict[Config, int], recording: Recording, chosen: Config) -> None:
    """Each candidate is a line that ends with the round in which it left."""
    times = _medians(recording)
    best = min(times.values())
    _, axes = plt.subplots()
    for config, rounds in last.items():
        mine = config == chosen
        axes.plot([0.7, max(rounds, 0.9)], [times[config] / best] * 2, color=STRONG if mine else SECOND,
                  linewidth=2 if mine else 0.7, alpha=1 if mine else 0.55, zorder=3 if mine else 2)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="time over the fastest's", xlim=(0.7, None))
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"])
    axes.set_yticks([1, 1.4, 3, 10], ["1", "1.4", "3", "10"])
    axes.minorticks_off()
    axes.annotate("the choice", (max(last.values()), times[chosen] / best), (0, 8), textcoords="offset points",
                  color=STRONG, ha="right")  # fmt: skip
    _save("race")


def draw_space(recording: Recording, chosen: Config) -> None:
    """All configurations, the fastest first."""
    times = sorted(seconds * 1e6 for seconds in _medians(recording).values())
    _, axes = plt.subplots()
    axes.plot(range(1, len(times) + 1), times, color=SECOND, linewidth=1.8)
    axes.plot([1], [_medians(recording)[chosen] * 1e6], "o", color=STRONG)
    middle = times[len(times) // 2]
    axes.axhline(middle, color=QUIET, linewidth=0.8, linestyle=":")
    axes.annotate(f"the median: {middle / times[0]:.1f} times the fastest", (1, middle), (0, 5),
                  textcoords="offset points")  # fmt: skip
    within = sum(time <= 1.05 * times[0] for time in times)
    axes.annotate(f"the choice; {within} of {len(times)} are within 5 % of the fastest", (1, times[0]), (48, -6),
                  textcoords="offset points", color=STRONG)  # fmt: skip
    axes.set(yscale="log", xlabel="configurations, fastest first", ylabel="µs")
    axes.set_yticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])
    axes.minorticks_off()
    _save("space")


def draw_pairs(recording: Recording) -> None:
    """The samples of the fastest five over those of the fastest, round by round."""
    outcomes = {t.config: t.outcome for t in recording.trials if isinstance(t.outcome, Measured)}
    ranked = sorted(outcomes, key=lambda config: median([s.seconds for s in outcomes[config].samples]))[:5]
    first = {sample.round: sample.seconds for sample in outcomes[ranked[0]].samples}
    _, axes = plt.subplots(figsize=(8, 2.6))
    for row, config in enumerate(ranked):
        ratios = [s.seconds / first[s.round] for s in outcomes[config].samples if s.round in first]
        axes.plot(ratios, [row] * len(ratios), "|", color=SECOND, markersize=14, alpha=0.7)
        axes.plot([median(ratios)], [row], "o", color=STRONG, markersize=5)
    axes.axvspan(1, 1.01, color=QUIET, alpha=0.25, linewidth=0)
    axes.annotate("within the margin", (1.005, -0.75), ha="center", va="center")
    axes.set(xlabel="time over the fastest's in the same round", ylim=(len(ranked) - 0.5, -1.1))
    axes.set_yticks(range(len(ranked)), ["fastest", "2nd", "3rd", "4th", "5th"])
    _save("pairs")


def draw_model(recording: Recording) -> None:
    """What the model predicts before anything is compiled, against what was measured."""
    h200 = known_device("NVIDIA H200")
    assert h200 is not None
    model, times = Model(Tiles()), _medians(recording)
    dims = {name: recording.problem.dims[name] for name in ("M", "N", "K")}
    predicted = {config: model.predict(Problem(dims), config, h200) for config in times}
    bounds: dict[str, list[tuple[float, float]]] = {}
    for config, found in predicted.items():
        if found is not None:
            bounds.setdefault(found.bound, []).append((found.seconds * 1e6, times[config] * 1e6))
    _, axes = plt.subplots(figsize=(8, 4.2))
    for color, (bound, points) in zip((SECOND, STRONG, "#2f9e44"), sorted(bounds.items()), strict=False):
        axes.plot(*zip(*points, strict=True), "o", color=color, markersize=3.5, alpha=0.6, label=f"bound by {bound}")
    ends = (min(times.values()) * 1e6 * 0.9, max(times.values()) * 1e6 * 1.1)
    axes.plot(ends, ends, color=QUIET, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="predicted before compiling, µs", ylabel="measured, µs")
    for axis in (axes.set_xticks, axes.set_yticks):
        axis([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1000"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    _save("model")


def draw_launches() -> None:
    """What one warm launch costs the host, ours beside others."""
    result = json.loads((ROOT / "benchmarks" / "results" / "triton_dispatch-h200.json").read_text())
    told = {"driver": "a loop in C over the driver", "launcher": "Triton's launcher, all ready", "ours": "tunesmith",
            "jit": "triton.jit", "autotune": "triton.autotune"}  # fmt: skip
    us = {row["contender"]: row["us"] for row in result["rows"]}
    _, axes = plt.subplots(figsize=(8, 2.4))
    bars = axes.barh(list(told.values()), [us[name] for name in told], height=0.6,
                     color=[STRONG if name == "ours" else SECOND for name in told])  # fmt: skip
    axes.bar_label(bars, [f"{us[name]:.1f} µs" for name in told], color=INK, padding=4)
    axes.invert_yaxis()
    axes.set(xlabel="µs of the host for one warm launch, H200, Triton 3.6")
    axes.tick_params(left=False)
    _save("launches")


def _medians(recording: Recording) -> dict[Config, float]:
    return {
        trial.config: median([sample.seconds for sample in trial.outcome.samples])
        for trial in recording.trials
        if isinstance(trial.outcome, Measured)
    }


def _save(name: str) -> None:
    plt.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    plt.close()


def main() -> None:
    """Draw all, and say what the page's text says of them."""
    recording = load(RECORDING)
    last, summary = race()
    assert summary.choice is not None
    draw_race(last, recording, summary.choice.config)
    draw_space(recording, summary.choice.config)
    draw_pairs(recording)
    draw_model(recording)
    draw_launches()
    went_on = {rounds: sum(mine > rounds for mine in last.values()) for rounds in (1, 2, 3, 10, 28)}
    print(f"{len(last)} candidates, {went_on} went on after so many rounds")
    print(summary.choice, sum(last.values()), "samples")


if __name__ == "__main__":
    main()
