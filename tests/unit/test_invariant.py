"""Knobs that change the order of a sum are the same for all problems of a family, whoever asks, and in any process."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock, fresh_process

from tunesmith import Config, Space, TunedKernel, autotune, policy
from tunesmith.errors import BadInput, LookupMiss, TunesmithWarning
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry

X = np.ones(2)
#: the best BLOCK_K by M, and the best tile
BEST = {1: 32, 64: 128, 512: 64}


def made_for(m: int) -> Any:
    """Times of which BEST says the shortest; the tile that is best is M's own, too."""

    def seconds(config: Config) -> float:
        k, tile = config["BLOCK_K"], config["BLOCK_M"]
        return 1e-3 * (1 + 0.5 * (k != BEST[m]) + 0.2 * (tile != (16 if m == 1 else 32)))

    return seconds


class ByM:
    """The times of the problem that is being searched."""

    def __init__(self) -> None:
        self.m, self.clock = 0, ScriptedClock(lambda config: made_for(self.m)(config))

    protocol = "by m/1"

    def sample(self, run: Any) -> Any:
        self.m = run.args[1]
        return self.clock.sample(run)


def gemm(clock: Any = None, space: Any = None, **options: Any) -> TunedKernel:
    options = {"invariant_over": ["M"], "summation": ["BLOCK_K"], "version": "1", **options}

    @autotune(
        space=space or Space(BLOCK_K=[32, 64, 128], BLOCK_M=[16, 32]), key=["M", "N"], clock=clock or ByM(), **options
    )
    def gemm(x, M, N, *, BLOCK_K, BLOCK_M):
        return BLOCK_K, BLOCK_M

    return gemm


def test_the_first_problem_decides_and_the_others_are_searched_in_what_is_left() -> None:
    clock = ByM()
    f = gemm(clock)
    assert f(X, 64, 8) == (128, 32)
    asked = len(clock.clock.asked)
    assert f(X, 1, 8) == (128, 16), "32 would be faster, and would sum in another order"
    assert {config["BLOCK_K"] for config in clock.clock.asked[asked:]} == {128}
    assert f(X, 512, 8) == (128, 32)
    assert f(X, 1, 9) == (32, 16), "another family"


def test_what_is_decided_is_searched_once() -> None:
    first, second = ByM(), ByM()
    assert [gemm(first)(X, m, 8)[0] for m in (64, 1)] == [128, 128]
    assert [gemm(second)(X, m, 8) for m in (64, 1)] == [(128, 32), (128, 16)]
    assert second.clock.asked == []


def test_tune_decides_and_keeps_to_it_too() -> None:
    f = gemm()
    configs = [f.tune(X, m, 8).choice.config["BLOCK_K"] for m in (1, 64, 512)]  # type: ignore[union-attr]
    assert configs == [32, 32, 32]


def test_a_default_keeps_to_it_and_before_there_is_anything_strict_lookup_refuses() -> None:
    f = gemm(default=Config(BLOCK_K=64, BLOCK_M=32))
    with policy("lookup", strict=True), pytest.raises(LookupMiss):
        f(X, 1, 8)
    f.tune(X, 1, 8)
    with policy("lookup"):
        assert f(X, 1, 8) == (32, 16)
        assert f(X, 64, 8) == (32, 32)


def table_of(f: TunedKernel, m: int, config: Config) -> NativeTable:
    key = f.explanation(X, m, 8)[0]
    return NativeTable(key.kernel, key.device, {key.problem: Entry(config, 1e-3)}, key.fingerprint, key.protocol, {})


def test_a_table_never_breaks_it() -> None:
    f = gemm(default=Config(BLOCK_K=64, BLOCK_M=32))
    f.use_table(table_of(f, 64, Config(BLOCK_K=128, BLOCK_M=16)))
    with policy("lookup"):
        assert f.lookup(X, 64, 8) is None, "as long as nothing is decided"
        assert f(X, 64, 8) == (64, 32)
    f.tune(X, 1, 8)
    with policy("lookup"), pytest.warns(TunesmithWarning, match="BLOCK_K"):
        assert f(X, 64, 8) == (32, 32)
    g = gemm(default=Config(BLOCK_K=64, BLOCK_M=32))
    g.use_table(table_of(g, 512, Config(BLOCK_K=32, BLOCK_M=16)))
    with policy("lookup"):
        assert g(X, 512, 8) == (32, 16), "a row that keeps to it"


def test_without_it_the_kernel_is_another_one() -> None:
    assert gemm()(X, 64, 8) == (128, 32)
    free = gemm(invariant_over=(), summation=())
    assert [free(X, m, 8)[0] for m in (64, 1)] == [128, 32]


def test_a_family_can_decide_anew() -> None:
    f = gemm()
    assert f(X, 64, 8) == (128, 32)
    f.undecide(X, 64, 8)
    f.tune(X, 1, 8)
    assert f(X, 1, 8) == (32, 16)
    with pytest.warns(TunesmithWarning, match="BLOCK_K"):
        f.lookup(X, 64, 8)
    assert f(X, 64, 8) == (32, 32)
    with pytest.raises(BadInput, match="invariant_over"):
        gemm(invariant_over=(), summation=()).undecide(X, 1, 8)


def test_a_space_without_the_values_is_refused_and_says_what_to_do() -> None:
    def space(problem: Any, device: Any) -> Space:
        return Space(BLOCK_K=[32] if problem["M"] == 1 else [64, 128], BLOCK_M=[16, 32])

    f = gemm(space=space)
    assert f(X, 64, 8) == (128, 32)
    with pytest.raises(BadInput, match=r"BLOCK_K=128.*undecide"):
        f(X, 1, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"invariant_over": ["K"]}, "invariant_over.*'K'.*M"),
        ({"summation": ["BLOCK_N"]}, "summation.*'BLOCK_N'.*BLOCK_K"),
        ({"summation": []}, "give both"),
        ({"invariant_over": "M"}, "one string"),
    ],
)
def test_wrong_names_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        gemm(**options)


def test_threads_that_begin_at_once_agree() -> None:
    f, found = gemm(), dict[int, Any]()
    begin = threading.Barrier(3)

    def call(m: int) -> None:
        begin.wait()
        found[m] = f(X, m, 8)[0]

    threads = [threading.Thread(target=call, args=(m,)) for m in BEST]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found.values())) == 1


PROCESS = """
import time

@autotune(
    space=Space(BLOCK_K=[32, 64, 128]), key=["M"], invariant_over=["M"], summation=["BLOCK_K"], version="1",
    clock=ScriptedClock(lambda config: 1e-3 * (1 + abs(config["BLOCK_K"] - {best}))),
)
def f(x, M, *, BLOCK_K):
    return BLOCK_K

print(f([1.0], {m}))
"""


def test_processes_agree(tmp_path: Path) -> None:
    said = [fresh_process(PROCESS.format(m=m, best=best), tmp_path) for m, best in BEST.items()]
    assert [process.stdout.strip() for process in said] == ["32"] * 3, said[0].stderr


def test_explain_says_who_decided(capsys: pytest.CaptureFixture[str]) -> None:
    f = gemm()
    f.explain(X, 64, 8)
    assert "has decided BLOCK_K yet" in " ".join(capsys.readouterr().out.split())
    f(X, 64, 8)
    f.explain(X, 1, 8)
    assert "BLOCK_K=128 for all M, as M=64,N=8" in " ".join(capsys.readouterr().out.split())
