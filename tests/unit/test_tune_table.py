"""`tunesmith tune --table`: what is found goes into a table that serves elsewhere; rows stay unless they are beaten."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunesmith.cli import main
from tunesmith.cli.target import find_target
from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.options import options
from tunesmith.store import default_store
from tunesmith.tables import NativeTable, edit
from tunesmith.tables.native import Entry

KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Space

TIMES = {16: 4.0, 32: 2.0, 64: 1.0, 128: 1.5}
clock = ScriptedClock(lambda config: 1e-3 * TIMES[config["block"]])

@tunesmith.autotune(space=Space(block=[16, 32, 64, 128]), key=["n"], policy="lookup", clock=clock, version="VERSION",
    make_inputs=lambda problem: {"n": problem["n"]})
def scale(n, *, block):
    if n == 13:
        raise TypeError("a bug in the kernel")
    return block
"""
Tune = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """From a version of the source to its TARGET."""
    before = set(sys.modules)

    def write(version: str = "1") -> str:
        for name in set(sys.modules) - before:
            if name.endswith("tabled"):
                del sys.modules[name]
        file = tmp_path / version / "tabled.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(KERNELS.replace("VERSION", version))
        return f"{file}:scale"

    yield write
    for name in set(sys.modules) - before:
        if name.endswith("tabled"):
            del sys.modules[name]


@pytest.fixture
def tune(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tune:
    """Runs it with --json: the exit code and the document."""

    def tune(*args: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(
            ["tune", *[str(arg) for arg in args], "--no-isolate", "--table", str(tmp_path / "scale.json"), "--json"]
        )
        out = capsys.readouterr().out
        return code, json.loads(out) if out else {}

    return tune


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As on another machine of the same kind: with nothing in the store."""
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(folder))
    options.cache_clear()


def with_row(path: Path, n: int, row: Entry) -> None:
    table = NativeTable.read(path)
    rows = {**table.rows, Problem({"n": n}): row}
    NativeTable(table.kernel, table.device, rows, table.fingerprint, table.protocol, table.soft).write(path)


def test_what_is_tuned_is_served_from_the_table_alone(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("n\n8\n16\n")
    target = kernels()
    code, document = tune(target, "--problems", shapes)
    assert code == 0
    assert document["table"]["rows"] == {"n=8": "new", "n=16": "new"}

    elsewhere(monkeypatch, tmp_path / "empty")
    kernel = find_target(target)
    kernel.use_table(tmp_path / "scale.json")

    assert kernel(8) == kernel(16) == 64
    choice = kernel.choice(8)
    assert choice.source == f"table {tmp_path / 'scale.json'}"
    assert choice.median_s == pytest.approx(1e-3)
    assert default_store().keys() == []
    row = NativeTable.read(tmp_path / "scale.json").rows[Problem({"n": 8})]
    assert row.provenance["at"]


def test_the_same_again_leaves_the_file_as_it_is(tune: Tune, kernels: Callable[..., str], tmp_path: Path) -> None:
    target = kernels()
    tune(target, "--problem", "n=8")
    before = (tmp_path / "scale.json").read_bytes()

    assert tune(target, "--problem", "n=8")[1]["table"]["rows"] == {"n=8": "kept"}
    assert (tmp_path / "scale.json").read_bytes() == before


@pytest.mark.parametrize(
    ("row", "takes", "becomes", "block"),
    [
        (Config(block=128), 1.5, "changed", 64),
        (Config(block=128), 1.005, "kept", 128),  # a search that knows of no row takes 64
        (Config(block=17), 1.5, "changed", 64),  # the Space has no such block any more
    ],
)
def test_a_row_of_the_table_stays_unless_what_was_found_beats_it_side_by_side(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    row: Config, takes: float, becomes: str, block: int,
) -> None:  # fmt: skip
    target, path = kernels(), tmp_path / "scale.json"
    tune(target, "--problem", "n=8")
    with_row(path, 8, Entry(row, 5e-4, {"at": "2020"}))  # what the row claims to take counts for nothing
    find_target(target)
    next(m for name, m in sys.modules.items() if name.endswith("tabled")).TIMES[128] = takes
    elsewhere(monkeypatch, tmp_path / "empty")

    assert tune(target, "--problem", "n=8")[1]["table"]["rows"] == {"n=8": becomes}
    assert NativeTable.read(path).rows[Problem({"n": 8})].config == Config(block=block)


def test_rows_that_stay_when_the_source_changes_say_for_which_they_were_made(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "scale.json"
    tune(kernels("1"), "--problem", "n=8", "--problem", "n=16")
    old = NativeTable.read(path).fingerprint
    target = kernels("2")
    tune(target, "--problem", "n=16")

    table = NativeTable.read(path)
    assert table.fingerprint != old
    assert table.rows[Problem({"n": 8})].provenance["fingerprint"] == old
    assert "fingerprint" not in table.rows[Problem({"n": 16})].provenance
    kernel = find_target(target)
    kernel.use_table(path)
    found = [table.lookup(kernel.key(n), Problem({"n": n}), kernel.subject(n).device) for n in (8, 16)]
    assert [row is not None and "another source" in row.note for row in found] == [True, False]
    tune(kernels("1"), "--problem", "n=16")
    assert "fingerprint" not in NativeTable.read(path).rows[Problem({"n": 8})].provenance  # the head's is its own again


def test_a_row_that_stays_when_the_way_of_timing_changes_says_how_it_was_timed(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path
) -> None:
    target, path = kernels(), tmp_path / "scale.json"
    tune(target, "--problem", "n=8")
    with_row(path, 8, Entry(Config(block=64), 9.0))  # as good as what will be found, and stays
    with_row(path, 16, Entry(Config(block=32), 9.0))  # what will be found
    with_row(path, 24, Entry(Config(block=16), 9.0))  # not asked for

    def clock() -> Any:
        found = next(m for name, m in sys.modules.items() if name.endswith("tabled"))
        found.TIMES[32] = 1.0
        return found.clock

    find_target(target)
    clock().protocol = "scripted/2"
    assert tune(target, "--problem", "n=8", "--problem", "n=16")[1]["table"]["rows"] == {"n=8": "kept", "n=16": "kept"}

    for _ in range(2):
        table = NativeTable.read(path)
        rows = {n: table.rows[Problem({"n": n})] for n in (8, 16, 24)}
        assert {n: table.of_row(row)[1] for n, row in rows.items()} == {
            8: "scripted/1", 16: "scripted/2", 24: "scripted/1"
        }  # fmt: skip
        assert [rows[n].median_s for n in (8, 16, 24)] == [9.0, pytest.approx(1e-3), 9.0]
        tune(target, "--problem", "n=16")


def test_a_problem_of_which_nothing_works_leaves_its_row(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path
) -> None:
    target, path = kernels(), tmp_path / "scale.json"
    tune(target, "--problem", "n=8")
    with_row(path, 13, Entry(Config(block=16)))
    before = path.read_bytes()

    assert tune(target, "--problem", "n=13")[0] == 1
    assert path.read_bytes() == before


def test_a_table_of_another_kernel_or_no_table_is_refused_before_anything_is_measured(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "scale.json"
    for content in (NativeTable("matmul", "cuda:NVIDIA H200:sm_90:132", {}).data(), b"no table"):
        path.write_bytes(content)

        assert tune(kernels(), "--problem", "n=8")[0] == 2
        assert path.read_bytes() == content
        assert default_store().keys() == []


def test_where_it_cannot_be_written_what_was_found_is_in_the_store(
    tune: Tune, kernels: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edit, "write_whole", full)

    assert tune(kernels(), "--problem", "n=8")[0] == 2
    assert len(default_store().keys()) == 1
    assert not (tmp_path / "scale.json").exists()
