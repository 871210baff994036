"""A sweep's parts: its file, its devices, its order, who does what next."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests import swept

from tunesmith.backends.cpu import cpu
from tunesmith.cli import sweep_file
from tunesmith.cli.sweep_file import Limits, read, targets_in
from tunesmith.core.config import Config
from tunesmith.core.device import Device, cores_of, spell_cores
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Measured, Sample, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, StoreError
from tunesmith.report.sweeping import SweepProgress, sweep_line
from tunesmith.store import Store, locks
from tunesmith.store.exchange import add_text, entry_text
from tunesmith.sweep import drive, work
from tunesmith.sweep.cluster import RayWorker
from tunesmith.sweep.devices import Place, on_one_core, places, usable_cores, usual_places
from tunesmith.sweep.done import Done
from tunesmith.sweep.drive import Outcome, Sweep
from tunesmith.sweep.looks import is_close, looked_again
from tunesmith.sweep.order import runs
from tunesmith.sweep.queue import TRIES, Queue
from tunesmith.sweep.task import GONE, STILL_SHARED, Result, Task
from tunesmith.sweep.use import PARTS, mean_shares
from tunesmith.sweep.workers import Lost, Orders, Refused

OURS = "cuda:NVIDIA H200:sm_90:132"
OTHER = "cpu:x:avx2:1"


def task(n: int, m: int = 1) -> Task:
    return Task("tests.swept:scale", "scale", f"m={m},n={n}")


def problems(path: Path, text: str, **typed: float) -> list[str]:
    path.write_text(text)
    return [task.problem for task in read(path, [swept.scale], Limits(**typed)).tasks]


# --- the file -----------------------------------------------------------------------------------------


def test_a_csv_file_is_read_as_tune_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    assert problems(file, "kernel,count,n\nscale,1,5\nscale,9,7\nscale,9,7\nother,3,1\n") == ["n=7", "n=5"]
    assert read(file, [swept.scale], Limits()).notes == ("skipped rows of other kernels: 1 × other",)
    assert [task.kernel for task in read(file, [swept.scale, swept.slow], Limits()).tasks] == ["scale", "scale"]
    with pytest.raises(BadInput, match="no row is of slow"):
        read(file, [swept.slow], Limits())
    with pytest.raises(BadInput, match=r"line 2: .*unknown"):
        problems(file, "kernel,q\nscale,5\n")


def test_a_yaml_file_has_axes_products_and_limits(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "p.yaml"
    text = """
    targets: [tests.swept:scale]
    budget: 3
    problems:
      - n: [5, 7]
      - {n: {pow2: [1, 8]}, launches: 10}
      - {n: {range: [10, 30, 10]}, budget: 0.5}
      - {kernel: scale, n: 7}
    """
    assert problems(file, text) == [f"n={n}" for n in (5, 7, 1, 2, 4, 8, 10, 20, 30)]
    tasks = {task.problem: task for task in read(file, [swept.scale], Limits()).tasks}
    assert [tasks[f"n={n}"].budget_s for n in (5, 8, 10)] == [3.0, 3.0, 0.5]
    assert [tasks[f"n={n}"].launches for n in (5, 8)] == [None, 10]
    typed = read(file, [swept.scale], Limits(budget_s=9.0)).tasks
    assert {task.budget_s for task in typed} == {9.0}
    assert targets_in(file) == ["tests.swept:scale"]


def test_fields_of_a_yaml_file_may_change_together(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    pytest.importorskip("numpy")
    from tunesmith.kernels import matmul

    file = tmp_path / "p.yml"
    file.write_text("problems: [{M: [1, 2], 'N,K': [[4, 8], [16, 32]]}]\n")
    found = [task.fields.dims for task in read(file, [matmul.kernel], Limits()).tasks]
    assert found == [{"M": m, "N": n, "K": k} for m in (1, 2) for n, k in ((4, 8), (16, 32))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1\n", "no mapping"),
        ("problems: []\n", "a list of blocks"),
        ("problem: [{n: 1}]\n", "did you mean 'problems'"),
        ("problems: [{n: {pow: [1, 2]}}]\n", "pow2: "),
        ("problems: [{n: {pow2: [8, 1]}}]\n", "pow2: "),
        ("problems: [{n: {}}]\n", "pow2: "),
        ("problems: [{n: []}]\n", "no value"),
        ("problems: [{n: [[1]]}]\n", "the value \\[1\\]"),
        ("problems: [{'n,m': [[1, 2], [3]]}]\n", "2 values each"),
        ("problems: [{'n,n': [[1, 2]]}]\n", "given twice"),
        ("problems: [{budget: 1}]\n", "no field"),
        ("problems: [{n: 1, budget: yes}]\n", "budget is True"),
        ("problems: [{n: 1, launches: 0}]\n", "launches is 0"),
        ("problems: [{n: 1, strategy: luck}]\n", "unknown strategy"),
        ("problems: [{n: 1, kernel: skale}]\n", "did you mean 'scale'"),
        ("problems: [{q: 1}]\n", "block 1 of problems: scale: "),
        ("problems: [{n: {range: [1, 900000, 1]}}]\n", "at most 100,000"),
        ("problems: [{n: !!python/object/apply:os.getcwd []}]\n", "not YAML"),
        ("problems: [\n", "not YAML"),
        ("targets: 3\nproblems: [{n: 1}]\n", "targets is 3"),
        ("targets: ['']\nproblems: [{n: 1}]\n", "targets is "),
        ("problems: [{n: 1}]\nbudget: 1\nproblems: [{n: 2}]\n", "p.yaml line 3: 'problems' is given twice, .*line 1"),
        ("problems:\n  - n: 1\n    budget: 3\n    n: 2\n", "p.yaml line 4: 'n' is given twice, .*line 2"),
        ("problems: [{n: {pow2: [1, 2], 'pow2': [4, 8]}}]\n", "line 1: 'pow2' is given twice"),
        ("problems: [{n: 1, strategy: [auto]}]\n", r"block 1 of problems: unknown strategy .*\['auto'\].*auto"),
        ("problems: [{n: 1}]\nstrategy: {auto: 1}\n", "unknown strategy"),
        ("problems: [{n: 1, kernel: [scale]}]\n", r"unknown kernel .*\['scale'\].*scale"),
        (f"problems: [{{n: 1, budget: {10**400}}}]\n", "budget is 1000.*seconds above 0"),
        ("problems: [{n: 1, budget: '3'}]\n", "budget is '3'"),
        ("problems: [{n: 1, launches: 1.5}]\n", "launches is 1.5"),
        ("problems: [{n: null}]\n", "n has the value None"),
        ("problems: [{n: 2026-01-01}]\n", "n has the value datetime"),
        ("problems: [{n: 2026-13-45}]\n", "p.yaml can't be read as a YAML file: month"),
        ("problems: [{? [a] : 1}]\n", "not YAML"),
    ],
)
def test_a_bad_yaml_file_is_refused_with_what_is_good(tmp_path: Path, text: str, said: str) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "p.yaml"
    file.write_text(text)
    refuses = targets_in if said.startswith("targets") else lambda file: read(file, [swept.scale], Limits())
    with pytest.raises(BadInput, match=said):
        refuses(file)


def test_a_merged_block_may_say_some_of_it_anew(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    text = "problems: [&usual {n: 1, budget: 2}, &more {<<: *usual, n: 5}, {<<: *more, n: 7}]\n"
    assert problems(tmp_path / "p.yaml", text) == ["n=1", "n=5", "n=7"]


def test_targets_of_a_yaml_file_start_from_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    folder = tmp_path / "sub"
    folder.mkdir()
    file = folder / "p.yaml"
    file.write_text(f"targets: [kernels.py:scale, ../kernels.py, pack.mod:k, matmul, '{tmp_path}/k.py:x']\n")
    named = [f"{folder}/kernels.py:scale", f"{folder}/../kernels.py", "pack.mod:k", "matmul", f"{tmp_path}/k.py:x"]
    assert targets_in(file) == named


def test_where_a_kernel_is_found_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    real = sweep_file.target_of
    monkeypatch.setattr(sweep_file, "target_of", lambda kernel: looked.append(kernel) or real(kernel))
    file = tmp_path / "p.csv"
    file.write_text("n\n" + "".join(f"{n}\n" for n in range(1, 50)))
    assert len(read(file, [swept.scale, swept.slow], Limits()).tasks) == 98
    assert looked == [swept.scale, swept.slow]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.csv, \.yaml or \.yml"):
        read(tmp_path / "p.json", [swept.scale], Limits())
    with pytest.raises(BadInput, match="there is no file"):
        read(tmp_path / "p.csv", [swept.scale], Limits())


# --- devices ------------------------------------------------------------------------------------------


def test_devices_are_gpus_or_disjoint_sets_of_cores() -> None:
    first = usable_cores()[0]
    assert [(place.name, place.gpu) for place in places("0,gpu:2", {})] == [("gpu:0", "0"), ("gpu:2", "2")]
    assert [place.gpu for place in places("1", {"CUDA_VISIBLE_DEVICES": "5,GPU-77"})] == ["GPU-77"]
    mine = usable_cores()
    assert places("cpu", {}, mine)[0].cores == mine
    assert places(f"cpu:{first}", {}, mine)[0].environ(jobs=8)["TUNESMITH_JOBS"] == "1"
    for text, said in (
        (f"cpu:{first},cpu:{first}", "in two devices"), ("0,gpu:0", "in two devices"), (f"cpu,cpu:{first}", "two"),
        ("cpu:99999", "not one of this process's"), ("cpu:b", "no core"), ("cpu:5-2", "ends before"), ("tpu", "GPUs"),
        (" , ", "names none"), ("cpu:", "no core"),
        ("cpu:0,1", r"cpu:0\+1 .*cpu:0,cpu:1 .*cpu:0,gpu:1"), (f"cpu:{first},2-3", "a core or a GPU"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            places(text, {}, mine)


def test_of_other_hosts_any_core_may_be_named_but_not_all() -> None:
    assert places("cpu:500-501", {})[0].cores == (500, 501)
    with pytest.raises(BadInput, match="name some that each has"):
        places("cpu", {})
    with pytest.raises(BadInput, match="name some that each has"):
        usual_places(["cc"], 8, {}, None)


@pytest.mark.parametrize(
    ("visible", "device", "said"),
    [
        ("5", "1", "leaves 1 GPUs: 0 to 0"), ("", "0", "leaves no GPU"), ("-1", "0", "leaves no GPU"),
        ("4,-1,5", "1", "leaves 1 GPUs"), ("NoDevFiles", "0", "leaves no GPU"), ("3, 3", "0,1", "GPU 3 is in two"),
        ("03,3", "0,1", "GPU 3 is in two"), ("GPU-7,GPU-7", "0,1", "GPU GPU-7 is in two"),
    ],
)  # fmt: skip
def test_gpus_are_those_that_cuda_leaves_visible(visible: str, device: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        places(device, {"CUDA_VISIBLE_DEVICES": visible})


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_set_of_cores_is_spelled_and_read(cores: set[int]) -> None:
    assert cores_of(spell_cores(cores)) == tuple(sorted(cores))


def test_cores_are_locked_one_by_one_and_a_gpu_by_who_it_is(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    both, one = Device("cpu", "x", "avx2", 2, uid="0-1"), Device("cpu", "x", "avx2", 1, uid="1")
    assert both.places == ("cpu:0", "cpu:1")
    assert both == Device("cpu", "x", "avx2", 2, uid="2-3")  # for a Key they are the same
    held: dict[str, bool] = {}

    def try_it(device: Device) -> None:
        with store.device_lock([f"test-{place}" for place in device.places], 0.0) as mine:
            held[device.uid] = mine

    with store.device_lock("test-cpu:0", 0.0):
        for device in (both, one):
            thread = threading.Thread(target=try_it, args=(device,))
            thread.start()
            thread.join()
    assert held == {"0-1": False, "1": True}
    with store.device_lock(["test-cpu:1", "test-cpu:0"], 0.0) as mine:  # nobody kept a part of it
        assert mine


def test_who_holds_some_cores_does_not_wait_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two threads holds a core and wants both: for ever, if they waited."""
    monkeypatch.setattr(locks, "OTHER_THREAD_S", threading.TIMEOUT_MAX)
    store, meet = Store.open(tmp_path), threading.Barrier(2)
    got: dict[str, list[bool]] = {}

    def nested(mine: str, both: list[str]) -> None:
        with store.device_lock(mine, None) as first:
            meet.wait(30)
            with store.device_lock(both, None) as second, store.device_lock(mine, None) as again:
                meet.wait(30)
                got[mine] = [first, second, again]

    names = [f"nested-{tmp_path}-{core}" for core in (0, 1)]
    threads = [threading.Thread(target=nested, args=(name, names), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert got == {name: [True, False, True] for name in names}
    with store.device_lock(names[0], None), store.device_lock(names, None) as both:  # nobody holds the other
        assert both


def test_two_devices_on_the_threads_of_one_core_are_named(tmp_path: Path) -> None:
    for core, threads in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3"), (4, "4"), (5, "no list")):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(threads + "\n")

    def named(*cores: tuple[int, ...]) -> list[str]:
        found = [Place(f"cpu:{'+'.join(map(str, mine))}", mine) for mine in cores]
        return [said.partition(" have ")[0] for said in on_one_core([*found, Place("gpu:0", gpu="0")], tmp_path)]

    assert named((0,), (1,)) == named((0, 2), (1, 3)) == named((4,), (5,), (6,)) == []
    assert named((2,), (0,)) == ["cpu:0 and cpu:2"]
    assert named((0, 1), (2, 3)) == ["cpu:0+1 and cpu:2+3"] * 2


# --- the order ----------------------------------------------------------------------------------------


def test_neighbours_follow_each_other_the_largest_first() -> None:
    tasks = [Task("t", "gemm", f"K={k},M={m},N=64") for m in (1, 512, 64) for k in (128, 4096)]
    ordered = [[(task.fields["K"], task.fields["M"]) for task in run] for run in runs(tasks)]
    assert ordered == [[(4096, 512), (4096, 64), (4096, 1)], [(128, 512), (128, 64), (128, 1)]]


def test_a_worker_keeps_to_a_run_and_helps_with_others_at_the_end() -> None:
    queue = Queue([task(n, m) for m in (1, 2) for n in (1, 2, 3)])
    queue.join(OURS, "cuda", {})
    order = {0: list[str](), 1: list[str]()}
    for worker in (0, 1, 0, 0, 0, 1):
        taken = queue.take(worker, OURS)
        assert taken is not None
        order[worker].append(taken.problem)
        queue.done(worker, OURS, Result("tuned", OURS))
    assert order == {0: ["m=2,n=3", "m=2,n=2", "m=2,n=1", "m=1,n=1"], 1: ["m=1,n=3", "m=1,n=2"]}
    assert queue.take(0, OURS) is None
    assert queue.unfinished() == []


def test_each_kind_of_device_does_all_of_it() -> None:
    queue = Queue([task(1), task(2)])
    queue.join(OURS, "cuda", {})
    queue.join(OTHER, "cpu", {task(1): Result("known", OTHER)})
    for identity, count in ((OURS, 2), (OTHER, 1)):
        for _ in range(count):
            assert queue.unfinished()
            assert queue.take(0, identity) is not None
            queue.done(0, identity, Result("tuned", identity))
        assert queue.take(0, identity) is None
    assert queue.unfinished() == []


def test_a_task_of_a_lost_worker_comes_back_and_is_left_when_it_is_once_too_many() -> None:
    queue = Queue([task(1), task(2)])
    queue.join(OURS, "cuda", {})
    deaths = 0
    while (taken := queue.take(0, OURS)) is not None:
        if taken == task(2):
            deaths += 1
            assert queue.lost(0, OURS) == (task(2) if deaths == TRIES else None)
        else:
            queue.done(0, OURS, Result("tuned", OURS))
    assert deaths == TRIES
    assert queue.unfinished() == []


def test_what_a_device_died_of_goes_to_another_one_as_long_as_there_is_one() -> None:
    """One GPU of several kills all that it is given: no task is given up for that, and none waits for ever."""
    queue = Queue([task(n) for n in (1, 2, 3)])
    queue.join(OURS, "cuda", {})
    assert queue.take(1, OURS) == task(3)  # a healthy one, which is at it for long
    died: list[Task | None] = []
    for _ in range(2):
        died.append(queue.take(0, OURS))
        assert queue.lost(0, OURS) is None
    assert died == [task(1), task(2)]
    waiting: list[Task | None] = []
    sick = threading.Thread(target=lambda: waiting.append(queue.take(0, OURS)))
    sick.start()
    for expected in died:
        queue.done(1, OURS, Result("tuned", OURS))
        assert queue.take(1, OURS) == expected
    assert waiting == []
    assert queue.lost(1, OURS) is None  # now each has died of it
    sick.join(10)
    assert waiting == [task(2)]
    queue.done(0, OURS, Result("tuned", OURS))
    assert queue.take(1, OURS) is None
    assert queue.unfinished() == []


def test_what_a_device_died_of_comes_back_to_it_when_the_others_are_given_up() -> None:
    queue = Queue([task(1), task(2)])
    queue.join(OURS, "cuda", {})
    assert (queue.take(0, OURS), queue.take(1, OURS)) == (task(2), task(1))
    assert queue.lost(0, OURS) is None
    taken: list[Task | None] = []
    first = threading.Thread(target=lambda: taken.append(queue.take(0, OURS)))
    first.start()
    assert queue.lost(1, OURS) is None
    first.join(10)
    assert taken == [task(1)]  # each takes what the other died of
    queue.done(0, OURS, Result("tuned", OURS))
    queue.leave(1)
    assert queue.take(0, OURS) == task(2)


def test_a_kernel_for_another_kind_of_device_is_left_and_said_so() -> None:
    queue = Queue([task(1), task(2), Task("t", "other", "n=1")])
    queue.join(OURS, "cuda", {})
    seen: list[str] = []
    while (taken := queue.take(0, OURS)) is not None:
        seen.append(taken.kernel)
        queue.done(0, OURS, Result("elsewhere" if taken.kernel == "scale" else "tuned", OURS))
    assert sorted(seen) == ["other", "scale"]  # one was enough to see
    assert queue.unfinished() == [task(1), task(2)]


# --- what is done -------------------------------------------------------------------------------------


def test_what_is_done_is_read_again_whatever_became_of_the_file(tmp_path: Path) -> None:
    done = Done(tmp_path, [task(1), task(2)])
    result = Result("tuned", OURS, config={"a": 1}, median_s=1e-3)
    done.add(task(1), result)
    with done.path.open("a") as file:
        file.write('{"task": "' + task(2).digest + '", "result": {"fate": "tu')  # its writer was killed
    done.add(task(2), result)
    with done.path.open("a") as file:
        for bad in ({"device": []}, {"device": {}}, {"fate": "lost"}, {"fate": 3}, {"config": [1]}, {"key": "x"},
                    {"soft": None}, {"median_s": "1"}, {"ties": True}, {"deadly": 0}):  # fmt: skip
            said = {"task": task(2).digest, "result": {"fate": "failed", "device": OURS, **bad}}
            file.write(f"{json.dumps(said)}\n")
        file.write('{"task": [], "result": {}}\n')
        file.write('\n[1]\n{"task": "nobody", "result": {}}\n{"task": "' + task(2).digest + '", "result": {}}\n')
    assert Done(tmp_path, [task(2), task(1)]).results() == {OURS: {task(1): result, task(2): result}}
    assert Done(tmp_path, [task(2)]).results() == {}  # another sweep
    os.unlink(done.path)
    assert done.results() == {}


def test_what_a_driver_notes_is_not_forgotten_by_another_one_beside_it(tmp_path: Path) -> None:
    first, second = Done(tmp_path, [task(1)]), Done(tmp_path, [task(1)])
    result = Result("tuned", OURS, config={"a": 1}, median_s=1e-3)
    with first.in_use():
        first.add(task(1), result)
        with second.in_use():
            assert not second.forget()
            assert not first.forget()
        first.add(task(1), result)
        assert second.results() == {OURS: {task(1): result}}
    with second.in_use():  # the first has ended
        assert second.forget()
        assert second.results() == {}
        second.add(task(1), result)
    assert first.results() == {OURS: {task(1): result}}
    folder = tmp_path / "file"
    folder.touch()
    with Done(folder, [task(1)]).in_use():  # nothing can be noted there: that is for `add` to say
        pass


# --- workers on other hosts ---------------------------------------------------------------------------


def test_on_ray_a_searchs_limit_is_no_tasks_where_an_adviser_may_give_another(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []

    def limit_of(adviser: str, budget_s: float | None) -> float | None:
        actor = SimpleNamespace(tune=SimpleNamespace(remote=lambda task, before: None))
        options = SimpleNamespace(remote=lambda: actor)
        worker = RayWorker(None, options, Place("cpu:0", (0,)), Orders(adviser=adviser), None, 1)
        worker._actor = actor
        monkeypatch.setattr(worker, "_ask", lambda reference, limit_s: limits.append(limit_s) or {})
        worker.tune(replace(task(1), budget_s=budget_s), None, lambda said: None)
        return limits[-1]

    assert limit_of("", None) is None
    usual = limit_of("", 1.0)
    assert usual is not None
    assert usual > 1.0
    assert limit_of("tests.swept:advise", 1.0) is None


def test_what_a_worker_had_in_hand_when_it_was_stopped_goes_to_the_drivers_store(tmp_path: Path) -> None:
    key = Key("scale", "f", Problem.parse("n=1"), OTHER, "p")
    theirs, mine = Store.open(tmp_path / "theirs"), Store.open(tmp_path / "mine")
    theirs.add_trials(key, [Trial(Config(a=1), Measured((Sample(1.0),)), at="2026-01-01T00:00:00.000000+00:00")])

    class Worker:
        def begin(self) -> Mapping[str, Any]:
            return {"identity": OTHER, "kind": "cpu"}

        def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
            return []

        def tune(self, task: Task, before: Result | None, heard: Any) -> Mapping[str, Any]:
            sweep.stop()
            raise Lost("it was told to stop", entry_text(theirs, key))

        def interrupt(self) -> None: ...

        def end(self) -> None: ...

    class Watcher:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: None

    watcher: Any = Watcher()
    sweep = Sweep([task(1)], {"cpu:0": Worker}, mine, Done(tmp_path, [task(1)]), watcher, {})
    assert sweep.run().results == ()
    assert [trial.config for trial in mine.trials(key)] == [Config(a=1)]


# --- a device that is gone ----------------------------------------------------------------------------


class Anyone:
    """A Watcher that keeps what was in trouble."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def trouble(self, name: str, what: str) -> None:
        self.said.append(f"{name}: {what}")

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


class Gpu:
    """A worker on one of eight GPUs; those that are `gone` stop answering at their second problem."""

    def __init__(self, name: str, gone: set[str], served: dict[str, int]) -> None:
        self.name, self.gone, self.served = name, gone, served

    def begin(self) -> Mapping[str, Any]:
        if self.name in self.gone and self.served.get(self.name):
            raise Refused("the GPU does not answer: CUDA error: unknown")
        return {"identity": OURS, "kind": "cuda"}

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        return []

    def tune(self, task: Task, before: Result | None, heard: Any) -> Mapping[str, Any]:
        self.served[self.name] = self.served.get(self.name, 0) + 1
        if self.name in self.gone and self.served[self.name] == 2:
            return {GONE: "the GPU does not answer any more"}
        time.sleep(0.01)
        return {"fate": "tuned", "device": OURS, "measure_s": 0.006, "compile_s": 0.002}

    def interrupt(self) -> None: ...

    def end(self) -> None: ...


def swept_on(count: int, gone: set[str], tasks: Sequence[Task], folder: Path) -> tuple[Outcome, list[str]]:
    watcher, served = Anyone(), dict[str, int]()
    workers = {f"gpu:{n}": partial(Gpu, f"gpu:{n}", gone, served) for n in range(count)}
    return Sweep(tasks, workers, Store.open(folder), Done(folder, tasks), watcher, {}).run(), watcher.said


@pytest.mark.parametrize("count", [4, 8])
def test_a_gpu_that_stops_answering_is_given_up_and_the_others_do_all(tmp_path: Path, count: int) -> None:
    tasks = [task(n, m) for m in range(4) for n in range(1, 17)]
    outcome, said = swept_on(count, {"gpu:1"}, tasks, tmp_path)
    assert {task for task, result in outcome.results if result.fate == "tuned"} == set(tasks)
    assert (outcome.left, [name for name, _ in outcome.given_up], outcome.good) == ((), ["gpu:1"], False)
    assert any("gpu:1" in one and "the worker is lost: the GPU does not answer any more" in one for one in said)


def test_what_devices_did_with_their_time_adds_up_to_the_time_of_the_sweep(tmp_path: Path) -> None:
    outcome, _ = swept_on(4, {"gpu:3"}, [task(n, m) for m in range(4) for n in range(1, 9)], tmp_path)
    assert [use.device for use in outcome.uses] == [f"gpu:{n}" for n in range(4)]
    assert sum(use.problems for use in outcome.uses) == 32
    assert [use.lost for use in outcome.uses] == [0, 0, 0, 1]
    walls = [sum(getattr(use, part) for part in PARTS) for use in outcome.uses]
    assert max(walls) - min(walls) < 1e-2 + 0.05 * max(walls)
    first = outcome.uses[0]
    assert first.measure_s == pytest.approx(0.006 * first.problems)
    assert first.compile_s == pytest.approx(0.002 * first.problems)
    assert sum(mean_shares(outcome.uses).values()) == pytest.approx(1.0)


def test_a_problem_that_failed_beside_a_gpu_that_does_not_answer_is_no_failure_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = work._Work(cpu().identity, "cpu", False, None, cpu(), is_torchs=True)
    monkeypatch.setattr(work, "_work", [here])
    failing = {"target": "tests.swept:scale", "kernel": "scale", "problem": f"n={swept.IMPOSSIBLE}"}
    monkeypatch.setattr(work, "device_trouble", lambda: "")
    with contextlib.suppress(ValueError):  # no inputs of this size
        assert work.tune(failing)["fate"] == "failed"
    monkeypatch.setattr(work, "device_trouble", lambda: "CUDA error: device lost")
    said = work.tune(failing)
    assert list(said) == [GONE]
    assert "CUDA error: device lost (after: " in said[GONE]
    assert "no inputs of this size" in said[GONE]


# --- another look -------------------------------------------------------------------------------------


#: what is to be looked at again
DISTURBED = Result("tuned", OTHER, pace_s=2e-6, least_pace_s=1e-6, again=True)


class Doubtful:
    """A worker whose choices are close; what it says of each look is scripted by the problem's size.

    1: each look names another, and all are disturbed. 2: the second look fails. 3: a worker dies of the second look.
    4: it says that the second look is impossible. 6: the second look is not disturbed. 7: the first was not. 8: the
    first was, as much as all before it. 9: its core is never quiet.

    Args:
        least_pace_s: what it reads when it begins.
    """

    def __init__(self, asked: list[tuple[str, int]], least_pace_s: float | None = None) -> None:
        self.asked, self.least_pace_s = asked, least_pace_s

    def begin(self) -> Mapping[str, Any]:
        return {"identity": OTHER, "kind": "cpu", "least_pace_s": self.least_pace_s}

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        return list(range(len(entries)))

    def tune(self, task: Task, before: Result | None, heard: Any) -> Mapping[str, Any]:
        looks, n = 0 if before is None else before.looks, task.fields.dims["n"]
        assert before is None or before.least_pace_s == 1e-6  # the least of all
        self.asked.append((task.problem, looks))
        pace = {6: {1: 1e-6}, 7: {0: 1e-6}}.get(n, {}).get(looks, 2e-6)
        least = 2e-6 if n == 8 else 1e-6  # what is the least is not known to its worker yet
        close = {"again": True, "key": {"n": n}, "pace_s": pace, "least_pace_s": least}
        if before is None:
            return {"fate": "tuned", "device": OTHER, "config": {"a": 1}, "measure_s": 1.0, **close}
        if n == 9:
            return {STILL_SHARED: 0.5}
        if n == 3:
            raise Lost("worker process died")
        if n == 4:
            raise Refused("Busy")
        if n == 2:
            return {"fate": "failed", "device": OTHER, "error": "another look came to no end", "measure_s": 0.5}
        config = {"a": 1 + looks}
        return {"fate": "tuned", "device": OTHER, "config": config, "changed": looks, "measure_s": 0.25, **close}

    def interrupt(self) -> None: ...

    def end(self) -> None: ...


def doubtful(folder: Path, sizes: Sequence[int], **more: Any) -> tuple[Outcome, list[str], list[tuple[str, int]]]:
    tasks, watcher, asked = [task(n) for n in sizes], Anyone(), list[tuple[str, int]]()
    workers = {"cpu:0": partial(Doubtful, asked, more.pop("least_pace_s", None))}
    done = Done(folder, tasks)
    before = done.results() if more.pop("resume", False) else {}
    outcome = Sweep(tasks, workers, Store.open(folder), done, watcher, before, **{"looks": 3, **more}).run()
    return outcome, watcher.said, asked


def test_looks_come_when_all_is_searched_and_are_three_at_most(tmp_path: Path) -> None:
    outcome, _, asked = doubtful(tmp_path, [1, 5])
    assert asked == [(task(n).problem, looks) for looks in (0, 1, 2) for n in (5, 1)]
    assert [(result.looks, result.config, result.again) for _, result in outcome.results] == [(3, {"a": 3}, True)] * 2
    assert [result.measure_s for _, result in outcome.results] == [1.5, 1.5]
    assert [use.problems for use in outcome.uses] == [2]
    assert outcome.uses[0].measure_s == pytest.approx(3.0)


def test_only_what_was_disturbed_is_looked_at_again_until_a_look_is_not(tmp_path: Path) -> None:
    outcome, _, asked = doubtful(tmp_path, [8, 7, 6])
    assert asked == [(task(n).problem, looks) for n, looks in ((8, 0), (7, 0), (6, 0), (8, 1), (6, 1), (8, 2))]
    assert {task.fields.dims["n"]: (result.looks, result.again) for task, result in outcome.results} == {
        8: (3, True), 7: (1, False), 6: (2, False)
    }  # fmt: skip
    outcome, _, asked = doubtful(tmp_path, [8, 7, 6], resume=True, looks=5)
    assert asked == [(task(8).problem, looks) for looks in (3, 4)]


def test_what_was_chosen_before_the_core_was_seen_quiet_is_looked_at_when_the_sweep_goes_on(
    tmp_path: Path,
) -> None:
    outcome, _, asked = doubtful(tmp_path, [8], least_pace_s=1.9e-6)
    assert asked == [(task(8).problem, 0)]
    assert [(result.looks, result.again) for _, result in outcome.results] == [(1, False)]
    outcome, _, asked = doubtful(tmp_path, [8], resume=True, least_pace_s=1.9e-6)
    assert asked == []
    outcome, _, asked = doubtful(tmp_path, [8], resume=True, least_pace_s=1e-6)
    assert asked == [(task(8).problem, looks) for looks in (1, 2)]


def test_a_later_worker_may_be_the_first_to_see_the_core_quiet() -> None:
    queue, seen = Queue([task(1)]), replace(DISTURBED, least_pace_s=2e-6)
    queue.join(OTHER, "cpu", {task(1): seen})
    assert queue.take(0, OTHER) is None
    assert queue.join(OTHER, "cpu", {}, 1e-6) == []
    assert queue.least_pace_s(OTHER) == 1e-6
    assert queue.take(1, OTHER) == task(1)


def test_what_found_no_quiet_moment_is_left_until_the_sweep_goes_on(tmp_path: Path) -> None:
    for resume in (False, True):
        outcome, said, asked = doubtful(tmp_path, [9, 6], resume=resume)
        first = [(task(n).problem, looks) for looks in (0, 1) for n in (9, 6)]
        assert asked == ([(task(9).problem, 1)] if resume else first)
        assert (said, outcome.good) == ([], True)
        assert {task.fields.dims["n"]: (result.looks, result.again) for task, result in outcome.results} == {
            9: (1, True), 6: (2, False)
        }  # fmt: skip
        assert outcome.uses[0].wait_s == pytest.approx(0.5)
        assert "1 chosen while others used the core" in sweep_line(outcome, 1.0, 1)
    outcome, _, asked = doubtful(tmp_path, [9, 6], resume=True, looks=1)
    assert asked == []
    assert "1 chosen while others used the core" in sweep_line(outcome, 1.0, 1)


def test_a_worker_waits_as_long_as_it_has_measured_and_never_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def never_quiet(most_s: float) -> tuple[bool, float]:
        asked.append(most_s)
        return False, most_s

    monkeypatch.setattr(work, "quiet_within", never_quiet)
    mine = work._Work(OTHER, "cpu", False, None)
    for n, measure_s in ((1, 100.0), (2, 0.0), (1, 100.0), (3, 10.0)):
        said = work._quiet_core(mine, task(n), replace(DISTURBED, measure_s=measure_s), lambda _: None)
        assert said == (False, asked[-1])
    assert asked == [work.MOST_WAIT_S, 100.0 - work.MOST_WAIT_S, 0.0, 10.0]


def test_where_another_look_comes_to_nothing_the_choice_stands(tmp_path: Path) -> None:
    outcome, said, _ = doubtful(tmp_path, [2, 3, 4])
    assert outcome.good
    assert {task.fields.dims["n"]: result.config for task, result in outcome.results} == {
        n: {"a": 1} for n in (2, 3, 4)
    }
    assert {result.looks for _, result in outcome.results} == {1}
    assert len(said) == 3
    assert all("what was chosen before stands" in one for one in said)
    for why in ("another look came to no end", "worker process died", "Busy"):
        assert any(why in one for one in said)


def test_what_is_left_to_look_at_is_done_when_the_sweep_goes_on(tmp_path: Path) -> None:
    doubtful(tmp_path, [1, 3])  # 3 was not looked at to an end
    outcome, _, asked = doubtful(tmp_path, [1, 3], resume=True)
    assert asked == [(task(3).problem, 1)]
    assert outcome.good
    outcome, _, asked = doubtful(tmp_path, [1, 3], resume=True, looks=1)
    assert asked == []
    outcome, _, asked = doubtful(tmp_path, [1], looks=1)
    assert asked == [(task(1).problem, 0)]
    outcome, _, asked = doubtful(tmp_path, [1], resume=True, looks=2)  # one more was wanted then
    assert asked == [(task(1).problem, 1)]


def test_what_shares_a_key_has_what_a_later_look_has_chosen(tmp_path: Path) -> None:
    tasks = [task(1), replace(task(1), launches=5)]
    workers = {"cpu:0": partial(Doubtful, list[tuple[str, int]]())}
    watcher: Any = Anyone()
    known = {OTHER: {tasks[1]: Result("tuned", OTHER, {"a": 1}, key={"n": 1})}}
    outcome = Sweep(tasks, workers, Store.open(tmp_path), Done(tmp_path, tasks), watcher, known, looks=3).run()
    assert {task: (result.config, result.looks) for task, result in outcome.results} == {
        tasks[0]: ({"a": 3}, 3), tasks[1]: ({"a": 3}, 1)
    }  # fmt: skip


def test_what_shares_a_key_is_looked_at_again_once(tmp_path: Path) -> None:
    tasks, asked = [task(6), replace(task(6), launches=5)], list[tuple[str, int]]()
    watcher: Any = Anyone()
    workers = {"cpu:0": partial(Doubtful, asked)}
    outcome = Sweep(tasks, workers, Store.open(tmp_path), Done(tmp_path, tasks), watcher, {}).run()
    assert [looks for _, looks in asked] == [0, 0, 1]
    assert [result.config for _, result in outcome.results] == [{"a": 2}] * 2
    assert not any(result.again for _, result in outcome.results)


def test_looks_are_for_the_worker_whose_store_knows_the_choice_as_long_as_it_serves(tmp_path: Path) -> None:
    queue = Queue([task(1), task(2)])
    queue.join(OTHER, "cpu", {})
    taken = {worker: queue.take(worker, OTHER) for worker in (0, 1)}
    for worker in (0, 1):
        queue.done(worker, OTHER, DISTURBED)
    assert queue.take(1, OTHER) == taken[1]
    queue.done(1, OTHER, Result("tuned", OTHER))
    queue.leave(0)
    assert queue.take(1, OTHER) == taken[0]
    queue.done(1, OTHER, Result("tuned", OTHER))
    assert queue.take(1, OTHER) is None


def test_of_another_hosts_choice_the_one_that_was_searched_last_stays(tmp_path: Path) -> None:
    key = Key("scale", "f", Problem.parse("n=1"), OTHER, "p")
    theirs, mine = Store.open(tmp_path / "theirs"), Store.open(tmp_path / "mine")

    def put(a: int, at: str) -> None:
        theirs.put_choice(key, Choice(Config(a=a), "search", "search", 1.0, searched_at=at), {})
        assert add_text(mine, entry_text(theirs, key))["choices"] in (0, 1)

    for a, at, stays in ((1, "2026-01-02", 1), (2, "2026-01-03", 2), (3, "2026-01-01", 2)):
        put(a, at)
        stored = mine.choice(key)
        assert stored is not None
        assert stored.choice.config == Config(a=stays)


def test_a_sweep_that_is_stopped_among_its_looks_has_nothing_left(tmp_path: Path) -> None:
    queue = Queue([task(1), task(2)])
    queue.join(OTHER, "cpu", {})
    for _ in range(2):
        assert queue.take(0, OTHER) is not None
        queue.done(0, OTHER, DISTURBED)
    assert queue.unfinished() == []
    assert queue.take(0, OTHER) is not None  # in hand for another look
    queue.stop()
    assert queue.unfinished() == []


@pytest.mark.parametrize(
    ("median_s", "ratio", "partial_", "pace_s", "close"),
    [(1e-3, 1.1, "", 2e-6, True), (1e-3, 1.3, "", 2e-6, False), (6e-3, 1.1, "", 2e-6, False),
     (1e-3, 1.1, "budget", 2e-6, False), (1e-3, None, "", 2e-6, False), (None, 1.1, "", 2e-6, False),
     (1e-3, 1.1, "", None, False)],
)  # fmt: skip
def test_a_close_choice_of_brief_samples_may_be_looked_at_again(
    median_s: float | None, ratio: float | None, partial_: str, pace_s: float | None, close: bool
) -> None:
    choice = Choice(Config(a=1), "search", "search", median_s, ratio=ratio, partial=partial_, pace_s=pace_s)
    assert is_close(choice, swept.DisturbedClock(lambda config: 1.0)) is close
    assert is_close(replace(choice, launches=100), swept.DisturbedClock(lambda config: 1.0)) is False
    assert is_close(choice, swept.clock()) is False


def test_another_look_that_finds_nothing_took_no_time() -> None:
    kernel: Any = SimpleNamespace(look_again=lambda **_: None)
    found = looked_again(kernel, {}, Result("tuned", OTHER, {"a": 1}, measure_s=3.0, compile_s=2.0), None, False)
    assert (found.fate, found.measure_s, found.compile_s) == ("failed", 0.0, 0.0)
    assert "nothing in this worker's store" in found.error


def test_progress_counts_a_problem_once_however_often_it_is_looked_at() -> None:
    progress = SweepProgress(2, Console(file=io.StringIO(), width=80))
    progress.ready("cpu:0", OTHER)
    for n in (1, 2):
        progress.ended("cpu:0", task(n), Result("tuned", OTHER, again=True, measured=5))
    assert "2 of 2 done" in progress.state
    assert "again" not in progress.state
    progress.looked("cpu:0", task(1), Result("tuned", OTHER, looks=2, again=True, measured=5), 2)
    assert "1 timed again, 2 left" in progress.state
    progress.looked("cpu:0", task(2), Result("tuned", OTHER, looks=1, measured=5), 0)  # it came to nothing
    assert "2 of 2 done" in progress.state
    assert progress.state.endswith("2 timed again")
    assert progress.trials == 10


def test_what_could_be_stored_in_the_end_is_not_told_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([StoreError("no space"), StoreError("no space"), None])

    def add(store: Store, text: str) -> None:
        error = next(said)
        if error is not None:
            raise error

    monkeypatch.setattr(drive, "add_text", add)
    watcher: Any = Anyone()
    sweep = Sweep([task(1)], {}, Store.open(tmp_path), Done(tmp_path, [task(1)]), watcher, {})
    for lost in (1, 1, 0):
        sweep._keep("cpu:0", task(1), "a row")
        assert len(sweep._unkept) == lost
