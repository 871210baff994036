"""A benchmark that was cut short goes on where it was, and says which of its figures are not what they have to be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("_kept")


def test_a_second_run_measures_what_is_left(kept: ModuleType, tmp_path: Path) -> None:
    made: list[str] = []

    def case(name: str) -> Callable[[], dict[str, str]]:
        return lambda: made.append(name) or {"name": name}

    first = kept.Cases(tmp_path, limit_s=60)
    rows = first.rows({"a": case("a"), "b": case("b")})
    assert next(rows) == {"name": "a"}
    rows.close()  # killed
    second = kept.Cases(tmp_path, limit_s=60)
    assert list(second.rows({"a": case("a"), "b": case("b")})) == [{"name": "a"}, {"name": "b"}]
    assert made == ["a", "b"]


def test_no_case_is_begun_when_time_is_up(kept: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept.once(tmp_path / "rows" / "a.json", lambda: {"name": "a"})
    cases = kept.Cases(tmp_path, limit_s=-1)
    assert list(cases.rows({"a": dict, "b": dict})) == [{"name": "a"}]
    assert cases.left == ["b"]
    assert "1 of 2 are left" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="missed: 1 left"):
        kept.judge({}, {}, cases)


def test_a_case_that_fails_is_named_and_the_others_are_measured(
    kept: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("out of memory")

    cases = kept.Cases(tmp_path)
    assert list(cases.rows({"a": fails, "b": lambda: {"name": "b"}})) == [{"name": "b"}]
    assert "out of memory" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="missed: a failed"):
        kept.judge({}, {}, cases)
    with pytest.raises(SystemExit, match="nothing was measured"):
        list(kept.Cases(tmp_path).rows({"a": fails}))


def test_figures_are_judged(kept: ModuleType) -> None:
    wanted = {"shapes": ">= 40", "worst": "<= 1.02"}
    kept.judge({"shapes": 40, "worst": 1.02}, wanted)
    with pytest.raises(SystemExit, match=r"missed: shapes 39, wanted >= 40; worst 1\.03, wanted <= 1\.02"):
        kept.judge({"shapes": 39, "worst": 1.03}, wanted)
