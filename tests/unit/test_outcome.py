"""A Trial and a Choice survive being written as data; what is not one is refused."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith import Choice, Config, Failed, Measured, Problem, Resources, Sample, Trial, Untried
from tunesmith.core.outcome import STAGES, choice_from_data, choice_to_data, trial_from_data, trial_to_data
from tunesmith.errors import BadInput

seconds = st.floats(min_value=1e-12, max_value=1e4)
samples = st.builds(Sample, seconds, st.integers(-1, 99), st.integers(-1, 99), st.none() | st.floats(1e6, 1e10))
outcomes = (
    st.lists(samples, min_size=1, max_size=4).map(lambda s: Measured(tuple(s)))
    | st.builds(Failed, st.sampled_from(STAGES), st.text(max_size=20), st.text(max_size=20))
    | st.builds(Untried, st.text(max_size=20))
)
configs = st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(max_size=3)).map(Config)
counts = st.none() | st.integers(0, 10**6)
trials = st.builds(
    Trial, configs, outcomes, st.builds(Resources, counts, counts, counts, counts, counts), st.text(max_size=20),
    st.none() | seconds, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2), st.text(max_size=5),
    st.just(1.0) | st.floats(0.1, 10.0), pace_s=st.none() | seconds,
)  # fmt: skip
choices = st.builds(
    Choice, configs, st.sampled_from(["default", "lookup", "search"]), st.text(max_size=9), st.none() | seconds,
    st.none() | configs, st.none() | seconds, st.lists(configs, max_size=2).map(tuple), st.text(max_size=9),
    st.none() | st.just(Problem({"T": 3})),
    st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2), st.text(max_size=5),
    conditions=st.text(max_size=5), pace_s=st.none() | seconds,
)  # fmt: skip


@given(trials)
def test_a_trial_survives_json(trial: Trial) -> None:
    assert trial_from_data(json.loads(json.dumps(trial_to_data(trial)))) == trial


@given(choices)
def test_a_choice_survives_json(choice: Choice) -> None:
    assert choice_from_data(json.loads(json.dumps(choice_to_data(choice)))) == choice


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_duration_is_finite_and_positive(bad: float) -> None:
    with pytest.raises(BadInput):
        Sample(bad)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"config": {}},
        {"config": {}, "measured": []},
        {"config": {}, "measured": [[0, 0, None, 0.0]]},
        {"config": {}, "measured": [[0, 0, None]]},
        {"config": {}, "measured": 3},
        {"config": {}, "untried": "x", "drift": 0},
        {"config": {}, "untried": "x", "pace_s": -1e-6},
        {"config": [], "untried": "x"},
        {"config": {}, "failed": {"stage": "nowhere", "reason": "x"}},
        {"config": {"x": {}}, "untried": "x"},
        {"config": {}, "untried": "x", "resources": {"registers": "many"}},
    ],
)
def test_what_is_not_a_trial_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        trial_from_data(data)
