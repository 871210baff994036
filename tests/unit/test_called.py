"""What serves calls, where it is another Config than the one in graphs: checked, refreshed, told as that one is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Signature
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock

from tunesmith import Candidate, Config, choose, plan, ranks
from tunesmith.chooser import Chooser
from tunesmith.chooser.candidates import LibraryCall
from tunesmith.cli import main
from tunesmith.cli import refresh as cli_refresh
from tunesmith.cli.into_table import IntoTable
from tunesmith.core.outcome import Choice
from tunesmith.errors import BadInput, NoAgreement, PlanMiss, TunesmithWarning
from tunesmith.options import options
from tunesmith.refresh import Refreshed
from tunesmith.store import default_store
from tunesmith.tables.native import NativeTable, from_store

US = 1e-6
#: what the GPU takes of each, and what a call of it takes: microseconds
GPU = {"library": 8.0, "fast": 4.0, "near": 4.4, "quick": 5.0}
CALLS = {"library": 11.0, "fast": 14.0, "near": 14.0, "quick": 7.0}
FAST, QUICK, LIBRARY = (Config(by=name) for name in ("fast", "quick", "library"))


@dataclass
class HostClock(ScriptedClock):
    """Beside the GPU's time: what a call takes, by who was launched last."""

    calls_us: Mapping[str, float] = field(default_factory=lambda: CALLS)
    last: list[str] = field(default_factory=lambda: [""])
    wrong: Sequence[str] = ()

    def back_to_back(self, launch: Callable[..., Any], many: Sequence[Sequence[Any]], number: int) -> float:
        launch(*many[0])
        rng: random.Random = self._rng
        return US * self.calls_us[self.last[0]] * rng.lognormvariate(0, 0.001)


class Way(LibraryCall):
    """Of one source, whatever it returns."""

    def fingerprint(self) -> str:
        return "1"


def made(
    gpu: Mapping[str, float] = GPU, calls: Mapping[str, float] = CALLS, wrong: Sequence[str] = (), **more: Any
) -> Chooser:
    """Each way returns x, the wrong ones something else."""
    clock = HostClock(lambda config: US * gpu[str(config["by"])], 0.001, calls_us=calls, wrong=wrong)

    def way(name: str) -> Candidate:
        def launch(x: Any) -> Any:
            clock.last[0] = name
            return x + 1 if name in clock.wrong else x * 1

        return Candidate(Way(name, launch, Signature.from_callable(launch)))

    options = {"args": ["x"], "clock": clock, "eager": True, "policy": "search", "isolate": False, **more}
    return choose("ways", {name: way(name) for name in gpu}, **options)


def launched_by(mm: Chooser) -> str:
    """What was launched last."""
    clock = mm.declared.clock
    assert isinstance(clock, HostClock)
    return clock.last[0]


@pytest.mark.parametrize("wrong", [False, True])
def test_it_is_compared_with_a_reference_that_comes_later(wrong: bool) -> None:
    np = pytest.importorskip("numpy")
    x = np.arange(8.0)
    unchecked = made().choice(x)
    assert (unchecked.config, unchecked.called, unchecked.checked) == (FAST, QUICK, "")
    again = made(wrong=["quick"] if wrong else [], reference=lambda x: x).tune(x)
    assert again.choice is not None
    assert (again.choice.config, again.choice.called) == (FAST, LIBRARY if wrong else QUICK)
    assert again.choice.checked
    assert [config for config, _ in again.failures] == ([QUICK] if wrong else [])


@pytest.mark.parametrize("wrong", ["", "fast", "quick"])
def test_verify_looks_at_both(wrong: str) -> None:
    np = pytest.importorskip("numpy")
    x = np.arange(8.0)
    assert made().choice(x).called == QUICK
    mm = made(wrong=[wrong], reference=lambda x: x)
    found = mm.verify(x)
    assert found.checked == (not wrong)
    assert (found.failure is not None) == bool(wrong)
    stored = default_store().choice(mm.key(x))
    assert stored is not None
    assert bool(stored.choice.checked) == (not wrong)
    assert ("by='quick'" in stored.choice.note) == (wrong == "quick")


# --- refreshed ---------------------------------------------------------------------------------------------


def refreshed(mm: Chooser, best: int = 4) -> Refreshed:
    found = mm.refresh(1, best=best, anyway=True)
    assert found is not None
    return found


def test_it_is_raced_again_beside_the_library_however_many_are_faster_on_the_gpu() -> None:
    gpu, calls = {**GPU, "near2": 4.3, "quick": 7.9}, {**CALLS, "near2": 14.0}
    assert made(gpu, calls).choice(1).called == QUICK
    found = refreshed(made(gpu, calls), best=1)
    assert (found.fate, found.after.called, found.raced) == ("kept", QUICK, 4)
    assert made({**gpu, "quick": 30.0}, calls).tune(1).choice is not None
    found = refreshed(made(gpu, {**calls, "quick": 12.0}), best=1)
    assert (found.fate, found.after.config, found.after.called) == ("changed", FAST, LIBRARY)
    found = refreshed(made(gpu, {**calls, "fast": 7.0}), best=1)
    assert (found.fate, found.after.called) == ("changed", None)


def test_it_stays_where_what_calls_take_could_not_be_measured() -> None:
    assert made().choice(1).called == QUICK
    found = refreshed(made(calls={}))
    assert (found.fate, found.after.called) == ("kept", QUICK)
    assert found.after.calls.startswith("what calls take was not measured")


def test_the_command_says_what_became_of_it() -> None:
    before = Choice(FAST, "search", "search", called=QUICK)
    key = made().key(1)
    found = [
        Refreshed(key, "changed", (), 3, before, replace(before, called=None)),
        Refreshed(key, "changed", (), 3, before, replace(before, config=LIBRARY)),
        Refreshed(key, "kept", (), 3, before, before),
    ]
    lines = cli_refresh._text("ways", found, [], [], []).splitlines()[1:]
    assert [line.partition(": ")[2] for line in lines] == [
        "Config(by='fast'); calls outside of CUDA graphs: Config(by='quick') → Config(by='fast')  (3 raced)",
        "Config(by='fast') → Config(by='library')  (3 raced)",
        "Config(by='fast')  (3 raced)",
    ]
    told = cli_refresh._data(found, [], [], [])["results"]
    assert [one["after"].get("called") for one in told] == [None, {"by": "quick"}, {"by": "quick"}]


# --- planned -----------------------------------------------------------------------------------------------


def test_a_plan_has_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mm, file, other = made(), tmp_path / "plan.json", tmp_path / "other.json"
    with plan.record(file) as noted:
        mm(1)
    key = mm.key(1)
    assert noted.plan.served(key) == (FAST, QUICK)
    assert plan.Plan.read(file) == noted.plan
    elsewhere = made()
    with plan.replay(file):
        elsewhere(1)
        assert launched_by(elsewhere) == "quick"
        assert elsewhere.choice(1).called == QUICK
    plan.Plan({key: FAST}).write(other)
    assert main(["plan", "diff", str(file), str(other)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("Config(by='fast') (calls outside of CUDA graphs: Config(by='quick')) → Config(by='fast')")
    assert main(["plan", "diff", str(file), str(other), "--json"]) == 1
    [told] = json.loads(capsys.readouterr().out)["differences"]
    assert (told["called"], "other_called" in told) == ({"by": "quick"}, False)


def test_a_plan_whose_second_is_refused_is_no_hit() -> None:
    mm = made()
    bad = plan.Plan({mm.key(1): FAST}, {mm.key(1): Config(by="gone")})
    with plan.replay(bad), pytest.raises(PlanMiss, match=r"by='gone'.*refuses"):
        mm(1)
    with plan.replay(bad, miss="default"), pytest.warns(TunesmithWarning, match=r"by='gone'.*refuses"):
        assert (mm.choice(1).config, mm.choice(1).called) == (FAST, None)


def test_a_plan_whose_second_makes_no_sense_is_none(tmp_path: Path) -> None:
    text = plan.Plan({made().key(1): FAST}, {made().key(1): QUICK}).text
    (tmp_path / "plan.json").write_text(text.replace('"called": {"by": "quick"}', '"called": 5'))
    with pytest.raises(BadInput, match="choice 1 makes no sense"):
        plan.Plan.read(tmp_path / "plan.json")


# --- in tables ---------------------------------------------------------------------------------------------


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """Two tables, with a row that differs in what serves calls."""
    mm = made()
    mm.choice(1)
    table = from_store(default_store(), "ways", mm.key(1).device)
    [problem] = table.rows
    other = replace(table.rows[problem], called=None, median_s=1e-6)
    files = tmp_path / "one" / "ways.json", tmp_path / "other" / "ways.json"
    for file, rows in zip(files, (table.rows, {problem: other}), strict=True):
        file.parent.mkdir()
        replace(table, rows=rows).write(file)
    return files


@pytest.fixture
def elsewhere(tables: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine, with nothing in its store."""
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / "elsewhere"))
    options.cache_clear()


def test_tables_that_differ_in_it_differ(tables: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tables
    assert main(["table", "diff", str(one), str(one)]) == 0
    assert main(["table", "diff", str(one), str(other)]) == 1
    assert 'called {"by": "quick"} → null' in " ".join(capsys.readouterr().out.split())
    assert main(["table", "diff", str(one), str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"][0]["called"] == [{"by": "quick"}, None]
    whole = one.with_name("whole.json")
    for prefer, called in (("first", QUICK), ("fastest", None)):
        assert main(["table", "merge", str(one), str(other), "--prefer", prefer, "-o", str(whole)]) == 0
        assert [row.called for row in NativeTable.read(whole).rows.values()] == [called]


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_of_tables_has_it(tables: tuple[Path, Path]) -> None:
    mm = made(policy="lookup")
    mm.use_table(tables[0].parent)
    choice = mm.choice(1)
    assert (choice.config, choice.called) == (FAST, QUICK)


def test_a_row_that_is_there_gets_it(tables: tuple[Path, Path], tmp_path: Path) -> None:
    mm, file = made(), tmp_path / "ways.json"
    [problem] = NativeTable.read(tables[1]).rows
    for there, became in ((tables[1], "changed"), (tables[0], "kept")):
        file.write_bytes(there.read_bytes())
        into = IntoTable.at(file)
        into.take(mm, mm.key(1), {"x": 1}, mm.tune(1), None, False)
        into.write()
        assert into.became == {problem: became}
        assert NativeTable.read(file).rows[problem].called == QUICK


@pytest.mark.usefixtures("elsewhere")
def test_it_is_told_where_nothing_is_known_of_calls(
    tables: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mm = made(policy="lookup")
    mm.use_table(tables[0])
    assert mm.scores(1).endswith("nothing was measured; calls outside of a CUDA graph are quick's")
    mm.explain(1)
    assert "calls outside of a CUDA graph are Config(by='quick')'s" in " ".join(capsys.readouterr().out.split())
    assert "calls outside of CUDA graphs" in mm.choice(1)._repr_html_()


@pytest.mark.usefixtures("elsewhere")
def test_one_serves_all_where_calls_were_not_asked_about(
    tables: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mm = made(policy="lookup", eager=False)
    mm.use_table(tables[0])
    mm(1)
    assert launched_by(mm) == "fast"
    assert (mm.choice(1).config, mm.choice(1).called) == (FAST, None)
    known = mm.lookup(1)
    assert known is not None
    assert known.called is None
    mm.explain(1)
    assert "outside of a CUDA graph" not in capsys.readouterr().out


# --- among ranks -------------------------------------------------------------------------------------------


def answering(refuses: str) -> Any:
    """A store in which another rank waits, on which one way fails."""
    torch = pytest.importorskip("torch", reason="ranks are those of torch.distributed")

    class Store:
        def __init__(self) -> None:
            inner = torch.distributed.HashStore()
            self.compare_set, self.check, self.get, self.add = inner.compare_set, inner.check, inner.get, inner.add
            self._set = inner.set

        def set(self, key: str, value: str) -> None:
            self._set(key, value)
            before, proposal, number = key.partition("proposal/")
            if proposal:
                self._set(f"{before}answer/{number}/1", "another: load: gone" if refuses in value else "")

    return Store()


@pytest.mark.parametrize(
    ("refuses", "serve"), [("nothing", (FAST, QUICK)), ("quick", (FAST, None)), ("fast", (LIBRARY, None))]
)
def test_ranks_use_what_works_on_all(refuses: str, serve: object) -> None:
    store, mm = answering(refuses), made()
    store.add(f"tunesmith/1/tp/search/{mm.key(1).digest}/waiting", 1)
    with ranks.agree("tp", store=store):
        choice = mm.choice(1)
    assert (choice.config, choice.called) == serve
    known = mm.lookup(1)
    assert known is not None
    assert (known.config, known.called) == serve
    mine = default_store()
    mine.put_choice(mm.key(1), replace(choice, called=LIBRARY), dict(mm.key(1).soft))  # as another rank has it
    with ranks.agree("tp", store=store):
        again = made().choice(1)
    stored = mine.choice(mm.key(1))
    assert stored is not None
    assert (again.config, again.called) == (stored.choice.config, stored.choice.called) == serve


def test_a_rank_that_has_no_such_way_says_so() -> None:
    store, mm = answering("nothing"), made()
    with ranks.agree("tp", store=store):
        assert mm.choice(1).called == QUICK
    fewer = made({name: us for name, us in GPU.items() if name != "quick"})
    digest, other = mm.key(1).digest, fewer.key(1).digest
    store.set(f"tunesmith/1/tp/search/{other}/choice", store.get(f"tunesmith/1/tp/search/{digest}/choice"))
    with ranks.agree("tp", store=store), pytest.raises(NoAgreement, match=r"use Config\(by='quick'\).*refuses"):
        fewer.choice(1)
