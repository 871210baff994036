"""A recording stands in for the device: a kernel and a clock over it, with faults put in."""

from dataclasses import replace
from pathlib import Path

import pytest

from tunesmith import Config, Failed, Measured, Resources, Sample, Space, Trial, autotune
from tunesmith.backends.replay import Disturbance, ReplayClock, ReplayedFailure, ReplayKernel
from tunesmith.core.outcome import Recording, Untried
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, NoWorkingConfig
from tunesmith.kernel import Run
from tunesmith.recording import convert, load
from tunesmith.tuned import TunedKernel

DATA = Path(__file__).parents[1] / "data"


def recording(**times_s: list[float]) -> Recording:
    """Two samples a round."""
    trials = [
        Trial(Config(x=name), Measured(tuple(Sample(s, i // 2, i % 2) for i, s in enumerate(mine))))
        for name, mine in times_s.items()
    ]
    trials += [
        Trial(Config(x="cut"), Failed("cut", "out of shared memory: needs 9 bytes, limit 1 bytes"), Resources()),
        Trial(Config(x="bad"), Failed("compile", "error: no such type", "line 1")),
        Trial(Config(x="crashed"), Failed("launch", "RuntimeError: misaligned address")),
        Trial(Config(x="untried"), Untried("the budget ended")),
    ]
    return Recording("scale", "NVIDIA H200", Problem({"n": 64}), tuple(trials))


def tuned(what: Recording, clock: ReplayClock) -> TunedKernel:
    kernel = ReplayKernel(what)
    return autotune(configs=kernel.configs, key=list(what.problem), clock=clock)(kernel)


def samples(clock: ReplayClock, config: Config, n: int) -> list[float]:
    run = Run(ReplayKernel(recording(a=[1.0], b=[1.0])).load(config, Problem({"n": 64}), None), ())
    return [clock.sample(run).seconds for _ in range(n)]


def test_a_search_over_a_recording_finds_its_best_and_its_failures() -> None:
    what = recording(a=[2e-3, 2.01e-3] * 5, b=[1e-3, 1.01e-3] * 5, c=[8e-3] * 10)
    summary = tuned(what, ReplayClock.of(what)).tune()

    assert summary.choice is not None
    assert summary.choice.config == Config(x="b")
    assert summary.counts == {"measured": 3, "failed": 3, "cut": 0, "untried": 0}
    assert {config["x"]: failed.stage for config, failed in summary.failures} == {
        "cut": "cut", "bad": "compile", "crashed": "launch",
    }  # fmt: skip
    assert dict(summary.failures)[Config(x="crashed")].reason == "RuntimeError: misaligned address"
    assert summary.key.device.startswith("cuda:NVIDIA H200")


def test_a_search_over_a_whole_recorded_space_ends_near_its_best_after_few_launches() -> None:
    what = convert(DATA / "rows_h200.json.gz")[1]
    clock = ReplayClock.of(what)
    summary = tuned(what, clock).tune()
    medians = {t.config: t.outcome.median_s for t in what.trials if isinstance(t.outcome, Measured)}

    assert summary.choice is not None
    assert medians[summary.choice.config] <= 1.03 * min(medians.values())
    assert clock.spent_s < 0.02 * 0.1 * len(medians)


def test_samples_come_a_round_after_the_other_the_same_for_all_and_then_again() -> None:
    what = recording(a=[1.1, 1.2, 2.1, 2.2, 3.1, 3.2], b=[11.1, 11.2, 12.1, 12.2, 13.1, 13.2])
    for seed in range(5):
        clock = ReplayClock.of(what, seed=seed)
        a, b = samples(clock, Config(x="a"), 7), samples(clock, Config(x="b"), 7)
        assert sorted(map(int, a[:3])) == [1, 2, 3]
        assert sorted(a[:6]) == [1.1, 1.2, 2.1, 2.2, 3.1, 3.2]
        assert a[6] == a[0]
        assert b == pytest.approx([s + 10 for s in a])


def test_the_seed_decides_everything_that_goes_wrong() -> None:
    what = recording(a=[1.0] * 20, b=[1.0] * 20)
    how = Disturbance(drift=0.1, drift_s=20.0, outliers=0.1)
    first, again, other = (
        samples(ReplayClock.of(what, disturbance=how, seed=s), Config(x="a"), 500) for s in (1, 1, 2)
    )

    assert first == again
    assert first != other
    outliers = [s for s in first if s > 5]
    assert 20 < len(outliers) < 90
    plain = [s for s in first if s < 5]
    assert 1.0 <= min(plain) < 1.01
    assert 1.09 < max(plain) <= 1.1


def test_configs_can_be_made_to_fail_and_the_search_goes_on() -> None:
    what = recording(**{f"c{i}": [1e-3 + i * 1e-4] * 4 for i in range(20)})
    clock = ReplayClock.of(what, disturbance=Disturbance(failures=0.3), seed=3)
    summary = tuned(what, clock).tune()
    failed = [f for _, f in summary.failures if f.reason == "made to fail"]

    assert 2 <= len(failed) <= 12
    assert summary.choice is not None
    with pytest.raises(ReplayedFailure):
        samples(ReplayClock({Config(x="a"): [1.0]}, disturbance=Disturbance(failures=1.0)), Config(x="a"), 1)


def test_the_devices_time_is_counted_with_what_is_done_around_a_launch() -> None:
    clock = ReplayClock({Config(x="a"): [1.0, 2.0]}, overhead_s=0.5, warm_up=True)
    samples(clock, Config(x="a"), 2)
    assert clock.spent_s == 1.0 + (1.0 + 0.5) + (2.0 + 0.5)


def test_what_was_not_recorded_is_named() -> None:
    what = recording(a=[1.0])
    kernel = ReplayKernel(what)
    with pytest.raises(BadInput, match="was not recorded"):
        kernel.load(Config(x="z"), Problem({"n": 64}), None)
    with pytest.raises(BadInput, match="recorded for n=64"):
        kernel.load(Config(x="a"), Problem({"n": 65}), None)
    with pytest.raises(BadInput, match="no time was recorded of"):
        samples(ReplayClock.of(what), Config(x="b"), 1)
    with pytest.raises(BadInput, match="has no trial"):
        ReplayKernel(Recording("scale", "d", Problem({}), ()))
    with pytest.raises(BadInput, match="outliers=2"):
        Disturbance(outliers=2)
    assert Config(x="untried") not in kernel.configs


def test_two_recordings_are_two_kernels() -> None:
    one, two = ReplayKernel(recording(a=[1.0])), ReplayKernel(recording(a=[2.0]))
    assert one.fingerprint() != two.fingerprint()
    assert one.fingerprint() == ReplayKernel(recording(a=[1.0])).fingerprint()


def test_a_space_may_be_given_in_place_of_the_recorded_list() -> None:
    what = recording(a=[2e-3] * 4, b=[1e-3] * 4)
    f = autotune(space=Space(x=["a", "b"]), key=["n"], clock=ReplayClock.of(what))(ReplayKernel(what))
    assert f.choice().config == Config(x="b")


# --- recording ---------------------------------------------------------------------------------------

PROGRAM = """
import tunesmith
from tests.fakes import ScriptedClock

def body(x, *, c):
    if c == 3:
        raise RuntimeError("no three")

clock = ScriptedClock(lambda config: 1e-3 * (1 + config["c"]), noise=0.01)
scale = tunesmith.autotune(
    space=tunesmith.Space(c=[0, 1, 2, 3]), clock=clock, name="scale",
    make_inputs=lambda problem: {"x": [1.0]},
)(body)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    (tmp_path / "recorded.py").write_text(PROGRAM)
    return f"{tmp_path / 'recorded.py'}:scale"


def test_a_recorded_space_has_every_config_in_every_round_and_can_be_replayed(program: str) -> None:
    from tunesmith.cli.target import find_target

    kernel = find_target(program)
    what = kernel.record([1.0], rounds=7)
    measured = {t.config["c"]: t.outcome for t in what.trials if isinstance(t.outcome, Measured)}

    assert [[s.round for s in outcome.samples] for outcome in measured.values()] == [list(range(7))] * 3
    assert {s.order for outcome in measured.values() for s in outcome.samples} >= {0, 1, 2}
    failed = [t.outcome.reason for t in what.trials if isinstance(t.outcome, Failed)]
    assert failed == ["RuntimeError: no three"]
    assert kernel.lookup([1.0]) is None, "nothing is stored"
    assert tuned(what, ReplayClock.of(what)).choice().config == Config(c=0)


def test_the_command_writes_what_load_reads(program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tunesmith.cli import main

    file = tmp_path / "scale.json.gz"
    assert main(["record", program, "--problem", "", "-o", str(file), "--rounds", "3"]) == 0
    assert "3 measured, 1 failed, 3 samples each" in capsys.readouterr().out
    what = load(file)
    assert (what.kernel, len(what.trials)) == ("scale", 4)
    assert "3 rounds" in what.protocol


def test_the_command_refuses_what_it_cannot_write_before_it_measures(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tunesmith.cli import main

    assert main(["record", program, "--problem", "", "-o", str(tmp_path / "none" / "x.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["record", program, "--problem", "", "-o", str(tmp_path / "x.json"), "--rounds", "0"]) == 2
    assert "rounds=0" in capsys.readouterr().err


def test_a_recording_whose_problem_has_dtypes_is_replayed() -> None:
    what = replace(recording(a=[1.0] * 5, b=[2.0] * 5), problem=Problem.parse("n=64,x.dtype=float64"))
    kernel = ReplayKernel(what)
    scale = autotune(configs=kernel.configs, key=kernel.key, clock=ReplayClock.of(what))(kernel)
    assert scale.choice().config == Config(x="a")
    with pytest.raises(NoWorkingConfig, match="was recorded for"):
        scale.choice(65)
