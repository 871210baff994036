"""Committed results have the one form that comparisons read, and a result that makes no sense is not written."""

import json
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FIELDS = ["format", "benchmark", "date", "machine", "versions", "protocol", "command", "rows", "summary"]


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda path: path.name)
def test_a_committed_result_has_the_form(path: Path) -> None:
    result = json.loads(path.read_text())

    assert list(result) == FIELDS
    assert path.name.startswith(f"{result['benchmark']}-")
    python, script, *_ = result["command"].split()
    assert python == "python"
    assert (BENCHMARKS.parent / script).exists()
    assert result["summary"]
    assert all(math.isfinite(value) for value in result["summary"].values())


def test_the_writer_refuses_what_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from _results import write

    good = {"protocol": "p", "command": "python benchmarks/x.py", "rows": [{"a": 1}], "folder": tmp_path}
    path = write("x", "cpu", summary={"ratio": 1.5}, **good)
    assert list(json.loads(path.read_text())) == FIELDS
    for summary in ({"ratio": math.nan}, {"ratio": "1"}, {"ratio": True}):
        with pytest.raises(ValueError, match="finite"):
            write("y", "cpu", summary=summary, **good)
    with pytest.raises(ValueError, match="letters"):
        write("../y", "cpu", summary={"r": 1}, **good)
    assert [file.name for file in tmp_path.iterdir()] == ["x-cpu.json"]
    sys.modules.pop("_results", None)


def test_no_benchmark_stands_in_front_of_a_package() -> None:
    """A script's own folder is searched first: `benchmarks/cuda.py` would be what torch imports as `cuda`."""
    packages = {"cuda", "torch", "triton", "numpy", "cupy", "optuna", "rich", "typer", *sys.stdlib_module_names}
    assert not packages & {path.stem for path in BENCHMARKS.glob("*.py")}
