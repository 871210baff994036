"""Code in the documentation runs, as far as a machine without a GPU can."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.doc_pages import PAGES, REASONS, ROOT, Block, blocks, commands


def program(page: Path) -> str:
    """The page's Python that is run, as one module."""
    own = [one for one in blocks(page) if one.language == "python" and not (one.why or one.title or one.is_doctest)]
    return "\n".join(one.text for one in own)


def sessions(page: Path) -> list[Block]:
    return [one for one in blocks(page) if one.language == "console" and not one.why]


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a page's code runs: with its files, `examples/`, and commands that are those of this Python."""
    (programs := tmp_path / "bin").mkdir()
    for name, words in {"tunesmith": "-m tunesmith", "python": ""}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    (work := tmp_path / "work").mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("COLUMNS", "100")
    return work


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_why_a_block_is_not_run_is_said_in_one_way(page: Path) -> None:
    marks = re.findall(r"^<!-- not run: (.*?) -->$", page.read_text(), re.MULTILINE)
    assert [why for why in marks if why not in REASONS] == []
    assert len(marks) == sum(bool(one.why) for one in blocks(page)), "a mark stands right above the block it is for"


@pytest.mark.parametrize("page", [page for page in PAGES if program(page)], ids=lambda page: page.stem)
def test_python_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page in a process of its own, as some take other packages' kernels over; with the default track: what a
    page shows is called, and nothing is searched that it does not ask for."""
    text = program(page)
    for package in {*re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)}:
        if importlib.util.find_spec(package) is None and not (ROOT / "examples" / f"{package}.py").exists():
            pytest.skip(f"needs {package}")
    (path := folder / f"{page.stem}_page.py").write_text(text)
    write_files(page, folder)
    monkeypatch.setenv("TUNESMITH_POLICY", "default")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT / 'examples'}")
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if sessions(page)], ids=lambda page: page.stem)
def test_sessions_run_and_print_what_they_say(page: Path, folder: Path) -> None:
    """Lines with a digit vary from machine to machine; the others are compared, but for blanks."""
    for package in ("numpy", "torch", "triton"):
        pytest.importorskip(package)
    write_files(page, folder)
    for session in sessions(page):
        for command, said in commands(session.text):
            ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)
            printed = " ".join((ended.stdout + ended.stderr).split())
            assert ended.returncode == 0, f"{command}\n{printed}"
            words = [" ".join(line.split()) for line in said if not re.search(r"\d|…", line)]
            assert [line for line in words if line not in printed] == [], f"{command}\n{printed}"
