"""A heuristic decides alike as an object, as a file and as Python; a file that makes no sense is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith import Config, Problem, Space, autotune, policy
from tunesmith.core.device import known_device
from tunesmith.errors import BadInput, ProblemError
from tunesmith.heuristic import FORMAT, Heuristic, Node, Split

SMALL, LARGE, HALF = (Config(BLOCK=size) for size in (16, 128, 64))
TREE = Split("M", 64, SMALL, Split("x.dtype", "float16", Split("M", 512, HALF, LARGE), LARGE))

configs = st.builds(
    Config, st.dictionaries(st.sampled_from(["BLOCK", "order"]), st.integers(0, 9) | st.text(max_size=3))
)
questions = st.one_of(
    st.tuples(st.sampled_from(["M", "class", "n"]), st.integers(-5, 5) | st.floats(-5, 5)),
    st.tuples(st.just("x.dtype"), st.sampled_from(["float16", 'a"b', "x\\", None, True])),
)
trees: Any = st.recursive(
    configs, lambda below: st.builds(lambda q, yes, no: Split(*q, yes, no), questions, below, below), max_leaves=8
)
problems = st.fixed_dictionaries({
    "M": st.integers(-9, 9), "class": st.integers(-9, 9), "n": st.floats(-9, 9),
    "x.dtype": st.sampled_from(["float16", 'a"b', "x\\", None, True]),
})  # fmt: skip


@given(tree=trees, fields=problems)
@settings(max_examples=40, deadline=None)
def test_object_file_and_python_decide_alike(tree: Node, fields: dict[str, Any], tmp_path_factory: Any) -> None:
    problem, heuristic = Problem(fields), Heuristic("k", tree)
    path = tmp_path_factory.getbasetemp() / "tree.json"
    heuristic.write(path)
    space: dict[str, Any] = {}
    exec(heuristic.python("choose"), space)
    assert Heuristic.read(path).tree == tree
    assert heuristic(problem) == Heuristic.read(path)(problem) == space["choose"](problem, None)


def test_the_ends_say_what_leads_to_them_once() -> None:
    assert [" and ".join(conditions) for conditions, _ in Heuristic("k", TREE).leaves()] == [
        "M <= 64",
        "M > 64 and x.dtype == 'float16' and M <= 512",
        "M > 512 and x.dtype == 'float16'",
        "M > 64 and x.dtype != 'float16'",
    ]
    deep = Split("M", 64, Split("M", 16, SMALL, HALF), LARGE)
    assert [c for c, _ in Heuristic("k", deep).leaves()] == [("M <= 16",), ("M <= 64", "M > 16"), ("M > 64",)]


def test_it_is_a_kernels_default(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    Heuristic("scale", Split("n", 64, Config(block=1), Config(block=8)), "cpu", {"problems": 2}).write(path)

    @autotune(space=Space(block=[1, 8]), key=["n"], default=Heuristic.read(path), version="1")
    def scale(n: int, *, block: int) -> int:
        return block

    with policy("default"):
        assert [scale(n) for n in (3, 64, 65)] == [1, 1, 8]


def test_a_problem_without_the_field_is_named() -> None:
    heuristic = Heuristic("k", TREE)
    with pytest.raises(ProblemError, match="asks for 'M'; the problem has N"):
        heuristic(Problem({"N": 3}), known_device("NVIDIA H200"))
    with pytest.raises(ProblemError, match="compares 'M' with 64; it is '1024\\+', no number"):
        heuristic(Problem({"M": "1024+"}))


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (None, "tree: needed"),
        ({"config": 3}, "tree: needed"),
        ({"config": {"b": [{}]}}, "is {}"),
        ({"if": {"field": "M", "at_most": 3}, "then": {"config": {}}}, "tree.else: needed"),
        ({"if": {"field": "M", "at_most": "3"}, "then": {"config": {}}, "else": {"config": {}}}, "tree.if: needed"),
        ({"if": {"field": "M", "at_most": True}, "then": {"config": {}}, "else": {"config": {}}}, "tree.if: needed"),
        ({"if": {"field": 3, "is": "x"}, "then": {"config": {}}, "else": {"config": {}}}, "tree.if: needed"),
        ({"if": {"field": "M", "is": "x", "call": "os.system"}, "then": {}, "else": {}}, "tree.if: needed"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tree: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text(json.dumps({"format": FORMAT, "tree": tree}))
    with pytest.raises(BadInput, match=f"tree.json is not a heuristic: .*{said}"):
        Heuristic.read(path)


def test_other_files_and_too_deep_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    for text in ("[]", "{", '{"format": "x"}', '"' + FORMAT + '"', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(BadInput, match=r"tree\.json is not a heuristic"):
            Heuristic.read(path)
    deep: Any = {"config": {}}
    for _ in range(70):
        deep = {"if": {"field": "M", "at_most": 3}, "then": {"config": {}}, "else": deep}
    path.write_text(json.dumps({"format": FORMAT, "tree": deep}))
    with pytest.raises(BadInput, match="more than 64 questions deep"):
        Heuristic.read(path)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        Heuristic.read(tmp_path / "missing.json")
