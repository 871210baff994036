"""TUNESMITH_CAPTURE: what `lookup` missed, as a list that `tune --problems` reads; many processes, kills, odd files."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Problem, Space, missed, untuned
from tunesmith.cli import main
from tunesmith.cli.problems import wanted
from tunesmith.cli.target import find_target
from tunesmith.errors import BadInput, LookupMiss, TunesmithWarning
from tunesmith.options import Options, options
from tunesmith.tables import Row

CLOCK = ScriptedClock(lambda config: 1e-3 * config["block"])  # type: ignore[operator]
KERNEL = """
@autotune(space=Space(block=[1, 2]), key=["M", "N", "causal"], dims=["M", "N"], flags={"causal": False},
          policy="lookup", clock=ScriptedClock(lambda config: 1e-3 * config["block"]), version="1",
          make_inputs=lambda p: {"M": p["M"], "N": p["N"], "causal": p["causal"]})
def scale(M, N, causal=False, *, block):
    return block
"""


def made(**more: Any) -> Any:
    """A kernel that only looks up."""
    given = {"key": ["M", "N"], "policy": "lookup", "clock": CLOCK, "version": "1", **more}

    @tunesmith.autotune(space=Space(block=[2, 1]), make_inputs=lambda p: {"M": p["M"], "N": p["N"]}, **given)
    def captured(M: int, N: int, *, block: int) -> int:
        return block

    return captured


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The list, with nothing noted yet."""
    monkeypatch.setenv("TUNESMITH_CAPTURE", str(tmp_path / "missed.csv"))
    options.cache_clear()
    missed._counts.clear()
    missed._capture.troubled = False
    yield tmp_path / "missed.csv"
    missed._counts.clear()


def rows(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def test_what_lookup_does_not_know_is_listed_once_with_its_calls(file: Path) -> None:
    kernel = made()
    for _ in range(5):
        kernel(8, 16)
    assert rows(file) == [{"kernel": "captured", "count": "1", "M": "8", "N": "16"}]
    kernel(32, 16)
    assert [(row["M"], row["count"]) for row in rows(file)] == [("8", "5"), ("32", "1")]
    for _ in range(3):
        kernel(32, 16)
    missed.write()
    assert [(row["M"], row["count"]) for row in rows(file)] == [("8", "5"), ("32", "4")]


def test_the_list_is_what_tune_reads_and_then_nothing_is_missed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "some_scale.py").write_text(
        "from tests.fakes import ScriptedClock\nfrom tunesmith import Space, autotune\n" + KERNEL
    )
    target = f"{tmp_path / 'some_scale.py'}:scale"
    scale = find_target(target)
    scale(8, 16, True)
    scale(9, 16, False)
    assert [(row["M"], row.get("causal")) for row in rows(file)] == [("8", "true"), ("9", "false")]

    assert main(["tune", target, "--problems", str(file), "--json"]) == 0
    assert scale.lookup(8, 16, True) is not None
    assert scale.lookup(9, 16, False) is not None
    del sys.modules["some_scale"]


def test_without_the_variable_no_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned, "add", lambda *_: pytest.fail("written"))
    made()(8, 16)


def test_a_warm_call_writes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = made()
    kernel(8, 16)
    monkeypatch.setattr(untuned, "add", lambda *_: pytest.fail("written"))
    for _ in range(100):
        kernel(8, 16)


def test_a_bucket_is_listed_by_a_size_that_was_asked_for(file: Path) -> None:
    kernel = made(buckets={"M": [64]})
    kernel(1000, 16)
    kernel(2000, 16)
    assert [row["M"] for row in rows(file)] == ["1000"]


def test_a_strict_miss_is_listed_too(file: Path) -> None:
    kernel = made()
    with tunesmith.policy("lookup", strict=True):
        for _ in range(2):
            with pytest.raises(LookupMiss):
                kernel(8, 16)
    missed.write()
    assert [row["count"] for row in rows(file)] == ["2"]
    assert not [miss for miss in tunesmith.misses() if miss.kernel == "captured"]  # the default served none


class Nearest:
    """A table that always has something near."""

    def lookup(self, key: object, exact: Problem, device: object) -> Row:
        near = exact["M"] != 8
        return Row(Config(block=2), "table near", "M: 8 for another" if near else "")


def test_a_row_of_another_problem_is_listed_and_the_default_did_not_serve(file: Path) -> None:
    kernel = made()
    kernel.use_table(Nearest())
    assert [kernel(8, 16), kernel(4096, 16)] == [2, 2]
    assert [row["M"] for row in rows(file)] == ["4096"]
    assert not tunesmith.misses()


def test_values_survive_the_way_through_the_file(tmp_path: Path) -> None:
    problem = Problem({"M": 3, "s": 'a "b", c', "e": "", "x": 0.5, "none": None, "n": "true", "t": True})
    for _ in range(2):
        untuned.add(tmp_path / "f.csv", {("k", problem): 2}, 1)
    (row,) = rows(tmp_path / "f.csv")
    read = {n: tunesmith.core.problem.read_value(v) for n, v in row.items() if n not in ("kernel", "count")}
    assert (Problem(read), row["count"]) == (problem, "4")


def test_what_others_wrote_into_the_file_stays(file: Path) -> None:
    file.write_text("# from the meeting\nM,kernel,K\n4,other,7\n")
    made()(8, 16)
    assert file.read_text() == "# from the meeting\nM,kernel,K,count,N\n4,other,7,,\n8,captured,,1,16\n"


@pytest.mark.parametrize(
    "content", ["M,N\n1,2\n", "kernel,M\n1\n", "kernel,count\na,many\n", "kernel,kernel\n", "\xff"]
)
def test_a_file_that_is_no_list_is_left_alone_with_one_warning(file: Path, content: str) -> None:
    file.write_bytes(content.encode("latin-1"))
    kernel = made()
    with pytest.warns(TunesmithWarning, match="is no list of problems") as warned:
        assert kernel(8, 16) == kernel(9, 16) == 2
    assert len(warned) == 1
    assert file.read_bytes() == content.encode("latin-1")


def test_a_file_that_cannot_be_written_is_one_warning(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text("")
    monkeypatch.setenv("TUNESMITH_CAPTURE", str(file / "missed.csv"))
    options.cache_clear()
    with pytest.warns(TunesmithWarning, match="TUNESMITH_CAPTURE"):
        assert made()(8, 16) == 2


def test_a_misspelt_file_is_refused() -> None:
    with pytest.raises(BadInput, match=r"good values: a file that ends in \.csv"):
        Options.from_environment({"TUNESMITH_CAPTURE": "missed.json"})


# --- processes ----------------------------------------------------------------------------------------


def test_counts_are_written_at_the_end_and_add_up_over_processes(tmp_path: Path) -> None:
    env = {"TUNESMITH_CAPTURE": str(tmp_path / "missed.csv")}
    for _ in range(2):
        done = fresh_process(KERNEL + "\nfor _ in range(10): scale(8, 16)\nscale(9, 16)\n", tmp_path, env)
        assert done.returncode == 0, done.stderr
    assert [(row["M"], row["count"]) for row in rows(tmp_path / "missed.csv")] == [("8", "20"), ("9", "2")]


def test_many_processes_add_at_once_and_lose_nothing(tmp_path: Path) -> None:
    script = tmp_path / "adds.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom tunesmith import Problem\nfrom tunesmith.untuned import add\n"
        "path, who = Path(sys.argv[1]), int(sys.argv[2]) % 2\n"
        "for i in range(25):\n    add(path, {('k', Problem({'M': i, 'who': who})): 1}, 60)\n"
    )
    args = [sys.executable, str(script), str(tmp_path / "f.csv")]
    running = [subprocess.Popen([*args, str(number)]) for number in range(4)]
    assert [process.wait(timeout=100) for process in running] == [0] * 4
    found = rows(tmp_path / "f.csv")
    assert len(found) == 50
    assert {row["count"] for row in found} == {"2"}


def test_a_killed_process_has_listed_what_it_missed(tmp_path: Path) -> None:
    env = {"TUNESMITH_CAPTURE": str(tmp_path / "missed.csv")}
    script = "\nimport os, signal\nfor M in range(5): scale(M, 16)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert fresh_process(KERNEL + script, tmp_path, env).returncode == -signal.SIGKILL
    assert [row["M"] for row in rows(tmp_path / "missed.csv")] == ["0", "1", "2", "3", "4"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_write_its_parents_calls_again(tmp_path: Path) -> None:
    env = {"TUNESMITH_CAPTURE": str(tmp_path / "missed.csv")}
    script = """
import os
for _ in range(3): scale(8, 16)
child = os.fork()
if not child:
    scale(8, 16)
    scale(9, 16)
    sys.exit(0)  # with what runs at the end
os.waitpid(child, 0)
"""
    done = fresh_process(KERNEL + script, tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert [(row["M"], row["count"]) for row in rows(tmp_path / "missed.csv")] == [("8", "4"), ("9", "1")]


def test_a_row_of_another_problem_costs_no_frame_where_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNESMITH_CAPTURE", raising=False)
    options.cache_clear()
    problem = Problem({"M": 3})

    assert missed.counted("captured", problem, problem, print, unknown=False) is print
    assert missed.counted("captured", problem, problem, print) is not print  # the default's calls are counted
    missed._counts.clear()


def test_fields_may_be_called_as_the_lists_own_columns(tmp_path: Path):
    path = tmp_path / "missed.csv"
    problems = [Problem({"count": 8, "kernel": "a"}), Problem({"count": 4096, "kernel": "a"})]
    for problem in [*problems, problems[0]]:
        untuned.add(path, {("scale", problem): 2}, 1.0)
    assert path.read_text() == "kernel,count,=count,=kernel\nscale,4,8,a\nscale,2,4096,a\n"

    @tunesmith.autotune(
        space=Space(block=[1, 2]), key=["count", "kernel"], dims=["count"], flags={"kernel": "b"}, clock=CLOCK,
        version="1", make_inputs=lambda p: {"count": p["count"], "kernel": p["kernel"]},
    )  # fmt: skip
    def scale(count: int, kernel: str = "b", *, block: int) -> int:
        return block

    assert wanted(scale, [], [path]).problems == tuple(problems)


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\x0c", ",", '"', "\n"])
def test_any_text_in_a_cell_comes_back(tmp_path: Path, sign: str):
    path = tmp_path / "missed.csv"
    problem = Problem({"n": 1, "s": f"a{sign}b"})
    for _ in range(2):
        untuned.add(path, {("scale", problem): 1}, 1.0)
    assert path.read_text(encoding="utf-8").count("scale,") == 1

    @tunesmith.autotune(
        space=Space(block=[1, 2]),
        key=["n", "s"],
        dims=["n"],
        flags={"s": "b"},
        clock=CLOCK,
        version="1",
        make_inputs=lambda p: {"n": p["n"], "s": p["s"]},
    )
    def scale(n: int, s: str = "b", *, block: int) -> int:
        return block

    assert wanted(scale, [], [path]).problems == (problem,)


def test_what_is_no_list_raises_nothing_else(tmp_path: Path):
    path = tmp_path / "missed.csv"
    for data in (
        f"kernel,count,M\nk,{'9' * 5000},1\n".encode(),
        b"\xff\xfe",
        b"M,N\n1,2\n",
        b'kernel\n"',
        b"a" * 200_000,
    ):
        path.write_bytes(data)
        with pytest.raises(BadInput, match="is no list of problems"):
            untuned.add(path, {("k", Problem({"M": 1})): 1}, 1.0)
        assert path.read_bytes() == data
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput, match="is no file"):
        untuned.add(path, {("k", Problem({"M": 1})): 1}, 1.0)
