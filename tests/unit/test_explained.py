"""`explain`: how a Choice won, what of the device it reaches, why a call misses, what is stale; `profile`: it alone."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Space, Tiles, autotune, known_device
from tunesmith.cli import main
from tunesmith.cli.profile import commands_for
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.model import ceiling
from tunesmith.core.outcome import Choice, Failed, Measured, Sample, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.measure import marks
from tunesmith.report.racing import heats
from tunesmith.store import default_store

H200 = known_device("NVIDIA H200")
SQUARE = Problem({"M": 4096, "N": 4096, "K": 4096})
KNOBS = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8}


def kernel(**options: Any) -> Any:
    @autotune(space=Space(block=[1, 2, 4, 8]), key=["n"], clock=options.pop("clock", None), version="1", **options)
    def scale(n: int, *, block: int) -> int:
        if block == 8:
            raise RuntimeError("out of registers")
        return n * block

    return scale


def tuned(seconds: Any = None) -> Any:
    one = kernel(clock=ScriptedClock(seconds or (lambda config: 1e-3 * config["block"]), noise=0.01))
    with tunesmith.policy("search"):
        one(512)
    return one


def printed(one: Any, capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    capsys.readouterr()
    one.explain(*args)
    return " ".join(capsys.readouterr().out.split())


def store_again(key: Key, **fields: Any) -> Key:
    """The Choice of a Key under another one: as an older source or another chip left it."""
    stored = default_store().choice(key)
    assert stored is not None
    other = replace(key, **fields)
    default_store().put_choice(other, stored.choice, stored.soft)
    return other


class TestWhyItMissed:
    def test_the_fields_of_the_nearest_key_that_differ_each_on_its_line(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        one = tuned()
        capsys.readouterr()
        one.explain(100)
        lines = capsys.readouterr().out.splitlines()
        at = lines.index("not stored for this call; the nearest key that is differs in")
        assert lines[at + 1].split() == ["n", "100,", "stored:", "512"]
        assert lines[at + 2] == ""

    def test_what_is_stored_says_when_and_misses_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = printed(tuned(), capsys, 512)
        assert re.search(r"source search, stored \d{4}-\d\d-\d\dT", out)
        assert "nearest key" not in out
        assert "stale" not in out

    def test_the_default_track_looks_nothing_up(self, capsys: pytest.CaptureFixture[str]) -> None:
        one = tuned()
        with tunesmith.policy("default"):
            out = printed(one, capsys, 100)
        assert "track default" in out
        assert "nearest key" not in out


class TestStale:
    def test_other_versions_are_a_soft_reason(self, capsys: pytest.CaptureFixture[str]) -> None:
        one = tuned()
        key, choice, _ = one.explanation(512)
        default_store().put_choice(key, choice, {**key.soft, "python": "2.7"})
        out = printed(one, capsys, 512)
        assert re.search(r"stale soft python: [\d.]+, was 2.7; lookup uses it, search races it again", out)

    def test_another_source_and_another_chip_are_hard_reasons(self, capsys: pytest.CaptureFixture[str]) -> None:
        one = tuned()
        key = one.key(512)
        store_again(key, fingerprint="0123old")
        store_again(key, device="cuda:NVIDIA H100:sm_90:132")
        store_again(key, problem=Problem({"n": 7}))  # another call's
        out = printed(one, capsys, 512)
        assert out.count("that Choice is never used here") == 2
        assert f"hard fingerprint: {key.fingerprint}, stored: 0123old" in out
        assert f"hard device: {key.device}, stored: cuda:NVIDIA H100:sm_90:132" in out


class TestTheRace:
    @staticmethod
    def trial(name: int, rounds: Sequence[int], seconds: float, at: str = "then") -> Trial:
        return Trial(Config(c=name), Measured(tuple(Sample(seconds, r, 0) for r in rounds)), at=at)

    def test_who_left_when(self) -> None:
        trials = [
            self.trial(0, [-1], 9.0),
            self.trial(1, [0], 3.0), self.trial(2, [0], 2.5), self.trial(3, [0, 1, 2], 1.2),
            self.trial(4, range(9), 1.0), self.trial(5, range(8), 1.1),  # its last round was interrupted
            Trial(Config(c=6), Failed("launch", "no"), at="then"),
        ]  # fmt: skip
        (heat,) = heats(trials)
        assert [t.config["c"] for t in heat.hopeless] == [0]
        assert [(one.rounds, [t.config["c"] for t in one.trials]) for one in heat.left] == [(1, [2, 1]), (3, [3])]
        assert [t.config["c"] for t in heat.stayed] == [4, 5]
        assert (heat.timed, heat.rounds) == (6, 9)

    def test_races_of_one_search_and_of_others_are_apart(self) -> None:
        trials = [self.trial(1, [0, 1], 1.0, "b"), self.trial(2, [300, 301], 2.0, "b"), self.trial(3, [0, 1], 3.0, "a")]
        assert [(heat.at, [t.config["c"] for t in heat.stayed]) for heat in heats(trials)] == [
            ("a", [3]), ("b", [1]), ("b", [2]),
        ]  # fmt: skip

    def test_samples_without_rounds_are_no_race(self) -> None:
        assert heats([self.trial(1, [-1, -1], 1.0)]) == []
        assert heats([]) == []

    def test_it_is_told_with_the_runner_up_and_what_failed(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = printed(tuned(lambda config: 1e-3 * (1 + 0.05 * (config["block"] - 1))), capsys, 512)
        assert re.search(r"the race: 3 Configs timed, in up to \d+ rounds? after \d+ rounds? \d left; ", out)
        assert re.search(r"took 1\.\d+×: block=[24]", out)
        assert re.search(r"to the end 1; the fastest, which is used: block=1", out)
        assert "what failed 1 × launch: RuntimeError: out of registers" in out
        assert re.search(r"runner-up 1\.0\d+× its time \(1\.0.*× to 1\.0.*× at .* slower beyond doubt: .*=2\)", out)

    def test_of_who_left_at_once_nobody_says_how_sure_its_ratio_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert re.search(
            r"runner-up 2\.0\d+× its time: Config\(block=2\)|runner-up 1\.9", printed(tuned(), capsys, 512)
        )

    def test_a_tie_is_a_tie(self, capsys: pytest.CaptureFixture[str]) -> None:
        out = printed(tuned(lambda config: 1e-3 if config["block"] < 4 else 1.0), capsys, 512)
        assert re.search(r"runner-up (0\.99|1\.00)\d× its time \(.* confidence\), a tie: Config\(block=[12]\)", out)


class TestTheCeiling:
    def test_of_a_matrix_product(self) -> None:
        found = ceiling(Tiles(dtype="float16")(SQUARE, Config(KNOBS)), H200)
        assert found is not None
        assert found.flops == 2 * 4096**3
        assert found.bytes == 3 * 2 * 4096**2
        assert found.compute_s == found.flops / H200.peak["float16"]
        assert found.memory_s == found.bytes / H200.bandwidth
        assert found.bound == "compute"
        assert found.reached(2 * found.seconds) == 0.5

    def test_of_a_chip_that_is_not_known_there_is_none(self) -> None:
        assert ceiling(Tiles()(SQUARE, Config(KNOBS)), Device("cuda", "a new one", "sm_130", 200)) is None

    def test_it_is_explained(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        space = Space({name: [value] for name, value in KNOBS.items()}) + Space(
            {name: [2 * value] for name, value in KNOBS.items()}
        )

        @autotune(space=space, key=["M", "N", "K"], model=Tiles(dtype="float16"), version="1")
        def gemm(M: int, N: int, K: int, **knobs: Any) -> None:
            pass

        monkeypatch.setattr(type(gemm.kernel), "device", lambda *_: H200)
        key = gemm.key(4096, 4096, 4096)
        choice = Choice(Config(KNOBS), "search", "search", 2 * 2 * 4096**3 / H200.peak["float16"])
        default_store().put_choice(key, choice, key.soft)
        with tunesmith.policy("lookup"):
            out = printed(gemm, capsys, 4096, 4096, 4096)
        assert "the device's ceiling reached 50.0% of it: 494.5 TFLOP/s, 0.362 TB/s" in out
        assert "at least 139.0 µs, by compute" in out
        assert "139.0 µs for 137.4 GFLOP of whole tiles at the peak of 989 TFLOP/s in float16" in out
        assert "20.97 µs for 100.7 MB, each input and output moved once, at 4.8 TB/s" in out

    def test_why_there_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "ceiling not known the kernel's autotune has no model=" in printed(tuned(), capsys, 512)


KERNELS = """
import tunesmith
from tests.fakes import ScriptedClock
launches = []

@tunesmith.autotune(configs=[{"a": 1}, {"a": 2}, {"a": 3}], key=["n"],
    clock=ScriptedClock(lambda c: 1 + 0.05 * c["a"], 0.01), make_inputs=lambda problem: {"n": problem["n"]})
def one(n, *, a):
    launches.append(a)
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "explained_kernels.py").write_text(KERNELS)
    yield f"{tmp_path / 'explained_kernels.py'}:one"
    for name in [name for name in sys.modules if name.endswith("explained_kernels")]:
        del sys.modules[name]


def document(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*args, "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_the_document_says_what_the_text_says(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", target, "--problem", "n=8", "--no-isolate", "-q"]) == 0
    (known,) = document(capsys, "explain", target, "--problem", "n=8")["results"]
    assert known["choice"]["config"] == {"a": 1}
    assert known["nearest"] is None
    assert known["stored_at"].startswith("20")
    assert known["stale"] == {"soft": [], "hard": []}
    assert known["runner_up"]["config"] == {"a": 2}
    assert 1.0 < known["runner_up"]["low"] <= known["runner_up"]["ratio"] <= known["runner_up"]["high"] < 1.1
    (race,) = known["races"]
    assert race["timed"] == 3
    assert sum(len(left["trials"]) for left in race["left"]) + len(race["stayed"]) + len(race["hopeless"]) == 3
    assert known["ceiling"] == {"why_unknown": known["ceiling"]["why_unknown"]}
    (missed,) = document(capsys, "explain", target, "--problem", "n=9")["results"]
    assert missed["nearest"]["differs"] == [{"field": "n", "asked": "9", "stored": "8"}]
    assert missed["races"] == []
    assert missed["runner_up"] is None


# --- profile --------------------------------------------------------------------------------------------


class TestProfile:
    def test_launches_the_default_where_nothing_is_known_and_says_so(
        self, target: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", target, "--problem", "n=8", "--launches", "4"]) == 0
        out, err = capsys.readouterr()
        said = " ".join(out.split())
        assert "source the kernel's default: nothing is known of this call" in said
        assert "launched 4 times, after 3 to warm up" in said
        assert "marks none: NVTX is of GPUs, and this is a CPU" in said
        assert "tunesmith tune" in err
        assert document(capsys, "profile", target, "--problem", "n=8")["choice"]["source"] == "default"

    def test_launches_what_is_stored_alone_and_stores_nothing(
        self, target: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["tune", target, "--problem", "n=8", "--no-isolate", "-q"]) == 0
        before = default_store().info()["kernels"]
        found = document(capsys, "profile", target, "--problem", "n=8", "--launches", "5")
        assert found["choice"]["config"] == {"a": 1}
        assert found["choice"]["source"] == "store"
        module: Any = next(m for n, m in sys.modules.items() if n.endswith("explained_kernels"))
        assert module.launches[-8:] == [1] * 8
        assert default_store().info()["kernels"] == before

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (("--problem", "n=8", "--launches", "0"), "--launches 0: good values: integers from 1"),
            (("--problem", "n=8", "--problem", "n=9"), "2 problems are given: a profile is of one"),
            ((), "no problem is given"),
        ],
    )
    def test_a_bad_command_says_what_is_good(
        self, target: str, args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["profile", target, *args]) == 2
        assert said in capsys.readouterr().err

    def test_the_commands_of_a_gpu_can_be_pasted(self) -> None:
        again = ["/a b/python", "-m", "tunesmith", "profile", "my file.py:k", "--problem", "M=1,x='a b'"]
        marked = {tool: shlex.split(line) for tool, line in commands_for(H200, True, "gemm[x=1]", again).items()}
        for tool, launches in (("ncu", "1"), ("nsys", "100")):
            assert marked[tool][-len(again) - 3 :] == [*again, "--launches", launches, "--quiet"]
        assert marked["ncu"][:4] == ["ncu", "--nvtx", "--nvtx-include", "tunesmith/"]
        assert "--nvtx-capture=tunesmith" in marked["nsys"]
        assert marked["explained"][:5] == ["tunesmith", "explain", *again[4:]]
        bare = shlex.split(commands_for(H200, False, "gemm[x=1]", again)["ncu"])
        pattern = bare[bare.index("--kernel-name") + 1].removeprefix("regex:")
        assert re.fullmatch(pattern, "gemm[x=1]")
        assert bare[bare.index("--launch-skip") + 1] == "3"

    def test_the_marks_stand_around_launches_that_are_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = pytest.importorskip("torch")
        done: list[str] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("wait"))
        monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: done.append(f"push {name}"))
        monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: done.append("pop"))
        with marks.marked(H200):
            done.append("launch")
        assert done == ["wait", "push tunesmith", "launch", "wait", "pop"]
        with pytest.raises(BadInput), marks.marked(H200):
            raise BadInput("a launch fails")
        assert done[-1] == "pop"
        done.clear()
        with marks.marked(Device("cpu", "a cpu", "x86", 2)):
            pass
        assert done == []
