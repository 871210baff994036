"""What is said beside answers, and where: quiet and verbose, loggers, streams that are no terminals, old encodings."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Space, autotune
from tunesmith.cli import main
from tunesmith.cli.output import print_json
from tunesmith.core.config import Config
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import NoWorkingConfig
from tunesmith.events import Compiling, Racing, Sampled, Started, Summary, Tried
from tunesmith.report import live
from tunesmith.report.compilations import compilation_table
from tunesmith.report.ends import End, EndTable
from tunesmith.report.live import LiveLines, log_every_s
from tunesmith.report.progress import Progress
from tunesmith.report.signs import ERRORS, showable
from tunesmith.report.sweeping import SweepProgress
from tunesmith.report.terminal import print_lines, watch
from tunesmith.report.units import behind_subject
from tunesmith.sweep.task import Result, Task

ESCAPE = "\x1b"
KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock

@tunesmith.autotune(space=tunesmith.Space(block=[1, 2, 4, 8]), key=["n"],
    make_inputs=lambda problem: {"n": problem["n"]},
    clock=ScriptedClock(lambda config: 1e-6 * config["block"], noise=0.01))
def scale(n, *, block):
    if block == 8:
        raise RuntimeError("out of registers")

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=lambda problem: {"n": problem["n"]})
def broken(n, *, a):
    raise RuntimeError("out of registers")
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "said_kernels.py"
    file.write_text(KERNELS)
    yield f"{file}:scale"
    for name in [name for name in sys.modules if name.endswith("said_kernels")]:
        del sys.modules[name]


def scale(clock: ScriptedClock | None = None) -> Any:
    @autotune(space=Space(block=[1, 2, 8]), key=["n"], clock=clock or ScriptedClock(lambda c: 1e-3 * c["block"], 0.01))
    def scale(n: int, *, block: int) -> None:
        if block == 8:
            raise RuntimeError("out of registers")

    return scale


# --- quiet and verbose ------------------------------------------------------------------------------------

TUNE = ("--problem", "n=4", "--no-isolate")


def test_quiet_leaves_the_answer_alone(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target, *TUNE, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Config(block=1)" in out


def test_errors_are_said_however_quiet_it_is(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target.replace(":scale", ":broken"), *TUNE, "-q"]) == 1
    assert "out of registers" in capsys.readouterr().err
    assert main(["tune", target, "-q"]) == 2
    assert "no problem is given" in capsys.readouterr().err


def test_verbose_says_each_candidates_fate_once(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target, *TUNE, "-v"]) == 0
    err = capsys.readouterr().err
    assert err.count("launch: RuntimeError: out of registers: Config(block=8)") == 1
    assert len(re.findall(r"[24]\.\d+ µs, left after \d+ rounds?: Config\(block=[24]\)", err)) == 2
    assert len(re.findall(r"\d [µn]s, to the end, \d+ rounds: Config\(block=1\)", err)) == 1


def test_usually_candidates_are_not_listed(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target, *TUNE]) == 0
    err = capsys.readouterr().err
    assert "measuring 4 candidates" in err
    assert "Config(block=2)" not in err


def test_both_at_once_make_no_sense(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target, *TUNE, "-q", "-v"]) == 2
    assert "--quiet and --verbose are opposites" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["tune", "sweep", "record", "verify", "guard", "compile", "profile", "store refresh"]
)
def test_every_command_that_works_long_has_both(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert "--quiet" in out
    assert "--verbose" in out


def test_a_sweep_hears_too(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, done = Task(target, "scale", "n=4"), Result("tuned", "cpu", median_s=1e-6, measured=3, failed=1)

    def said(detail: Any) -> str:
        out = io.StringIO()
        with SweepProgress(1, Console(file=out, width=80), detail) as progress:
            progress.ready("cpu", "cpu:a:b:1")
            progress.began("cpu", task)
            progress.ended("cpu", task, done)
        return out.getvalue()

    assert said("quiet") == ""
    assert "1.000 µs, 4 tried" not in said("usual")
    assert "cpu: scale(n=4) in 0.0 s: 1.000 µs, 4 tried" in said("verbose")


def test_what_each_device_of_a_sweep_does_has_its_own_line() -> None:
    progress = SweepProgress(4, Console(file=io.StringIO(), width=60))
    progress.ready("cpu:0", "cpu:a:b:1")
    for device in ("cpu:0", "cpu:1"):
        progress.began(device, Task("t", "scale", "n=4"))
    out = io.StringIO()
    Console(file=out, width=60).print(progress.shown)
    state, bar, *doing = out.getvalue().splitlines()
    assert state.startswith("0 of 4 done")
    assert set(bar.strip()) <= set("━╸╺ -")
    assert [line.split()[:2] for line in doing] == [["cpu:0:", "scale(n=4)"], ["cpu:1:", "scale(n=4)"]]


# --- logging ----------------------------------------------------------------------------------------------


class TestLogging:
    def test_a_program_that_asks_for_nothing_is_told_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        scale()(4)
        assert capsys.readouterr() == ("", "")

    def test_at_info_a_search_begins_and_ends_and_a_choice_is_made(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, logger="tunesmith"):
            scale()(4)
        begins, ends, choice = caplog.records
        assert [record.name for record in caplog.records] == [
            "tunesmith.search",
            "tunesmith.search",
            "tunesmith.choice",
        ]
        assert begins.getMessage() == "scale(n=4): a search of 3 points: 0 cut, 0 in the store"
        assert re.match(r"scale\(n=4\): Config\(block=1\), 0\.00\d+ s; 2 measured, 1 failed, 0 cut", ends.getMessage())
        assert choice.getMessage() == "scale(n=4): Config(block=1) by search, from search"
        assert isinstance(vars(ends)["event"], Summary)

    def test_at_debug_each_candidate_has_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, logger="tunesmith.search"):
            scale()(4)
        tried = [event for record in caplog.records if isinstance(event := vars(record).get("event"), Tried)]
        assert sorted(event.trial.config["block"] for event in tried) == [1, 2, 8]
        assert "scale(n=4): Config(block=8): launch: RuntimeError: out of registers" in caplog.messages
        assert not [record for record in caplog.records if isinstance(vars(record).get("event"), Sampled)]

    def test_what_does_not_work_at_all_is_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        @autotune(configs=[{"a": 1}, {"a": 2}], key=["n"])
        def broken(n: int, *, a: int) -> None:
            raise RuntimeError("no")

        with pytest.raises(NoWorkingConfig), caplog.at_level(logging.INFO, logger="tunesmith"):
            broken(1)
        assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
        assert "nothing works; 0 measured, 2 failed" in caplog.messages[-1]

    def test_a_lookup_says_what_serves(self, caplog: pytest.LogCaptureFixture) -> None:
        with tunesmith.policy("lookup"), caplog.at_level(logging.INFO, logger="tunesmith"):
            scale()(4)
        assert caplog.messages == ["scale(n=4): Config(block=1) by lookup, from default (nothing exact is known)"]


# --- logs, notebooks, old encodings -------------------------------------------------------------------------


def test_a_long_search_says_less_and_less_in_a_log() -> None:
    assert [log_every_s(gone) for gone in (0, 60, 300, 86400)] == [10, 10, 30, 60]


def test_a_log_is_told_while_one_config_is_compiled_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.report.progress.log_every_s", lambda gone: 0.0)
    out = io.StringIO()
    with Progress(Console(file=out, width=80)) as progress:
        progress(Started("scale", Problem({"n": 1}), 4, {}, 0, None))
        progress(Compiling(2))
        end = time.monotonic() + 5
        while "compiled 0/2" not in out.getvalue() and time.monotonic() < end:
            threading.Event().wait(0.02)
    assert "compiled 0/2 (0 failed)" in out.getvalue()


class Notebook:
    """What a notebook's cell shows: `IPython.display`, as far as it is used."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, data: Mapping[str, str], *, raw: bool, display_id: bool) -> Notebook:
        assert raw
        assert display_id
        self.update(data, raw=raw)
        return self

    def update(self, data: Mapping[str, str], *, raw: bool) -> None:
        self.shown.append(data["text/plain"])


def test_in_a_notebook_one_output_is_replaced_and_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell, module = Notebook(), ModuleType("IPython.display")
    monkeypatch.setattr(module, "display", cell.display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    now = iter(range(100, 200))
    console = Console(force_jupyter=True, file=io.StringIO())
    with Progress(console, now=lambda: float(next(now)), detail="verbose") as progress:
        progress(Started("scale", Problem({"n": 1}), 4, {}, 0, 30.0))
        progress(Racing(2))
        progress(Sampled(Config(a=1), Config(a=1), 5e-6, 0))
        trial = tunesmith.Trial(Config(a=1), tunesmith.Measured((tunesmith.Sample(5e-6, 0, 0),)))
        progress(Tried("scale", Problem({"n": 1}), trial, "left after 1 round"))
    assert "scale(n=1)" in cell.shown[0]
    assert any("best so far 5.000 µs Config(a=1)" in shown for shown in cell.shown)
    assert cell.shown[-1] == ""
    assert ESCAPE not in "".join(cell.shown)
    assert capsys.readouterr().out == "scale(n=1): 5.000 µs, left after 1 round: Config(a=1)\n"


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["ascii", "latin-1", "cp1252", "cp437"]))
def test_any_text_can_be_written_to_any_old_encoding(text: str, encoding: str) -> None:
    raw = io.BytesIO()
    shown = showable(io.TextIOWrapper(raw, encoding=encoding, newline="\n"))
    shown.write(text)
    shown.flush()
    written = raw.getvalue().decode(encoding)
    for sign, back in zip(text, text.encode(encoding, "replace").decode(encoding), strict=True):
        assert sign != back or sign in written


def test_signs_have_plain_ones() -> None:
    assert "1.000× 75.00 µs → … – ±".encode("ascii", ERRORS) == b"1.000x 75.00 us -> ... - +-"
    assert "日".encode("ascii", ERRORS) == b"?"
    stream = io.StringIO()
    assert showable(stream) is stream


def test_a_library_call_prints_on_an_old_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    one, raw_out, raw_err = scale(), io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(raw, encoding="ascii", newline="\n") for raw in (raw_out, raw_err))
    monkeypatch.setattr(sys, "stderr", err)
    with watch():
        one(4)
    with redirect_stdout(out):
        one.explain(4)
    out.flush()
    err.flush()
    assert b"1.000" in raw_out.getvalue()
    assert b"1.000" in raw_err.getvalue()
    assert b"xbest" in raw_out.getvalue()


# --- JSON -------------------------------------------------------------------------------------------------


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@given(
    st.recursive(
        st.floats() | st.none() | st.booleans() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_every_document_is_json(value: Any) -> None:
    for encoding in ("utf-8", "ascii"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding, errors=ERRORS)
        with redirect_stdout(stream):
            print_json("test", {"value": value})
        stream.flush()
        found = json.loads(raw.getvalue().decode(encoding), parse_constant=refuse)
        assert found["format"] == "tunesmith-test/1"
        if encoding == "ascii" and isinstance(value, str):
            assert found["value"] == value  # no sign of data is made plain


def test_a_table_with_nan_is_explained_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "E=8,N=64,device_name=NVIDIA_H200.json").write_text('{"64": {"BLOCK_SIZE_M": NaN, "num_warps": 4}}')
    assert (
        main(["table", "explain", str(tmp_path / "E=8,N=64,device_name=NVIDIA_H200.json"), "--at", "M=64", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["config"]["BLOCK_SIZE_M"] is None


# --- streams of a process -----------------------------------------------------------------------------------


def on_a_terminal(
    args: list[str], columns: int, stdout: Path | None = None, stderr: Path | None = None, code: int = 0,
    **environ: str,
) -> str:  # fmt: skip
    """What a command that ends with a code shows on a terminal of so many columns; what goes to a file is not shown."""
    pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    root = str(Path(__file__).parents[2])
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        open(stdout or os.devnull, "wb") as out, open(stderr or os.devnull, "wb") as err,
        subprocess.Popen(
            [sys.executable, "-m", "tunesmith", *args], stdin=theirs, stdout=out if stdout else theirs,
            stderr=err if stderr else theirs, env={**inherited, "PYTHONPATH": path, "TERM": "xterm", **environ},
        ) as process,
    ):  # fmt: skip
        os.close(theirs)
        shown: list[bytes] = []
        try:
            while data := os.read(ours, 65536):
                shown.append(data)
        except OSError:  # Linux's way to say that nobody has the other end any more
            pass
        assert process.wait(30) == code
    os.close(ours)
    return b"".join(shown).decode()


CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("columns", [40, 200])
def test_a_terminal_has_colours_and_no_line_is_too_long(target: str, columns: int) -> None:
    shown = on_a_terminal(["tune", target, *TUNE], columns)
    assert ESCAPE in shown
    assert max(len(CODES.sub("", line)) for line in re.split(r"[\r\n]+", shown)) <= columns
    assert "\x1b[?25h" in shown  # the cursor is back


def test_a_file_has_no_codes_whatever_the_other_stream_is(target: str, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    live_lines = on_a_terminal(["tune", target, *TUNE], 80, stdout=out)
    assert "\x1b[2K" in live_lines
    assert "ready to paste" in out.read_text()
    assert ESCAPE not in out.read_text()
    answer = on_a_terminal(["tune", target, "--problem", "n=5", "--no-isolate"], 80, stderr=err)
    assert "ready to paste" in answer
    assert ESCAPE in answer
    assert ESCAPE not in err.read_text()
    assert re.match(r"\d\d:\d\d:\d\d scale\(n=5\)", err.read_text())


def test_terminals_that_can_do_little_and_users_who_want_no_colour(target: str, tmp_path: Path) -> None:
    assert ESCAPE not in on_a_terminal(["tune", target, *TUNE], 80, TERM="dumb")
    plain = on_a_terminal(["tune", target, *TUNE], 80, stderr=tmp_path / "err", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
    out, err = tmp_path / "out", tmp_path / "err2"
    on_a_terminal(["tune", target, "--problem", "n=6", "--no-isolate"], 80, stdout=out, stderr=err, FORCE_COLOR="1")
    assert ESCAPE in out.read_text()
    assert ESCAPE not in err.read_text()  # a log stays plain


def test_long_lines_are_wrapped_on_a_terminal_and_whole_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "head\n  " + " ".join(["word"] * 30) + "\n"
    print_lines(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr("tunesmith.report.terminal.answers", lambda: Console(force_terminal=True, width=40))
    print_lines(text)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "head"
    assert lines[1].startswith("  word")
    assert all(line.startswith("      word") for line in lines[2:])
    assert max(map(len, lines)) <= 40
    assert not any(line.endswith(" ") for line in lines)


def test_an_error_is_wrapped_on_a_terminal_and_one_line_in_a_file(target: str, tmp_path: Path) -> None:
    err = tmp_path / "err"
    on_a_terminal(["tune", "nosuch"], 60, stderr=err, code=2)
    assert len(err.read_text().splitlines()) == 1
    shown = on_a_terminal(["tune", "nosuch"], 60, code=2).replace("\r", "").splitlines()
    assert max(map(len, shown)) <= 60
    assert all(line.startswith("    ") for line in shown[1:])
    assert " ".join(line.strip() for line in shown) == err.read_text().strip()


@pytest.mark.parametrize("width", [80, 200])
def test_the_ends_of_searches_are_whole_at_any_width(width: int) -> None:
    ends = [
        End(f"my_kernel(M={m},N=4096,dtype=float64)", ("75.30 µs", "new", "16", "0", "12.3"), config, not m)
        for m, config in ((0, "none of 2 Configs works"), (128, "Config(BLOCK_M=128, num_warps=4)"))
    ]
    out = io.StringIO()
    Console(file=out, width=width).print(EndTable(("time", "change", "measured", "failed", "seconds"), ends))
    text = out.getvalue()
    assert "…" not in text
    for word in ("my_kernel(M=128,", "N=4096,", "dtype=float64)", "75.30 µs", "12.3", "Config(BLOCK_M=128,"):
        assert word in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_what_was_compiled_is_whole_at_any_width(width: int) -> None:
    names = [f"A_RATHER_LONG_KNOB_{n}" for n in range(8)]
    resources = Resources(registers=255, spills=1068, shared_bytes=97 * 1024, threads=512)
    rows = [(Config(dict.fromkeys(names, n)), None, resources, 0.5) for n in (64, 128)]
    out = io.StringIO()
    Console(file=out, width=width).print(compilation_table("gemm", rows))
    text = out.getvalue()
    assert "…" not in text
    assert "occupancy" in text
    assert all(name in text for name in names) == (width == 80)  # a wide table has headings of several lines
    assert text.count("255") == text.count("1068") == 2
    assert max(map(len, text.splitlines())) <= width


def test_what_failed_is_said_without_the_call_beside_which_it_stands() -> None:
    assert behind_subject("f[way=1](M=8,x.dtype=float32): none of 2: f(1): no") == "none of 2: f(1): no"
    assert behind_subject("ValueError: f(1): no") == "ValueError: f(1): no"


def test_nothing_printed_ends_in_blanks(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["tune", target, *TUNE, "--problem", "n=5"], ["explain", target, "--problem", "n=4"]):
        assert main(args) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if line != line.rstrip()] == []


def test_a_line_that_stays_is_above_those_in_place() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    lines = LiveLines(Console(file=out, force_terminal=True, width=40, _environ={"TERM": "xterm"}), lambda: "in place")
    lines.redraw()
    lines.line("stays")
    assert lines.shown
    lines.close()
    assert not lines.shown
    assert CODES.sub("", out.getvalue()).count("stays") == 1
    assert live.LOG_EVERY_S == 10.0
