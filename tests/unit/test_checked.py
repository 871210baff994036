"""Results are compared with a reference before a Config's time counts; what was not checked is never said to be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

from tunesmith import Config, Failed, Space, TunedKernel, autotune, policy
from tunesmith.cli import main
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning
from tunesmith.measure import memory

torch = pytest.importorskip("torch")

FAST, SLOW = 0, 1


def double(x, out, *, c):
    """FAST is wrong by a constant."""
    out[:] = 2 * x + (0.5 if c == FAST else 0)


def right(x, out):
    return 2 * x


def right_in_other_words(x, out):
    return x + x


def wrong_reference(x, out):
    return 2 * x + 0.5


def tuned(body: Callable[..., Any] = double, n: int = 2, **options: Any) -> TunedKernel:
    options.setdefault("clock", ScriptedClock(lambda config: 1.0 + config["c"]))  # type: ignore[operator]
    return autotune(space=Space(c=list(range(n))), version="1", name="double", **options)(body)


def given(n: int = 16) -> tuple[Any, Any]:
    return np.random.default_rng(3).standard_normal((n, 8), dtype=np.float32), np.zeros((n, 8), np.float32)


def fates(kernel: TunedKernel) -> dict[int, str]:
    trials = kernel.explanation(*given())[2]
    return {t.config["c"]: t.outcome.stage if isinstance(t.outcome, Failed) else "ok" for t in trials}  # type: ignore[misc]


# --- R35 ------------------------------------------------------------------------------------------------


def test_r35_what_was_stored_unchecked_is_checked_when_a_reference_comes() -> None:
    unchecked = tuned()
    assert unchecked.tune(*given()).choice.config == Config(c=FAST)  # type: ignore[union-attr]

    checked = tuned(reference=right, outputs=["out"])
    with policy("lookup"):
        served = checked.choice(*given())
        assert (served.config, served.checked) == (Config(c=FAST), "")
        assert "was not checked: tunesmith verify checks it" in served.note
    x, out = given()
    checked(x, out)
    assert np.array_equal(out, 2 * x)
    choice = checked.choice(x, out)
    assert choice.config == Config(c=SLOW)
    assert choice.checked
    assert fates(checked) == {FAST: "wrong", SLOW: "ok"}
    assert checked.declared.clock.asked == []  # type: ignore[union-attr]  # nothing had to be timed again

    assert tuned().tune(*given()).choice.config == Config(c=SLOW)  # type: ignore[union-attr]  # known to be wrong


def test_r35_another_tolerance_or_reference_checks_again() -> None:
    assert tuned(reference=right, outputs=["out"]).tune(*given()).choice.config == Config(c=SLOW)  # type: ignore[union-attr]
    stored = tuned(reference=right, outputs=["out"]).choice(*given()).checked

    for options in ({"tolerance": 2.0}, {"reference": right_in_other_words}, {"deterministic": True}):
        kernel = tuned(**{"reference": right, "outputs": ["out"], **options})
        with policy("lookup"):
            assert kernel.choice(*given()).checked == ""
            assert "checked against another reference or tolerance" in kernel.choice(*given()).note
        choice = kernel.choice(*given())
        assert choice.config == Config(c=SLOW if "tolerance" not in options else FAST)
        assert choice.checked not in ("", stored)

    kernel = tuned(reference=wrong_reference, outputs=["out"])
    assert kernel.choice(*given()).config == Config(c=FAST)
    assert fates(kernel) == {FAST: "ok", SLOW: "wrong"}


def test_r35_what_is_closed_over_is_part_of_the_kernel() -> None:
    def make(size: int) -> TunedKernel:
        def body(x, *, c):
            return size

        clock = ScriptedClock(lambda config: 1.0)
        return autotune(space=Space(c=[0, 1]), clock=clock)(body)

    one, other = make(64), make(4096)
    one(given()[0])
    other(given()[0])
    assert len(other.declared.clock.asked) > 0  # type: ignore[union-attr]


# --- what is checked ------------------------------------------------------------------------------------

CALLS: list[Any] = []


def faulty(x, out, *, c):
    match c:
        case 0:
            out[:] = 2 * x
            out[3] *= 1.1
        case 1:
            out[:] = 2 * x
            out[-1, -1] = np.nan
        case 2:
            out[::2] = 2 * x[::2]
        case 3:
            pass
        case 4:
            out[:] = CALLS[-1] if CALLS else 2 * x  # what it returned last time
            CALLS.append(2 * x.copy())
        case 5:
            x[0] += 1
            out[:] = 2 * x
        case _:
            out[:] = 2 * x


def test_no_wrong_candidate_wins_and_the_callers_arrays_are_untouched() -> None:
    CALLS.clear()
    CALLS.append(2 * given()[0])
    kernel = tuned(faulty, 8, reference=right, outputs=["out"])
    x, out = given()
    summary = kernel.tune(x, out)

    assert summary.choice is not None
    assert summary.choice.config == Config(c=6)
    assert {c["c"]: f.stage for c, f in summary.failures} == dict.fromkeys(range(6), "wrong")
    said = {c["c"]: f.reason for c, f in summary.failures}
    assert "row 3, at (3, " in said[0]
    assert "float32 allows" in said[0]
    assert "row 15, at (15, 7): nan where" in said[1]
    assert "(64 of 128 elements are off; 64 are not written)" in said[2]
    assert "128 are not written" in said[3]
    assert np.array_equal(x, given()[0])


def test_when_all_are_wrong_it_says_how_far() -> None:
    with pytest.raises(NoWorkingConfig, match=r"(?s)none of 2 .*2 × wrong: out, row .*128 are not written"):
        tuned(lambda x, out, *, c: None, reference=right, outputs=["out"]).tune(*given())


def test_what_a_callable_returns_is_checked_where_nothing_is_written() -> None:
    def body(x, *, c):
        return 2 * x if c else (2 * x).astype(np.float16).astype(np.float32)

    kernel = tuned(body, reference=lambda x: 2 * x)
    summary = kernel.tune(given()[0])
    assert [c["c"] for c, _ in summary.failures] == [FAST]
    assert "the result, row" in next(iter(summary.failures))[1].reason  # type: ignore[index]


def test_outputs_are_found_where_they_are_not_declared_even_if_they_hold_the_result() -> None:
    x, out = given()
    out[:] = 2 * x
    summary = tuned(reference=lambda x, **_: 2 * x).tune(x, out)
    assert [c["c"] for c, _ in summary.failures] == [FAST]
    assert summary.choice is not None
    assert summary.choice.checked


def test_a_reference_may_write_its_arguments_as_the_kernel_does() -> None:
    def body(x, state, *, c):
        state += x
        x *= 2 if c else 2.01

    def in_place(x, state):
        state += x
        x *= 2

    for engine in (np.ones, torch.ones):
        x, state = engine((4, 4)), engine((4, 4))
        kernel = tuned(body, restore_value=["x", "state"], reference=in_place)
        kernel(x, state)
        assert kernel.choice(x, state).config == Config(c=SLOW)
        assert (x == 2).all()
        assert (state == 2).all()


def test_the_reference_gets_float64_and_else_what_there_is() -> None:
    seen: list[str] = []

    def body(x, out, *, c):
        out[:] = 2 * x

    def half_only(x, out):
        seen.append(str(x.dtype))
        if x.dtype == torch.float64:
            raise TypeError("half only")
        return 2 * x

    x = torch.randn(8, 8, dtype=torch.float16)
    choice = tuned(body, reference=half_only, outputs=["out"]).tune(x, torch.zeros_like(x)).choice
    assert choice is not None
    assert choice.checked
    assert seen[:2] == ["torch.float64", "torch.float16"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (lambda x, out: 1 / 0, "double: its reference failed: ZeroDivisionError"),
        (lambda x, out: (x, x), "its reference returned tuple; expected the 1 arrays out"),
        (lambda x, out: "something", "its reference returned str"),
    ],
)
def test_a_reference_that_fails_is_its_authors_fault_and_no_candidates(reference: Any, says: str) -> None:
    with pytest.raises((BadInput, NoWorkingConfig), match=says):
        tuned(reference=reference, outputs=["out"]).tune(*given())


def test_a_reference_that_returns_nothing_for_a_kernel_that_returns_something_is_refused() -> None:
    with pytest.raises(BadInput, match="its reference returned NoneType; expected the 1 arrays the result"):
        tuned(lambda x, *, c: 2 * x, reference=lambda x: None).tune(given()[0])


def only_fast(body: Any, fast: Any) -> Any:
    """A kernel whose fast candidate, which is the first to run, does something else."""

    def either(x, out, more, *, c):
        return (fast if c == FAST else body)(x, out, more)

    return either


def nothing(x, out, more):
    pass


def half(x, out, more):
    out[:] = 2 * x


def both(x, out, more):
    out[:], more[:] = 2 * x, 3 * x


def writes(x, out, more):
    out[...], more[...] = 2 * x, 3 * x


@pytest.mark.parametrize(
    ("body", "fast", "reference", "says"),
    [
        (lambda x, out, more: 2 * x, nothing, lambda x: 2 * x, "it returns and writes nothing"),
        (lambda x, out, more: 2 * x, lambda x, out, more: (2 * x, x), lambda x: 2 * x, "the result.1"),
        (half, nothing, lambda x: 2 * x, "it returns and writes nothing|are not written"),
        (both, half, lambda x: (2 * x, 3 * x), "it gives out, and its reference 2 arrays|are not written"),
        (both, half, lambda x: {"out": 2 * x, "more": 3 * x}, "it does not write more|are not written"),
        (both, half, writes, "it does not write more|are not written"),
        (lambda x, out, more: float(x.sum()), lambda *_: 0.5, lambda x: x.sum(), "the result at 0: error"),
    ],
)
@pytest.mark.parametrize("order", [(FAST, 1), (1, FAST)])
def test_one_candidate_with_other_outputs_is_wrong_and_the_others_are_checked(
    body: Any, fast: Any, reference: Any, says: str, order: tuple[int, int]
) -> None:
    x = given()[0]
    clock = ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]
    configs = [Config(c=c) for c in order]
    kernel = autotune(configs=configs, default=configs[0], reference=reference, clock=clock, version="1")(
        only_fast(body, fast)
    )
    summary = kernel.tune(x, np.zeros_like(x), np.zeros_like(x))
    [(config, failure)] = summary.failures
    assert (config, failure.stage) == (Config(c=FAST), "wrong")
    assert re.search(says, failure.reason)
    assert summary.choice is not None
    assert summary.choice.checked


def test_integers_that_hold_the_results_already_are_no_reason_to_fail() -> None:
    def body(x, out, *, c):
        out[:] = 2 * x

    x = np.arange(8)
    with pytest.warns(TunesmithWarning, match="results are not checked"):
        summary = tuned(body, reference=lambda x: 2 * x).tune(x, 2 * x)
    assert summary.choice is not None
    assert summary.choice.checked == ""


def test_inputs_whose_elements_repeat_are_made_anew() -> None:
    x = torch.randn(1, 8).expand(4, 8)

    def body(x, out, zeros, *, c):
        assert float(zeros.sum()) == 0
        out.copy_(2 * x)

    kernel = tuned(body, 4, reference=lambda x: 2 * x, outputs=["out"], reset_to_zero=["zeros"])
    summary = kernel.tune(x, torch.empty(4, 8), torch.ones(1).expand(3))
    assert list(summary.failures) == []


def test_an_argument_that_only_one_candidate_writes_is_named_and_as_before() -> None:
    def body(x, out, *, c):
        out[:] = 2 * x
        if c == FAST:
            x[0] = 0

    x, out = given()
    before = x.copy()
    configs = [Config(c=SLOW), Config(c=FAST)]
    kernel = autotune(
        configs=configs, default=configs[0], reference=right, outputs=["out"], version="1",
        clock=ScriptedClock(lambda config: 1.0 + config["c"]),  # type: ignore[operator]
    )(body)  # fmt: skip
    with pytest.warns(TunesmithWarning, match=r"argument 'x' is written by Config\(c=0\), and not by others"):
        kernel.tune(x, out)
    assert (x == before).all()


def test_a_make_inputs_that_fails_for_a_seed_is_told_of() -> None:
    def make_inputs(problem, seed=0):
        if seed:
            raise ValueError("no other inputs")
        return {"x": np.ones(problem["n"]), "out": np.zeros(problem["n"]), "n": problem["n"]}

    def body(x, out, n, *, c):
        out[:] = 2 * x

    kernel = tuned(body, 3, key=["n"], make_inputs=make_inputs, reference=lambda x, **_: 2 * x, outputs=["out"])
    with pytest.warns(TunesmithWarning, match="make_inputs fails with seed=1 .ValueError: no other inputs"):
        kernel.tune(**kernel.inputs("n=32"))


def test_a_tolerance_for_what_is_no_output_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown output 'outt': did you mean 'out'"):
        tuned(reference=right, tolerance={"outt": 1e-3})


def test_a_kernel_that_is_not_deterministic_fails_where_asked() -> None:
    draw = np.random.default_rng(0)

    def body(x, out, *, c):
        out[:] = 2 * x
        if c == FAST:
            out[2] *= 1 + np.float32(1e-6) * draw.random(dtype=np.float32)

    summary = tuned(body, reference=right, outputs=["out"], deterministic=True).tune(*given())
    assert [(c["c"], f.stage) for c, f in summary.failures] == [(FAST, "wrong")]
    assert "two launches on the same inputs differ: out: " in next(iter(summary.failures))[1].reason  # type: ignore[index]


def test_without_a_reference_disagreement_is_a_warning_and_unverified() -> None:
    kernel = tuned(outputs=["out"])
    with pytest.warns(TunesmithWarning, match=r"candidates disagree, Config\(c=\d\) with Config\(c=\d\): out, row"):
        summary = kernel.tune(*given())
    assert list(summary.failures) == []
    assert summary.choice is not None
    assert summary.choice.checked == ""
    assert "candidates disagree" in summary.choice.note


# --- inputs ---------------------------------------------------------------------------------------------


def test_each_check_has_other_floats_the_calls_own_integers_and_its_strides() -> None:
    seen: list[tuple[Any, Any, Any]] = []

    def gather(x, index, out, *, c):
        seen.append((x.copy(), index.copy(), x.strides))
        out[:] = x[index]

    x = np.random.default_rng(0).random((8, 8))[::2, ::-1]
    index = np.array([3, 0, 2, 2, 1])
    kernel = tuned(gather, 6, reference=lambda x, index, out: x[index], outputs=["out"])
    kernel.tune(x, index, np.zeros((5, 8)))
    assert {strides for _, _, strides in seen} == {x.strides}
    assert all(np.array_equal(mine, index) for _, mine, _ in seen)
    assert len({mine.tobytes() for mine, _, _ in seen}) >= 6


def test_a_make_inputs_that_takes_a_seed_makes_the_floats() -> None:
    seeds: list[int] = []

    def make_inputs(problem, seed=0):
        seeds.append(seed)
        n = problem["n"]
        return {"x": np.random.default_rng(seed).random(n), "out": np.zeros(n), "n": n}

    def body(x, out, n, *, c):
        out[:] = 2 * x

    kernel = tuned(body, 5, key=["n"], make_inputs=make_inputs, reference=lambda x, **_: 2 * x, outputs=["out"])
    kernel.tune(**kernel.inputs("n=32"))
    assert seeds[0] == 0
    assert len(set(seeds)) >= 4


def test_what_there_is_no_memory_for_is_not_checked_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda place: 2_000)
    with pytest.warns(TunesmithWarning, match=r"results are not checked, there is no memory for it: needed"):
        summary = tuned(reference=right, outputs=["out"]).tune(*given())
    assert summary.choice is not None
    assert summary.choice.checked == ""
    assert summary.choice.config == Config(c=FAST)


# --- tunesmith verify -----------------------------------------------------------------------------------

MODULE = """
import numpy as np
from tunesmith import Config, autotune

def make_inputs(problem):
    return {"x": np.random.default_rng(1).standard_normal(problem["n"]), "n": problem["n"], "y": np.zeros(problem["n"])}

def body(x, n, y, *, c):
    y[:] = x * 2 if c else x * 2.5

given = dict(configs=[Config(c=0), Config(c=1)], key=["n"], make_inputs=make_inputs, version="1", name="k")
unchecked = autotune(**given)(body)
checked = autotune(**given, reference=lambda x, **_: 2 * x, outputs=["y"])(body)
"""


def test_verify_checks_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verified_kernel.py"
    file.write_text(MODULE)
    target = f"{file}:checked"

    assert main(["verify", target]) == 2
    assert "the store has no Choice of k; write --problem n=512" in capsys.readouterr().err
    assert main(["verify", target, "--problem", "n=64"]) == 1  # its default
    assert "wrong: y at " in " ".join(capsys.readouterr().out.split())
    assert main(["verify", f"{file}:unchecked", "--problem", "n=64"]) == 2
    assert "pass reference= to autotune" in capsys.readouterr().err

    assert main(["tune", target, "--problem", "n=64"]) == 0
    capsys.readouterr()
    assert main(["verify", target]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "k(n=64,dtype=float64) result right Config Config(c=1) source store against reference" in said
    assert main(["explain", target, "--problem", "n=64"]) == 0
    assert "checked against its reference" in " ".join(capsys.readouterr().out.split())
