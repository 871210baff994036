"""Results in a notebook: tables that are escaped, and data frames with the numbers that were measured."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from tests.fakes import ScriptedClock
from tests.report_pages import read

import tunesmith
from tunesmith import Choice, Config, Failed, Measured, Problem, Sample, Space, Trial, Untried, to_pandas
from tunesmith.core.notebook import Trials
from tunesmith.core.outcome import Recording
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.report.html import from_recording

MARKUP = "<script>alert('1')</script>"


@tunesmith.autotune(
    space=Space(block=[16, 32, 64]), key=["n"],
    clock=ScriptedClock(lambda config: 1e-3 * config["block"]), isolate=False,
)  # fmt: skip
def scaled(n: int, *, block: int) -> None:
    if block == 64:
        raise RuntimeError(MARKUP)


def shown(value: Any) -> str:
    page = read(value._repr_html_())
    assert page.faults == []
    assert page.open == []
    assert not page.scripts
    return page.text


def trials() -> list[Trial]:
    return [
        Trial(Config(a=2, b=MARKUP), Measured((Sample(2e-6), Sample(4e-6)))),
        Trial(Config(a=1, b="x"), Measured((Sample(1e-6),))),
        Trial(Config(a=3), Failed("compile", MARKUP)),
        Trial(Config(a=4), Untried("late")),
    ]


def test_a_choice_is_a_table() -> None:
    choice = Choice(Config(a=MARKUP), "search", "store", 92.3e-6, Config(a=2), 1.25, (Config(a=3),), note=MARKUP,
                    within=0.004, confidence=0.95)  # fmt: skip
    text = shown(choice)
    assert "92.30 µs" in text
    assert "1.250× its time: Config(a=2)" in text
    assert "faster by more than 0.4%" in text
    assert text.count(MARKUP) == 2
    assert "never measured" in shown(Choice(Config(), "default", "default"))
    assert "nan s" in shown(Choice(Config(), "search", "store", math.nan))


def test_trials_are_a_table_the_fastest_first() -> None:
    text = shown(Trials(trials()))
    assert "2 measured, 2 not" in text
    in_order = ["1.000 µs", "3.000 µs", f"compile: {MARKUP}", "untried: late"]
    assert [text.index(one) for one in in_order] == sorted(text.index(one) for one in in_order)
    assert "the first 20 of 30" in shown(Trials([Trial(Config(a=n), Untried("x")) for n in range(30)]))
    assert shown(Trials()) == "0 measured, 0 nottimesamplesoutcome"
    assert "1.000 µs" in shown(trials()[1])


def test_a_search_and_what_is_stored_of_it_are_tables() -> None:
    summary = scaled.tune(8)
    text = shown(summary)
    assert "Config(block=16)" in text
    assert f"launch: RuntimeError: {MARKUP}" in text
    assert "16.00 ms" in shown(scaled.trials(scaled.key(8)))
    assert "scaled(n=8)" in shown(scaled.record(8, rounds=2))


# --- data frames ------------------------------------------------------------------------------------------------


def test_in_a_terminal_a_search_and_a_report_are_a_line() -> None:
    summary = scaled.tune(5)
    assert repr(summary) == "<Summary of scaled(n=5): Config(block=16); 2 measured, 1 failed, 0 cut, 0 untried>"
    said = "<Report of scaled: 1 problem, 3 trials; save('report.html') writes the page>"
    assert repr(tunesmith.Report.of(summary)) == said


def test_a_search_as_a_frame() -> None:
    pytest.importorskip("pandas")
    frame = to_pandas(scaled.tune(8))
    assert list(frame["block"]) == [16, 32, 64]
    assert list(frame["mark"]) == ["winner", "", ""]
    assert list(frame["median_s"])[:2] == [0.016, 0.032]
    assert list(frame["relative"])[:2] == [1, 2]
    assert math.isnan(frame["median_s"][2])
    assert frame["reason"][2] == f"RuntimeError: {MARKUP}"
    assert set(frame["problem"]) == {"n=8"}


def test_whatever_holds_results_is_one_call() -> None:
    pytest.importorskip("pandas")
    recording = Recording("k", "d", Problem({"n": 1}), tuple(trials()))
    assert list(to_pandas(trials())["outcome"]) == ["measured", "measured", "compile", "untried"]
    assert list(to_pandas(Trials(trials()))["samples"]) == [2, 1, 0, 0]
    assert list(to_pandas(recording)["rank"])[:2] == [1, 2]
    report = tunesmith.Report((from_recording(recording), from_recording(recording)))
    assert len(to_pandas(report)) == 8
    frame = to_pandas(Choice(Config(a=1, median_s="x"), "search", "store", 1e-6))
    assert (frame["median_s"][0], frame["knob.median_s"][0]) == (1e-6, "x")
    assert len(to_pandas([])) == 0


def test_what_is_no_result_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    for wrong in (3, "text", {"a": 1}, [3]):
        with pytest.raises(BadInput, match="is no result; good ones: a Choice, Trials"):
            to_pandas(wrong)  # pyright: ignore[reportArgumentType]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingEngine, match=r"pip install 'tunesmith\[pandas\]'$"):
        to_pandas(trials())
