"""A search for a GPU times candidates while others are still being compiled, and compiles the most promising first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Measured, Problem, Sample, Space, TunedKernel, Untried, Work, autotune
from tunesmith.backends.call import CallableKernel
from tunesmith.backends.cpu import cpu
from tunesmith.core.device import Device, known_device
from tunesmith.core.stopping import FINALS
from tunesmith.errors import BadInput, BudgetEnded
from tunesmith.events import Compiled, Compiling, Event, Racing, Sampled, watched
from tunesmith.kernel import Built, Command, Run
from tunesmith.measure.race import Race
from tunesmith.options import options
from tunesmith.store import default_store
from tunesmith.tune import BOUND
from tunesmith.turns import Turns

X = np.ones(4, np.float32)
H200 = known_device("NVIDIA H200")


class SlowlyCompiled(CallableKernel):
    """A Python function that a child process "compiles" for a while, for a device that need not be here."""

    def __init__(
        self, folder: Path, device: Device, compile_s: Callable[[Config], float], fn: Callable[..., Any] | None = None
    ) -> None:
        super().__init__(fn or (lambda x, n=0, *, c: c), frozenset({"c"}), name="slow", version="1")
        self.folder, self.at, self.compile_s = folder, device, compile_s
        self.loaded: list[int] = []

    def device(self, args: Any) -> Device:
        return self.at

    def compile_job(self, config: Config, problem: Any, device: Device) -> Command:  # type: ignore[override]
        script = f"sleep {self.compile_s(config)}; echo > {{output}}"
        return Command(("/bin/sh", "-c", script), self.folder / f"{problem.get('n')}-{config['c']}.o")

    def load(self, config: Config, problem: Any, built: Built | None) -> Any:
        self.loaded.append(config["c"])  # type: ignore[arg-type]
        return super().load(config, problem, None)


def by_c(config: Config) -> float:
    return 1.0 + config["c"] / 10  # type: ignore[operator]


def tuned(kernel: SlowlyCompiled, clock: Any, configs: int = 6, **more: Any) -> TunedKernel:
    return autotune(space=Space(c=list(range(configs))), key=["n"], clock=clock, **more)(kernel)


def events_of(act: Callable[[], Any]) -> list[Event]:
    events: list[Event] = []
    with watched(events.append):
        act()
    return events


@pytest.fixture
def one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_JOBS", "1")
    options.cache_clear()


# --- overlap ---


def test_on_a_gpu_compilers_go_on_while_the_first_candidates_are_timed(tmp_path: Path, one_compiler: None) -> None:
    """The first sample ends only when another Config has been compiled meanwhile."""

    def sample(config: Config) -> float:
        before, end = len(list(tmp_path.glob("*.o"))), time.monotonic() + 20
        while before < 6 and len(list(tmp_path.glob("*.o"))) == before:
            assert time.monotonic() < end, "nothing is compiled while a candidate is timed"
            time.sleep(0.01)
        return by_c(config)

    f = tuned(SlowlyCompiled(tmp_path, H200, lambda config: 0.05), ScriptedClock(sample))
    events = events_of(lambda: f.tune(X))
    kinds = [type(event) for event in events]

    assert kinds.index(Sampled) < max(i for i, kind in enumerate(kinds) if kind is Compiled)
    assert kinds.index(Racing) > max(i for i, kind in enumerate(kinds) if kind is Compiled)
    assert f(X) == 0


def test_on_the_cpu_nothing_is_timed_before_all_is_compiled(tmp_path: Path) -> None:
    f = tuned(SlowlyCompiled(tmp_path, cpu(), lambda config: 0.02), ScriptedClock(by_c))
    kinds = [type(event) for event in events_of(lambda: f.tune(X)) if not isinstance(event, Compiling)]

    assert kinds[1:8] == [*[Compiled] * 6, Racing]
    assert f(X) == 0


def test_who_is_compiled_last_is_compared_side_by_side_and_can_win(tmp_path: Path) -> None:
    kernel = SlowlyCompiled(tmp_path, H200, lambda config: 0.5 if config["c"] == 0 else 0.01)
    summary = tuned(kernel, ScriptedClock(by_c, noise=0.01)).tune(X)
    rounds = {
        trial.config["c"]: [sample.round for sample in trial.outcome.samples]
        for trial in summary.trials
        if isinstance(trial.outcome, Measured)
    }

    assert kernel.loaded[-1] == 0, "loaded just before it is timed"
    assert summary.choice is not None
    assert summary.choice.config == Config(c=0)
    assert rounds[0] == list(range(len(rounds[0])))
    assert len(rounds[0]) > FINALS
    assert all(set(mine) <= set(rounds[0]) for mine in rounds.values())


def test_an_interrupt_keeps_what_was_timed_and_ends_the_compilers(tmp_path: Path, one_compiler: None) -> None:
    compiled: list[Config] = []

    def compile_s(config: Config) -> float:
        compiled.append(config)
        return 0.01 if len(compiled) <= 3 else 60

    def body(x: Any, n: int = 0, *, c: int) -> int:
        if len(kernel.loaded) == 3:
            raise KeyboardInterrupt
        x[0] = 5
        return c

    kernel = SlowlyCompiled(tmp_path, H200, compile_s, body)
    f = tuned(kernel, ScriptedClock(by_c), 6, restore_value=["x"])
    x, start = X.copy(), time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        f.tune(x)

    assert time.monotonic() - start < 30
    assert len(compiled) > 3, "one was under way"
    assert x[0] == 1
    kept = [trial.config["c"] for trial in f.explanation(x)[2] if isinstance(trial.outcome, Measured)]
    assert kept == kernel.loaded[:2]


def test_the_device_is_free_for_others_while_compilers_are_waited_for(tmp_path: Path) -> None:
    free: list[bool] = []

    def watch(event: Event) -> None:
        def look() -> None:
            with default_store().device_lock(H200.places, 0.0) as mine:
                free.append(mine)

        if isinstance(event, Compiled):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

    f = tuned(SlowlyCompiled(tmp_path, H200, lambda config: 0.02), ScriptedClock(by_c))
    with watched(watch):
        f.tune(X)
    assert free == [True] * 6


def test_a_failure_to_compile_is_told_and_kept(tmp_path: Path) -> None:
    class Refusing(SlowlyCompiled):
        def compile_job(self, config: Config, problem: Any, device: Device) -> Command:  # type: ignore[override]
            if config["c"] == 1:
                raise ValueError("no such tile")
            return super().compile_job(config, problem, device)

    f = tuned(Refusing(tmp_path, H200, lambda config: 0.01), ScriptedClock(by_c), 3)
    events = events_of(lambda: f.tune(X))
    failed = [event.failure for event in events if isinstance(event, Compiled) and event.failure is not None]

    assert [failure.reason for failure in failed] == ["ValueError: no such tile"]
    assert [t.outcome for t in f.explanation(X)[2] if t.config == Config(c=1)] == failed
    assert [event.count for event in events if isinstance(event, Compiling)] == [3]


# --- the most promising first ---


def compiled_first(f: TunedKernel, kernel: SlowlyCompiled, n: int) -> list[int]:
    """What a budget for a few compilations is spent on."""
    kernel.loaded.clear()
    try:
        f.tune(X, n, budget_s=1.0)
    except BudgetEnded:
        pytest.fail("not one compilation in time")
    return list(kernel.loaded)


@pytest.mark.parametrize("device", [cpu(), H200], ids=["cpu", "gpu"])
def test_a_budget_for_a_few_compilations_goes_to_the_default_and_the_neighbours_winners(
    device: Device, tmp_path: Path, one_compiler: None
) -> None:
    def fastest_is_77(config: Config) -> float:
        return 1.0 + abs(config["c"] - 77) / 10  # type: ignore[operator]

    kernel = SlowlyCompiled(tmp_path, device, lambda config: 0)
    f = tuned(kernel, ScriptedClock(fastest_is_77), 100, default=Config(c=50))
    f.tune(X, 64)
    kernel.compile_s = lambda config: 0.05

    looked_at = compiled_first(f, kernel, 128)
    assert looked_at[:2] == [50, 77]
    assert 2 < len(looked_at) < 50
    assert looked_at[2:] != sorted(looked_at[2:]), "spread over the Space"
    assert f.lookup(X, 128).config == Config(c=77)  # type: ignore[union-attr]


def test_a_model_says_which_of_the_others_come_first(tmp_path: Path, one_compiler: None) -> None:
    def work(problem: Problem, config: Config) -> Work:
        return Work(blocks=132, threads=128, flops=1e6 * (1 + abs(int(config["c"]) - 30)), dtype="float16")  # type: ignore[call-overload]

    kernel = SlowlyCompiled(tmp_path, H200, lambda config: 0.05)
    f = tuned(kernel, ScriptedClock(by_c), 100, default=Config(c=50), model=work)
    looked_at = compiled_first(f, kernel, 64)
    assert looked_at[0] == 50
    assert set(looked_at[1:4]) == {29, 30, 31}


def near_30(problem: Problem, config: Config) -> Work:
    return Work(blocks=132, threads=128, flops=1e6 * (1 + abs(int(config["c"]) - 30)), dtype="float16")  # type: ignore[call-overload]


def test_of_a_model_so_many_candidates_are_tried_and_a_larger_number_goes_on(tmp_path: Path) -> None:
    kernel, clock = SlowlyCompiled(tmp_path, H200, lambda config: 0), ScriptedClock(by_c)
    f = tuned(kernel, clock, 100, default=Config(c=50), model=near_30, candidates=20)
    found = f.tune(X, 64)
    tried = {t.config["c"] for t in found.trials if not isinstance(t.outcome, Untried)}
    assert {50, *range(25, 36)} <= tried
    assert len(tried) <= 22  # never within a group of equals
    assert tried - set(range(15, 46)) - {50}, "some that the model ranks low"
    assert found.choice is not None
    assert (found.choice.partial, found.choice.most) == (BOUND, 20)

    loaded = len(kernel.loaded)
    f(X, 64)  # answered from the store
    again = tuned(kernel, clock, 100, default=Config(c=50), model=near_30, candidates=20)
    again(X, 64)
    fewer = tuned(kernel, clock, 100, default=Config(c=50), model=near_30, candidates=10)
    fewer(X, 64)
    assert len(kernel.loaded) <= loaded + 3  # the winner's binary for each
    more = tuned(kernel, clock, 100, default=Config(c=50), model=near_30, candidates=40)
    more(X, 64)
    assert len(more.explanation(X, 64)[2]) >= 40


def test_without_a_model_a_number_of_candidates_bounds_the_strategy(tmp_path: Path) -> None:
    kernel = SlowlyCompiled(tmp_path, H200, lambda config: 0)
    f = tuned(kernel, ScriptedClock(by_c), 1000, candidates=30, strategy="random")
    found = f.tune(X, 64)
    assert sum(not isinstance(t.outcome, Untried) for t in found.trials) == 30


@pytest.mark.parametrize("candidates", [0, -1, 2.5, True])
def test_a_bad_number_of_candidates_is_refused(tmp_path: Path, candidates: Any) -> None:
    with pytest.raises(BadInput, match="candidates="):
        tuned(SlowlyCompiled(tmp_path, H200, lambda config: 0), ScriptedClock(by_c), 10, candidates=candidates)


def test_a_neighbours_winner_that_the_space_refuses_is_left_out(tmp_path: Path) -> None:
    kernel = SlowlyCompiled(tmp_path, H200, lambda config: 0)
    tuned(kernel, ScriptedClock(lambda config: 9.0 - config["c"]), 8).tune(X, 64)  # type: ignore[operator]
    smaller = tuned(kernel, ScriptedClock(by_c), 4)

    assert smaller.tune(X, 128).counts == {"measured": 4, "failed": 0, "cut": 0, "untried": 0}


# --- the race ---


class Stub:
    def __init__(self, x: int, seconds: float) -> None:
        self.config, self.seconds, self.resources = Config(x=x), seconds, None

    def launch(self) -> None:
        pass


class OwnTime:
    """Answers what the candidate says."""

    protocol = "own/1"

    def sample(self, run: Run) -> Sample:
        return Sample(run.executable.seconds)  # type: ignore[attr-defined]


def test_an_arrivals_sample_drops_only_the_hopeless_and_counts_for_nothing_else() -> None:
    race = Race(OwnTime())  # type: ignore[arg-type]
    slow_at_first = Stub(1, 6.0)
    for stub in (slow_at_first, Stub(2, 2.0), Stub(3, 30.0)):
        race.welcome(Run(stub, ()))  # type: ignore[arg-type]
    assert all(isinstance(outcome, Measured) for outcome in race.outcomes.values()), "an interrupted search keeps them"
    slow_at_first.seconds = 1.0
    race.run()
    rounds = {config["x"]: [s.round for s in outcome.samples] for config, outcome in race.outcomes.items()}  # type: ignore[union-attr]

    assert rounds == {1: list(range(2 + FINALS)), 2: [0, 1], 3: [-1]}


# --- turns ---


def test_nobody_works_beside_a_sample_and_whoever_times_goes_first() -> None:
    turns, done = Turns(), list[str]()
    begun, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with turns.beside():
            begun.set()
            go_on.wait(10)
            done.append("work")

    def later() -> None:
        with turns.beside():
            done.append("later work")

    def times() -> None:
        with turns.timing(), turns.at_once() as mine:
            assert not mine
            done.append("sample")

    threads = [threading.Thread(target=act) for act in (first, times, later)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    while turns._nobody_times.is_set():
        time.sleep(0.001)
    threads[2].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    with turns.at_once() as mine:
        assert mine
    assert done == ["work", "sample", "later work"]
