"""A Config has one spelling, and equality is equality of spelling."""

import copy
import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith import Config
from tunesmith.errors import BadInput

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
configs = st.dictionaries(st.text(min_size=1, max_size=6), values, max_size=5).map(Config)


@given(configs)
def test_spelling_reads_back_to_the_same_config(config: Config) -> None:
    assert Config.parse(config.text) == config
    assert json.loads(config.text) == json.loads(json.dumps(dict(config)))
    assert hash(Config.parse(config.text)) == hash(config)


@given(configs)
def test_repr_is_python_that_makes_it_again(config: Config) -> None:
    assert eval(repr(config), {"Config": Config}) == config


@given(configs)
def test_pickle_and_copy_keep_it(config: Config) -> None:
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_order_and_spelling_of_the_knobs_do_not_matter() -> None:
    assert Config({"BLOCK_M": 64}, num_warps=4) == Config(num_warps=4, BLOCK_M=64)


@pytest.mark.parametrize(("a", "b"), [(True, 1), (1, 1.0), (False, 0), ("1", 1), (None, "None"), ((1,), 1)])
def test_values_that_python_calls_equal_are_told_apart(a: object, b: object) -> None:
    assert Config(x=a) != Config(x=b)


@pytest.mark.parametrize("bad", [math.nan, math.inf, object(), {"a": 1}, {1, 2}])
def test_a_bad_value_is_refused_by_name(bad: object) -> None:
    with pytest.raises(BadInput, match="'x'"):
        Config(x=bad)


def test_letters_that_python_reads_as_one_are_told_apart() -> None:
    micro, mu = Config({"\u00b5": 1}), Config({"\u03bc": 1})

    assert micro != mu
    assert eval(repr(micro), {"Config": Config}) == micro


def test_frozen() -> None:
    config = Config(x=1)

    with pytest.raises(AttributeError, match="replace"):
        config.x = 2  # type: ignore[attr-defined]
    assert config.replace(x=2) == Config(x=2)
    assert config == Config(x=1)


def test_a_knob_given_twice_is_an_error() -> None:
    with pytest.raises(BadInput, match="twice"):
        Config({"x": 1}, x=2)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", '{"x": NaN}', '{"x": {"y": 1}}'])
def test_text_that_is_not_a_config(text: str) -> None:
    with pytest.raises(BadInput):
        Config.parse(text)
