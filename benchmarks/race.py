"""The race on recorded spaces of an H200: how good is what it picks, and what would it cost? Needs no GPU.

Each seed splits the samples of every recorded round in two halves: a rule picks from the one and is judged on the
other (by the median of it), beside what the exhaustive rule, the smallest median of all samples, picks from the same
half. The race is the one that searches use, fed by a replay clock; every candidate is welcomed as on a GPU, so that it
is launched once untimed and once on arrival before the rounds. A half has 15 samples of each candidate: a race of more
rounds is given them again, and takes what it has seen before for news; that of 15 rounds sees none twice.

    python benchmarks/race.py [--seeds N] [--jobs N] [--save]
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _results import version, write

from tunesmith.backends.replay import Disturbance, ReplayClock
from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Recording, Resources, Sample, Trial
from tunesmith.core.stopping import FINALS, ROUNDS_FOR_TIES, Rule
from tunesmith.kernel import Clock, Run
from tunesmith.measure.pick import Pick, pick
from tunesmith.measure.race import Race
from tunesmith.recording import convert

DATA = Path(__file__).parents[1] / "tests" / "data"
#: recorded: 5 rounds of 6 launches, of which each half has 3
ROUNDS, LAUNCHES = 5, 6
#: what clears the L2 cache before every launch, and what a copy on the H200 reaches in practice
FLUSH_S, COPY_BYTES_S, COPY_LAUNCH_S = 70e-6, 3.8e12, 3e-6
#: what a candidate is usually given
USUAL_S = 0.1
#: Triton's do_bench: milliseconds of warm-up and of timing
WARM_UP_S, REP_S = 0.025, 0.1
KERNEL_TUNERS, MINIMUM_OF = 7, 100
#: by the name of a table's row: the rule of the race, and the pick. Who takes the fastest asks for no proof of ties.
RACES: dict[str, tuple[Rule, Pick]] = {
    "race, fastest": (Rule(ties=False), "fastest"),
    "race, cheapest": (Rule(), "cheapest"),
    "15 rounds, cheapest": (Rule(rounds=ROUNDS * LAUNCHES // 2 - FINALS), "cheapest"),
}
DISTURBED = Disturbance(drift=0.03, drift_s=1.0, outliers=0.01, outlier_factor=10.0)


@dataclass(frozen=True)
class Problem:
    """One recorded space, the Configs that ran.

    Attributes:
        seconds: (configs, rounds, launches).
    """

    name: str
    configs: tuple[Config, ...]
    resources: tuple[Resources, ...]
    seconds: np.ndarray
    restore_s: float

    @property
    def overhead_s(self) -> float:
        """Of each launch: clearing the cache, and putting back what the kernel wrote in place."""
        return FLUSH_S + self.restore_s

    @property
    def usual_s(self) -> float:
        """The device's time that the usual rule takes."""
        return USUAL_S * len(self.configs)


def problems() -> Iterator[Problem]:
    """All recorded spaces."""
    for name in ("gemm_h200", "rows_h200"):
        for recording in convert(DATA / f"{name}.json.gz"):
            yield _problem(recording)


def _problem(recording: Recording) -> Problem:
    ran = [trial for trial in recording.trials if isinstance(trial.outcome, Measured)]
    seconds = np.array([t.outcome.samples_s for t in ran if isinstance(t.outcome, Measured)])
    restore_s = 0.0
    if recording.kernel == "add_rmsnorm":  # two fp16 arrays, read and written
        rows, n = int(recording.problem["rows"]), int(recording.problem["n"])  # type: ignore[arg-type]
        restore_s = 2 * (COPY_LAUNCH_S + 2 * 2 * rows * n / COPY_BYTES_S)
    return Problem(
        f"{recording.kernel}({recording.problem.text})", tuple(t.config for t in ran), tuple(t.resources for t in ran),
        seconds.reshape(len(ran), ROUNDS, LAUNCHES), restore_s,
    )  # fmt: skip


def halves(problem: Problem, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(configs, rounds, 3) to race on and to judge by; the same launches of a round for all Configs, in their order."""
    order = rng.permuted(np.tile(np.arange(LAUNCHES), (ROUNDS, 1)), axis=1)
    first, second = np.sort(order[:, : LAUNCHES // 2]), np.sort(order[:, LAUNCHES // 2 :])
    rounds = np.arange(ROUNDS)[:, None]
    return problem.seconds[:, rounds, first], problem.seconds[:, rounds, second]


# --- the race ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Executable:
    """A recorded Config, whose launch does nothing."""

    config: Config
    resources: Resources

    def launch(self, *args: Any) -> None:
        pass


def raced(problem: Problem, clock: Clock, seed: int, rule: Rule) -> tuple[list[Trial], int]:
    """The Trials of a race in the Space's order, and how many samples it took."""
    race = Race(clock, rule=rule, seed=seed)
    for config, resources in zip(problem.configs, problem.resources, strict=True):
        race.welcome(Run(Executable(config, resources), ()))
    race.run()
    outcomes = race.outcomes
    return [Trial(c, outcomes[c], r) for c, r in zip(problem.configs, problem.resources, strict=True)], race.samples


def replayed(problem: Problem, half: np.ndarray, seed: int, disturbance: Disturbance | None) -> ReplayClock:
    """One sample of each round in turn, rounds in random order: (configs, rounds, 3) → (configs, 3 × rounds)."""
    rounds = np.random.default_rng(seed).permutation(ROUNDS)
    rows = half[:, rounds, :].transpose(0, 2, 1).reshape(len(half), -1).tolist()
    seconds = dict(zip(problem.configs, rows, strict=True))
    return ReplayClock(seconds, overhead_s=problem.overhead_s, warm_up=True, disturbance=disturbance, seed=seed)


# --- others' rules -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spent:
    """A rule's pick and the device's time that it took."""

    config: int
    device_s: float


def one_by_one(
    problem: Problem, half: np.ndarray, launches: np.ndarray, per_launch_s: float, warm_up_s: float,
    figure: Callable[[np.ndarray], np.ndarray], disturbance: Disturbance | None, rng: np.random.Generator,
) -> Spent:  # fmt: skip
    """A rule that times candidates one after the other, so many launches each.

    Of more launches than are recorded, the recorded ones stand for all, spread over the candidate's time.
    """
    n = len(half)
    samples = half.reshape(n, -1).copy()
    recorded = samples.shape[1]
    time_s = launches * (samples.mean(1) + per_launch_s) + warm_up_s
    if disturbance is not None:
        order = rng.permutation(n)
        start = np.empty(n)
        start[order] = np.cumsum(time_s[order]) - time_s[order]
        within = warm_up_s + np.linspace(0, 1, recorded)[None, :] * (time_s - warm_up_s)[:, None]
        phase = rng.random()
        wave = np.sin(np.pi * ((start[:, None] + within) / disturbance.drift_s + phase)) ** 2
        samples *= 1 + disturbance.drift * wave
        samples[rng.random(samples.shape) < disturbance.outliers] *= disturbance.outlier_factor
    few = int(launches.min())
    if few >= recorded:
        figures = figure(samples)
    else:
        figures = np.array(
            [float(figure(row[None, : min(recorded, int(k))])[0]) for row, k in zip(samples, launches, strict=True)]
        )
    return Spent(int(np.argmin(figures)), float(time_s.sum()))


def _median(samples: np.ndarray) -> np.ndarray:
    return np.median(samples, axis=1)


def _mean(samples: np.ndarray) -> np.ndarray:
    return samples.mean(axis=1)


def _least(samples: np.ndarray) -> np.ndarray:
    return samples.min(axis=1)


def others(problem: Problem, half: np.ndarray, disturbance: Disturbance | None, seed: int) -> dict[str, Spent]:
    """What other tuners would pick from the same half."""
    rng = np.random.default_rng(seed)
    n = len(half)
    mean_s = half.reshape(n, -1).mean(1) + problem.overhead_s
    rep = np.maximum(1, np.floor(REP_S / mean_s)).astype(int)
    flush = problem.overhead_s
    every = lambda k: np.full(n, k)  # noqa: E731
    return {
        "do_bench median": one_by_one(problem, half, rep, flush, WARM_UP_S, _median, disturbance, rng),
        "do_bench mean": one_by_one(problem, half, rep, flush, WARM_UP_S, _mean, disturbance, rng),
        f"min of {MINIMUM_OF}": one_by_one(problem, half, every(MINIMUM_OF), flush, 0.0, _least, disturbance, rng),
        f"mean of {KERNEL_TUNERS}": one_by_one(
            problem, half, every(KERNEL_TUNERS), 0.0, 0.0, _mean, disturbance, rng
        ),
    }  # fmt: skip


# --- the tables --------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Regrets beyond the exhaustive rule's, and parts of the usual device time, of one rule on one problem."""

    regrets: list[float] = field(default_factory=list[float])
    parts: list[float] = field(default_factory=list[float])
    samples: list[int] = field(default_factory=list[int])


def regrets_of(problem: Problem, seeds: int, disturbance: Disturbance | None) -> dict[str, Tally]:
    """Every rule on one problem, all seeds."""
    tallies: dict[str, Tally] = {}

    def note(rule: str, config: int, device_s: float, samples: int = 0) -> None:
        tally = tallies.setdefault(rule, Tally())
        tally.regrets.append(float(truth[config] / truth[exhaustive] - 1))
        tally.parts.append(device_s / problem.usual_s)
        tally.samples.append(samples)

    place = {config: i for i, config in enumerate(problem.configs)}
    for seed in range(seeds):
        half, judge = halves(problem, np.random.default_rng(seed))
        truth = np.median(judge.reshape(len(judge), -1), axis=1)
        exhaustive = int(np.argmin(np.median(half.reshape(len(half), -1), axis=1)))
        for name, (rule, how) in RACES.items():
            clock = replayed(problem, half, seed, disturbance)
            trials, samples = raced(problem, clock, seed, rule)
            verdict = pick(trials, how=how)
            assert verdict is not None
            note(name, place[verdict.winner.config], clock.spent_s, samples)
        for name, spent in others(problem, half, disturbance, seed).items():
            note(name, spent.config, spent.device_s)
    return tallies


class Synthetic:
    """Recorded medians are the truth; what a sample adds is drawn: of its round, and its own.

    Args:
        correlation: of a candidate's own noise with that of its sample before.
    """

    protocol = "synthetic/1"

    def __init__(self, problem: Problem, seed: int, correlation: float) -> None:
        flat = problem.seconds.reshape(len(problem.configs), -1)
        middle = np.median(flat, axis=1)
        spread = 1.4826 * np.median(np.abs(np.log(flat / middle[:, None])), axis=1)
        self.truth = dict(zip(problem.configs, middle.tolist(), strict=True))
        self._spread = dict(zip(problem.configs, spread.tolist(), strict=True))
        self._correlation = correlation
        self._rng = random.Random(seed)
        self._of_round = [self._rng.gauss(0, 0.01) for _ in range(2 * ROUNDS_FOR_TIES)]

    def sample(self, run: Run) -> Sample:
        config, at = run.config, run.state.get("at", 0)
        run.state["at"] = at + 1
        own, before = self._rng.gauss(0, self._spread[config]), run.state.get("noise")
        if before is not None:
            own = self._correlation * before + math.sqrt(1 - self._correlation**2) * own
        run.state["noise"] = own
        return Sample(self.truth[config] * math.exp(self._of_round[at] + own))


def wrong_of(problem: Problem, seeds: int, rule: Rule, how: Pick, correlation: float) -> dict[str, float]:
    """How often the pick is slower than the best by more than the margin; and how often that is claimed not to be."""
    wrong = claimed = wrong_claims = 0
    for seed in range(seeds):
        clock = Synthetic(problem, seed, correlation)
        trials, _ = raced(problem, clock, seed, rule)
        verdict = pick(trials, how=how)
        assert verdict is not None
        bad = clock.truth[verdict.winner.config] > min(clock.truth.values()) * (1 + rule.margin)
        claim = verdict.within is not None and verdict.within <= rule.margin
        wrong, claimed, wrong_claims = wrong + bad, claimed + claim, wrong_claims + (bad and claim)
    return {"wrong": wrong / seeds, "claimed": claimed / seeds, "wrong_and_claimed": wrong_claims / seeds}


def row(problem: Problem, rule: str, tally: Tally, *, disturbed: bool) -> dict[str, Any]:
    p95 = float(np.quantile(tally.regrets, 0.95))
    return {
        "problem": problem.name, "rule": rule, "disturbed": disturbed, "configs": len(problem.configs),
        "median_regret": round(float(np.median(tally.regrets)), 5),
        "mean_regret": round(float(np.mean(tally.regrets)), 5),
        "p95_regret": round(p95, 5), "gpu_time_fraction": round(float(np.mean(tally.parts)), 5),
        "samples": round(float(np.mean(tally.samples)), 1),
    }  # fmt: skip


def table(tallies: Sequence[Mapping[str, Tally]], title: str) -> dict[str, dict[str, float]]:
    """Print a rule a line, over all problems and seeds."""
    print(f"\n{title}\n{'rule':20} {'median':>8} {'mean':>8} {'p95':>8} {'> 1 %':>7} {'GPU time':>9}")
    found: dict[str, dict[str, float]] = {}
    for rule in tallies[0]:
        regrets = np.concatenate([tally[rule].regrets for tally in tallies])
        part = float(np.mean([np.mean(tally[rule].parts) for tally in tallies]))
        found[rule] = {
            "median": float(np.median(regrets)), "mean": float(np.mean(regrets)),
            "p95": float(np.quantile(regrets, 0.95)), "over": float(np.mean(regrets > 0.01)), "part": part,
        }  # fmt: skip
        f = found[rule]
        print(f"{rule:20} {f['median']:8.2%} {f['mean']:8.2%} {f['p95']:8.2%} {f['over']:7.1%} {part:9.2%}")
    return found


#: the races whose confidence is judged where the truth is known
SYNTHETIC = ("race, fastest", "race, cheapest")


@dataclass(frozen=True)
class Found:
    """What came of one problem: every rule's tallies, undisturbed and disturbed, and the shares of wrong picks."""

    problem: Problem
    tallies: dict[bool, dict[str, Tally]]
    wrong: dict[str, dict[str, float]]


def measured(problem: Problem, seeds: int, correlation: float) -> Found:
    tallies = {disturbed: regrets_of(problem, seeds, DISTURBED if disturbed else None) for disturbed in (False, True)}
    wrong = {name: wrong_of(problem, seeds, *RACES[name], correlation) for name in SYNTHETIC}
    return Found(problem, tallies, wrong)


def summary_of(shares: Sequence[Mapping[str, float]], of: str) -> dict[str, float]:
    """The shares of wrong and sure picks over all problems."""
    return {
        f"wrong_synthetic_mean{of}": round(float(np.mean([c["wrong"] for c in shares])), 5),
        f"wrong_synthetic_worst{of}": round(max(c["wrong"] for c in shares), 5),
        f"claimed_synthetic_mean{of}": round(float(np.mean([c["claimed"] for c in shares])), 5),
        f"wrong_and_claimed_synthetic_worst{of}": round(max(c["wrong_and_claimed"] for c in shares), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument(
        "--correlation", type=float, default=0.0, help="of successive samples, where the truth is known"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/race-recorded.json")
    asked = parser.parse_args()
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    found: dict[bool, list[dict[str, Tally]]] = {False: [], True: []}
    confidence: dict[str, list[dict[str, float]]] = {rule: [] for rule in SYNTHETIC}
    with ProcessPoolExecutor(asked.jobs) as pool:
        for one in pool.map(partial(measured, seeds=asked.seeds, correlation=asked.correlation), problems()):
            for disturbed, tallies in one.tallies.items():
                found[disturbed].append(tallies)
                rows += [row(one.problem, rule, tally, disturbed=disturbed) for rule, tally in tallies.items()]
            for rule, wrong in one.wrong.items():
                confidence[rule].append(wrong)
                rows.append({"problem": one.problem.name, "rule": rule, "synthetic": True, **wrong})
            fastest, cheapest = (one.tallies[False][f"race, {how}"] for how in ("fastest", "cheapest"))
            print(
                f"{one.problem.name:50} GPU {np.mean(fastest.parts):.2%}, {np.mean(cheapest.parts):.2%}  "
                f"p95 {np.quantile(fastest.regrets, 0.95):.2%}, {np.quantile(cheapest.regrets, 0.95):.2%}  "
                f"wrong {', '.join(format(w['wrong'], '.1%') for w in one.wrong.values())}", flush=True,
            )  # fmt: skip
    plain = table(found[False], "regret beyond the exhaustive rule's")
    hard = table(found[True], "the same with 3 % drift and 1 % tenfold outliers")
    ours = plain["race, fastest"]
    summary = {
        "median_regret": round(ours["median"], 5), "p95_regret": round(ours["p95"], 5),
        "p95_regret_disturbed": round(hard["race, fastest"]["p95"], 5),
        "gpu_time_fraction": round(ours["part"], 5),
        **{
            f"{what}_default_pick{of}": round(plain[f"{rule}, cheapest"][name], 5)
            for rule, of in (("race", ""), ("15 rounds", "_15_rounds"))
            for what, name in (("median_regret", "median"), ("p95_regret", "p95"), ("gpu_time_fraction", "part"))
        },
        "p95_regret_disturbed_default_pick_15_rounds": round(hard["15 rounds, cheapest"]["p95"], 5),
        **summary_of(confidence["race, fastest"], ""), **summary_of(confidence["race, cheapest"], "_default_pick"),
        "p95_regret_do_bench": round(plain["do_bench median"]["p95"], 5),
        "p95_regret_do_bench_disturbed": round(hard["do_bench median"]["p95"], 5),
        "p95_regret_min_of_100_disturbed": round(hard["min of 100"]["p95"], 5),
        "p95_regret_mean_of_7_disturbed": round(hard["mean of 7"]["p95"], 5),
        "seeds": asked.seeds,
    }  # fmt: skip
    print(f"\n{time.perf_counter() - start:.0f} s\n", *(f"{k}: {v}\n" for k, v in summary.items()), sep="")
    if asked.save:
        protocol = {
            "what": " ".join(__doc__.split("\n\n")[1].split()),
            "seeds": asked.seeds,
            "rules": {name: repr(rule) for name, (rule, _) in RACES.items()},
        }
        write(
            "race", "recorded", protocol=protocol, command=f"python benchmarks/race.py --seeds {asked.seeds} --save",
            rows=rows, summary=summary, versions={"numpy": version("numpy")},
        )  # fmt: skip


if __name__ == "__main__":
    main()
