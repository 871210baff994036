"""`choose(eager=True)`: who takes the library's place is slower neither on the GPU nor to call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Candidate, Config, Measured, Sample, Space, Trial, choose
from tunesmith.calls import HOST_MATTERS_S
from tunesmith.chooser import Chooser
from tunesmith.core.outcome import Calls, trial_from_data, trial_to_data
from tunesmith.errors import BadInput
from tunesmith.kernel import Run
from tunesmith.measure.calls import copies
from tunesmith.measure.pick import pick
from tunesmith.store import default_store

US = 1e-6
LIBRARY = Config(by="torch")


def torch(x: int) -> str:
    return "torch"


def switched(x: int) -> str:
    return "switched"


def gemm(x: int, *, SPLIT: int) -> str:
    return f"gemm{SPLIT}"


SPLITS = Space(SPLIT=[1, 2, 4])
GEMM = Candidate(tunesmith.autotune(space=SPLITS, key=["x"])(gemm).kernel, SPLITS)


@dataclass
class HostClock(ScriptedClock):
    """Beside the GPU's time: what a call takes, by what it returns, microseconds."""

    calls_us: Mapping[str, float] = field(default_factory=dict[str, float])
    called: list[str] = field(default_factory=list[str])
    wrong: Callable[[str], None] = field(default=lambda name: None)

    def back_to_back(self, launch: Callable[..., Any], many: Sequence[Sequence[Any]], number: int) -> float:
        name = launch(*many[0])
        self.called.append(name)
        self.wrong(name)
        rng: random.Random = self._rng
        return US * self.calls_us[name] * rng.lognormvariate(0, 0.001)


def gpu(**us: float) -> Callable[[Config], float]:
    return lambda config: US * us[gemm(0, SPLIT=int(str(config["SPLIT"]))) if "SPLIT" in config else str(config["by"])]


def made(clock: ScriptedClock, eager: bool = True, **more: Any) -> Chooser:
    return choose(
        "mm", {"torch": torch, "switched": switched, "gemm": GEMM}, args=["x"], key=["x"], clock=clock, eager=eager,
        policy="search", isolate=False, **more,
    )  # fmt: skip


#: the GPU prefers splits of the sum; calls of those take longer than the library's
SMALL = gpu(torch=8.0, switched=7.8, gemm1=8.01, gemm2=4.0, gemm4=5.0)
CALLS = {"torch": 11.0, "switched": 17.6, "gemm1": 8.1, "gemm2": 13.8, "gemm4": 13.9}


def test_in_a_graph_the_gpu_alone_counts() -> None:
    clock = HostClock(SMALL, 0.001, calls_us=CALLS)
    assert made(clock, eager=False).choice(1).config["SPLIT"] == 2
    assert not clock.called


def test_what_is_slower_to_call_is_out_and_a_tie_that_is_faster_to_call_wins() -> None:
    mm = made(HostClock(SMALL, 0.001, calls_us=CALLS))
    choice = mm.choice(1)
    assert choice.config == Config(by="gemm", SPLIT=1)
    assert choice.calls.startswith("as fast as Config(by='torch') on the GPU, called in 8.1 us where")
    assert choice.candidates["failed"] == 0
    lines = mm.scores(1).splitlines()
    [split] = [line for line in lines if "SPLIT=2" in line]
    assert split.endswith("called: 13.8 us, library 11.0: too slow")
    [chosen] = [line for line in lines if "SPLIT=1" in line]
    assert "chosen" in chosen
    assert chosen.endswith("called: 8.1 us, library 11.0")
    assert lines[-1] == "gemm serves (search): as fast as torch on the GPU, called in 8.1 us where torch takes 11.0"


def test_the_next_fastest_is_looked_at() -> None:
    clock = HostClock(SMALL, 0.001, calls_us={**CALLS, "gemm4": 9.0})
    mm = made(clock)
    choice = mm.choice(1)
    assert choice.config["SPLIT"] == 4
    assert "is 1.25 times as fast on the GPU, but called in 13.8 us where Config(by='torch') takes 11.0" in choice.calls
    assert "1.60 times as fast as torch; gemm is 1.25" in mm.scores(1)
    assert choice.doubt == ""  # the one that is out is no rival


def test_the_library_stays_where_everything_is_slower_to_call() -> None:
    mm = made(HostClock(SMALL, 0.001, calls_us={**CALLS, "gemm1": 11.1}))
    choice = mm.choice(1)
    assert choice.config == LIBRARY
    assert "is 2.00 times as fast on the GPU, but called in" in choice.calls
    assert "the library's call stays, as gemm is 2.00 times as fast on the GPU, but called in 13.8 us" in mm.scores(1)


@pytest.mark.parametrize("gemm1", [8.2, 9.0])
def test_what_is_slower_on_the_gpu_is_not_chosen_for_its_calls(gemm1: float) -> None:
    seconds = gpu(torch=8.0, switched=8.0, gemm1=gemm1, gemm2=4.0, gemm4=5.0)
    assert made(HostClock(seconds, 0.001, calls_us=CALLS)).choice(1).config == LIBRARY


def test_a_tie_stays_the_librarys_where_its_calls_are_not_bound_by_the_host() -> None:
    seconds = gpu(torch=8.0, switched=8.0, gemm1=8.0, gemm2=8.0, gemm4=8.0)
    assert made(HostClock(seconds, 0.001, calls_us=dict.fromkeys(CALLS, 8.2))).choice(1).config == LIBRARY


def test_long_kernels_are_left_alone() -> None:
    clock = HostClock(lambda config: SMALL(config) * HOST_MATTERS_S / (8 * US) * 1.01, 0.001, calls_us=CALLS)
    assert made(clock).choice(1).config["SPLIT"] == 2
    assert not clock.called


def test_where_the_library_is_fastest_nothing_is_called() -> None:
    clock = HostClock(gpu(torch=8.0, switched=8.3, gemm1=9, gemm2=9, gemm4=9), 0.001, calls_us=CALLS)
    assert made(clock).choice(1).config == LIBRARY
    assert not clock.called


def test_a_clock_that_counts_the_host_anyway_is_not_asked_twice() -> None:
    assert made(ScriptedClock(SMALL, 0.001)).choice(1).config["SPLIT"] == 2
    real = made(None, budget_s=5)  # type: ignore[arg-type]
    assert real.tune(1).choice is not None
    assert all(trial.calls is None for trial in default_store().trials(real.key(1)))


def test_who_can_not_be_called_again_has_failed() -> None:
    def wrong(name: str) -> None:
        if name in ("gemm1", "gemm4"):
            raise RuntimeError("out of memory")

    mm = made(HostClock(SMALL, 0.001, calls_us=CALLS, wrong=wrong))
    summary = mm.tune(1)
    assert summary.choice is not None
    assert summary.choice.config == LIBRARY
    assert {config["SPLIT"] for config, _ in summary.failures} == {1, 4}


@pytest.mark.parametrize("after", [0, 2, 4])
def test_where_the_library_can_not_be_called_the_gpu_decides_and_it_is_said(after: int) -> None:
    called: list[str] = []

    def wrong(name: str) -> None:
        called.append(name)
        if called.count("torch") > after:
            raise RuntimeError("no stream")

    choice = made(HostClock(SMALL, 0.001, calls_us=CALLS, wrong=wrong)).choice(1)
    assert choice.config["SPLIT"] == 2
    assert choice.calls.startswith("what calls take was not measured: Config(by='torch') can't be called back to back")


def test_ctrl_c_passes_and_the_race_is_kept() -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    clock = HostClock(SMALL, 0.001, calls_us=CALLS, wrong=interrupt)
    mm = made(clock)
    with pytest.raises(KeyboardInterrupt):
        mm.tune(1)
    assert len(default_store().trials(mm.key(1))) == 5
    clock.wrong, asked = lambda name: None, len(clock.asked)
    assert mm.choice(1).config["SPLIT"] == 1
    assert Config(by="switched") not in clock.asked[asked:]  # what was measured is known


@dataclass
class SlowClock(HostClock):
    """A race that never ends by itself."""

    def sample(self, run: Run) -> Sample:
        time.sleep(5e-3)
        return super().sample(run)


def test_a_budget_leaves_time_for_it() -> None:
    clock = SlowClock(gpu(torch=8.1, switched=8.0, gemm1=8.0, gemm2=8.0, gemm4=8.0), 0.2, calls_us=CALLS)
    summary = made(clock, budget_s=0.4).tune(1)
    assert summary.choice is not None
    assert summary.choice.partial
    assert len(clock.called) > 20
    assert not summary.choice.calls.startswith("what calls take was not measured")


def test_a_budget_that_ends_meanwhile_leaves_it_to_the_gpu_and_it_is_said() -> None:
    clock = HostClock(SMALL, 0.001, calls_us=CALLS, wrong=lambda name: time.sleep(0.1))
    choice = made(clock, budget_s=0.9).choice(1)
    assert choice.config["SPLIT"] == 2
    assert choice.calls == "what calls take was not measured: the budget ended"


def test_launches_that_are_bounded_are_those_of_the_race() -> None:
    clock = HostClock(SMALL, 0.001, calls_us=CALLS)
    summary = made(clock).tune(1, launches=25)
    assert len(clock.asked) == 25
    assert summary.choice is not None
    assert summary.choice.config in (LIBRARY, Config(by="gemm", SPLIT=1))


def test_copies_are_written_and_arguments_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")

    def count(x: Any) -> str:
        x += 1
        return "torch"

    def count_too(x: Any) -> str:
        x += 1
        return "switched"

    clock = HostClock(gpu(torch=8.0, switched=4.0), 0.001, calls_us={"torch": 11.0, "switched": 11.0})
    counting = choose(
        "count", {"torch": count, "switched": count_too}, args=["x"], writes=["x"], clock=clock, eager=True,
        policy="search", isolate=False,
    )  # fmt: skip
    x = np.zeros(4)
    for no_memory in (False, True):
        if no_memory:
            monkeypatch.setattr("tunesmith.measure.calls._twins", lambda *_: 1 / 0)
            x = np.zeros(5)
        summary = counting.tune(x)
        assert summary.choice is not None
        assert summary.choice.config["by"] == "switched"
        assert summary.choice.calls == ""
        assert not x.any()
    assert len(clock.called) > 20


def test_what_was_stored_without_it_is_called_when_it_is_tuned_again() -> None:
    before = made(HostClock(SMALL, 0.001, calls_us=CALLS), eager=False)
    assert before.choice(1).config["SPLIT"] == 2
    clock = HostClock(SMALL, 0.001, calls_us=CALLS)
    after = made(clock)
    summary = after.tune(1)
    assert summary.choice is not None
    assert summary.choice.config["SPLIT"] == 1
    assert not clock.asked
    called = len(clock.called)
    assert after.tune(1).choice == replace(summary.choice, source="store")
    assert len(clock.called) == called


def test_what_calls_take_does_not_count_where_it_is_not_asked_for() -> None:
    clock = HostClock(SMALL, 0.001, calls_us=CALLS)
    assert made(clock).choice(1).config["SPLIT"] == 1
    in_graphs = made(clock, eager=False)
    summary = in_graphs.tune(1)
    assert summary.choice is not None
    assert summary.choice.config["SPLIT"] == 2
    assert summary.choice.calls == ""
    assert in_graphs.scores(1).endswith("gemm serves (store): 2.00 times as fast as torch")


def test_a_refreshed_choice_is_no_slower_to_call_either() -> None:
    clock = HostClock(SMALL, 0.001, calls_us=CALLS)
    mm = made(clock)
    assert mm.choice(1).config["SPLIT"] == 1
    refreshed = mm.refresh(1, anyway=True)
    assert refreshed is not None
    assert refreshed.after.config["SPLIT"] == 1
    assert refreshed.fate == "kept"


def test_explain_says_what_calls_decided(capsys: pytest.CaptureFixture[str]) -> None:
    mm = made(HostClock(SMALL, 0.001, calls_us=CALLS))
    mm.choice(1)
    mm.explain(1)
    said = " ".join(capsys.readouterr().out.split())
    assert "calls as fast as Config(by='torch') on the GPU, called in 8.1 us" in said


# --- by itself ---------------------------------------------------------------------------------------------


def trial(name: str, us: float, calls_us: float | None = None, n: int = 20, at: str = "now", first: int = 0) -> Trial:
    rng = random.Random(name)
    samples = tuple(Sample(US * us * rng.lognormvariate(0, 0.001), i, 0) for i in range(n))
    calls = (
        None if calls_us is None else Calls(tuple(US * calls_us * (1 + 0.001 * (i % 3)) for i in range(10)), first, at)
    )
    return Trial(Config(by=name), Measured(samples), at="now", calls=calls)


def won(*trials: Trial) -> str:
    verdict = pick(trials, incumbent=Config(by="torch"))
    assert verdict is not None
    return str(verdict.winner.config["by"])


def test_the_rule() -> None:
    theirs = trial("torch", 8.0, 11.0)
    assert won(theirs, trial("fast", 4.0, 11.05)) == "fast"
    assert won(theirs, trial("fast", 4.0, 11.3)) == "torch"
    assert won(theirs, trial("fast", 4.0)) == "torch"  # nobody knows
    assert won(theirs, trial("fast", 4.0, 5.0, at="then")) == "torch"  # not beside it
    assert won(theirs, trial("fast", 4.0, 5.0, first=100)) == "torch"
    assert won(trial("torch", 8.0), trial("fast", 4.0, 50.0)) == "fast"
    assert won(theirs, trial("tie", 8.01, 10.8)) == "torch"
    assert won(theirs, trial("tie", 8.01, 10.0), trial("quick", 8.02, 9.0)) == "quick"


def test_calls_are_stored_and_older_stores_are_read() -> None:
    known = trial("torch", 8.0, 11.0)
    data = trial_to_data(known)
    assert trial_from_data(data) == known
    assert "calls" not in trial_to_data(replace(known, calls=None))
    for wrong in ({"seconds": []}, {"seconds": [0.0], "first": 0, "at": ""}, {"first": 0}, 5):
        with pytest.raises(BadInput, match="not a Trial"):
            trial_from_data({**data, "calls": wrong})


def test_copies_turn_where_no_cache_is_to_hold_them() -> None:
    np = pytest.importorskip("numpy")
    given = {"a": np.arange(4.0), "b": np.arange(1024.0), "out": None, "n": 7}
    many = copies(given, ["a"], True, 1024 * 8)
    assert len(many) == 4  # the clock empties four times the cache
    assert len({id(args[1]) for args in many}) == 4
    assert len({id(args[0]) for args in many}) == 1
    for args in many:
        assert args[1] is not given["b"]
        assert (args[1] == given["b"]).all()
        assert args[2:] == (None, 7)
    assert len(copies(given, [], False, 1024)) == 1
    assert len(copies({"n": 7}, [], True, 0)) == 1
