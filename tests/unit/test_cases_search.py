"""Public reports retold: candidates that fail, stores that forget, threads that meet. R06, R07, R08, R11, R35 (5)."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Failed, Measured, Space, TunedKernel, Untried, autotune
from tunesmith.errors import BadInput, BudgetEnded, NoWorkingConfig

X = np.ones(4, np.float32)


class OutOfResources(Exception):
    """As a driver raises it: what was needed and what there is."""

    def __init__(self, required: int, limit: int) -> None:
        super().__init__(f"out of resource: shared memory, Required: {required}, Hardware limit: {limit}")
        self.required, self.limit = required, limit


class UnknownCompilerError(Exception):
    """A type that no tuner knows of."""


# --- R07: one candidate fails, in any way -------------------------------------------------------------

FAILS: dict[int, BaseException] = {
    1: RuntimeError("pass pipeline failed"),
    2: UnknownCompilerError("regalloc"),
    4: SystemExit(3),
}


def five(clock: ScriptedClock, raising: dict[int, BaseException]) -> TunedKernel:
    def body(x, *, c):
        if c in raising:
            raise raising[c]
        return c

    return autotune(configs=[Config(c=i) for i in range(5)], clock=clock, version="five")(body)


def test_r07_the_best_honest_candidate_wins_and_the_failed_are_listed() -> None:
    clock = ScriptedClock(lambda config: {0: 2.0, 3: 1.0}[config["c"]])  # type: ignore[index]
    f = five(clock, FAILS)

    assert f(X) == 3
    failed = {t.config["c"]: t.outcome.reason for t in f.explanation(X)[2] if isinstance(t.outcome, Failed)}
    assert failed == {1: "RuntimeError: pass pipeline failed", 2: "UnknownCompilerError: regalloc", 4: "SystemExit: 3"}


def test_r07_ctrl_c_keeps_what_was_timed_and_the_next_run_asks_for_the_rest() -> None:
    first = ScriptedClock(lambda config: 4.0 ** config["c"])  # type: ignore[operator]
    with pytest.raises(KeyboardInterrupt):
        five(first, {2: KeyboardInterrupt()})(X)
    second = ScriptedClock(lambda config: 4.0 ** config["c"])  # type: ignore[operator]
    f = five(second, {})

    assert f(X) == 0
    trials = {t.config: t.outcome for t in f.explanation(X)[2]}
    assert all(isinstance(trials[Config(c=i)], Measured) for i in range(5))
    again = first.timed & second.timed  # the incumbent, beside what is new
    assert len(again) <= 1
    assert first.timed | second.timed == {Config(c=i) for i in range(5)}


def test_r07_when_all_fail_the_reasons_are_counted_and_nothing_is_kept() -> None:
    clock = ScriptedClock(lambda config: 1.0)
    every = {
        0: RuntimeError("a"),
        1: RuntimeError("a"),
        2: RuntimeError("b"),
        3: RuntimeError("a"),
        4: RuntimeError("b"),
    }
    with pytest.raises(
        NoWorkingConfig, match=r"(?s)none of 5 Configs works.*3 × launch: RuntimeError: a.*2 × launch: RuntimeError: b"
    ):
        five(clock, every)(X)
    f = five(clock, {})

    assert f.explanation(X)[2] == []
    f(X)
    assert clock.timed == {Config(c=i) for i in range(5)}


def test_r07_a_plain_bug_is_visible_as_one() -> None:
    def body(x, *, c):
        return x.shap

    f = autotune(configs=[Config(c=i) for i in range(5)], clock=ScriptedClock(lambda config: 1.0))(body)

    with pytest.raises(NoWorkingConfig, match=r"(?s)5 × launch: AttributeError.*shap.*All failed alike") as caught:
        f(X)
    assert isinstance(caught.value.__cause__, AttributeError)


# --- R08: nothing fits --------------------------------------------------------------------------------


def test_r08_need_and_limit_are_named_and_no_loser_is_cached() -> None:
    launched: list[int] = []

    def body(x, *, c):
        launched.append(c)
        raise OutOfResources(300000 + c, 232448)

    f = autotune(configs=[Config(c=i) for i in range(3)], clock=ScriptedClock(lambda config: 1.0), version="1")(body)
    for _ in range(2):
        with pytest.raises(NoWorkingConfig, match=r"(?s)300002, Hardware limit: 232448.*Config\(c=2\)"):
            f(X)
    assert sorted(launched) == [0, 0, 1, 1, 2, 2]


def test_r08_a_single_candidate_is_not_measured_and_fails_as_clearly() -> None:
    clock = ScriptedClock(lambda config: 1.0)

    @autotune(configs=[Config(c=1)], clock=clock)
    def fits(x, *, c):
        return c

    @autotune(configs=[Config(c=1)], clock=clock)
    def too_large(x, *, c):
        raise OutOfResources(300000, 232448)

    assert [fits(X), fits(X)] == [1, 1]
    assert fits.tune(X).counts == {"measured": 0, "failed": 0, "cut": 0, "untried": 1}
    with pytest.raises(NoWorkingConfig, match=r"too_large.*Config\(c=1\).*300000, Hardware limit: 232448"):
        too_large(X)
    assert clock.asked == []


def test_r08_what_a_declared_estimate_cuts_is_never_built_and_counted() -> None:
    built: list[int] = []
    space = Space(c=list(range(100))).where(
        lambda c: 140_000 + c * 10_000 <= 232448, "shared memory above 232448 bytes"
    )

    def make(problem, *, c):
        built.append(c)
        if c == 3:
            raise OutOfResources(240_000, 232448)  # the estimate was too low
        return lambda x: c

    clock = ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]
    f = autotune(space=space, clock=clock)(tunesmith.built(make, signature_from=["x"], version="1"))
    summary = f.tune(X)

    assert sorted(built) == list(range(10))
    assert summary.cut == {"shared memory above 232448 bytes": 90}
    assert summary.counts == {"measured": 9, "failed": 1, "cut": 90, "untried": 0}
    assert next(summary.failures)[1].stage == "load"


# --- R11: what a changed list of candidates costs ------------------------------------------------------

R11 = """
clock = ScriptedClock(lambda config: 1.0 + config["c"] + config.get("rare", 0), protocol={protocol!r})

@autotune(configs={configs}, key=["n"], clock=clock)
def f(x, n, *, c, rare=0):
    return c, rare

print(f([1.0], 5), len(clock.timed), sorted(config["c"] for config in clock.timed))
"""


def r11(tmp_path: Path, configs: str, protocol: str = "scripted/1") -> str:
    done = fresh_process(R11.format(configs=configs, protocol=protocol), tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_r11_only_what_is_new_is_measured(tmp_path: Path) -> None:
    six = "[Config(c=i) for i in range(1, 7)]"

    assert r11(tmp_path, six) == "(1, 0) 6 [1, 2, 3, 4, 5, 6]"
    assert r11(tmp_path, "[Config(c=i) for i in (4, 2, 6, 1, 3, 5)]") == "(1, 0) 0 []"
    assert r11(tmp_path, f"{six} + [Config(c=0)]") == "(0, 0) 2 [0, 1]"  # the new one, beside the incumbent
    assert r11(tmp_path, "[Config(c=i) for i in range(3, 7)]") == "(3, 0) 0 []"
    assert r11(tmp_path, six, protocol="scripted/2") == "(1, 0) 6 [1, 2, 3, 4, 5, 6]"
    rare = "[Config(c=1, rare=-0.5)] + [Config(c=i) for i in range(2, 7)]"
    # the new one, beside the fastest known (2) and what was in use last (3)
    assert r11(tmp_path, rare) == "(1, -0.5) 3 [1, 2, 3]"


# --- R35 (5): a size that the kernel closes over -----------------------------------------------------


def test_r35_a_closed_over_size_is_part_of_the_key() -> None:
    def make(M: int, clock: ScriptedClock) -> TunedKernel:
        @autotune(space=Space(c=[1, 2]), clock=clock)
        def scale(x, *, c):
            return c * M

        return scale

    small, large = by_c(1), by_c(-1)
    assert make(64, small)(X) == 64
    assert make(4096, large)(X) == 2 * 4096


def by_c(sign: int) -> ScriptedClock:
    return ScriptedClock(lambda config: 10.0 + sign * config["c"])  # type: ignore[operator]


# --- R06: threads meet in a cold tuner ------------------------------------------------------------------


def in_threads(*calls: Any) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def work(i: int) -> None:
        barrier.wait()
        try:
            results[i] = calls[i]()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return results


def sleepy(clock: ScriptedClock) -> TunedKernel:
    @autotune(space=Space(c=[1, 2]), key=["n"], clock=clock, version="1")
    def f(x, n, pause, *, c):
        time.sleep(pause)
        if n == 3 and c == 1:
            raise RuntimeError(f"only for {n}")
        return c, n

    return f


def test_r06_two_keys_in_two_threads_keep_their_own_arguments() -> None:
    f = sleepy(by_c(1))

    assert in_threads(lambda: f(X, 1, 0.005), lambda: f(X, 2, 0.05)) == [(1, 1), (1, 2)]


def test_r06_eight_threads_one_key_one_search_and_no_two_measurements_at_once() -> None:
    clock = by_c(1)
    f = sleepy(clock)
    results = in_threads(*[lambda: f(X, 1, 0.002)] * 8)

    assert results == [(1, 1)] * 8
    alone = by_c(1)
    autotune(space=Space(c=[1, 2]), key=["n"], clock=alone, version="2")(lambda x, n, pause, *, c: c)(X, 1, 0)
    assert len(clock.asked) == len(alone.asked)
    assert clock.overlaps == 0


def test_r06_a_failure_stays_with_its_key() -> None:
    clock = by_c(1)
    f = sleepy(clock)
    results = in_threads(*[lambda n=n: f(X, n, 0.002) for n in (1, 2, 3, 4) * 2])

    assert results == [(1, 1), (1, 2), (2, 3), (1, 4)] * 2
    assert clock.overlaps == 0


def test_r06_a_tuned_kernel_that_calls_tuned_kernels() -> None:
    @autotune(space=Space(c=[1, 2]), key=["n"], clock=ScriptedClock(lambda config: 1.0), version="inner")
    def inner(x, n, *, c):
        return n

    @autotune(space=Space(c=[1, 2]), key=["n"], clock=ScriptedClock(lambda config: 1.0), version="outer")
    def outer(x, n, *, c):
        return inner(x, n) + (outer(x, n - 1) if n else 0)

    assert in_threads(lambda: outer(X, 3), lambda: inner(X, 3), lambda: outer(X, 2)) == [6, 3, 3]


# --- a budget, a single flight ------------------------------------------------------------------------


def test_a_budget_leaves_the_rest_untried_and_a_later_search_takes_it_up() -> None:
    clock = ScriptedClock(lambda config: time.sleep(0.02) or 1.0 + config["c"])  # type: ignore[operator]
    f = autotune(space=Space(c=list(range(40))), clock=clock, version="1")(lambda x, *, c: c)
    first = f.tune(X, budget_s=0.2)
    assert first.counts["untried"] > 0
    assert sum(first.counts.values()) == 40
    assert {t.outcome.reason for t in first.trials if isinstance(t.outcome, Untried)} == {"the budget ended"}

    clock.seconds = lambda config: 1.0 + config["c"]  # type: ignore[operator]
    second = f.tune(X)
    assert second.counts == {"measured": 40, "failed": 0, "cut": 0, "untried": 0}
    assert second.known == first.counts["measured"]
    before = len(clock.asked)
    third = f.tune(X)
    assert len(clock.asked) == before
    assert third.choice is not None
    assert third.choice.source == "store"


SAME_KEY = """
import time
clock = ScriptedClock(lambda config: 1.0 + config["c"])

@autotune(space=Space(c=[1, 2, 3]), key=["n"], clock=clock)
def f(x, n, *, c):
    time.sleep(0.01)
    return c

print(f([1.0], 5), len(clock.asked))
"""


def test_eight_processes_one_search(tmp_path: Path) -> None:
    results: list[str] = []

    def run(i: int) -> None:
        (tmp_path / str(i)).mkdir()
        done = fresh_process(SAME_KEY, tmp_path / str(i))
        results.append(done.stdout.strip() or done.stderr)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    asked = sorted(int(line.split()[1]) for line in results)
    assert [line.split()[0] for line in results] == ["1"] * 8
    assert asked[:7] == [0] * 7
    assert asked[7] > 0


# --- a search that was cut short is taken up again -----------------------------------------------------


def test_a_race_cut_short_is_run_again_and_not_believed() -> None:
    launches = 0

    def body(x, *, c):
        nonlocal launches
        launches += 1
        if launches == 14:  # in the third round or so: nobody has the samples that a race gives
            raise KeyboardInterrupt
        return c

    def kernel() -> TunedKernel:
        clock = ScriptedClock(lambda config: 1.0 + config["c"] / 50)  # type: ignore[operator]
        return autotune(configs=[Config(c=i) for i in range(5)], clock=clock, version="cut short")(body)

    with pytest.raises(KeyboardInterrupt):
        kernel()(X)
    again = kernel()

    assert again(X) == 0
    samples = {
        t.config["c"]: len(t.outcome.samples) for t in again.explanation(X)[2] if isinstance(t.outcome, Measured)
    }
    assert samples == {0: 8, 1: 3, 2: 3, 3: 3, 4: 3}, "all were timed anew, until one was known to be the best"
    assert again.choice(X).doubt == ""


def test_a_call_takes_what_a_smaller_budget_found_up_again() -> None:
    def clock() -> ScriptedClock:
        return ScriptedClock(lambda config: time.sleep(0.01) or 9.0 - config["c"])  # type: ignore[operator]

    def kernel(budget_s: float | None) -> TunedKernel:
        made = autotune(space=Space(c=list(range(9))), clock=clock(), budget_s=budget_s, version="budgets")
        return made(lambda x, *, c: c)

    small = kernel(0.05)
    small(X)
    assert small.choice(X).partial == "the budget ended"
    same = kernel(0.05)
    same(X)
    assert same.declared.clock.asked == []  # type: ignore[union-attr]
    large = kernel(None)
    assert large(X) == 8
    assert large.choice(X).partial == ""
    assert small.choice(X).partial == "the budget ended", "what this process was told stays until it asks again"


def test_a_budget_too_small_for_anything_serves_the_default_with_a_warning() -> None:
    clock = ScriptedClock(lambda config: time.sleep(0.05) or 1.0)  # type: ignore[arg-type]
    f = autotune(space=Space(c=[3, 1, 2]), clock=clock, budget_s=1e-9, version="1")(lambda x, *, c: c)

    with pytest.warns(tunesmith.errors.TunesmithWarning, match="the budget ended before any"):
        assert f(X) == 3
    with pytest.raises(BudgetEnded):
        f.tune(X)


def test_warm_calls_follow_a_later_search() -> None:
    f = autotune(space=Space(c=[1, 2, 3]), clock=by_c(-1), version="1", key=["n"])(lambda x, n, *, c: c)
    with tunesmith.policy("lookup"):
        assert f(X, 5) == 1
        f.tune(X, 5)
        assert f(X, 5) == 3


def test_a_config_that_stopped_working_is_not_brought_back() -> None:
    broken: set[int] = set()

    def body(x, *, c):
        if c in broken:
            raise RuntimeError("no more")
        return c

    def kernel(*cs: int) -> TunedKernel:
        return autotune(configs=[Config(c=c) for c in cs], clock=by_c(1), version="body")(body)

    assert kernel(1, 2)(X) == 1
    broken.add(1)
    assert kernel(1, 2, 3)(X) == 2
    assert kernel(1, 2, 3, 4)(X) == 2


def test_a_failure_under_other_versions_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = {1}

    def body(x, *, c):
        if c in fails:
            raise RuntimeError("compiler bug")
        return c

    def kernel() -> TunedKernel:
        return autotune(configs=[Config(c=c) for c in (1, 2)], clock=by_c(1), version="body")(body)

    assert kernel()(X) == 2
    fails.clear()
    assert kernel()(X) == 2
    monkeypatch.setattr("tunesmith.fingerprint.versions", lambda depends=(): {"python": "9.9"})
    assert kernel()(X) == 1


def test_random_batches_are_paired_only_within_their_own_rounds() -> None:
    clock = ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]
    f = autotune(space=Space(c=list(range(2000))), clock=clock, strategy="random", version="1")(lambda x, *, c: c)
    summary = f.tune(X)
    rounds = [{s.round for s in t.outcome.samples} for t in summary.trials if isinstance(t.outcome, Measured)]

    assert summary.counts == {"measured": 100, "failed": 0, "cut": 0, "untried": 1900}
    assert len({min(r) for r in rounds}) > 1


def test_a_space_too_large_to_enumerate_needs_another_strategy_and_has_one_digest(tmp_path: Path) -> None:
    space = Space(order=tunesmith.permutations(*range(12)))
    with pytest.raises(BadInput, match=r"4.79e\+08 points.*strategy 'auto'"):
        autotune(space=space, clock=by_c(1), strategy="exhaustive")(lambda x, *, order: order)(X)
    done = fresh_process(f"print(Space(order=tunesmith.permutations(*range(12))).digest == {space.digest!r})", tmp_path)
    assert done.stdout.strip() == "True", done.stderr


def test_what_is_done_around_a_launch_is_part_of_how_it_is_measured() -> None:
    def kernel(**options: Any) -> TunedKernel:
        clock = ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]
        return autotune(space=Space(c=[1, 2]), clock=clock, version="1", **options)(lambda x, *, c: c)

    kernel()(X)
    mended = kernel(restore_value=["x"])
    mended(X)
    assert mended.declared.clock.asked != []  # type: ignore[union-attr]


def test_the_default_track_identifies_nothing() -> None:
    unidentifiable = object()

    @autotune(space=Space(c=[1, 2]), policy="default")
    def f(x, *, c):
        return c, unidentifiable

    assert f(X)[0] == 1


def test_a_candidate_that_waits_for_a_thread_that_tunes_does_not_hang_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith.store.locks.OTHER_THREAD_S", 0.2)
    inner = autotune(space=Space(c=[1, 2]), clock=by_c(1), version="inner")(lambda x, *, c: c)

    def body(x, *, c):
        thread = threading.Thread(target=inner, args=(x,))
        thread.start()
        thread.join()
        return c

    outer = autotune(space=Space(c=[1, 2]), clock=by_c(1), version="outer")(body)
    assert outer(X) == 1


def test_a_kernel_that_calls_a_tuned_kernel_changes_with_it() -> None:
    def make(source: str) -> str:
        inner = autotune(configs=[Config(threads=1)], key=["n"])(tunesmith.cc.kernel(source, work="n"))

        @autotune(space=Space(c=[1, 2]))
        def outer(x, *, c):
            return inner(x, 4)

        return outer.fingerprint()

    source = "#include <stdint.h>\nvoid f(float *x, int64_t n, int64_t begin, int64_t end) { x[begin] = 1; }"
    assert make(source) == make(source + "\n// a comment")
    assert make(source) != make(source.replace("= 1", "= 2"))


def test_a_budget_leaves_time_to_race_where_checking_takes_long() -> None:
    launched: dict[int, int] = {}

    def slow_at_first(x: Any, *, c: int) -> Any:
        launched[c] = launched.get(c, 0) + 1
        if launched[c] == 1:  # large results are compared with the reference's
            time.sleep(0.02)
        return x * 1.0

    clock = ScriptedClock(lambda config: 2.0 if config["c"] == 0 else 1.0 + 0.01 * int(str(config["c"])), 0.001)
    made = autotune(
        space=Space(c=list(range(60))), clock=clock, reference=lambda x: x, isolate=False, version="checks",
        default=Config(c=0),
    )(slow_at_first)  # fmt: skip
    summary = made.tune(X, budget_s=0.8)
    assert summary.choice is not None
    assert summary.choice.partial
    best = next(trial for trial in summary.trials if trial.config == summary.choice.config)
    assert isinstance(best.outcome, Measured)
    assert len(best.outcome.samples) >= 3
    assert summary.choice.config != Config(c=0)
    assert summary.counts["untried"] > 0


def test_a_budget_that_compiling_has_spent_its_part_of_still_races_all_that_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ScriptedClock(lambda config: 1.0 + 0.01 * int(str(config["c"])), 1e-5)
    made = autotune(
        space=Space(c=list(range(400))), clock=clock, isolate=False, version="compiles", default=Config(c=0),
    )(lambda x, *, c: x)  # fmt: skip
    load = type(made.kernel).load

    def slow(self: Any, *given: Any) -> Any:
        time.sleep(0.004)
        return load(self, *given)

    monkeypatch.setattr(type(made.kernel), "load", slow)
    summary = made.tune(X, budget_s=0.6)
    assert summary.choice is not None
    assert summary.choice.partial
    assert summary.counts["measured"] > 12
    assert sum(summary.counts.values()) == 400
