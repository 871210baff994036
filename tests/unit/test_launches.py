"""A bound on timed launches: where it stops a search, what the Choice says, how the next search goes on."""

from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Measured, Sample, TunedKernel, autotune
from tunesmith.errors import BadInput
from tunesmith.events import LAUNCHES, Summary
from tunesmith.kernel import Run

X = np.ones(2)


def tuned(clock: Any, launches: int | None = None, **options: Any) -> TunedKernel:
    configs = [Config(c=c) for c in range(10)]
    return autotune(configs=configs, clock=clock, launches=launches, version="1", **options)(lambda x, *, c: c)


def scripted() -> ScriptedClock:
    return ScriptedClock(lambda config: 1e-3 * (2 + config["c"]), noise=0.001)  # type: ignore[operator]


def measured(summary: Summary) -> int:
    return sum(isinstance(trial.outcome, Measured) for trial in summary.trials)


@pytest.mark.parametrize("launches", [1, 7, 10, 13])
def test_no_more_launches_are_timed_than_are_allowed(launches: int) -> None:
    clock = scripted()
    summary = tuned(clock, launches).tune(X)
    assert len(clock.asked) == launches
    assert measured(summary) >= 1
    assert summary.choice is not None
    assert (summary.choice.partial, summary.choice.launches) == (LAUNCHES, launches)
    assert summary.why_untried == LAUNCHES
    assert measured(summary) + summary.counts["untried"] == 10


def test_a_search_that_needs_fewer_is_whole() -> None:
    summary = tuned(scripted(), 10_000).tune(X)
    assert summary.choice is not None
    assert (summary.choice.config, summary.choice.partial) == (Config(c=0), "")


def test_what_the_tuning_call_is_allowed_goes_before_what_the_kernel_is() -> None:
    clock = scripted()
    tuned(clock, 5).tune(X, launches=3)
    assert len(clock.asked) == 3


def test_the_same_bound_searches_no_more_and_a_larger_one_goes_on_from_there() -> None:
    first, same, more = scripted(), scripted(), scripted()
    tuned(first, 6)(X)
    assert tuned(same, 6).choice(X).source == "store"
    assert same.asked == []

    f = tuned(more, 200)
    assert f(X) == 0
    assert f.choice(X).partial == ""
    kept = {t.config for t in f.explanation(X)[2] if isinstance(t.outcome, Measured)}
    assert kept == {Config(c=c) for c in range(10)}
    assert len(more.timed & first.timed) <= 6


def test_all_launches_of_a_sample_count() -> None:
    class Means:
        protocol, asked = "means/1", 0

        def sample(self, run: Run) -> Sample:
            self.asked += 1
            run.state["launches"] = 100
            return Sample(1e-3 * (2 + run.config["c"]))  # type: ignore[operator]

    clock = Means()
    tuned(clock, 500).tune(X)
    assert clock.asked == 5


def test_it_is_a_number_from_one() -> None:
    for bad in (0, -1, 2.5, True):
        with pytest.raises(BadInput, match=r"launches=.*; good values: a number of timed launches from 1"):
            tuned(scripted(), bad)  # type: ignore[arg-type]
