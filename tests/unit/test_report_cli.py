"""`tunesmith report`: from the store and from recordings; what goes wrong is one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report_pages import Read, read

from tunesmith import Config, Failed, Trial
from tunesmith.cli import main
from tunesmith.store import default_store

pytest.importorskip("jinja2")
pytest.importorskip("plotly")

RECORDING = Path(__file__).parents[2] / "benchmarks" / "recordings" / "gemm_M512_N512_K16384_h200.json.gz"
SPACES = Path(__file__).parents[1] / "data" / "rows_h200.json.gz"
KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Config, Space

@tunesmith.autotune(
    space=Space(block=[16, 32, 64]), key=["M"], default=Config(block=64),
    model=tunesmith.Tiles("block", 1, 1, ("M", 1, 1)),
    clock=ScriptedClock(lambda config: 1e-3 * config["block"], noise=0.001),
    make_inputs=lambda problem: {"M": problem["M"]},
)
def scale(M, *, block):
    if block == 32:
        raise RuntimeError("</script> out of registers")
"""

Report = Callable[..., int]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[str]:
    before = set(sys.modules)
    file = tmp_path / "reported.py"
    file.write_text(KERNELS)
    yield f"{file}:scale"
    for name in set(sys.modules) - before:
        if name.endswith("reported"):
            del sys.modules[name]


@pytest.fixture
def tuned(kernel: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["tune", kernel, "--problem", "M=8", "--problem", "M=64", "--no-isolate"]) == 0
    capsys.readouterr()
    return kernel


def page_of(path: Path) -> Read:
    page = read(path.read_text(encoding="utf-8"))
    assert page.faults == []
    return page


def test_a_kernels_problems_beside_its_default(tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.html"
    assert main(["report", tuned, "-o", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: 2 problems, 6 trials, ")

    page = page_of(file)
    found = {one["problem"]: one for one in page.data["searches"]}
    assert set(found) == {"M=8", "M=64"}
    for one in found.values():
        assert one["choice"]["config"] == {"block": 16}
        (default,) = one["rivals"]
        assert default["config"] == {"block": 64}
        assert default["median_s"] / one["choice"]["median_s"] == pytest.approx(4, rel=0.05)
        assert one["failed_by_reason"][0]["reason"] == "RuntimeError: </script> out of registers"
        assert "in no table" in one["model"]["why"]
    assert "RuntimeError: </script> out of registers" in page.text


def test_one_problem_as_json(tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one.html"
    assert main(["report", tuned, "--problem", "M=8", "-o", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "tunesmith-report/1"
    assert said["problems"] == [{"kernel": "scale", "problem": "M=8", "trials": 3}]
    assert said["file_bytes"] == file.stat().st_size
    assert [one["problem"] for one in page_of(file).data["searches"]] == ["M=8"]


def test_all_that_is_stored_needs_no_target(tuned: str, tmp_path: Path) -> None:
    file = tmp_path / "all.html"
    assert main(["report", "-o", str(file)]) == 0
    shown = page_of(file).data["searches"]
    assert len(shown) == 2
    assert "TARGET" in shown[0]["model"]["why"]


def test_a_kernel_of_which_nothing_works_hides_no_other(
    tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = default_store()
    broken = replace(store.keys("scale")[0], kernel="broken")
    store.add_trials(broken, [Trial(Config(block=16), Failed("compile", "error: BLOK undeclared"))])
    store.forget_failures(broken)  # as a search does in which nothing worked
    assert "broken" in [key.kernel for key in store.keys(None)]
    assert main(["report", "-o", str(tmp_path / "all.html")]) == 0
    out = capsys.readouterr()
    assert "2 problems" in out.out
    assert "1 problem of which nothing worked: left out" in out.err


def test_another_source_is_left_out_and_said(tuned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "changed" / "reported.py"
    changed.parent.mkdir()
    changed.write_text(KERNELS.replace("out of registers", "out of memory"))
    assert main(["report", f"{changed}:scale", "-o", str(tmp_path / "x.html")]) == 2
    assert "2 problems measured of another source of the kernel" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_recordings_ours_and_others(tmp_path: Path) -> None:
    file = tmp_path / "recorded.html"
    assert main(["report", "--recording", str(RECORDING), "--recording", str(SPACES), "-o", str(file)]) == 0
    shown = page_of(file).data["searches"]
    assert len(shown) == 17
    assert {one["kernel"] for one in shown} == {"gemm", "softmax", "add_rmsnorm"}
    assert all(one["rows_left_out"] == 0 for one in shown)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--recording", "nowhere.json"], "nowhere.json cannot be read"),
        (["--problem", "M=8"], "--problem needs a TARGET"),
        (["matmul", "--problem", "M=8,N=8,K=8", "--recording", str(RECORDING)], "a recording is of one problem"),
        (["-o", "no/such/folder/x.html"], "there is no folder no/such/folder"),
        (["-o", "."], "is a folder"),
        (["matmul"], "the store knows nothing of matmul"),
        ([], "the store knows nothing; tunesmith tune TARGET measures"),
        (["--recording", str(RECORDING), "--table", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_goes_wrong_is_one_line(args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["report", *args]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("tunesmith: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))
