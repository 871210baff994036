"""Every example is listed and run: those that need no engine here, the others in tests that name them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "examples.md"
WORKFLOW = EXAMPLES / "guard_workflow.yml"


def run(*command: str, **environment: str) -> str:
    """What a program prints.

    Raises:
        AssertionError: with what it said, where it ends with another code than 0.
    """
    around = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, env=around)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_page_lists_all_of_them() -> None:
    listed = set(re.findall(r"\]\(\.\./examples/([\w.]+)\)", PAGE.read_text()))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.is_file()}


def test_each_is_named_in_a_test_that_ci_runs() -> None:
    folders = [ROOT / "tests" / "unit", ROOT / "tests" / "conformance"]
    tests = "".join(path.read_text() for folder in folders for path in sorted(folder.glob("*.py")))
    assert [path.name for path in EXAMPLES.iterdir() if path.is_file() and path.stem not in tests] == []


def test_ten_lines_tune_and_explain() -> None:
    pytest.importorskip("numpy")
    printed = run(sys.executable, str(EXAMPLES / "ten_lines.py"))
    assert "5 measured, 0 failed" in printed
    assert re.search(r"source +search", printed)
    assert re.search(r"source +store", run(sys.executable, str(EXAMPLES / "ten_lines.py")))


def test_engines_find_the_tables_that_are_made_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "engine-configs"
    printed = run(sys.executable, str(EXAMPLES / "engine_table.py"), "--defaults", str(folder))
    assert "2 tables, 12 rows: 0 errors, 0 warnings" in printed
    name = "E=128,N=768,device_name=NVIDIA_H200.json"
    assert (folder / name).exists()
    assert (folder / "configs" / "triton_3_6_0" / name).exists()


# --- the guard in a workflow ---


@pytest.fixture
def workflow() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text())


def steps(job: Any) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_page_shows_the_workflow() -> None:
    _, shown = WORKFLOW.read_text().split("docs/guard.md.\n")
    assert f"```yaml\n{shown}```" in (ROOT / "docs" / "guard.md").read_text()


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's package: the smallest example under the workflow's names, with a table and no tuning in calls."""
    pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    (package := tmp_path / "my_package").mkdir()
    text = (EXAMPLES / "ten_lines.py").read_text().replace("row_sums", "scale")
    (package / "kernels.py").write_text(text.replace("make_inputs=inputs)", 'make_inputs=inputs, policy="lookup")'))
    (tmp_path / "shapes.csv").write_text("kernel,n\nscale,256\n")
    return package


def test_the_workflow_checks_tables_as_it_says(workflow: Any, scale: Path) -> None:
    (scale / "tables").mkdir()
    assert (
        main(["tune", "my_package/kernels.py:scale", "--problem", "n=64", "--table", "my_package/tables/t.json"]) == 0
    )
    install, static = steps(workflow["jobs"]["static"])
    assert install == "pip install . tunesmith"
    assert main(static.split()[1:]) == 0


def test_the_workflow_compares_two_measurements_as_it_says(workflow: Any, scale: Path, tmp_path: Path) -> None:
    """The base and the change are the same here; whether that shows is up to the machine, so 3, cannot tell, passes
    with a warning, as it does in the workflow."""
    assert shutil.which("bash"), "the workflow's shell"
    measure, compare, _ = steps(workflow["jobs"]["measure"])
    shutil.copytree(scale, tmp_path / "base" / "my_package")
    shutil.copy(tmp_path / "shapes.csv", tmp_path / "base")
    (programs := tmp_path / "bin").mkdir()
    (programs / "tunesmith").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tunesmith "$@"\n')
    for quiet in ("git", "pip"):
        (programs / quiet).write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }

    run("bash", "-ec", re.sub(r"\$\{\{.*?\}\}", "base", measure), **environment)
    run("bash", "-ec", compare.replace("exit $code", "[ $code -eq 1 ] || exit $code"), **environment)

    assert "| `scale` | `n=256," in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "guard.json").read_text().startswith("{")
