"""Devices told apart, Keys that name what matters, options that refuse what they do not know."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith import Device, Key, Problem, add_device, known_device, known_devices, policy
from tunesmith.core.device import KIB
from tunesmith.errors import BadInput
from tunesmith.options import Options, Policy, policy_in_force

KEY = Key("f", "abc", Problem({"n": 1}), "cpu:x:y:2", "wall/1", (("A", "1"),), {"compiler": "12"})


def test_the_table_has_the_chips_it_promises() -> None:
    names = " ".join(device.name for device in known_devices())
    for chip in ("RTX 3070", "L40S", "A100", "H100", "H200", "B200", "MI300X"):
        assert chip in names
    h200 = known_device("NVIDIA H200")
    assert (h200.arch, h200.units, h200.shared_bytes_per_block) == ("sm_90", 132, 232448)
    assert known_device("NVIDIA GeForce RTX 3070").shared_bytes_per_block == 99 * KIB
    assert len({device.identity for device in known_devices()}) == len(known_devices())


def test_a_name_is_exact_and_a_user_can_add_one() -> None:
    with pytest.raises(BadInput, match="did you mean 'NVIDIA H200'"):
        known_device("NVIDIA H20")
    mine = add_device(Device("cuda", "My Chip", "sm_99", 7))
    assert known_device("My Chip") is mine


@given(st.sampled_from(["kernel", "fingerprint", "device", "protocol"]), st.text(max_size=5))
def test_every_hard_field_is_in_the_digest(name: str, value: str) -> None:
    other = replace(KEY, **{name: value})
    assert (other.digest == KEY.digest) == (other == KEY)


def test_the_soft_part_is_compared_and_does_not_decide() -> None:
    newer = replace(KEY, soft={"compiler": "13"})

    assert newer == KEY
    assert newer.digest == KEY.digest
    assert newer.stale(KEY.soft) == ["compiler: 13, was 12"]
    assert replace(KEY, environment=()).digest != KEY.digest
    assert replace(KEY, problem=Problem({"n": 2})).digest != KEY.digest
    assert Key.from_data(KEY.to_data()) == KEY


def test_key_differences_begin_with_the_problem() -> None:
    other = replace(KEY, problem=Problem({"n": 2}), device="cpu:z")
    assert other.differences(KEY) == ["n: 2, known: 1", "device: cpu:z, known: cpu:x:y:2"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TUNESMITH_POLICY", "loockup", "good values: default, lookup, search, strict-lookup"),
        ("TUNESMITH_WAIT_S", "soon", "a number of at least 0"),
        ("TUNESMITH_BUDGET_S", "0", "a number above 0"),
        ("TUNESMITH_READ_ONLY", "yes", "good values: 0, 1"),
        ("TUNESMITH_POLCY", "search", "did you mean 'TUNESMITH_POLICY'"),
    ],
)
def test_a_bad_variable_is_named_with_the_good_values(name: str, value: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        Options.from_environment({name: value, "TUNESMITH_CACHE_DIR": "/nowhere"})


def test_a_scope_beats_the_environment_beats_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.options import options

    assert policy_in_force(None).track == "search"
    assert policy_in_force("lookup").track == "lookup"
    monkeypatch.setenv("TUNESMITH_POLICY", "strict-lookup")
    options.cache_clear()
    assert policy_in_force("search") is Policy.of("lookup", strict=True)
    with policy("default"):
        assert policy_in_force("search").track == "default"
        with policy("search"):
            assert policy_in_force(None).track == "search"
        assert policy_in_force(None).track == "default"
    assert policy_in_force(None).strict


@pytest.mark.parametrize("track", ["off", "Search", ""])
def test_a_policy_that_does_not_exist(track: str) -> None:
    with pytest.raises(BadInput, match="known: default, lookup, search"), policy(track):
        raise AssertionError("the scope must not be entered")


def test_strict_goes_with_lookup() -> None:
    with pytest.raises(BadInput, match="strict goes with 'lookup'"), policy("search", strict=True):
        raise AssertionError("the scope must not be entered")
