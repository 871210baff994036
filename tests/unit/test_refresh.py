"""Stale Choices raced again, and a long list of problems tuned in several goes: what is kept, changed, not repeated."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tunesmith.cli import main
from tunesmith.cli.target import find_target
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.journal import Journal
from tunesmith.measure import pace as pace_module
from tunesmith.options import options
from tunesmith.store import Store, default_store
from tunesmith.tracks import fresh_choice

KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock
from tunesmith import Space
from tunesmith.core.stopping import BRIEF_ON_CPU
from tunesmith.measure.pace import heard

BLOCKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
TIMES = {block: 1.0 + i / 10 for i, block in enumerate(BLOCKS)}
BROKEN = set()
PACE, LEAST = [1.0], [1.0]

class Paced(ScriptedClock):  # says how fast the core is, times the least of all
    brief = BRIEF_ON_CPU

    def __post_init__(self):
        super().__post_init__()
        self.paces = []

    def sample(self, run):
        heard(1e-7 * LEAST[0])
        self.paces.append(1e-7 * PACE[0])
        return super().sample(run)

clock = Paced(lambda config: 1e-3 * TIMES[config["block"]], noise=0.005)

@tunesmith.autotune(space=Space(block=BLOCKS), key=["n"], clock=clock,
    make_inputs=lambda problem: {"n": problem["n"]})
def scale(n, *, block):
    if block in BROKEN or n in BROKEN:
        raise RuntimeError("an illegal address")
    if n == STOP:
        raise KeyboardInterrupt

STOP = 0
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    before, file = set(sys.modules), tmp_path / "stale_kernels.py"
    file.write_text(KERNELS)
    yield f"{file}:scale"
    for name in set(sys.modules) - before:
        if name.endswith("stale_kernels"):
            del sys.modules[name]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs a command with --json: the exit code and the document."""

    def run(*args: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        here = ["--no-isolate"] if args[0] == "tune" else []  # what a test sets in the module is set here alone
        code = main([*[str(arg) for arg in args], *here, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else {}

    return run


Run = Callable[..., "tuple[int, dict[str, Any]]"]


def tune(run: Run, target: str, *problems: str) -> Any:
    assert run("tune", target, *[arg for text in problems for arg in ("--problem", text)])[0] == 0
    return sys.modules["stale_kernels"]


def age(target: str, n: int, **versions: str) -> None:
    """What is stored of a problem was found under other versions."""
    key = find_target(target).key(n=n)
    stored = default_store().choice(key)
    assert stored is not None
    soft = {**stored.soft, "compiler": "1.0", **versions}
    default_store().add_trials(key, [replace(t, soft=soft) for t in default_store().trials(key)], replace=True)
    default_store().put_choice(key, stored.choice, soft)


# --- refresh ------------------------------------------------------------------------------------------


def test_what_is_not_stale_is_not_measured(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    asked = len(module.clock.asked)
    code, said = run("store", "refresh", target)
    assert (code, [r["fate"] for r in said["results"]]) == (0, ["current"])
    assert len(module.clock.asked) == asked


def test_only_the_best_few_of_a_stale_choice_are_raced(run: Run, target: str) -> None:
    module = tune(run, target, "n=8", "n=9")
    age(target, 8)
    module.clock.asked.clear()

    code, said = run("store", "refresh", target, "--best", "3")
    fates = {r["problem"]: r for r in said["results"]}
    assert code == 0
    assert {problem: r["fate"] for problem, r in fates.items()} == {"n=8": "kept", "n=9": "current"}
    assert fates["n=8"]["stale"] == ["compiler: ?, was 1.0"]
    assert module.clock.timed == {Config(block=b) for b in (1, 2, 4, 8)}

    module.clock.asked.clear()
    assert run("store", "refresh", target)[1]["results"][0]["fate"] == "current"
    assert not module.clock.asked


def test_a_rival_that_is_faster_now_takes_over_and_a_call_needs_no_search(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    module.TIMES[4] = 0.5
    code, said = run("store", "refresh", target)
    (result,) = said["results"]
    assert (code, result["fate"]) == (0, "changed")
    assert (result["before"]["config"], result["after"]["config"]) == ({"block": 1}, {"block": 4})
    assert result["ratio"] == pytest.approx(0.5, rel=0.02)

    kernel = find_target(target)
    module.clock.asked.clear()
    assert kernel.choice(n=8).config == Config(block=4)
    assert not module.clock.asked


# --- another look ---------------------------------------------------------------------------------------


def known(target: str, n: int) -> tuple[Any, list[Any]]:
    key = find_target(target).key(n=n)
    return default_store().choice(key), default_store().trials(key)


def test_another_look_that_is_disturbed_no_less_leaves_nothing(target: str) -> None:
    kernel, module = find_target(target), sys.modules["stale_kernels"]
    for n, (then, now) in enumerate(((1.0, 2.0), (2.0, 2.0), (2.0, 1.9)), 8):
        module.PACE[0], module.TIMES[2] = then, 1.1
        kernel.tune(n=n, isolate=False)
        before = known(target, n)
        assert before[0].choice.pace_s == pytest.approx(1e-7 * then)
        module.PACE[0], module.TIMES[2] = now, 0.5
        found = kernel.look_again(n=n, isolate=False)
        assert (found.fate, found.disturbed, found.raced) == ("kept", True, len(module.TIMES))
        assert known(target, n) == before
        module.clock.asked.clear()
        assert kernel.tune(n=n, isolate=False).choice.config == Config(block=1)
        assert not module.clock.asked


def test_another_look_that_is_disturbed_less_is_believed_though_little_faster(target: str) -> None:
    kernel, module = find_target(target), sys.modules["stale_kernels"]
    by_others = "held back by others at work on its core"
    for n, (then, now, said) in enumerate(((2.0, 1.0, ""), (3.0, 2.0, by_others)), 8):
        module.PACE[0], module.TIMES[2] = then, 1.1
        assert kernel.tune(n=n, isolate=False).choice.conditions == by_others
        module.PACE[0], module.TIMES[2] = now, module.TIMES[1] * 0.98
        found = kernel.look_again(n=n, isolate=False)
        assert (found.fate, found.after.config, found.disturbed) == ("changed", Config(block=2), False)
        stored = kernel.choice(n=n)
        assert (stored.config, stored.conditions) == (Config(block=2), said)
        assert stored.pace_s == pytest.approx(1e-7 * now)


@pytest.mark.parametrize(
    ("then", "now", "pace", "said"),
    [(2.0, 1.0, 2.0, "held back by others at work on its core"), (1.2, 1.0, 1.2, ""), (None, 1.0, 1.0, ""),
     (1.0, 2.0, 2.0, "held back by others at work on its core")],
)  # fmt: skip
def test_a_search_that_goes_on_counts_how_disturbed_it_was_before_it_was_killed(
    target: str, monkeypatch: pytest.MonkeyPatch, then: float | None, now: float, pace: float, said: str
) -> None:
    kernel, module = find_target(target), sys.modules["stale_kernels"]
    sample, module.TIMES[2], module.TIMES[4] = module.clock.sample, 1.005, 1.03

    def killed(run: Any) -> Any:
        if len(module.clock.asked) == 80:
            dying.setattr(Store, "add_trials", lambda *_, **__: None)
            raise KeyboardInterrupt
        return sample(run)

    module.PACE[0] = then or 2.0
    with monkeypatch.context() as dying:
        dying.setattr(module.clock, "sample", killed)
        with pytest.raises(KeyboardInterrupt):
            kernel.tune(n=8, isolate=False)
    choice, trials = known(target, 8)
    assert choice is None
    assert [trial.pace_s for trial in trials] == pytest.approx([1e-7 * module.PACE[0]] * len(module.TIMES))
    if then is None:  # they were stored by an older version
        default_store().add_trials(kernel.key(n=8), [replace(t, pace_s=None) for t in trials], replace=True)
    module.PACE[0], module.LEAST[0] = now, 0.95 * now  # all that the second process reads
    module.clock.asked.clear()
    monkeypatch.setattr(pace_module, "_least", [math.inf])  # as in another process
    choice = kernel.tune(n=8, isolate=False).choice
    assert module.clock.timed == {Config(block=block) for block in (1, 2, 4)}  # the others had left
    assert (choice.pace_s, choice.conditions) == (pytest.approx(1e-7 * pace), said)
    module.PACE[0] = 1.0
    found = kernel.look_again(n=8, isolate=False)
    assert (found.raced, found.after.pace_s) == (len(module.TIMES), pytest.approx(1e-7))


def test_what_was_in_use_stays_in_another_look_if_neither_was_disturbed(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    for faster, fate in ((0.995, "kept"), (0.9, "changed")):
        module.TIMES[2] = module.TIMES[1] * faster
        found = find_target(target).look_again(n=8, isolate=False)
        assert (found.fate, found.disturbed) == (fate, False)


def test_another_look_has_all_that_may_be_the_fastest_and_no_others(target: str) -> None:
    kernel, module = find_target(target), sys.modules["stale_kernels"]
    module.PACE[0], module.TIMES[256], module.TIMES[512] = 2.0, 1.9, 2.5
    kernel.tune(n=8, isolate=False)
    module.PACE[0], module.TIMES[256], module.TIMES[512] = 1.0, 0.5, 0.4
    assert kernel.look_again(n=8, isolate=False).after.config == Config(block=256)


def test_another_look_has_the_budget_of_the_search_and_leaves_nothing_when_that_ends(run: Run, target: str) -> None:
    tune(run, target, "n=8")
    stored, _ = known(target, 8)
    default_store().put_choice(find_target(target).key(n=8), replace(stored.choice, budget_s=1e-9), stored.soft)
    before = known(target, 8)
    found = find_target(target).look_again(n=8, isolate=False)
    assert (found.fate, found.why) == ("failed", "the budget ended before anything was measured")
    assert known(target, 8) == before


def test_another_look_at_a_stale_choice_refreshes_it(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    for block in module.TIMES:
        module.TIMES[block] *= 2
    module.TIMES[2] = module.TIMES[1] * 0.9
    found = find_target(target).look_again(n=8, isolate=False)
    assert (found.fate, found.after.config, found.stale) == ("changed", Config(block=2), ("compiler: ?, was 1.0",))


def test_another_look_at_nothing_is_none(target: str) -> None:
    assert find_target(target).look_again(n=8) is None


def test_what_is_in_use_stays_where_a_rival_is_hardly_faster(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    module.TIMES[2] = module.TIMES[1] * 0.999
    assert run("store", "refresh", target)[1]["results"][0]["fate"] == "kept"


def test_what_is_in_use_and_fails_now_is_replaced_and_it_says_why(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    module.BROKEN.add(1)
    (result,) = run("store", "refresh", target)[1]["results"]
    assert (result["fate"], result["after"]["config"]) == ("changed", {"block": 2})
    assert "illegal address" in result["why"]


def test_where_nothing_works_any_more_the_stored_choice_stays_and_the_exit_code_is_1(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    module.BROKEN.add(8)
    code, said = run("store", "refresh", target)
    assert (code, said["results"][0]["fate"]) == (1, "failed")
    assert find_target(target).lookup(n=8) is not None


def test_hard_reasons_are_named_and_their_rows_left_alone(run: Run, target: str) -> None:
    tune(run, target, "n=8")
    kernel = find_target(target)
    key, stored = kernel.key(n=8), default_store().choice(kernel.key(n=8))
    assert stored is not None
    other = Key(key.kernel, "f0", key.problem, key.device, key.protocol)
    elsewhere = Key(key.kernel, key.fingerprint, key.problem, "cuda:NVIDIA H200:sm_90:132", key.protocol)
    for one in (other, elsewhere):
        default_store().put_choice(one, stored.choice, {"compiler": "1.0"})

    code, said = run("store", "refresh", target)
    assert code == 0
    assert [r["fate"] for r in said["results"]] == ["current"]
    differs = [text for one in said["never_used"] for text in one["differs"]]
    assert len(differs) == 2
    assert any(text.startswith("source: ") and text.endswith("was f0") for text in differs)
    assert any(text.startswith("device: ") for text in differs)


def test_all_races_what_is_not_stale_too(run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    module.TIMES[4] = 0.5
    assert run("store", "refresh", target, "--all")[1]["results"][0]["fate"] == "changed"


def test_a_problem_that_was_never_tuned_cannot_be_refreshed(run: Run, target: str) -> None:
    code, said = run("store", "refresh", target, "--problem", "n=8")
    assert (code, said["not_stored"]) == (3, ["n=8"])


def test_refresh_for_people(capsys: pytest.CaptureFixture[str], run: Run, target: str) -> None:
    module = tune(run, target, "n=8")
    age(target, 8)
    module.TIMES[4] = 0.5
    assert main(["store", "refresh", target]) == 0
    out = capsys.readouterr().out
    assert out.startswith("scale: 1 changed\n  changed  n=8: Config(block=1) → Config(block=4), 0.5")
    assert "soft: compiler: ?, was 1.0" in out


def test_explain_says_that_a_soft_reason_makes_it_stale(
    capsys: pytest.CaptureFixture[str], run: Run, target: str
) -> None:
    tune(run, target, "n=8")
    age(target, 8)
    assert main(["explain", target, "--problem", "n=8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "found under other versions (compiler: ?, was 1.0)" in out
    assert "a call would search" in out


def test_explain_says_which_hard_reason_keeps_a_row_from_use(
    capsys: pytest.CaptureFixture[str], run: Run, target: str
) -> None:
    tune(run, target, "n=8")
    key = find_target(target).key(n=8)
    stored = default_store().choice(key)
    assert stored is not None
    default_store().gc(0)
    default_store().put_choice(replace(key, fingerprint="f0"), stored.choice, {})
    assert main(["explain", target, "--problem", "n=8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "known: f0, a hard reason: it is never used" in out


# --- a long list, in several goes ---------------------------------------------------------------------


def write_list(folder: Path, *sizes: int) -> Path:
    file = folder / "sizes.csv"
    file.write_text("n\n" + "".join(f"{n}\n" for n in sizes))
    return file


def test_what_ctrl_c_cut_short_goes_on_where_it_stopped(run: Run, target: str, tmp_path: Path) -> None:
    file = write_list(tmp_path, 1, 2, 3)
    find_target(target)
    module = sys.modules["stale_kernels"]
    module.STOP = 2
    code, said = run("tune", target, "--no-isolate", "--problems", file)
    assert (code, [r["problem"] for r in said["results"]]) == (130, ["n=1"])

    module.STOP = 0
    code, said = run("tune", target, "--no-isolate", "--problems", file)
    assert code == 0
    assert {r["problem"]: (r["from_store"], r["change"]) for r in said["results"]} == {
        "n=1": (True, "kept"), "n=2": (False, "new"), "n=3": (False, "new"),
    }  # fmt: skip


def test_what_failed_is_not_tried_again_unless_asked(run: Run, target: str, tmp_path: Path) -> None:
    file = write_list(tmp_path, 1, 2)
    find_target(target)
    module = sys.modules["stale_kernels"]
    module.BROKEN.add(2)
    assert run("tune", target, "--no-isolate", "--problems", file)[0] == 1
    module.clock.asked.clear()
    module.BROKEN.clear()

    code, said = run("tune", target, "--no-isolate", "--problems", file)
    error = next(r["error"] for r in said["results"] if r["problem"] == "n=2")
    assert code == 1
    assert "none of 10 Configs works: 10 × launch: RuntimeError: an illegal address" in error
    assert "--retry tries again" in error
    assert not module.clock.asked

    assert run("tune", target, "--no-isolate", "--problems", file, "--retry")[0] == 0
    assert run("tune", target, "--no-isolate", "--problems", file)[0] == 0


def test_what_is_typed_is_tried_whatever_failed_before(run: Run, target: str, tmp_path: Path) -> None:
    find_target(target)
    module = sys.modules["stale_kernels"]
    module.BROKEN.add(2)
    assert run("tune", target, "--no-isolate", "--problems", write_list(tmp_path, 2))[0] == 1
    module.BROKEN.clear()
    assert run("tune", target, "--no-isolate", "--problem", "n=2")[0] == 0


def test_what_failed_is_tried_again_under_other_versions() -> None:
    journal = Journal(options().cache_dir, "k")
    key = Key("k", "f", Problem.parse("n=1"), "cpu", "p", soft={"compiler": "1"})
    journal.failed(key, "no")
    assert journal.failure(key) is not None
    assert journal.failure(Key("k", "f2", Problem.parse("n=1"), "cpu", "p", soft={"compiler": "1"})) is None
    assert journal.failure(replace(key, soft={"compiler": "2"})) is None
    journal.worked(key)
    assert journal.failure(key) is None


def test_a_torn_line_of_the_journal_is_skipped() -> None:
    journal = Journal(options().cache_dir, "some/kernel[a=1]")
    key = Key("k", "f", Problem.parse("n=1"), "cpu", "p")
    journal.failed(key, "no")
    whole = journal.path.read_bytes()
    journal.path.write_bytes(b'{"key": "x", "rea\n[]\n3\n\xff\n' + whole + whole[:20])
    found = journal.failure(key)
    assert found is not None
    assert found.reason == "no"


def test_the_table_at_the_end_says_what_changed(capsys: pytest.CaptureFixture[str], run: Run, target: str) -> None:
    module = tune(run, target, "n=1", "n=2")
    age(target, 2)
    module.TIMES[4] = 0.5
    problems = [arg for n in (1, 2, 3) for arg in ("--problem", f"n={n}")]
    assert main(["tune", target, *problems, "--no-isolate"]) == 0
    table = capsys.readouterr().out.split("problem")[-1]
    changes = [line.split()[3] for line in table.splitlines() if line.startswith("n=")]
    assert (changes[0], changes[1][:3], changes[2]) == ("kept", "×0.", "new")


def test_a_fresh_choice_is_what_refresh_leaves(run: Run, target: str) -> None:
    tune(run, target, "n=8")
    age(target, 8)
    kernel = find_target(target)
    subject = kernel._subjects.of(kernel._dispatcher.problem_of(n=8))
    assert fresh_choice(subject, default_store(), (), kernel._subjects.effort()) is None
    run("store", "refresh", target)
    assert fresh_choice(subject, default_store(), (), kernel._subjects.effort()) is not None


def test_the_journal_goes_on_behind_a_torn_line(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(options().cache_dir, "torn")
    key = Key("torn", "f", Problem.parse("n=1"), "cpu", "p")
    journal.failed(key, "no")
    with open(journal.path, "ab") as file:
        file.write(b'{"key": "x", "rea')
    journal.worked(key)
    assert journal.failure(key) is None
    journal.failed(key, "again")
    with open(journal.path, "ab") as file:
        file.write(b"[" * 100_000 + b"\n" + b"\xff\x00\n[]\n" + b'{"key": 1, "at": 1, "soft": [3]}\n')
    found = journal.failure(key)
    assert found is not None
    assert found.reason == "again"
    real, sizes = os.write, list[int]()

    def short(handle: int, data: bytes) -> int:  # as a signal or a quota may have it
        sizes.append(len(data))
        return real(handle, bytes(data)[:7])

    monkeypatch.setattr("os.write", short)
    journal.failed(key, "in parts")
    found = journal.failure(key)
    assert found is not None
    assert found.reason == "in parts"
    assert len(sizes) > 10
    monkeypatch.setattr("os.write", lambda handle, data: len(data) // 2)  # a disk that is full halfway
    with pytest.raises(OSError, match="No space left"):
        journal.failed(key, "lost")
