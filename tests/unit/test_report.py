"""The HTML report: its numbers are the store's, its file stands alone, nothing that was measured is executed."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import html as escaping
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.report_pages import Read, hash_of, read

from tunesmith import Choice, Config, Failed, Key, Measured, Model, Problem, Report, Sample, Tiles, Trial, Untried
from tunesmith.core.outcome import Recording, choice_to_data
from tunesmith.errors import BadInput, MissingEngine
from tunesmith.measure.pick import compared, pick
from tunesmith.recording import load
from tunesmith.report.html import Search, from_recording, from_store
from tunesmith.report.html import data as embedded_data
from tunesmith.report.html import page as pages
from tunesmith.report.html.gather import with_model
from tunesmith.store import Store

pytest.importorskip("jinja2")
pytest.importorskip("plotly")

#: packing the real one takes a second
REAL_PLOTLY = pages._plotly
SMALL = "window.Plotly = {}"
SPACE = Path(__file__).parents[2] / "benchmarks" / "recordings" / "gemm_M1024_N4096_K8192_h200.json.gz"


@pytest.fixture(autouse=True)
def small_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = base64.b64encode(gzip.compress(SMALL.encode())).decode()
    monkeypatch.setattr(pages, "_plotly", lambda: (packed, hash_of(SMALL)))


def searched(*trials: Trial, kernel: str = "scale", **fields: Any) -> Search:
    return from_recording(Recording(kernel, "somewhere", Problem(fields or {"n": 1}), trials, "made up/1"))


def timed(*seconds: float, at: str = "", **knobs: object) -> Trial:
    return Trial(Config(knobs), Measured(tuple(Sample(s, n, 0, 1.5e9) for n, s in enumerate(seconds))), at=at)


def sound(html: str) -> Read:
    """The page, which is whole, runs two scripts of ours, and asks nobody for anything."""
    page = read(html)
    assert page.faults == []
    assert page.open == []
    assert {hash_of(script) for script in page.runs} == page.allowed
    for name, attributes in page.elements:
        assert name in KNOWN_ELEMENTS, name
        for attribute, value in attributes.items():
            assert not attribute.startswith("on"), (name, attribute)
            if attribute in ("src", "href", "action", "data"):
                assert str(value).startswith("#"), (name, value)
    return page


KNOWN_ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "p", "h1", "h2", "h3", "noscript", "nav", "ul",
    "li", "main", "section", "div", "label", "select", "option", "figure", "figcaption", "table", "caption", "thead",
    "tbody", "tr", "th", "td", "button", "span", "b", "pre", "code", "details", "summary", "dl", "dt", "dd", "input",
    "footer", "time", "script",
}  # fmt: skip

# --- the numbers are the store's --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def space() -> Recording:
    return load(SPACE)


@pytest.fixture(scope="module")
def stored(space: Recording, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Key]:
    """The recorded space of 480, as a search would have stored it."""
    store = Store.open(tmp_path_factory.mktemp("store"), network=False)
    key = Key("gemm", "abc", space.problem, "cuda:NVIDIA H200:sm_90:132", "events/1", soft={"triton": "3.6.0"})
    store.add_trials(key, space.trials)
    verdict = pick(space.trials)
    assert verdict is not None
    assert isinstance(verdict.winner.outcome, Measured)
    fates = {"measured": 424, "failed": 56, "cut": 3}
    median_s = verdict.winner.outcome.median_s
    choice = Choice(verdict.winner.config, "search", "search", median_s, ties=verdict.ties, within=verdict.within,
                    confidence=0.95, candidates=fates)  # fmt: skip
    store.put_choice(key, choice, key.soft)
    return store, key


@pytest.fixture(scope="module")
def page(stored: tuple[Store, Key]) -> Read:
    store, key = stored
    with pytest.MonkeyPatch.context() as real:
        real.setattr(pages, "_plotly", REAL_PLOTLY)
        html = Report((with_model(from_store(key, store), Model(Tiles())),)).html()
    assert 1_000_000 < len(html.encode()) < 6_000_000
    return sound(html)


def test_every_number_of_480_configs_is_the_stores(stored: tuple[Store, Key], page: Read) -> None:
    store, key = stored
    (shown,) = page.data["searches"]
    trials = {trial.config: trial for trial in store.trials(key)}
    verdict = pick(store.trials(key))
    assert verdict is not None
    rank = {trial.config: number for number, trial in enumerate(verdict.ranking, 1)}
    ties = {**dict.fromkeys(verdict.ties, "tie"), verdict.winner.config: "winner"}
    fastest = verdict.ranking[0].outcome
    assert isinstance(fastest, Measured)
    rows = shown["rows"]

    assert len(rows["median_s"]) == len(trials) == 480
    for row in range(480):
        config = Config({knob: rows["config"][knob][row] for knob in shown["knobs"]})
        trial = trials.pop(config)
        one = trial.outcome
        measured = isinstance(one, Measured)
        assert rows["outcome"][row] == ("measured" if measured else "cut")
        assert rows["median_s"][row] == (one.median_s if isinstance(one, Measured) else None)
        assert (rows["p20_s"][row], rows["p80_s"][row]) == (one.spread_s if isinstance(one, Measured) else (None, None))
        assert rows["samples"][row] == (len(one.samples) if isinstance(one, Measured) else 0)
        assert rows["rank"][row] == rank.get(config)
        assert rows["mark"][row] == ties.get(config, "")
        assert rows["compile_s"][row] == trial.compile_s
        assert {name: rows["resources"][name][row] for name in rows["resources"]} == {
            name: getattr(trial.resources, name) for name in rows["resources"]
        }
        if isinstance(one, Measured):
            assert rows["relative"][row] == one.median_s / fastest.median_s
    assert not trials


def test_what_is_beside_the_rows_is_the_stores_too(stored: tuple[Store, Key], page: Read) -> None:
    store, key = stored
    (shown,) = page.data["searches"]
    known, trials = store.choice(key), store.trials(key)
    verdict = pick(trials)
    assert known is not None
    assert verdict is not None
    assert shown["choice"] == choice_to_data(known.choice)
    assert shown["counts"] == {"measured": 424, "failed": 56, "cut": 3, "untried": 0}
    assert sum(reason["count"] for reason in shown["failed_by_reason"]) == 56
    assert shown["versions"] == {"triton": "3.6.0"}
    assert shown["rows"]["mark"][shown["winner"]] == "winner"
    assert shown["race"]["in_round"] == [424] * 30
    for line, trial in zip(shown["race"]["lines"], verdict.ranking, strict=False):
        assert isinstance(trial.outcome, Measured)
        assert line["seconds"] == list(trial.outcome.samples_s)
    for one, beside in zip(compared(verdict, 20), shown["beside"], strict=True):
        assert (one.ratio, one.low, one.high, one.rounds) == tuple(
            beside[name] for name in ("ratio", "low", "high", "rounds")
        )


def test_predictions_are_the_models_and_the_ceilings_the_chips(stored: tuple[Store, Key], page: Read) -> None:
    from tunesmith import known_device

    store, key = stored
    (shown,) = page.data["searches"]
    chip, model = known_device("NVIDIA H200"), Model(Tiles())
    for row in (0, 100, 479):
        config = Config({knob: shown["rows"]["config"][knob][row] for knob in shown["knobs"]})
        trial = next(trial for trial in store.trials(key) if trial.config == config)
        found = model.predict(key.problem, config, chip, trial.resources)
        assert found is not None
        assert shown["rows"]["predicted_s"][row] == found.seconds
        assert shown["rows"]["bound"][row] == found.bound
    assert shown["model"]["ceilings"]["bandwidth"] == chip.bandwidth
    assert shown["model"]["ceilings"]["peak"] == chip.peak["float16"]
    assert dict(shown["model"]["winner"])["bound by"].startswith("compute")


def test_the_page_says_what_won_without_a_script(page: Read) -> None:
    text = " ".join(page.text.split())
    assert "gemm(K=8192,M=1024,N=4096,dtype=float16)" in text
    assert "92.30 µs" in text
    assert "Config(BLOCK_K=32, BLOCK_M=128, BLOCK_N=256, num_stages=5, num_warps=8)" in text
    assert "2 Configs cannot be told from the winner" in text
    assert "out of shared memory: needs 245760 to 655360 bytes" in text
    assert "clock at the samples" in text


def test_it_can_be_used_with_a_keyboard(page: Read) -> None:
    attributes = [(name, a) for name, a in page.elements]
    ids = [a["id"] for _, a in attributes if "id" in a]
    assert len(ids) == len(set(ids))
    assert ("a", {"class": "skip", "href": "#main"}) in attributes
    for name, a in attributes:
        if name == "div" and a.get("class") == "scroll":
            assert a["tabindex"] == "0"
            assert a["aria-label"]
        if a.get("role") == "img":
            assert a["aria-label"]
        if name == "a":
            assert str(a["href"])[1:] in ids
        for label in ("aria-labelledby", "aria-describedby"):
            assert a.get(label, ids[0]) in ids
    assert ("html", {"lang": "en"}) in attributes


# --- what was measured is never executed ---------------------------------------------------------------------

MARKUP = (
    "</script><script>alert(1)</script>", "<!--<script>", "]]>", "'\"><img src=x onerror=alert(1)>", "\u2028",
    "{{ 7*7 }}", "&lt;b&gt;", "__proto__", "\x00",
)  # fmt: skip
text = st.text(max_size=40) | st.sampled_from(MARKUP)
names = text.filter(bool)
knobs = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | text,
    lambda inner: st.tuples(inner, inner), max_leaves=4,
)  # fmt: skip


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_hostile_texts_are_shown_and_not_run(data: st.DataObject) -> None:
    axes = data.draw(st.lists(names, min_size=1, max_size=3, unique=True))
    trials = dict[Config, Trial]()
    for number in range(data.draw(st.integers(0, 4))):
        config = Config({axis: data.draw(knobs) for axis in axes} | {"number": number})
        ran = Measured((Sample(1e-6 * (number + 1)),))
        outcome = data.draw(st.sampled_from([ran, Failed("launch", data.draw(text)), Untried("late")]))
        trials[config] = Trial(config, outcome, at=data.draw(text), soft={data.draw(text): data.draw(text)})
    kernel = data.draw(text)
    search = dataclasses.replace(
        searched(*trials.values(), kernel=kernel), source=data.draw(text), facts={data.draw(text): data.draw(text)},
        cut={data.draw(text): 3},
        choice=Choice(Config(a=data.draw(text)), "search", data.draw(text), note=data.draw(text)),
    )  # fmt: skip

    page = sound(Report((search, search), (data.draw(text),)).html())

    shown = page.data["searches"][0]
    assert shown["kernel"] == kernel
    assert shown["source"] == search.source
    assert sorted(shown["knobs"]) == sorted({name for config in trials for name in config})
    assert shown["cut_by_reason"] == search.cut
    for row, config in enumerate(_configs(shown)):
        assert config["number"] == shown["rows"]["config"]["number"][row]


def _configs(shown: dict[str, Any]) -> list[dict[str, Any]]:
    count = len(shown["rows"]["outcome"])
    return [{knob: shown["rows"]["config"][knob][row] for knob in shown["knobs"]} for row in range(count)]


# --- odd spaces ------------------------------------------------------------------------------------------------


def test_spaces_at_the_edges_render() -> None:
    failed = [Trial(Config(a=n), Failed("compile", "no")) for n in range(3)]
    for trials in ([], failed, [timed(1e-6, a=1)], [Trial(Config(), Measured((Sample(1e-6),)))]):
        page = sound(Report((searched(*trials),)).html())
        assert page.data["searches"][0]["winner"] == (None if not trials or trials == failed else 0)
    assert "None of 3 Configs could be measured." in sound(Report((searched(*failed),)).html()).text
    assert "Nothing was tried." in sound(Report((searched(),)).html()).text


def test_knobs_of_every_kind_keep_their_values() -> None:
    values = [True, False, None, 1, 1.0, "1", (1, (2, "x")), (), "", 2**70, 1e300]
    trials = [timed(1e-6 * (n + 1), a=value) for n, value in enumerate(values)] + [timed(1.0, b=1)]
    (shown,) = sound(Report((searched(*trials),)).html()).data["searches"]
    assert shown["rows"]["config"]["a"] == [
        True, False, None, 1, 1.0, "1", [1, [2, "x"]], [], "", str(2**70), 1e300, None,
    ]  # fmt: skip
    assert shown["rows"]["texts"]["a"][3:6] == ["1", "1.0", "'1'"]
    assert shown["rows"]["absent"] == {"a": [11], "b": list(range(11))}


def test_times_that_are_none_of_a_stored_choice_are_shown_as_such() -> None:
    choice = Choice(Config(a=1), "search", "store", math.nan, Config(a=2), math.inf, within=math.inf, confidence=0.95)
    search = dataclasses.replace(searched(timed(1e-6, a=1), timed(2e-6, a=2)), choice=choice)
    (shown,) = sound(Report((search,)).html()).data["searches"]
    assert (shown["choice"]["median_s"], shown["choice"]["ratio"]) == ("nan", "inf")


def test_a_choice_without_its_trials_and_half_of_a_pair_of_surrogates() -> None:
    half = "\ud800"
    search = dataclasses.replace(
        searched(Trial(Config(a=1), Failed("launch", half))), choice=Choice(Config(a=1), "search", "store", 3e-6)
    )
    page = sound(Report((search, dataclasses.replace(search, trials=()))).html())
    assert page.data["searches"][0]["failed_by_reason"][0]["reason"] == half
    assert "3.000 µs" in page.text
    assert "Its Trials are not stored" in page.text


def test_the_problems_used_longest_ago_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunesmith.report.html import gather
    from tunesmith.store import default_store

    for m in range(5):
        default_store().add_trials(Key("scale", "", Problem({"m": m}), "cpu:a:b:1", "x/1"), [timed(1e-6, a=1)])
    monkeypatch.setattr(gather, "PROBLEMS", 2)
    report = Report.of_store()
    assert len(report.searches) == 2
    assert "3 problems more are stored" in sound(report.html()).text


def test_of_a_huge_space_a_part_is_kept_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_data, "ROWS", 100)
    trials = [timed(*[1e-6 * (n + 1)] * 3, a=n) for n in range(1000)]
    search = dataclasses.replace(searched(*trials), choice=Choice(Config(a=900), "search", "store"))
    (shown,) = sound(Report((search,)).html()).data["searches"]
    assert len(shown["rows"]["rank"]) == 100
    assert shown["rows_left_out"] == 900
    assert shown["rows"]["rank"][:50] == list(range(1, 51))
    assert shown["rows"]["config"]["a"][shown["winner"]] == 900
    assert max(shown["rows"]["rank"]) > 900
    assert shown["counts"]["measured"] == 1000


def test_a_race_shows_who_left_when() -> None:
    trials = [timed(1e-6, 1e-6, 1e-6, 1e-6, a=1), timed(1.1e-6, 1.1e-6, a=2), timed(5e-6, a=3)]
    alone = Trial(Config(a=4), Measured((Sample(1e-3),)))
    other = timed(1e-6, a=5, at="another search")
    (shown,) = sound(Report((searched(*trials, alone, other),)).html()).data["searches"]
    assert shown["race"]["in_round"] == [3, 2, 1, 1]
    assert (shown["race"]["alone"], shown["race"]["other_races"]) == (1, 1)
    place = shown["rows"]["config"]["a"]
    assert [shown["rows"]["last_round"][place.index(a)] for a in (1, 2, 3, 4)] == [3, 1, 0, -1]


# --- many problems ---------------------------------------------------------------------------------------------


def test_a_sweep_compares_with_tables_and_heuristics(tmp_path: Path) -> None:
    from tunesmith.heuristic import Heuristic, Split

    tree = tmp_path / "tree.json"
    Heuristic("scale", Split("M", 16, Config(a=1), Config(a=3))).write(tree)
    files = []
    for m in (8, 64, 512):
        search = searched(timed(2e-6 * m, a=1), timed(1e-6 * m, a=2), M=m)
        files.append(search)
    from tunesmith.report.html.gather import with_rivals
    from tunesmith.report.html.rivals import decider

    with_them = [with_rivals(one, {"tree.json": decider(tree, "scale")}) for one in files]
    bare = [dataclasses.replace(one, key=dataclasses.replace(one.key, device="cpu:a b:x86:2")) for one in files]
    assert all(not one.rivals for one in with_them)  # a device that no Key names
    known = [with_rivals(one, {"tree.json": decider(tree, "scale")}) for one in bare]
    page = sound(Report(tuple(known)).html())
    assert [one["rivals"][0]["median_s"] for one in page.data["searches"]] == [16e-6, None, None]
    text = " ".join(page.text.split())
    assert "2.000×" in text
    assert "not measured" in text
    assert "scale(M=512)" in text


# --- what is missing, and where it is shown --------------------------------------------------------------------


def test_a_missing_engine_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_plotly", REAL_PLOTLY)
    for name, module in (("jinja2", "jinja2"), ("plotly", "plotly.offline")):
        REAL_PLOTLY.cache_clear()
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(MissingEngine, match=rf"needs {name}.*pip install 'tunesmith\[report\]'$"):
                Report((searched(),)).html()


def test_a_notebook_shows_the_whole_page_in_a_frame() -> None:
    report = Report((searched(timed(1e-6, a="</iframe>")),))
    frame = re.fullmatch(r'<iframe title="tunesmith report" .* srcdoc="([^"]*)"></iframe>', report._repr_html_(), re.S)
    assert frame is not None
    sound(escaping.unescape(frame[1]))


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to report"):
        Report.of()
    with pytest.raises(BadInput, match="knows nothing"):
        Report.of_store()
    with pytest.raises(BadInput, match="3 can't be reported; good ones"):
        Report.of(3)  # pyright: ignore[reportArgumentType]
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(BadInput, match=r"x\.json"):
        Report.of(tmp_path / "x.json")
