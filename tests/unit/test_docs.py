"""The documentation is true: its code is code, its links lead somewhere, its lists are those of the program."""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import doc_pages
from tests.doc_pages import GENERATED, PAGES, ROOT

import tunesmith
from tunesmith import errors
from tunesmith.cli import app, main
from tunesmith.options import VARIABLES


def blocks(page: Path) -> list[str]:
    return [block.text for block in doc_pages.blocks(page) if block.language == "python"]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> Iterator[tuple[str, list[set[str]]]]:
    """Each command with its options, each by all of its spellings."""
    import typer

    def walk(name: str, command: Any) -> Iterator[tuple[str, list[set[str]]]]:
        below = getattr(command, "commands", None)
        for each, one in (below or {}).items():
            yield from walk(f"{name} {each}".strip(), one)
        if below is None:
            spelled = [{option for option in (*p.opts, *p.secondary_opts) if option[0] == "-"} for p in command.params]
            yield name, [spellings for spellings in spelled if spellings]

    yield from walk("", typer.main.get_command(app))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_parses_and_links_lead_somewhere(page: Path) -> None:
    for block in blocks(page):
        if not block.startswith(">>>"):
            bare = block.strip().splitlines()[-1].startswith("@")  # decorators of any function
            ast.parse(block + "def f(): ..." if bare else block)
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    for text, where in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", prose):
        if "://" in where:
            continue
        name, _, anchor = where.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"[{text}]({where})"
        assert not anchor or anchor in anchors(file), f"[{text}]({where})"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sessions_say_what_they_print(page: Path) -> None:
    for number, block in enumerate(blocks(page)):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, {}, f"{page.name}[{number}]", None, None)
            assert doctest.DocTestRunner().run(test).failed == 0


def test_the_readmes_kernel_runs_and_is_known_under_strict_lookup(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    own, *_, strict = blocks(ROOT / "README.md")
    with tunesmith.policy("search"):
        space = _run(own, "readme_kernel")
    assert "row_sums" in capsys.readouterr().out
    exec(strict, space)


def test_the_wrong_candidate_is_named_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy")
    page = ROOT / "docs" / "verification.md"
    _run(blocks(page)[0], "rms_norm_kernel")
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("Config(fast=True) wrong out, row 63, at (63, 107): error 8.0e-01")
    assert printed in " ".join(page.read_text().split())


def test_the_space_of_the_page_has_as_many_points_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(ROOT / "docs" / "space.md")
    _run(block, "space")
    points, legal = re.findall(r"\d+", block[block.index("  # 640") :])[:2]
    assert capsys.readouterr().out.splitlines()[0] == f"{points} {legal}"


def _run(block: str, name: str) -> dict[str, Any]:
    """A block as a module's body: kernels in Python are identified by their module's source."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(block, f"<{name}>", "exec"), space)
    return space


def test_a_recording_is_made_and_replayed_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numpy")
    (tmp_path / "mine.py").write_text(
        "import numpy, tunesmith\n"
        "@tunesmith.autotune(space=tunesmith.Space(block=[1, 2, 4]), key=['n'],\n"
        "    make_inputs=lambda problem: {'x': numpy.ones(problem['n']), 'n': problem['n']})\n"
        "def scale(x, n, *, block):\n"
        "    for start in range(0, n, n // block): x[start : start + n // block] *= 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    here = ["record", "mine.py:scale", "--problem", "n=64", "-o", "scale.json.gz", "--rounds", "15", "--no-isolate"]
    assert main(here) == 0
    assert "3 measured, 0 failed, 15 samples each" in capsys.readouterr().out
    _run(blocks(ROOT / "docs" / "measuring.md")[-1], "replayed")
    assert capsys.readouterr().out.startswith("Choice(")
    sys.modules.pop("mine", None)


def test_every_environment_variable_has_its_row() -> None:
    rows = re.findall(r"^\| `(TUNESMITH_\w+)` \|", (ROOT / "docs" / "environment.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VARIABLES)
    for page in PAGES:
        assert set(re.findall(r"TUNESMITH_[A-Z_]+[A-Z]", page.read_text())) <= set(VARIABLES), page


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    text = "".join(page.read_text() for page in PAGES if page not in GENERATED)
    known = dict(commands())
    said = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    assert [(name, one) for name, options in known.items() for one in options if not one & said] == []
    for line in re.findall(r"tunesmith (.*)", text):
        words = re.split(r" -- |[`#|]", line)[0].split()
        name = next((n for n in known if words[: len(n.split())] == n.split()), None)
        if name is not None:
            asked = {word.strip("[]").split("=")[0] for word in words if word.startswith(("--", "[--"))}
            asked = {option for word in asked for option in word.split("/")} - {"--", "--help"}
            assert asked <= set().union(*known[name]), line


def test_the_errors_that_pages_name_are_there() -> None:
    rows = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "tracks.md").read_text(), re.MULTILINE)
    assert len([name for name in rows if issubclass(getattr(errors, name, object), errors.TunesmithError)]) == 6
    for page in PAGES:
        for name in re.findall(r"`((?:[A-Z]\w+)?(?:Error|Miss|Agreement|Prepared|WorkingConfig))`", page.read_text()):
            assert hasattr(errors, name) or hasattr(builtins, name), f"{page.name}: {name}"


def test_the_command_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "scripts"))
    import command_line

    monkeypatch.delitem(sys.modules, "command_line")
    assert command_line.PAGE.read_text() == command_line.page(), "python docs/scripts/command_line.py writes it anew"


def test_every_public_name_is_in_the_reference() -> None:
    named = set(re.findall(r"^::: tunesmith\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    assert set(tunesmith.__all__) <= named


def test_every_picture_is_used_and_small() -> None:
    text = "".join(page.read_text() for page in PAGES) + (ROOT / "mkdocs.yml").read_text()
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert f"pictures/{picture.name}" in text
        assert picture.stat().st_size < 150_000


def test_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert [name for name, _ in commands() if f"tunesmith {name}" not in page] == []


def test_the_layers_are_those_of_the_import_contract() -> None:
    contract = re.findall(r'^    "(\(.*|core|errors)",$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    there = {path.stem for path in (ROOT / "src" / "tunesmith").iterdir()}
    drawn = (ROOT / "docs" / "design.md").read_text().split("```")[1].strip().splitlines()
    layers = [{name.strip("()") for name in line.split(" | ")} & there for line in contract]
    assert [set(re.split(r"  +", line)[0].split(", ")) for line in drawn] == [
        layer - {"__main__"} for layer in layers if layer - {"__main__"}
    ]
