"""`choose`: the library's call stays unless beaten beyond doubt, wrong numbers are out, and what won is looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from tests.fakes import ScriptedClock, fresh_process

import tunesmith
from tunesmith import Candidate, Config, Problem, Space, choose, returning
from tunesmith.chooser import Chooser, torch_settings
from tunesmith.chooser.numerics import error
from tunesmith.chooser.settings import allows_tf32
from tunesmith.core.device import Device, known_device
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning

LIBRARY = Config(by="torch.mm")


def library(a: Any, b: Any, n: int) -> Any:
    return torch.mm(a, b)


def einsum(a: Any, b: Any, n: int) -> Any:
    return torch.einsum("ij,jk->ik", a, b)


def halved(a: Any, b: Any, n: int) -> Any:
    """As a GPU would in TF32: ten bits of each factor."""
    return torch.mm(a.half().float(), b.half().float())


def broken(a: Any, b: Any, n: int) -> Any:
    raise RuntimeError("no such instruction\nat 0x0")


def tiled(a: Any, b: Any, n: int, *, TILE: int) -> Any:
    return torch.cat([torch.mm(part, b) for part in a.split(TILE)])


def exact(a: Any, b: Any, n: int) -> Any:
    return a.double() @ b.double()


def made(candidates: dict[str, Any], seconds: Callable[[Config], float] | None = None, **more: Any) -> Chooser:
    """A choice whose clock answers what `seconds` says, or a real one on one thread."""
    clock = None if seconds is None else ScriptedClock(seconds, noise=0.002)
    usual = {"reference": exact, "key": ["n"], "strides": ["a", "b"], "clock": clock, **more}
    return choose("mm", candidates, **usual)


@pytest.fixture
def call() -> tuple[Any, Any, int]:
    torch.manual_seed(0)
    return torch.randn(48, 64), torch.randn(64, 32), 64


TILED = Candidate(tunesmith.autotune(space=Space(TILE=[8, 16]), key=["n"])(tiled).kernel, Space(TILE=[8, 16]))
EVERY = {"torch.mm": library, "einsum": einsum, "tiled": TILED, "halved": halved, "broken": broken}


def fast(*names: str, by: float = 0.5) -> Callable[[Config], float]:
    return lambda config: 1e-4 * (by if config["by"] in names else 1.0)


# --- who wins ----------------------------------------------------------------------------------------------


def test_what_is_faster_beyond_doubt_wins_with_its_own_knobs(call: Any) -> None:
    mm = made(EVERY, lambda config: 1e-4 if config["by"] != "tiled" else 1e-6 * config["TILE"])
    summary = mm.tune(*call)
    assert summary.choice is not None
    assert summary.choice.config == Config(by="tiled", TILE=8)
    torch.testing.assert_close(mm(*call), library(*call))


@pytest.mark.parametrize("by", [1.0, 0.995, 1.2])
def test_ties_go_to_the_library(call: Any, by: float) -> None:
    mm = made(EVERY, fast("einsum", "tiled", by=by))
    assert mm.choice(*call).config == LIBRARY


def test_the_library_stays_in_the_race_however_slow(call: Any) -> None:
    mm = made(EVERY, fast("einsum", by=0.01))
    times = {trial.config: trial.outcome for trial in mm.tune(*call).trials}
    samples = {config["by"]: len(outcome.samples) for config, outcome in times.items() if hasattr(outcome, "samples")}
    assert samples["torch.mm"] == samples["einsum"] > samples["tiled"]


def test_the_library_is_the_incumbent_of_a_later_search_too(call: Any) -> None:
    assert made(EVERY, fast("einsum")).choice(*call).config["by"] == "einsum"
    tied = made({**EVERY, "also": einsum}, fast("einsum", by=1.0))
    assert tied.choice(*call).config == LIBRARY


# --- numbers -------------------------------------------------------------------------------------------------


def test_a_candidate_of_lower_precision_is_out_however_fast(call: Any) -> None:
    mm = made(EVERY, fast("halved", by=0.1))
    summary = mm.tune(*call)
    assert summary.choice is not None
    assert summary.choice.config == LIBRARY
    failed = {config["by"]: failure.reason for config, failure in summary.failures}
    assert set(failed) == {"halved", "broken"}
    assert "by the library's own error" in failed["halved"]


def test_it_may_win_where_the_library_computes_so_too(call: Any) -> None:
    mm = made({"torch.mm": halved, "other": lambda a, b, n: halved(a, b, n)}, fast("other", by=0.1))
    assert mm.choice(*call).config["by"] == "other"


def test_a_result_that_is_not_written_or_has_another_shape_is_out(call: Any) -> None:
    def unwritten(a: Any, b: Any, n: int) -> Any:
        result = torch.empty(48, 32)
        result[:24] = torch.mm(a[:24], b)
        return result

    mm = made(
        {"torch.mm": library, "half": unwritten, "flat": lambda a, b, n: library(a, b, n)[:1]}, fast("half", "flat")
    )
    failed = {config["by"]: failure.reason for config, failure in mm.tune(*call).failures}
    assert set(failed) == {"half", "flat"}
    assert "shape (1, 32) where the reference has (48, 32)" in failed["flat"]


def test_errors_are_measured_by_row() -> None:
    right = torch.tensor([[1000.0, 1000.0], [1e-3, -1e-3]], dtype=torch.float64)
    assert error(right.float(), right) < 1e-7
    assert error(right + torch.tensor([[0.0, 0.0], [1e-3, 0.0]]), right) == pytest.approx(0.5)
    assert error(torch.full((2, 2), float("nan")), right) != error(right, right)
    assert error(right.numpy(), right.numpy()) == 0
    assert error(torch.empty(0, 3), torch.empty(0, 3)) == 0


def test_settings_that_change_numbers_are_part_of_the_key(call: Any) -> None:
    mm = made(EVERY, fast("einsum"))
    assert mm.choice(*call).source == "search"
    before = torch.get_float32_matmul_precision()
    assert not allows_tf32()
    with tunesmith.policy("lookup"):
        torch.testing.assert_close(mm(*call), library(*call))
        try:
            torch.set_float32_matmul_precision("high")
            assert allows_tf32()
            assert mm.lookup(*call) is None
            seen = len(tunesmith.misses())
            mm(*call)  # the warm key tells them apart too
            assert len(tunesmith.misses()) == seen + 1
        finally:
            torch.set_float32_matmul_precision(before)
        assert mm.lookup(*call) is not None
    assert set(torch_settings()) == {
        "torch.allow_tf32", "torch.allow_fp16_reduced_precision", "torch.allow_bf16_reduced_precision",
    }  # fmt: skip


# --- tracks, store, reports ---------------------------------------------------------------------------------------


def test_without_a_search_the_library_serves(call: Any) -> None:
    mm = made(EVERY, fast("einsum"))
    for track in ("default", "lookup"):
        with tunesmith.policy(track):
            assert mm.choice(*call).config == LIBRARY
            torch.testing.assert_close(mm(*call), library(*call))
    assert "torch.mm serves (default)" in mm.scores(*call)


def test_a_choice_is_looked_up_by_another_process_and_stale_under_another_library(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(EVERY, fast("einsum")).choice(*call).source == "search"
    again = made(EVERY, fast("einsum"))
    assert again.choice(*call).source == "store"
    versions = type(again.alternatives).versions
    monkeypatch.setattr(type(again.alternatives), "versions", lambda self: {**versions(self), "torch": "1.0"})
    known = made(EVERY, fast("einsum")).lookup(*call)
    assert known is not None
    assert known.config["by"] == "einsum"
    assert "torch: 1.0, was" in known.note


def test_what_does_not_load_here_is_served_by_the_library(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made(EVERY, fast("tiled")).tune(*call)
    monkeypatch.setattr(TILED.kernel, "load", refuses)
    mm, said = made(EVERY, fast("tiled")), r"does not load: .*no such tile.*torch.mm serves instead"
    with pytest.warns(TunesmithWarning, match=said):
        torch.testing.assert_close(mm(*call), library(*call))
    torch.testing.assert_close(mm(*call), library(*call))  # warned of once: a warning fails a test
    other = made(EVERY)
    monkeypatch.setattr(other.alternatives.candidates["torch.mm"].kernel, "load", refuses)
    with tunesmith.policy("default"), pytest.raises(NoWorkingConfig, match="no such tile"):
        other(*call)


def refuses(*_: Any) -> Any:
    raise BadInput("there is no such tile")


def test_the_table_says_who_ran_how_fast_and_why_others_did_not(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mm = made(EVERY, fast("einsum"))
    mm.tune(*call)
    text = mm.scores(*call)
    lines = text.splitlines()
    assert lines[:3] == [
        "AUTOTUNE mm(48x64, 64x32)", "strides: [64, 1], [32, 1]", "dtypes: torch.float32, torch.float32"
    ]  # fmt: skip
    assert lines[3].split()[0] == "einsum"
    assert lines[3].split()[-2:] == ["100.0%", "chosen"]
    [theirs] = [line for line in lines if "torch.mm" in line and "library" in line]
    assert 49 < float(theirs.split("%")[0].split()[-1]) < 51
    assert "  failed: 1 x broken, launch: RuntimeError: no such instruction" in lines
    assert any("halved" in line and "allowed" in line for line in lines)
    assert any("TILE=8" in line for line in lines)
    assert lines[-1].endswith("2.00 times as fast as torch.mm")
    mm.explain(*call)
    assert "AUTOTUNE mm(48x64, 64x32)" in capsys.readouterr().out


def test_candidates_apply_where_they_say(call: Any) -> None:
    never = Candidate(TILED.kernel, TILED.space, applies=lambda problem, device: problem["n"] == 65)
    gpus = Candidate(TILED.kernel, TILED.space, devices=("cuda",))
    mm = made({"torch.mm": library, "never": never, "gpus": gpus, "einsum": einsum}, fast("einsum"))
    tried = {trial.config["by"] for trial in mm.tune(*call).trials}
    assert tried == {"torch.mm", "einsum"}
    space = mm.alternatives.space(Problem({"n": 65}), known_device("NVIDIA H200"))
    assert space.size == 6
    one = Candidate(mm.alternatives.candidates["torch.mm"].kernel, devices=("cpu",))
    alone = made({"torch.mm": one}, fast()).alternatives
    with pytest.raises(BadInput, match="no candidate runs on NVIDIA H200"):
        alone.space(Problem({"n": 1}), known_device("NVIDIA H200"))


def test_a_kernel_that_writes_its_result_takes_part(call: Any) -> None:
    def into(a: Any, b: Any, c: Any, *, TWICE: bool) -> None:
        for _ in range(1 + TWICE):
            torch.mm(a, b, out=c)

    kernel = tunesmith.autotune(space=Space(TWICE=[False, True]), key=[])(into)

    def with_output(a: Any, b: Any, n: int) -> tuple[Any, Any]:
        c = torch.empty(a.shape[0], b.shape[1])
        return (a, b, c), c

    into_output = Candidate(returning(kernel, with_output, ["a", "b", "n"]), Space(TWICE=[False, True]))
    mm = made({"torch.mm": library, "into": into_output}, fast("into"))
    assert mm.choice(*call).config["by"] == "into"
    torch.testing.assert_close(mm(*call), library(*call))


def test_mistakes_are_named() -> None:
    other = tunesmith.autotune(space=Space(T=[1]))(lambda a, T: a)
    for wrong, said in (
        (lambda: choose("mm", {"torch.mm": torch.mm}), "say which arguments"),
        (lambda: choose("mm", {}, args=["a", "b"]), "no candidates"),
        (lambda: choose("mm", {"torch.mm": torch.mm}, args=["a", "b"], library="mm"), "unknown candidate 'mm'"),
        (lambda: choose("mm", {"torch.mm": torch.mm, "five": 5}, args=["a", "b"]), "candidate 'five' is 5"),
        (lambda: made({"torch.mm": library, "other": other}), "takes .a."),
        (lambda: made({"tiled": TILED}), "has to be a plain call"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=said):
            wrong()


# --- for real, on this machine ------------------------------------------------------------------------------------


def test_a_real_race_on_the_cpu_never_ends_with_what_is_slower(call: Any) -> None:
    def slow(a: Any, b: Any, n: int) -> Any:
        return torch.mm(a.double().repeat(4, 1), b.double())[: a.shape[0]].float()

    def loops(a: Any, b: Any, n: int) -> Any:
        return torch.stack([torch.mv(b.T, row) for row in a])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        mm = made({"torch.mm": library, "slow": slow, "loops": loops, "tiled": TILED}, budget_s=20)
        summary = mm.tune(*call)
    finally:
        torch.set_num_threads(threads)
    assert summary.choice is not None
    assert summary.choice.config["by"] not in ("slow", "loops")
    times = mm.timed(*call)
    assert times[Config(by="loops")] > times[summary.choice.config]


def test_asking_for_choose_imports_no_torch(tmp_path: Any) -> None:
    script = """
    c = tunesmith.choose("add", {"plus": lambda x, y: x + y, "other": lambda x, y: y + x}, args=["x", "y"])
    with tunesmith.policy("default"):
        assert c(1, 2) == 3
    assert not {"torch", "triton", "numpy"} & set(sys.modules)
    print("light")
    """
    ended = fresh_process(script, tmp_path)
    assert ended.stdout.strip() == "light", ended.stderr


def test_a_device_without_the_library_has_the_first_that_is_there() -> None:
    only = Candidate(TILED.kernel, TILED.space)
    mm = made({"torch.mm": library, "tiled": only}, fast())
    gpu = Device("cuda", "a GPU", "sm_90", 132)
    assert mm.alternatives.default(Problem({"n": 1}), gpu) == LIBRARY
