"""Candidates in a worker: what they do to it is theirs alone, and they run there on what the caller has."""

from __future__ import annotations

import gc
import math
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests import isolated

import tunesmith
from tunesmith import Config, Failed, Measured, Problem
from tunesmith.cli import main
from tunesmith.core.stopping import Rule
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning, WorkerLost
from tunesmith.events import LAUNCHES
from tunesmith.measure.clock import WallClock
from tunesmith.measure.race import rule_for
from tunesmith.options import options
from tunesmith.processes import marked
from tunesmith.remote import Recipe, RemoteBench, RemoteClock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are watched through /proc")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    assert workers() == []


def workers(parent: int | None = None) -> list[int]:
    """Processes of any worker's of this process, or of another."""
    return marked(f"{parent or os.getpid()}.")


def outcomes(summary: Any) -> dict[Any, Any]:
    """By the knob `a`: `measured`, or (stage, reason)."""
    return {
        trial.config["a"]: "measured"
        if isinstance(trial.outcome, Measured)
        else (trial.outcome.stage, trial.outcome.reason)
        if isinstance(trial.outcome, Failed)
        else "untried"
        for trial in summary.trials
    }


def test_all_launches_of_a_sample_count_where_it_is_taken_in_a_worker_too() -> None:
    summary = isolated.averaged.tune(1, launches=500)
    samples = [len(t.outcome.samples) for t in summary.trials if isinstance(t.outcome, Measured)]
    assert sum(samples) == 5
    assert summary.choice is not None
    assert summary.choice.partial == LAUNCHES


# --- mixes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad_candidates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The benchmark, whose kernels are compiled once for all mixes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        import bad_candidates

        yield bad_candidates, tmp_path_factory.mktemp("bad")
    for name in ("bad_candidates", "_bad_c", "_results"):
        sys.modules.pop(name, None)


MIXES = range(20)


@pytest.mark.parametrize("mix", MIXES)
def test_bad_candidates_cost_nothing_but_themselves(
    bad_candidates: Any, mix: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, folder = bad_candidates
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(folder))
    monkeypatch.setenv("TUNESMITH_RUN_TIMEOUT_S", "1")
    monkeypatch.setenv("TUNESMITH_MEMORY_GB", "0.5")
    options.cache_clear()
    tally = module.Tally()
    module.run_mix(module.cpu_cases()[0], mix, tally)
    assert tally.surprises == []
    assert tally.honest == 3
    assert tally.bad >= 1
    assert (tally.wrong_won, tally.arrays_changed, tally.contexts_poisoned, tally.processes_left) == (0, 0, 0, 0)


def test_the_mixes_have_every_bad_way(bad_candidates: Any) -> None:
    module, _ = bad_candidates
    module.cpu_cases()
    c = sys.modules["_bad_c"]
    assert {c.how_of(config) for mix in MIXES for config in c.mixture(mix)} == {*c.BAD, c.HONEST}


# --- what a worker gets ------------------------------------------------------------------------------


def test_a_worker_gets_the_calls_indices_strides_and_scalars_and_the_callers_arrays_stay() -> None:
    n = 6
    x, index = np.full(n, 9.0, np.float32), np.arange(n)[::-1]
    y = np.zeros((n, n), np.float32).T
    call: dict[str, Any] = {
        "x": x, "index": index, "y": y, "scale": 0.25, "pair": (3, [4.0, None, "five"]), "n": n, "z": y,
    }  # fmt: skip
    summary = isolated.gather.tune(**call)
    assert outcomes(summary) == {1: "measured", 2: "measured"}
    assert (x == 9.0).all()
    assert (y == 0).all()


def test_torch_tensors_arrive_as_they_lie(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tunesmith.measure.packing import packed, unpacked

    half = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    call = {"half": half, "view": half.t()[1:], "index": torch.arange(7)[::2], "flag": torch.tensor([True, False])}
    made = {name: tensor.clone() for name, tensor in call.items()}
    found = unpacked(packed(call, tmp_path), made, {})
    for name, tensor in call.items():
        assert torch.equal(found[name], tensor)
        assert found[name].stride() == tensor.stride()
        assert found[name].dtype is tensor.dtype


def test_what_candidates_print_is_no_answer_and_a_fork_does_not_answer_twice() -> None:
    summary = isolated.loud.tune(isolate=True, n=1)
    assert outcomes(summary) == dict.fromkeys(range(1, 5), "measured")
    assert summary.choice is not None
    assert summary.choice.median_s == pytest.approx(2e-3)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TUNESMITH_RUN_TIMEOUT_S", "1")
    options.cache_clear()
    yield
    monkeypatch.undo()
    options.cache_clear()


@pytest.mark.usefixtures("short_steps")
def test_a_race_in_a_worker_is_run_as_the_clock_there_wants_it() -> None:
    summary = isolated.loads.tune(np.zeros(4, np.float32), 4)
    found = outcomes(summary)
    assert found[1][0] == "crash"
    assert summary.choice is not None
    assert summary.choice.config["a"] == 2
    assert summary.choice.conditions == "held back by a=2 for 2e-03 s"
    [slow] = [trial.outcome for trial in summary.trials if trial.config["a"] == 40]
    assert isinstance(slow, Measured)
    assert len(slow.samples) > 1  # its own screens let it into a second round


@pytest.mark.usefixtures("short_steps")
def test_what_comes_under_load_in_a_worker_leaves_the_calls_arrays_to_the_caller() -> None:
    x = np.zeros(4, np.float32)
    seen = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        isolated.bears.tune(x, 4)
        del x
        assert seen() is None
    finally:
        gc.enable()


class Unending:
    left_s = math.inf


def test_samples_from_a_worker_are_judged_as_those_taken_here() -> None:
    recipe = Recipe("module:kernel", Config(), cast("Any", None), Problem.parse("n=1"), {}, None, 1.0)
    there = RemoteClock(RemoteBench(recipe), WallClock(), Unending())
    assert rule_for(there, Rule()) == rule_for(WallClock(), Rule()) != Rule()


@pytest.mark.parametrize("how", isolated.MEDDLINGS)
def test_what_a_candidate_does_to_the_pipes_of_its_worker_is_no_fault_of_others(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_RUN_TIMEOUT_S", "20")
    options.cache_clear()
    found = outcomes(isolated.meddles.tune(isolate=True, n=list(isolated.MEDDLINGS).index(how)))
    assert {a: found[a] for a in (2, 3, 4)} == dict.fromkeys((2, 3, 4), "measured")
    assert found[1] == "measured" or found[1][0] in ("crash", "launch")


MODULE = """
import os, sys
import numpy as np
import tunesmith

asked = int(sys.argv[1])  # as programs with options do

@tunesmith.autotune(configs=[{"b": 1}, {"b": 2}])
def inner(x, *, b):
    pass

def make_inputs(problem):
    return {"x": np.zeros(problem["n"], np.float32), "n": problem["n"]}

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=make_inputs, isolate=True)
def outer(x, n, *, a):
    assert asked == 7
    with tunesmith.policy("search"):
        assert inner.choice(x).source == "default"
        inner(x)
"""


def test_a_worker_is_the_program_but_no_rank_of_its_job_and_searches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_argv.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["program", "7"])
    monkeypatch.setenv("TUNESMITH_RANKS", "tp")
    import asks_argv

    summary = asks_argv.outer.tune(np.zeros(4, np.float32), 4)
    assert outcomes(summary) == {1: "measured", 2: "measured"}


def test_a_module_that_tunes_when_it_is_imported_is_told_so_by_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MODULE.replace("int(sys.argv[1])", "7") + "outer.tune(np.zeros(4, np.float32), 4)\n"
    (tmp_path / "tunes_on_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkerLost, match="outer is not tuned in the worker of a search"):
        import tunes_on_import  # noqa: F401


def test_a_frozen_program_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(WorkerLost, match="not run by a Python that could be started"):
        isolated.two_knobs.tune(isolate=True, n=77)


# --- who dies, and of what -----------------------------------------------------------------------------


def test_who_ends_the_process_is_recorded_and_the_others_go_on() -> None:
    summary = isolated.ends.tune(isolate=True, n=1)
    assert outcomes(summary) == {1: ("crash", "candidate process died (exit status 3)"), 2: "measured", 3: "measured"}
    assert summary.choice is not None
    assert summary.choice.config == Config(a=2)


def test_who_dies_of_what_another_did_is_innocent() -> None:
    summary = isolated.corrupts.tune(isolate=True, n=1)
    assert outcomes(summary) == {1: "measured", 2: "measured", 3: "measured"}


def test_a_gpu_that_does_not_answer_after_a_failure_is_another_workers_no_more() -> None:
    pytest.importorskip("torch")
    # there is no GPU here, so none answers: the worker is replaced, and the overlapped race goes on in the next one
    summary = isolated.poisons.tune(n=1)
    assert outcomes(summary) == {
        1: ("launch", "RuntimeError: CUDA error: by whatever name"), 2: "measured", 3: "measured", 4: "measured",
    }  # fmt: skip


def test_all_hang_and_the_deadline_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_RUN_TIMEOUT_S", "0.5")
    options.cache_clear()
    with pytest.raises(NoWorkingConfig, match=r"2 × timeout: candidate ran past 0.5 s and was killed"):
        isolated.hangs.tune(n=1)


HANGING = """
import signal
from tests import isolated
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
print("begun", flush=True)
isolated.hangs.tune(n=1)
"""


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_a_worker_ends_with_its_parent_even_in_a_candidate_that_hangs(sign: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        cwd=BENCHMARKS.parent,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdout.readline() == "begun\n"
    end = time.monotonic() + 30
    while not workers(parent.pid) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1.5)  # it is in the candidate by now
    assert len(workers(parent.pid)) == 1
    parent.send_signal(sign)
    parent.wait(timeout=30)
    parent.stdout.close()
    while workers(parent.pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert workers(parent.pid) == []


# --- where it is done ------------------------------------------------------------------------------------


def test_on_the_cpu_calls_run_in_process_unless_asked() -> None:
    with pytest.raises(NoWorkingConfig, match="4 × launch: AssertionError"):  # `loud` insists on a worker
        isolated.loud.tune(n=2)


def test_a_gpu_search_that_cant_be_isolated_says_so_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        isolated.unprotected.lookup(n=1)
        assert said == []
        isolated.unprotected.tune(n=1)
        isolated.unprotected.tune(n=2)
        isolated.accepted.tune(n=1)
    [one] = said
    assert issubclass(one.category, TunesmithWarning)
    assert "unprotected: candidates run in this process, as it has no make_inputs=" in str(one.message)
    assert "isolate=False accepts that" in str(one.message)


def test_required_and_impossible_says_why() -> None:
    with pytest.raises(BadInput, match=r"unprotected can't be tuned in a worker: it has no make_inputs="):
        isolated.unprotected.tune(isolate=True, n=1)

    @tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=isolated.n_inputs, isolate=True)
    def local(n: int, *, a: int) -> None: ...

    with pytest.raises(BadInput, match=r"no module has it as an attribute \(it was made in a function"):
        local.tune(n=1)


def test_a_worker_that_cant_be_had_is_an_error_or_a_warning() -> None:
    with pytest.raises(WorkerLost, match=r"make_inputs\(n=1\) failed: RuntimeError: no memory for them there"):
        isolated.lost.tune(isolate=True, n=1)
    with pytest.warns(TunesmithWarning, match="They do now"):
        summary = isolated.lost.tune(n=2)
    assert outcomes(summary) == dict.fromkeys(range(1, 5), "measured")


def test_fixed_knobs_are_held_there_too() -> None:
    summary = isolated.two_knobs.fix(b=2).tune(isolate=True, n=1)
    assert outcomes(summary) == {1: "measured", 2: "measured"}


SCRIPT = """
import os
import tunesmith

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}], key=["n"], make_inputs=lambda problem: {"n": problem["n"]})
def kernel(n, *, a):
    if a == 1:
        os.abort()
"""


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("kernel.tune(isolate=True, n=1)", "importing it would run it"),
        ("if __name__ == '__main__':\n    print(kernel.tune(isolate=True, n=1).choice.config)", ""),
    ],
)
def test_a_programs_own_file_is_imported_where_that_does_not_run_it(tmp_path: Path, end: str, why: str) -> None:
    (tmp_path / "program.py").write_text(SCRIPT + end)
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    if why:
        assert why in ended.stderr
    else:
        assert ended.stdout == "Config(a=2)\n"


def test_the_command_line_isolates_where_it_can(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aborting.py").write_text(SCRIPT)
    code = main(["tune", f"{tmp_path}/aborting.py:kernel", "--problem", "n=1"])
    said = capfd.readouterr()
    assert code == 0, said.err
    assert "candidate process died (SIGABRT)" in said.out
    sys.modules.pop("aborting", None)
