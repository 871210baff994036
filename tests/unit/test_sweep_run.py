"""Whole sweeps in worker processes: same Choices, nothing measured twice, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import swept

import tunesmith
from tunesmith import Config, Measured, missed
from tunesmith.cli import main
from tunesmith.confirm import FEWEST, MOST
from tunesmith.errors import LookupMiss
from tunesmith.options import options
from tunesmith.store import default_store
from tunesmith.sweep.cluster import connected
from tunesmith.sweep.devices import places, usable_cores
from tunesmith.sweep.workers import Orders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are held to cores, and end with their parent")

ROOT = Path(__file__).parents[2]
Sweep = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def workers_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # what a child looks through is what its parent does


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """Sweeps over sizes of a kernel of `swept`: (exit code, the answer)."""

    def run(kernel: str, sizes: list[int] | Path, *more: str) -> tuple[int, dict[str, Any]]:
        file = sizes if isinstance(sizes, Path) else problems(tmp_path, sizes)
        code = main(["sweep", str(file), "--targets", f"tests.swept:{kernel}", "--json", *more])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else {}

    return run


def problems(folder: Path, sizes: list[int]) -> Path:
    file = folder / "problems.csv"
    file.write_text("n\n" + "".join(f"{n}\n" for n in sizes))
    return file


def two_devices() -> str:
    """Two sets of cores where there are two, else what there is."""
    return ",".join(f"cpu:{core}" for core in usable_cores()[:2])


def by_size(answer: dict[str, Any], field: str) -> dict[int, Any]:
    return {int(row["problem"].removeprefix("n=")): row[field] for row in answer["results"]}


def history() -> dict[str, list[str]]:
    """By problem that has a Choice, the dates of the searches that its Trials are of."""
    path = options().cache_dir / "store.sqlite"
    if not path.exists():
        return {}
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT k.data, t.at FROM trials t JOIN keys k ON k.id = t.key JOIN choices c ON c.key = k.id ORDER BY t.id"
        ).fetchall()
    found: dict[str, list[str]] = {}
    for key, at in rows:
        found.setdefault(json.loads(key)["problem"], []).append(at)
    return found


# --- what it does ---------------------------------------------------------------------------------------


def test_workers_choose_what_a_search_of_each_would_and_a_second_run_measures_nothing(sweep: Sweep) -> None:
    code, answer = sweep("scale", [1, 2, 3, 4, 5, 6], "--devices", two_devices())
    assert code == 0
    assert by_size(answer, "config") == {n: {"a": 4} for n in range(1, 7)}
    assert set(by_size(answer, "fate").values()) == {"tuned"}
    assert len({row["device"] for row in answer["results"]}) == 1  # two sets of as many cores are alike
    before = history()
    assert {problem: len(dates) for problem, dates in before.items()} == {f"n={n}": 3 for n in range(1, 7)}

    code, answer = sweep("scale", [1, 2, 3, 4, 5, 6], "--devices", two_devices())
    assert (code, set(by_size(answer, "fate").values())) == (0, {"known"})
    code, answer = sweep("scale", [1, 2, 3, 4, 5, 6], "--devices", two_devices(), "--resume")
    assert (code, set(by_size(answer, "fate").values())) == (0, {"known"})
    assert history() == before


def test_progress_and_a_table_are_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = problems(tmp_path, [1, swept.IMPOSSIBLE])
    assert main(["sweep", str(file), "--targets", "tests.swept:scale", "--devices", "cpu"]) == 1
    out, said = capsys.readouterr()
    assert "scale(n=1)" in out
    assert "Config(a=4)" in out
    assert "2 problems on 1 device in" in out
    assert "1 tuned, 1 failed" in out
    assert "no inputs of this size" in said


def test_a_problem_that_fails_and_one_that_kills_its_workers_leave_the_rest_alone(sweep: Sweep) -> None:
    sizes = [1, 2, swept.DEADLY, swept.DEADLY_ONCE, swept.IMPOSSIBLE]
    code, answer = sweep("scale", sizes, "--devices", two_devices())
    assert code == 1
    fates = {1: "tuned", 2: "tuned", swept.DEADLY: "failed", swept.DEADLY_ONCE: "tuned", swept.IMPOSSIBLE: "failed"}
    assert by_size(answer, "fate") == fates
    why = by_size(answer, "error")
    assert "SIGKILL" in why[swept.DEADLY]
    assert "no inputs of this size" in why[swept.IMPOSSIBLE]

    start = time.monotonic()
    code, answer = sweep("scale", sizes, "--devices", two_devices(), "--resume")  # and kills no more of them
    assert by_size(answer, "fate") == {**fates, 1: "known", 2: "known", swept.DEADLY_ONCE: "known"}
    assert "SIGKILL" in by_size(answer, "error")[swept.DEADLY]
    assert time.monotonic() - start < 60


def test_a_budget_that_ended_is_no_reason_not_to_try_again(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("struggling", [1], *device, "--budget", "0.2")
    assert (code, by_size(answer, "failed"), by_size(answer, "measured")) == (1, {1: 1}, {1: 0})
    assert "the budget ended before any of 3 Configs was measured" in by_size(answer, "error")[1]
    assert "not with a=1" in by_size(answer, "error")[1]
    code, answer = sweep("struggling", [1], *device)
    assert (code, by_size(answer, "failed")) == (0, {1: 1})
    tune = ["tune", "tests.swept:struggling", "--problems", str(problems(tmp_path, [2]))]
    assert main([*tune, "--budget", "0.2"]) == 1
    assert "the budget ended" in capsys.readouterr().err
    assert main(tune) == 0


def test_a_candidate_that_ends_its_process_is_a_failure_and_the_process_serves_many_problems(sweep: Sweep) -> None:
    code, answer = sweep("apart", [3, 2, 1], "--devices", f"cpu:{usable_cores()[0]}")
    assert code == 0
    assert by_size(answer, "config") == {1: {"a": 4}, 2: {"a": 2}, 3: {"a": 4}}
    assert by_size(answer, "failed") == {1: 0, 2: 1, 3: 0}
    processes = {
        n: set((options().cache_dir / f"launched-{n}").read_text().split()) for n in (1, 2, 3)
    }  # fmt: skip
    assert len(processes[3]) == 1
    assert processes[3] < processes[2]  # it went on to the next problem, where it met its end
    assert len(processes[1]) == 1
    assert str(os.getpid()) not in set().union(*processes.values())


def test_what_runs_on_another_kind_of_device_is_left_undone(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, answer = sweep("scale", [1, 2], "--devices", "cpu", "--retry")
    assert (code, answer["left"]) == (0, [])
    real = Orders.of
    monkeypatch.setattr(Orders, "of", lambda *args: replace(real(*args), simulates="cuda:NVIDIA H200:sm_90:132"))
    code, answer = sweep("slow", [1, 2], "--devices", "cpu")
    assert code == 1
    assert [row["problem"] for row in answer["left"]] == ["n=1", "n=2"]
    assert "none of the devices of this sweep (cuda)" in answer["left"][0]["why"]


def test_a_device_that_is_not_there_is_given_up(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = sweep("scale", [1], "--devices", "63")
    assert code == 1
    assert answer["results"] == []
    assert "gpu:63" in answer["left"][0]["why"]
    assert [one["device"] for one in answer["given_up"]] == ["gpu:63"]


def test_a_device_that_never_began_is_told_even_where_another_has_done_all(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, answer = sweep("scale", [1], "--devices", f"63,cpu:{usable_cores()[0]}")
    assert (code, answer["left"], [row["fate"] for row in answer["results"]]) == (1, [], ["tuned"])
    assert [one["device"] for one in answer["given_up"]] == ["gpu:63"]
    assert "no such GPU" in answer["given_up"][0]["why"]
    shown = ["sweep", str(problems(tmp_path, [1])), "--targets", "tests.swept:scale", "--devices", "cpu,63"]
    assert main(shown) == 1
    assert "gpu:63 was given up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--executor", "slurm"), "known: local, ray"), (("--devices", "cpu,cpu"), "in two devices"),
        (("--budget", "0"), "above 0"),
        (("--adviser", "tests.swept:advize"), "did you mean 'advise'"), (("--adviser", "advise"), "module:function"),
        (("--adviser", "tests.nowhere:advise"), "tests.nowhere"), (("--adviser", "tests.swept:DEADLY"), "of type int"),
        (("--adviser", "gone.py:advise"), "gone.py"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_before_any_worker_starts(
    sweep: Sweep, more: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["sweep", str(problems(tmp_path, [1])), "--targets", "tests.swept:scale", *more]
    assert main(command) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "given up" not in err


def test_a_resumed_sweep_looks_again_at_what_had_another_space(
    tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    module, options_ = tmp_path / "edited.py", ("--devices", f"cpu:{usable_cores()[0]}", "--resume")
    command = ["sweep", str(problems(tmp_path, [1, 2])), "--targets", f"{module}:scale", "--json", *options_]

    def run(values: str, more: str = "") -> list[tuple[str, int]]:
        module.write_text(EDITED.format(values=values, more=more))
        ended = subprocess.run([sys.executable, "-m", "tunesmith", *command], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        results = json.loads(ended.stdout)["results"]
        return [(row["fate"], row["config"]["a"]) for row in results]

    assert run("1, 2") == [("tuned", 2)] * 2
    for made in tmp_path.glob("made-*"):
        made.unlink()
    assert run("1, 2") == [("known", 2)] * 2
    assert not list(tmp_path.glob("made-*"))  # not even its inputs were
    assert run("1, 2, 8") == [("tuned", 8)] * 2
    assert run("1, 2, 8", "reference=lambda n: None, outputs=()") == [("tuned", 8)] * 2


EDITED = """
from pathlib import Path
import tunesmith
from tests.swept import clock

def inputs(problem):
    Path(__file__).with_name(f"made-{{problem.dims['n']}}").touch()
    return {{"n": problem.dims["n"]}}

@tunesmith.autotune(
    configs=[{{"a": a}} for a in ({values})], key=["n"], clock=clock(), make_inputs=inputs, isolate=False, {more}
)
def scale(n, *, a):
    return None
"""


# --- another look ---------------------------------------------------------------------------------------


def test_what_a_disturbed_race_has_chosen_is_found_out_by_a_later_one_that_is_not(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}", "--looks", "3")
    sizes = [6, 4, 3, 2, 1]
    code, answer = sweep("disturbed", sizes, *device)
    assert (code, by_size(answer, "config")) == (0, {n: {"a": 4} for n in sizes})
    assert by_size(answer, "looks") == {1: 2, 2: 1, 3: 3, 4: 3, 6: 1}  # who was not disturbed needs no other
    assert by_size(answer, "changed") == {
        1: 1,
        2: 0,
        3: 1,
        4: 1,
        6: 0,
    }  # of two that were, the one that was less counts
    longer = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.7, 6: 1.2}
    assert by_size(answer, "median_s") == {n: pytest.approx(1e-3 * longer[n]) for n in sizes}
    assert by_size(answer, "pace_s") == {n: pytest.approx(swept.QUIET_PACE_S * longer[n]) for n in sizes}
    assert by_size(answer, "again") == {n: n == 4 for n in sizes}  # all of its races were
    assert set(by_size(answer, "measured").values()) == {3}
    assert sum(use["problems"] for use in answer["uses"]) == len(sizes)
    before = history()
    for more in ([], ["--resume"]):
        code, answer = sweep("disturbed", sizes, *device, *more)
        assert (code, set(by_size(answer, "fate").values())) == (0, {"known"})
        assert by_size(answer, "config") == {n: {"a": 4} for n in sizes}
        assert by_size(answer, "median_s") == {n: pytest.approx(1e-3 * longer[n]) for n in sizes}
    assert history() == before


def test_a_disturbed_look_leaves_nothing_that_a_later_search_goes_by(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    _, answer = sweep("disturbed", [3], *device, "--looks", "2")
    assert (by_size(answer, "config"), by_size(answer, "looks"), by_size(answer, "again")) == (
        {3: {"a": 2}}, {3: 2}, {3: True}
    )  # fmt: skip
    _, answer = sweep("disturbed", [3, 2], *device)
    assert by_size(answer, "config") == {3: {"a": 2}, 2: {"a": 4}}
    assert by_size(answer, "fate") == {3: "known", 2: "tuned"}


def test_another_look_is_made_no_more_often_than_is_wanted(sweep: Sweep, tmp_path: Path) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("disturbed", [3, 2, 1], *device, "--looks", "1")
    assert (code, by_size(answer, "config")) == (0, {1: {"a": 2}, 2: {"a": 4}, 3: {"a": 2}})
    assert by_size(answer, "looks") == {1: 1, 2: 1, 3: 1}
    code, answer = sweep("disturbed", [4], *device, "--launches", "100")
    assert by_size(answer, "looks") == {4: 1}  # so many, and no more
    code, answer = sweep("scale", [5], *device)
    assert by_size(answer, "looks") == {5: 1}  # its clock does not say that its samples may be disturbed


def test_what_one_process_has_chosen_is_outvoted_by_others(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("placed", [2, 5], *device)
    assert (code, by_size(answer, "config")) == (0, {2: {"a": 4}, 5: {"a": 4}})
    assert by_size(answer, "looks") == {2: 1 + FEWEST, 5: 1 + FEWEST}  # no noise: so many say it beyond doubt
    assert (by_size(answer, "changed"), by_size(answer, "open")) == ({2: 1, 5: 1}, {2: False, 5: False})
    stored = [default_store().choice(key) for key in default_store().keys("placed")]
    assert [one and one.choice.config for one in stored] == [Config(a=4)] * 2
    code, answer = sweep("placed", [2, 5], *device, "--resume")
    assert (code, by_size(answer, "looks")) == (0, {2: 1 + FEWEST, 5: 1 + FEWEST})


@pytest.mark.parametrize("most", range(1, 1 + FEWEST))
def test_where_too_few_processes_may_be_asked_none_is(sweep: Sweep, most: int) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    for more in ([], ["--resume"]):
        code, answer = sweep("placed", [2], *device, "--looks", str(most), *more)
        assert (code, by_size(answer, "looks"), by_size(answer, "open")) == (0, {2: 1}, {2: False})
        assert by_size(answer, "config") == {2: {"a": 2}}


def test_a_killed_sweep_goes_on_with_what_processes_have_said(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    sweep("placed", [2], *device)
    [file] = (options().cache_dir / "sweeps").glob("*.jsonl")
    lines = [line for line in file.read_bytes().splitlines(keepends=True) if line.strip()]
    assert [len(json.loads(line)["result"]["visits"]) for line in lines] == list(range(1 + FEWEST))
    file.write_bytes(b"".join(lines[:3]))
    code, answer = sweep("placed", [2], *device, "--resume")
    assert (code, by_size(answer, "config"), by_size(answer, "open")) == (0, {2: {"a": 4}}, {2: False})
    lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    results = [json.loads(line)["result"] for line in lines]
    assert [len(one["visits"]) for one in results] == list(range(1 + MOST))  # the third says otherwise: all are heard
    assert [len(one["rivals"]) for one in results] == [3, 3, 3, 3, 2, 1]  # who is slower in all has left
    assert all(len(mine) == len(one["rivals"]) for one in results for mine in one["visits"])
    assert [mine[-1] for mine in results[3]["visits"][:2]] == [mine[-1] for mine in results[2]["visits"]]


def test_another_process_is_asked_each_time(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("alike", [2, 5], *device)
    assert code == 0
    looks = by_size(answer, "looks")
    said = (options().cache_dir / "processes").read_text().splitlines()
    for n in (2, 5):
        assert looks[n] == 1 + MOST
        assert len({line for line in said if line.startswith(f"{n} ")}) == looks[n]
    assert len({line.split()[1] for line in said}) == 1 + MOST  # both in the same ones


def test_a_killed_sweep_goes_on_with_the_looks_that_were_left(sweep: Sweep, tmp_path: Path) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    sweep("disturbed", [3, 2, 1], *device)
    [file] = (options().cache_dir / "sweeps").glob("*.jsonl")
    lines = [line for line in file.read_bytes().splitlines(keepends=True) if line.strip()]
    assert [json.loads(line)["result"]["looks"] for line in lines] == [1, 1, 1, 2, 2, 3]
    file.write_bytes(b"".join(lines[:4]))  # killed after the second look at the first
    code, answer = sweep("disturbed", [3, 2, 1], *device, "--resume")
    looks = by_size(answer, "looks")
    assert (code, looks[2]) == (0, 1)
    assert min(looks[1], looks[3]) == 2
    assert max(looks[1], looks[3]) == 3
    assert set(by_size(answer, "fate").values()) == {"known"}


def test_a_sweep_that_never_saw_its_core_quiet_looks_again_when_it_goes_on_and_does(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    _, answer = sweep("disturbed", [2], *device)
    assert by_size(answer, "looks") == {2: 1}
    [file] = (options().cache_dir / "sweeps").glob("*.jsonl")
    line = json.loads(file.read_bytes())
    assert line["result"]["again"]
    line["result"] |= {"pace_s": 1.0, "least_pace_s": 1.0}  # more than any machine reads
    file.write_text(json.dumps(line) + "\n")
    code, answer = sweep("disturbed", [2], *device, "--resume")
    assert (code, by_size(answer, "looks"), by_size(answer, "again")) == (0, {2: 2}, {2: False})
    assert by_size(answer, "pace_s") == {2: pytest.approx(swept.QUIET_PACE_S)}


# --- an adviser -----------------------------------------------------------------------------------------


def test_an_adviser_says_what_is_tried_first_and_how_long(sweep: Sweep) -> None:
    devices = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("scale", [8, 4, 2], *devices, "--adviser", "tests.swept:advise")
    assert code == 0
    assert by_size(answer, "config") == {n: {"a": 4} for n in (8, 4, 2)}
    assert by_size(answer, "measured") == {8: 3, 4: 1, 2: 1}
    code, answer = sweep("slow", [8], *devices, "--adviser", "tests.swept:advise_badly")
    assert by_size(answer, "config") == {8: {"a": 1}}


def test_an_advisers_own_faults_are_named_and_cost_no_other_problem(sweep: Sweep) -> None:
    device = ("--devices", f"cpu:{usable_cores()[0]}")
    code, answer = sweep("scale", [1, 2, 3, 4], *device, "--adviser", "tests.swept:advise_wrongly")
    assert (code, by_size(answer, "fate")) == (1, {1: "failed", 2: "failed", 3: "failed", 4: "tuned"})
    why = by_size(answer, "error")
    assert "adviser tests.swept:advise_wrongly failed: KeyError: 'n'" in why[1]
    assert "adviser tests.swept:advise_wrongly returned 5; good values: an Advice" in why[2]
    assert "adviser tests.swept:advise_wrongly failed: launches is 0" in why[3]
    code, answer = sweep("scale", [1, 2, 3, 4], *device)  # nothing was noted against them
    assert code == 0


# --- killed ---------------------------------------------------------------------------------------------


def test_a_driver_that_is_killed_goes_on_and_measures_nothing_twice(tmp_path: Path, sweep: Sweep) -> None:
    sizes = list(range(20, 40))
    file, last = problems(tmp_path, sizes), 0
    for kill in (signal.SIGKILL, signal.SIGINT):
        driver = started(file, "slow")
        done = tmp_path / "tunesmith-cache" / "sweeps"
        deadline = time.monotonic() + 60
        while finished(done) < last + 3 and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.send_signal(kill)
        out, said = driver.communicate(timeout=60)
        assert driver.returncode == (130 if kill == signal.SIGINT else -9), said
        last, before = finished(done), history()
        assert 3 <= last < len(sizes)
        if kill == signal.SIGINT:
            assert json.loads(out)["interrupted"] is True
            assert b"--resume" in said
    code, answer = sweep("slow", file, "--devices", two_devices(), "--resume")
    assert code == 0
    fates = list(by_size(answer, "fate").values())
    assert len(fates) == len(sizes)
    assert fates.count("known") >= last
    after = history()
    assert {problem: after[problem] for problem in before} == before


def started(file: Path, kernel: str, *more: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tunesmith", "sweep", str(file), "--targets", f"tests.swept:{kernel}"]
    return subprocess.Popen(
        [*command, "--devices", two_devices(), "--resume", "--json", *more],
        env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(folder: Path) -> int:
    return sum(path.read_bytes().count(b'"task"') for path in folder.glob("*.jsonl"))


# --- lists of real traffic ---------------------------------------------------------------------------------


def test_lengths_that_never_repeat_are_as_many_searches_as_buckets(tmp_path: Path, sweep: Sweep) -> None:
    """R36: hundreds of token counts, of which a search each would never end."""
    sizes = [1 + 8191 * i // 29 for i in range(30)]
    code, answer = sweep("bucketed", sizes, "--devices", two_devices())
    assert code == 0
    fates = list(by_size(answer, "fate").values())
    assert len(fates) == len(sizes)
    assert fates.count("tuned") == len(history()) <= 14
    assert fates.count("known") == len(sizes) - fates.count("tuned")


def test_what_a_frozen_server_missed_is_swept_and_then_served(
    tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: a warm-up with other sizes than the traffic's; the server's own misses are the list to tune."""
    wanted = tmp_path / "missed.csv"
    monkeypatch.setattr(missed, "_counts", {})  # other tests' kernels are called scale too
    monkeypatch.setattr(missed, "_capture", missed._Capture())
    monkeypatch.setenv("TUNESMITH_CAPTURE", str(wanted))
    options.cache_clear()
    with tunesmith.policy("lookup", strict=True):
        for n in (30, 31, 30):
            with pytest.raises(LookupMiss):
                swept.scale(n)
    monkeypatch.delenv("TUNESMITH_CAPTURE")
    options.cache_clear()
    with open(wanted, "a") as file:
        file.write("other_kernel,7,1\n")
    code, answer = sweep("scale", wanted, "--devices", "cpu")
    assert (code, set(by_size(answer, "problem"))) == (0, {30, 31})
    swept.scale.dispatcher.clear()
    with tunesmith.policy("lookup", strict=True):
        swept.scale(30)
        swept.scale(31)
        with pytest.raises(LookupMiss, match="n"):
            swept.scale(32)


def _keys() -> list[Any]:
    return default_store().keys("scale")


# --- Ray --------------------------------------------------------------------------------------------------


def test_a_cluster_that_someone_left_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def init(**how: Any) -> None:
        asked.append({**how, "visible": os.environ.get("CUDA_VISIBLE_DEVICES")})

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, shutdown=lambda: None, remote=type))
    for given, environment, wanted in (("", "", "local"), ("", "a:1", "a:1"), ("b:2", "a:1", "b:2")):
        monkeypatch.setenv("RAY_ADDRESS", environment)
        with connected(given, []):
            assert asked[-1]["address"] == wanted
            assert "CUDA_VISIBLE_DEVICES" not in os.environ
            assert ("num_cpus" in asked[-1]) == (wanted == "local")
    monkeypatch.setenv("RAY_ADDRESS", "")
    gpus = places("1,2", {"CUDA_VISIBLE_DEVICES": "4,5,MIG-1"})
    with connected("", gpus):  # its own cluster has the GPUs that were named, and not the first two
        assert (asked[-1]["visible"], asked[-1]["num_gpus"]) == ("5,MIG-1", 2)
    with connected("a:1", gpus):
        assert (asked[-1]["visible"], "num_gpus" in asked[-1]) == (None, False)


def test_actors_on_ray_choose_the_same(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sizes = [1, 2, swept.DEADLY, swept.IMPOSSIBLE]
    code, answer = sweep("scale", sizes, "--devices", two_devices(), "--executor", "ray")
    assert code == 1
    assert {row["problem"]: row["config"] for row in answer["results"] if row["fate"] == "tuned"} == {
        "n=1": {"a": 4}, "n=2": {"a": 4}
    }  # fmt: skip
    assert by_size(answer, "fate")[swept.DEADLY] == "failed"
    assert answer["left"] == []
    assert default_store().choice(swept.scale.key(1)) is None  # of this process's cores: another device
    stored = [default_store().choice(key) for key in _keys()]
    assert [choice.choice.config for choice in stored if choice is not None] == [Config(a=4)] * 2


def test_ctrl_c_lets_actors_store_what_they_have_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    driver, sampled = started(problems(tmp_path, [1]), "late", "--executor", "ray"), options().cache_dir / "sampled"
    deadline = time.monotonic() + 90
    while not sampled.exists() and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    while len(sampled.read_text()) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    out, said = driver.communicate(timeout=60)
    assert driver.returncode == 130, said
    answer = json.loads(out)
    assert (answer["interrupted"], answer["results"], len(answer["left"])) == (True, [], 1)
    [key] = default_store().keys("late")
    outcomes = [trial.outcome for trial in default_store().trials(key)]
    stored = sum(len(outcome.samples) for outcome in outcomes if isinstance(outcome, Measured))
    assert stored >= len(sampled.read_text()) - 1
