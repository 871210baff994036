"""Answers, progress and results that cannot be written: one line, the right exit code, and nothing that goes unsaid."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock

from tunesmith import Space, autotune
from tunesmith.cli import main
from tunesmith.options import options
from tunesmith.report.terminal import watch
from tunesmith.store import default_store
from tunesmith.store.database import Database, Trouble

FULL = Path("/dev/full")
ROOT = Path(__file__).parents[2]
KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock

@tunesmith.autotune(space=tunesmith.Space(block=[1, 2, 4]), key=["n"], isolate=False,
    make_inputs=lambda problem: {"n": problem["n"]}, clock=ScriptedClock(lambda config: 1e-3 * config["block"]))
def scale(n, *, block): ...
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "nowhere_kernels.py"
    file.write_text(KERNELS)
    return f"{file}:scale"


def command(*args: str, stdout: Any, unbuffered: bool = False) -> tuple[int, str]:
    """(exit code, what it said on standard error) of a command of its own process."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environ |= {"PYTHONPATH": path, **({"PYTHONUNBUFFERED": "1"} if unbuffered else {})}
    ended = subprocess.run(
        [sys.executable, "-m", "tunesmith", *args], stdout=stdout, stderr=subprocess.PIPE, text=True, env=environ
    )
    return ended.returncode, ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pipes without a reader are another matter there")
@pytest.mark.parametrize("args", [("--version",), ("store", "info"), ("--help",)])
def test_an_answer_that_nobody_reads_is_no_error_and_ends_as_shells_expect(args: tuple[str, ...]) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    try:
        assert command(*args, stdout=ours) == (141, "")
    finally:
        os.close(ours)


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
def test_an_answer_for_which_there_is_no_room_is_one_line(unbuffered: bool) -> None:
    with FULL.open("wb") as full:
        code, said = command("--version", stdout=full, unbuffered=unbuffered)
    assert (code, said) == (1, "tunesmith: the answer cannot be written: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="names may be as long there, and there is no /dev/full")
def test_paths_that_cannot_be_used_are_named(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    endless = "a" * 300
    for args in (["report", "-o", endless], ["tune", f"{endless}.py:scale"]):
        assert main(args) == 2
        said = capsys.readouterr().err
        assert said.startswith("tunesmith: ")
        assert "File name too long" in said
        assert said.count("\n") == 1


def test_a_store_that_cannot_be_reached_is_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", "a" * 300)
    options.cache_clear()
    assert main(["store", "info"]) == 0
    assert "File name too long" in " ".join(capsys.readouterr().out.split())
    assert main(["store", "gc"]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_an_interrupted_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stopped_while_imported.py").write_text("raise KeyboardInterrupt")
    assert main(["explain", f"{tmp_path / 'stopped_while_imported.py'}:scale", "--problem", "n=1"]) == 130
    assert capsys.readouterr() == ("", "tunesmith: interrupted\n")


def test_a_terminal_of_no_width_is_no_error(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", target, "--problem", "n=4", "-q"]) == 0
    for columns in ("1", "2", "0", "-5", "abc", "1000000"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", target, "--problem", "n=4"]) == 0
        assert "winner" in capsys.readouterr().out.replace("\n", "") or int(columns) < 20


def test_a_message_commands_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "coloured_kernels.py"
    file.write_text(
        KERNELS.replace(": ...", ":\n    if block == 2: raise RuntimeError('\\x1b[31merror\\x1b[0m \\x1b]0;x')")
    )
    assert main(["tune", f"{file}:scale", "--problem", "n=4", "-v"]) == 0
    said = capsys.readouterr()
    assert "RuntimeError: error ]0;x" in said.out
    assert "RuntimeError: error ]0;x" in said.err
    assert "\x1b" not in said.out + said.err


# --- progress -------------------------------------------------------------------------------------------


class Broken(io.StringIO):
    """A stream that nobody reads any more."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_search_goes_on_when_its_progress_cannot_be_written(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    @autotune(space=Space(block=[1, 2, 8]), key=["n"], clock=ScriptedClock(lambda c: 1e-3 * c["block"], 0.01))
    def scale(n: int, *, block: int) -> None:
        """What it does is not looked at."""

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Broken(terminal))
    with watch(verbose=True):
        summary = scale.tune(n=4)
    assert summary.choice is not None
    assert summary.choice.config["block"] == 1


# --- results that cannot be stored ----------------------------------------------------------------------


warned = pytest.mark.filterwarnings("default:tunesmith's store")


def nothing_can_be_stored() -> None:
    default_store().path.mkdir(parents=True)  # no file can be opened there


@warned
@pytest.mark.parametrize("more", [[], ["-q"]])
def test_what_tune_finds_and_cannot_store_is_said_and_no_success(
    target: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_can_be_stored()
    assert main(["tune", target, "--problem", "n=1", "--problem", "n=2", *more]) == 1
    said = capsys.readouterr().err
    assert "not stored: scale(n=1): 1.000 ms Config(block=1)" in said
    assert "not stored: scale(n=2): 1.000 ms Config(block=1)" in said
    assert f"({default_store().path}: " in said
    assert "name another folder by TUNESMITH_CACHE_DIR" in said


@warned
def test_a_table_has_what_the_store_cannot_take(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_can_be_stored()
    table = tmp_path / "found.json"
    assert main(["tune", target, "--problem", "n=1", "--table", str(table), "--json"]) == 1
    said = capsys.readouterr()
    assert "what was found of 1 problem is in no store" in said.err
    assert f"wrote {table}" in said.err
    assert [(one["problem"], one["config"]) for one in json.loads(said.out)["not_stored"]] == [("n=1", {"block": 1})]
    assert "n=1" in table.read_text()


@warned
def test_what_is_interrupted_and_cannot_be_stored_is_not_called_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "interrupted_kernels.py"
    stop = "def stop(config):\n    if config['block'] == 4: raise KeyboardInterrupt\n    return 1e-3\n"
    file.write_text(stop + KERNELS.replace('lambda config: 1e-3 * config["block"]', "stop"))
    nothing_can_be_stored()
    assert main(["tune", f"{file}:scale", "--problem", "n=4", "--no-isolate"]) == 130
    said = capsys.readouterr().err
    assert "are lost (" in said
    assert "measures only the rest" not in said


@warned
def test_what_refresh_finds_and_cannot_store_is_said_and_no_success(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tune", target, "--problem", "n=4", "-q"]) == 0
    capsys.readouterr()

    usual = Database.change

    def full(self: Database, change: Any) -> Any:
        if self.path == default_store().path:
            raise Trouble("access", self.path, "database or disk is full")
        return usual(self, change)

    monkeypatch.setattr(Database, "change", full)
    assert main(["store", "refresh", target, "--all"]) == 1
    said = capsys.readouterr()
    assert "not stored: scale(n=4): 1.000 ms Config(block=1)" in said.err
    assert "database or disk is full" in said.err
    assert "1 kept" in said.out


# --- a sweep's results ------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="workers are held to cores, and end with their parent")
def test_a_sweep_says_that_its_results_are_in_no_store(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    problems = tmp_path / "problems.csv"
    problems.write_text("n\n1\n2\n")
    nothing_can_be_stored()
    assert main(["sweep", str(problems), "--targets", target, "--quiet"]) == 1
    said = capsys.readouterr()
    assert "of 2 problems the results are in no store, but here alone" in " ".join(said.out.split())
    assert "kept in memory" in said.err
