"""A Problem has one spelling; what a user writes is checked and completed; buckets make sizes alike."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith import Problem
from tunesmith.core.problem import bucket, complete, next_power_of_two, stride_classes
from tunesmith.errors import ProblemError

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
values = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12)
)
problems = st.dictionaries(names, values, max_size=6).map(Problem)


@given(problems)
def test_spelling_reads_back_to_the_same_problem(problem: Problem) -> None:
    again = Problem.parse(problem.text)

    assert again == problem
    assert [type(again[name]) for name in again] == [type(problem[name]) for name in problem]
    assert pickle.loads(pickle.dumps(problem)) == problem


@pytest.mark.parametrize(("a", "b"), [(True, 1), (1, 1.0), ("1", 1), ("true", True), ("none", None), ("", None)])
def test_values_that_python_calls_equal_are_told_apart(a: object, b: object) -> None:
    assert Problem({"x": a}) != Problem({"x": b})


def test_blanks_and_order_do_not_matter() -> None:
    assert Problem.parse(" N = 2, M=1 ,dtype=float16") == Problem({"M": 1, "N": 2, "dtype": "float16"})


@pytest.mark.parametrize("text", ["M", "M=1,M=2", "=3", "M 3", 'x="abc'])
def test_text_that_is_not_a_problem(text: str) -> None:
    with pytest.raises(ProblemError):
        Problem.parse(text)


def test_differences_name_the_field() -> None:
    ours, known = Problem({"offs.dtype": "int32", "n": 1}), Problem({"offs.dtype": "int64", "n": 1})

    assert ours.differences(known) == ["offs.dtype: int32, known: int64"]


DTYPES = {"a": ("float32", "float16"), "b": ("float32", "float16")}


def test_a_written_problem_is_completed() -> None:
    def done(text: str) -> str:
        return complete(Problem.parse(text), ("M", "N"), ("a", "b"), DTYPES, {"causal": False}).text

    assert done("M=1,N=2") == "M=1,N=2,a.dtype=float32,b.dtype=float32,causal=false"
    assert done("M=1,N=2,dtype=float16,causal=true") == "M=1,N=2,a.dtype=float16,b.dtype=float16,causal=true"
    assert done("M=1,N=2,dtype=float16,b.dtype=float32") == "M=1,N=2,a.dtype=float16,b.dtype=float32,causal=false"


def test_an_array_of_any_dtype_has_one_where_it_is_asked_for() -> None:
    def done(text: str) -> str:
        return complete(Problem.parse(text), ("M",), ("x", "y"), {"x": (), "y": ("float32",)}, {}).text

    assert done("M=1") == "M=1,y.dtype=float32"
    assert done("M=1,x.dtype=float16") == "M=1,x.dtype=float16,y.dtype=float32"
    with pytest.raises(ProblemError, match=r"x.dtype cannot be float15; good values: float64"):
        done("M=1,x.dtype=float15")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("M=1", "dimension 'N' is missing; needed: M, N"),
        ("M=1,N=-2", "'N' is -2; good values: integers from 0"),
        ("M=1,N=two", "'N' is two; good values: integers"),
        ("M=1,N=2.0", "'N' is 2.0"),
        ("M=1,N=true", "'N' is true"),
        ("M=1,N=2,Q=3", "unknown problem field 'Q'"),
        ("M=1,N=2,dtype=float15", "a.dtype cannot be float15; good values: float32, float16"),
        ("M=1,N=2,causal=3", "flag 'causal' is 3; good values: true, false"),
    ],
)
def test_a_written_problem_that_is_wrong_is_told_the_good_values(text: str, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        complete(Problem.parse(text), ("M", "N"), ("a", "b"), DTYPES, {"causal": False})


@given(st.integers(1, 1 << 40))
def test_the_power_of_two_bucket_is_the_least_that_holds(n: int) -> None:
    top = next_power_of_two(n)

    assert top >= n > top // 2
    assert top & (top - 1) == 0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=5, unique=True).map(sorted), st.integers(-5, 200))
def test_the_bucket_of_edges_is_the_least_edge_that_holds(edges: list[int], n: int) -> None:
    fitting = [edge for edge in edges if edge >= n]

    assert bucket(edges)(n) == (fitting[0] if fitting else f"{edges[-1]}+")


@pytest.mark.parametrize("how", ["pow3", [], [2, 1], [1, 1], [1.5]])
def test_a_bucket_that_makes_no_sense_is_refused(how: object) -> None:
    with pytest.raises(ProblemError):
        bucket(how)  # type: ignore[arg-type]


def test_stride_classes() -> None:
    assert stride_classes((4096, 1, 0)) == "x10"
