"""Public reports retold: near-ties that noise decides, and the luckiest of many. R24 (R13 is in test_search.py)."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import fresh_process

from tunesmith import Config, Sample, TunedKernel, autotune
from tunesmith.events import Summary
from tunesmith.kernel import Run

X = np.ones(2)
#: seconds: what the report has as 10.00, 10.02 and 9.5
NEAR, NEARER, BEST = 10.02e-6, 10.00e-6, 9.5e-6


@dataclass
class Noisy:
    """Each sample is off by 2 %; all become slower by `drift` in the course of so many samples."""

    times: Mapping[int, float]
    rng: random.Random
    drift: float = 0.0
    session: int = 1500
    protocol: str = "noisy/1"
    asked: list[int] = field(default_factory=list)

    def sample(self, run: Run) -> Sample:
        c = int(run.config["c"])  # type: ignore[arg-type]
        slower = 1 + self.drift * len(self.asked) / self.session
        self.asked.append(c)
        return Sample(self.times[c] * slower * self.rng.lognormvariate(0, 0.02))


def searched(clock: Noisy, version: str) -> tuple[TunedKernel, Summary]:
    """A search from nothing among the Configs that the clock knows, in the order of its table."""
    f = autotune(configs=[Config(c=c) for c in clock.times], clock=clock, version=version)(lambda x, *, c: c)
    return f, f.tune(X)


# --- (a) two that differ by a fifth of the margin -----------------------------------------------------


@pytest.mark.parametrize("times", [{0: NEARER, 1: NEAR}, {0: NEAR, 1: NEARER}], ids=["faster first", "slower first"])
def test_r24_a_near_tie_is_reported_and_the_first_listed_is_picked_every_time(times: dict[int, float]) -> None:
    said = 0
    for seed in range(50):
        _, summary = searched(Noisy(times, random.Random(seed)), f"a{seed}")
        assert summary.choice is not None
        assert summary.choice.config == Config(c=0)
        assert summary.verdict is not None
        assert summary.verdict.margin == 0.01
        said += summary.choice.ties == (Config(c=1),)
    assert said >= 48


def test_r24_what_is_in_use_stays_however_often_it_is_searched_again() -> None:
    times = {0: NEAR, 1: NEARER}
    for seed in range(10):
        searched(Noisy(times, random.Random(seed)), "again")
        wider = {c + 2: 2 * NEAR for c in range(seed + 1)} | times  # something new, so that all is timed again
        _, summary = searched(Noisy(wider, random.Random(seed + 50)), "again")
        assert summary.choice is not None
        assert summary.choice.config == Config(c=0)


# --- (b), (c) one that is faster among many that are alike ------------------------------------------


@pytest.mark.parametrize("drift", [0.0, 0.05], ids=["steady", "drifting"])
def test_r24_the_true_best_of_many_is_found_and_not_the_luckiest(drift: float) -> None:
    found = 0
    for seed in range(50):
        best = seed * 4
        times = {c: BEST if c == best else 10e-6 for c in range(200)}
        clock = Noisy(times, random.Random(seed), drift)
        _, summary = searched(clock, f"b{seed}")
        assert summary.choice is not None
        found += summary.choice.config == Config(c=best)
        finalists = set(clock.asked[-10:])
        assert best in finalists, "timed to the end, beside its rivals"
    assert found >= 45


# --- (d) a stored pick ---------------------------------------------------------------------------------

STORED = """
import random
from tunesmith import Sample

class Noisy:
    protocol = "noisy/1"
    asked = 0
    def sample(self, run):
        self.asked += 1
        return Sample({{0: 10.02e-6, 1: 10.0e-6}}[run.config["c"]] * random.Random({seed}).lognormvariate(0, 0.02))

clock = Noisy()

@autotune(configs=[Config(c=0), Config(c=1)], clock=clock, version="1")
def f(x, *, c):
    return c

choice = f.choice([1.0])
print(f([1.0]), clock.asked > 0, choice.source)
"""


def test_r24_processes_that_come_later_all_use_the_stored_pick(tmp_path: Path) -> None:
    first, *later = [fresh_process(STORED.format(seed=seed), tmp_path) for seed in range(21)]
    assert first.returncode == 0, first.stderr
    picked = first.stdout.split()[0]
    assert first.stdout.split()[1:] == ["True", "search"]
    assert {process.stdout.strip() for process in later} == {f"{picked} False store"}


def test_r24_the_report_says_how_sure_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    f, summary = searched(Noisy({0: NEARER, 1: NEAR}, random.Random(0)), "sure")
    assert summary.choice is not None
    assert summary.choice.within is not None
    f.explain(X)
    said = " ".join(capsys.readouterr().out.split())
    assert f"nothing in the race is faster by more than {summary.choice.within:.1%}, at 0.95 confidence" in said
    assert "ties" in said
