"""Whether a result is right: per element and per row, relative to what the dtype allows; and poisoned outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunesmith.errors import BadInput
from tunesmith.measure.verify import allowed_for, check_tolerance, differs, poison, spelled, wrong

torch = pytest.importorskip("torch")

FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2"]


def exact(shape: tuple[int, ...], seed: int = 0, **options: Any) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, **options)


def says(got: Any, expected: Any, poisoned: Any = None, tolerance: Any = None) -> str:
    return wrong("y", got, expected, allowed_for("y", got, (got,), tolerance), poisoned)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_only_rounded_is_right_and_one_ruined_row_is_not(dtype: str) -> None:
    expected = exact((200, 64))
    got = expected.to(getattr(torch, dtype))
    assert says(got, expected) == ""
    for row, factor in ((17, 1.5), (199, 0.0)):
        bad = got.clone()
        bad[row] = (expected[row] * factor).to(bad.dtype)
        text = says(bad, expected)
        assert text.startswith(f"y, row {row}, at ({row}, ")
        assert f"where {dtype} allows" in text


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_what_is_wider_than_float64_is_allowed_no_more(dtype: Any) -> None:
    expected = exact((4, 8)).numpy()
    got = expected.astype(dtype)
    assert says(got, expected) == ""
    assert "allows 2.3e-13" in says(got * (1 + 1e-9), expected)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_halves_are_allowed_what_halves_are() -> None:
    assert allowed_for("y", torch.zeros(1, dtype=torch.complex32), (), None).error == 4 * 2.0**-10


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_nearest_number_is_right_whatever_the_tolerance(dtype: str) -> None:
    expected = exact((4, 8))
    got = expected.to(getattr(torch, dtype), copy=True)
    assert says(got, expected, tolerance=0.0) == ""
    got[1, 1] = 8.0
    assert says(got, expected, tolerance=0.0).startswith("y, row 1, at (1, 1)")


def test_a_row_that_is_off_a_little_everywhere_is_wrong_though_no_element_is() -> None:
    expected = torch.ones(8, 32, dtype=torch.float64)
    got = expected.half()
    got[3] *= 1.006  # within twice what is allowed for the dtype, as an element of a row of its size may be
    assert "row 3: all of it is off by 5.9e-03 where float16 allows 3.9e-03" in says(got, expected)


def test_terms_that_cancel_are_as_uncertain_as_the_terms_were() -> None:
    expected = exact((4, 256))
    expected[:, 7] = 1e-9
    got = expected.half()
    got[:, 7] += 1e-3
    assert says(got, expected) == ""


def test_one_outlier_does_not_hide_the_others() -> None:
    expected = torch.ones(2, 4096, dtype=torch.float64)
    expected[0, 0] = 1e4
    got = expected.half()
    got[0, 5] = 1.2
    assert "at (0, 5)" in says(got, expected)


def test_nan_and_infinity_pass_only_where_they_are_expected() -> None:
    expected = exact((4, 8))
    expected[1, 2], expected[1, 3], expected[2, 2] = float("nan"), float("inf"), 1e6  # which float16 has not
    got = expected.half()
    assert got[2, 2] == float("inf")
    assert says(got, expected) == ""
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = got.clone()
        bad[3, 1] = value
        assert f"row 3, at (3, 1): {value}" in says(bad, expected)
    finite = got.clone()
    finite[1, 2] = 0
    assert "at (1, 2): 0 where nan is expected" in says(finite, expected)
    other = got.clone()
    other[1, 3] = -float("inf")
    assert "at (1, 3): -inf where inf is expected" in says(other, expected)


DTYPES = [*FLOATS, "int64", "int32", "int8", "uint8", "uint16", "bool"]


@pytest.mark.parametrize(
    ("engine", "dtype"), [*(("torch", one) for one in DTYPES), *(("numpy", one) for one in DTYPES if hasattr(np, one))]
)
def test_what_is_not_written_shows_whatever_is_expected_there(engine: str, dtype: str) -> None:
    values = exact((6, 8)) * 3
    if dtype in ("float16", "float64"):
        values[5, 5] = float("nan")  # where NaN would not show
    if dtype.startswith("u") or dtype == "bool":
        values = values.abs() % 2
    expected = values.to(getattr(torch, dtype))
    whole = expected.numpy() if engine == "numpy" else expected
    assert says(whole, whole) == ""
    got = whole.copy() if engine == "numpy" else whole.clone()
    poison(got, whole)
    before = got.copy() if engine == "numpy" else got.clone()
    got[:3] = whole[:3]
    assert "(24 of 48 elements are off; 24 are not written)" in says(got, whole, before)
    if dtype != "bool":  # of which no value is surely wrong
        poison(got, None)
        assert says(got, whole) != ""


def test_integers_are_exact_unless_a_difference_is_allowed_by_name() -> None:
    expected = np.arange(20, dtype=np.int8).reshape(4, 5)
    got = expected.copy()
    got[2, 3] += 1
    assert "y, row 2, at (2, 3): 14 where 13 is expected (1 of 20" in says(got, expected)
    assert says(got, expected, tolerance={"y": 1}) == ""
    assert says(got, expected, tolerance=1.0) != ""  # which is for floats
    large = np.array([2**60 + 1, 7])
    assert says(large - np.array([1, 0]), large) != ""


def test_the_users_tolerance_and_what_coarser_inputs_allow() -> None:
    expected = exact((4, 64))
    got = (expected * 1.02).float()
    assert "float32 allows 1.2e-04" in says(got, expected)
    assert says(got, expected, tolerance=0.05) == ""
    assert "tolerance= allows 1.0e-03" in says(got, expected, tolerance={"y": 1e-3})
    assert allowed_for("y", got, (got.half(),), None).because == "float16"
    assert allowed_for("y", got, (got.to(torch.float8_e5m2),), None).because == "bfloat16"
    for bad in (-1.0, float("nan"), "tight", {"y": None, "z": -1}):
        with pytest.raises(BadInput, match="k: tolerance="):
            check_tolerance("k", bad, ["y", "z"])
    assert spelled({"b": 1, "a": 2}) == spelled({"a": 2.0, "b": 1.0}) != spelled(None)


def test_shapes_scalars_and_nothing_at_all() -> None:
    assert says(torch.zeros(2, 3), torch.zeros(3, 2)) == "y: shape (2, 3) where the reference has (3, 2)"
    assert says(torch.tensor(3.0), 3.0) == ""
    assert "y at 0" in says(torch.tensor(3.0), 4.0)
    assert says(np.empty((0, 4)), np.empty((0, 4))) == ""
    zeros = torch.zeros(3, 4, dtype=torch.float64)
    assert says(zeros.half(), zeros) == ""
    assert says(zeros.half() + 1e-4, zeros) != ""


def test_two_results_differ_by_one_bit() -> None:
    a = torch.tensor([[1.0, 0.0], [float("nan"), 2.0]])
    b = a.clone()
    assert differs("y", a, b) == ""
    b[0, 1] = -0.0
    assert differs("y", a, b) == "y: 1 elements, the first at (0, 1)"
