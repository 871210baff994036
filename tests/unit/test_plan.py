"""A frozen plan: the same text for the same calls, replayed strictly, never believed blindly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Config, Space, TunedKernel, autotune, plan
from tunesmith.cli import main
from tunesmith.errors import BadInput, PlanMiss, TunesmithWarning
from tunesmith.options import options
from tunesmith.plan import Plan

X = np.ones(4, np.float32)


def made(clock: ScriptedClock, version: str = "1", space: Space | None = None) -> TunedKernel:
    def f(x, n, *, c):
        return c, n

    return autotune(space=space or Space(c=[1, 2, 3]), key=["n"], clock=clock, version=version)(f)


def by(sign: int) -> ScriptedClock:
    return ScriptedClock(lambda config: 10.0 + sign * config["c"])  # type: ignore[operator]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A plan in which the slowest Config is chosen, which no search of `by(1)` would find."""
    path = tmp_path / "plan.json"
    with plan.record(path):
        f = made(by(-1))
        assert [f(X, 5), f(X, 6)] == [(3, 5), (3, 6)]
    return path


def another_store(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(folder))
    options.cache_clear()


def test_a_bad_value_of_the_environment_is_named_with_its_variable(file: Path, tmp_path: Path) -> None:
    env = {"TUNESMITH_REPLAY": str(file), "TUNESMITH_REPLAY_MISS": "defaults"}
    said = fresh_process("", tmp_path, env).stderr
    assert "TUNESMITH_REPLAY_MISS=defaults: good values: error, default" in said


# --- writing ------------------------------------------------------------------------------------------


def test_the_text_is_the_same_for_the_same_calls_in_any_order_searched_or_stored() -> None:
    clock = by(1)
    with plan.record() as first:
        f = made(clock)
        for n in (5, 70, 6):
            f(X, n)
    asked = len(clock.asked)
    with plan.record() as second:  # what is warm is noted all the same
        for n in (6, 5, 6, 70):
            f(X, n)
    assert second.plan.text == first.plan.text
    assert len(clock.asked) == asked
    assert [row["problem"] for row in json.loads(first.plan.text)["choices"]] == [
        "n=5,x.dtype=float32", "n=6,x.dtype=float32", "n=70,x.dtype=float32",
    ]  # fmt: skip


def test_what_is_read_is_what_was_written(file: Path) -> None:
    again = Plan.read(file)
    again.write(file.with_name("again.json"))
    assert file.with_name("again.json").read_bytes() == file.read_bytes()
    values = Config(a=1, b=1.0, c=True, d=None, e="x", f=(1, 2))
    whole = Plan(dict.fromkeys(again.choices, values))
    whole.write(file)
    assert set(Plan.read(file).choices.values()) == {values}


def test_a_default_that_stood_in_is_noted_and_never_replaces_what_was_found() -> None:
    f = made(by(-1))
    with plan.record() as noted:
        with tunesmith.policy("lookup"):
            f(X, 5)
        assert list(noted.plan.choices.values()) == [Config(c=1)]
        f(X, 5)
        with tunesmith.policy("default"):
            f(X, 5)
            f(X, 6)
    assert list(noted.plan.choices.values()) == [Config(c=3), Config(c=1)]


def test_a_scope_that_ends_in_an_error_leaves_the_file_as_it_was(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(RuntimeError), plan.record(file):
        raise RuntimeError
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not a plan"), ("[]", "no \"format\""), ('{"format": "tunesmith-table/1"}', "no \"format\""),
        ('{"format": "tunesmith-plan/1", "choices": {}}', "not a list"),
        ('{"format": "tunesmith-plan/1", "choices": [{}]}', "choice 1 makes no sense: 'kernel' is missing"),
        ('{"format": "tunesmith-plan/1", "choices": [null]}', "choice 1 makes no sense"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_plan_is_refused_by_name(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(BadInput, match=why), plan.replay(tmp_path / "bad.json"):
        pass


def test_a_plan_with_a_key_twice_or_a_config_that_is_none_is_refused(file: Path) -> None:
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "choices": data["choices"] + data["choices"][:1]}))
    with pytest.raises(BadInput, match=r"choice 3 is the second for f\(n=5"):
        Plan.read(file)
    file.write_text(json.dumps({**data, "choices": [{**data["choices"][0], "config": {"c": {"code": 1}}}]}))
    with pytest.raises(BadInput, match="choice 1 makes no sense"):
        Plan.read(file)


# --- replaying ----------------------------------------------------------------------------------------


def test_a_replay_gives_the_plans_configs_and_measures_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_store(monkeypatch, tmp_path / "another")
    clock = by(1)
    f = made(clock)
    with plan.replay(file):
        assert [f(X, 5), f(X, 6), f(X, 5)] == [(3, 5), (3, 6), (3, 5)]
        for track in ("default", "lookup", "search"):  # a scope inside changes nothing
            with tunesmith.policy(track):
                assert f(X, 6) == (3, 6)
        assert f.choice(X, 5).source == f"plan {file}"
        assert f.explanation(X, 6)[1].config == Config(c=3)
    assert clock.asked == []
    assert f(X, 5) == (1, 5)  # the scope is over, and what it gave is not remembered
    with plan.replay(Plan.read(file)):
        assert f(X, 5) == (3, 5)


def test_a_scope_that_is_opened_again_finds_its_calls_warm(file: Path) -> None:
    f = made(by(1))
    for _ in range(3):
        with plan.replay(file):
            f(X, 5)
    assert f._dispatcher.warm_entries == 1


def test_a_miss_is_an_error_that_names_the_nearest_key_or_the_default(file: Path) -> None:
    f = made(by(-1))
    with plan.replay(file), pytest.raises(PlanMiss, match=r"f\(n=7.*replayed strictly.*differs in n: 7, known: 5"):
        f(X, 7)
    with plan.replay(file, miss="default"):
        assert f(X, 7) == (1, 7)
        assert "n: 7, known: 5" in f.choice(X, 7).note
    assert ("f", 7) in [(miss.kernel, miss.problem.get("n")) for miss in tunesmith.misses()]
    with pytest.raises(BadInput, match="did you mean 'default'"), plan.replay(file, miss="defaults"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("miss", ["error", "default"])
def test_another_source_of_the_kernel_is_an_error_whatever_a_miss_is(file: Path, miss: plan.Miss) -> None:
    f = made(by(-1), version="2")
    with plan.replay(file, miss=miss), pytest.raises(PlanMiss, match=r"another source.*fingerprint.*export it anew"):
        f(X, 5)


def test_a_config_that_the_space_refuses_is_never_launched(file: Path) -> None:
    smaller = Space(c=[1, 2, 3]).where(lambda c: c < 3, "c below 3")
    f = made(by(-1), space=smaller)
    with plan.replay(file), pytest.raises(PlanMiss, match="refuses: c below 3"):
        f(X, 5)
    with plan.replay(file, miss="default"), pytest.warns(TunesmithWarning, match="c below 3"):
        assert f(X, 5) == (1, 5)


def test_prepare_under_a_replay_needs_no_inputs_and_names_what_misses(file: Path) -> None:
    clock = by(1)
    f = made(clock)
    with plan.replay(file):
        choices = f.prepare([{"x": X, "n": 5}, {"x": X, "n": 6}])
        assert [choice.config for choice in choices] == [Config(c=3)] * 2
        with pytest.raises(tunesmith.errors.LookupMiss, match="n=7"):
            f.prepare([{"x": X, "n": 7}])
    assert clock.asked == []


# --- whole programs -----------------------------------------------------------------------------------

PROGRAM = """
clock = ScriptedClock(lambda config: 10.0 + int(sys.argv[1]) * config["c"])

@autotune(space=Space(c=[1, 2, 3]), key=["n"], clock=clock)
def f(x, n, *, c):
    return c

print([f([1.0], n) for n in map(int, sys.argv[2:])], len(clock.asked) > 0)
"""


def run(folder: Path, command: list[str], store: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`tunesmith plan … -- python program ARGS`, with a store of its own."""
    from tests.fakes import PREAMBLE

    program = folder / "program.py"
    program.write_text(PREAMBLE + PROGRAM)
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "TUNESMITH_CACHE_DIR": str(folder / store)}
    whole = [sys.executable, "-m", "tunesmith", "plan", *command, "--", sys.executable, str(program), *args]
    return subprocess.run(whole, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_two_runs_export_the_same_bytes_and_a_replay_runs_the_same_configs(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert run(tmp_path, ["export", str(a)], "one", "-1", "5", "6", "7").stdout == "[3, 3, 3] True\n"
    assert run(tmp_path, ["export", str(b)], "two", "-1", "7", "5", "6").stdout == "[3, 3, 3] True\n"
    assert a.read_bytes() == b.read_bytes()
    assert run(tmp_path, ["export", str(b)], "two", "-1", "6", "7", "5").stdout == "[3, 3, 3] False\n"
    assert a.read_bytes() == b.read_bytes()  # the same from a warm store
    assert run(tmp_path, ["replay", str(a)], "three", "1", "6", "5").stdout == "[3, 3] False\n"
    missed = run(tmp_path, ["replay", str(a)], "three", "1", "8")
    assert missed.returncode == 1
    assert "PlanMiss: f(n=8) is not in plan" in missed.stderr
    assert run(tmp_path, ["replay", str(a), "--miss", "default"], "three", "1", "8").stdout == "[1] False\n"
    bad = run(tmp_path, ["replay", str(tmp_path / "program.py")], "three", "1", "8")
    assert (bad.returncode, "is not a plan" in bad.stderr) == (2, True)


def test_plans_commands_say_what_they_did_beside_what_the_program_prints(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    exported = run(tmp_path, ["export", str(plan)], "one", "-1", "5", "6")
    assert exported.stderr.splitlines()[-1] == f"tunesmith: wrote {plan}: 2 choices of 1 kernel"
    replayed = run(tmp_path, ["replay", str(plan)], "one", "-1", "5")
    assert replayed.stderr == f"tunesmith: replaying {plan}: 2 choices; a call that it does not know is an error\n"
    nothing = run(tmp_path, ["export", str(plan)], "one", "-1")
    assert nothing.stderr == f"tunesmith: wrote {plan}: the program made no choice\n"
    failed = run(tmp_path, ["export", str(plan)], "one", "-1", "five")
    assert failed.returncode == 1
    assert "the program made no choice, or could not end as it should" in failed.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
def test_an_exported_program_gets_the_commands_signals(tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\nsignal.pause()\n"
    )
    whole = [sys.executable, "-m", "tunesmith", "plan", "export", str(tmp_path / "plan.json"), "--"]
    command = subprocess.Popen([*whole, sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "ready\n"
    command.terminate()
    assert command.wait(60) == 7
    command.stdout.close()
    killed = subprocess.run([*whole, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], check=False)
    assert killed.returncode == 128 + 9


def test_processes_add_to_one_file_and_those_that_disagree_are_named(tmp_path: Path) -> None:
    env = {"TUNESMITH_PLAN": str(tmp_path / "plan.json")}
    script = PROGRAM.replace("int(sys.argv[1])", "SIGN").replace("map(int, sys.argv[2:])", "NUMBERS")
    for sign, numbers, store in ((-1, [5], "a"), (-1, [6], "a"), (1, [6], "b")):
        text = script.replace("SIGN", str(sign)).replace("NUMBERS", str(numbers))
        done = fresh_process(text, tmp_path, {**env, "TUNESMITH_CACHE_DIR": str(tmp_path / store)})
        assert done.returncode == 0, done.stderr
    # each script has lines of its own, so the kernel's name and source are the same: what it reads is not part of it
    assert "had Config(c=3), this process used Config(c=1)" in done.stderr
    assert [config["c"] for config in Plan.read(tmp_path / "plan.json").choices.values()] == [3, 1]
    (tmp_path / "plan.json").write_text("garbage")
    done = fresh_process(text, tmp_path, {**env, "TUNESMITH_CACHE_DIR": str(tmp_path / "b")})
    assert "BadInput" in done.stderr
    assert (tmp_path / "plan.json").read_text() == "garbage"


def test_show_and_diff(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = file.with_name("other.json")
    choices = dict(Plan.read(file).choices)
    choices[next(iter(choices))] = Config(c=2)
    Plan(choices).write(other)

    assert main(["plan", "show", str(file), "--json"]) == 0
    assert [row["config"] for row in json.loads(capsys.readouterr().out)["choices"]] == [{"c": 3}, {"c": 3}]
    assert main(["plan", "diff", str(file), str(file)]) == 0
    assert capsys.readouterr().out == "the plans are the same\n"
    assert main(["plan", "diff", str(file), str(other)]) == 1
    assert "Config(c=3) → Config(c=2)" in capsys.readouterr().out
    assert main(["plan", "diff", str(file), str(other), "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["differences"]
    assert (row["config"], row["other"]) == ({"c": 3}, {"c": 2})
    assert main(["plan", "show", str(file.with_name("none.json"))]) == 2
