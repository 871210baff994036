"""Whatever clocks say, what a kernel computes is right: real launches, real clocks, answers turned around."""

import random
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.untrue_clock import WAYS, UntrueClock

import tunesmith
from tunesmith import Config, Failed, Space, autotune
from tunesmith.measure.clock import WallClock

SCALE = r"""
#include <stdint.h>
#ifndef WIDTH
#define WIDTH 8
#endif
/* y = a * x */
void scale(const float *x, float *restrict y, float a, int64_t n) {
    for (int64_t block = 0; block < n; block += WIDTH)
        for (int64_t i = block; i < n && i < block + WIDTH; i++) y[i] = a * x[i];
}
"""
SWEEP = r"""
#include <stdint.h>
#ifndef WIDTH
#define WIDTH 8
#endif
/* x += 1, in place; total += the number of blocks */
void sweep(float *x, int64_t *total, int64_t n) {
    for (int64_t block = 0; block < n; block += WIDTH) {
        total[0] += 1;
        for (int64_t i = block; i < n && i < block + WIDTH; i++) x[i] += 1;
    }
}
"""
WIDTHS = [8, 64, 512]


@pytest.fixture(params=sorted(WAYS))
def clock(request: pytest.FixtureRequest) -> UntrueClock:
    return UntrueClock(WallClock(), request.param, random.Random(0))


def test_a_c_kernel_is_right_on_every_call_and_every_track(clock: UntrueClock) -> None:
    scale = autotune(space=Space(WIDTH=WIDTHS, opt_level=["O1", "O3"]), key=["n"], clock=clock)(
        tunesmith.cc.kernel(SCALE, shapes={"x": ("n",), "y": ("n",)})
    )
    for track in ("search", "lookup", "default"):
        for n in (1, 100, 1000):
            x, y = np.arange(n, dtype=np.float32), np.full(n, -1, np.float32)
            with tunesmith.policy(track):  # type: ignore[arg-type]
                scale(x, y, 3.0, n)
                assert (y == 3 * x).all()


def test_what_is_written_in_place_is_written_once_by_the_call_that_searches(clock: UntrueClock) -> None:
    kernel = tunesmith.cc.kernel(SWEEP, shapes={"x": ("n",), "total": (1,)})
    sweep = autotune(space=Space(WIDTH=WIDTHS), key=["n"], clock=clock, restore_value=["x", "total"])(kernel)
    x, total = np.zeros(1000, np.float32), np.zeros(1, np.int64)
    for calls in range(1, 4):
        sweep(x, total, 1000)
        assert (x == calls).all()
    width = sweep.choice(x, total, 1000).config["WIDTH"]
    assert total[0] == 3 * -(-1000 // width)  # type: ignore[operator]


def test_a_candidate_that_fails_never_wins_however_fast_it_seems(clock: UntrueClock) -> None:
    launched = count()

    def body(x: Any, *, c: int) -> int:
        if c == 2 or (c == 1 and next(launched) > 5):  # at once, and in the middle of its race
            raise RuntimeError(f"c={c}")
        return int(x.sum()) + 0 * c

    f = autotune(configs=[Config(c=c) for c in (2, 1, 0)], clock=clock, version="1")(body)
    assert [f(np.ones(5)) for _ in range(3)] == [5, 5, 5]
    key, choice, trials = f.explanation(np.ones(5))
    assert choice.config == Config(c=0), key
    assert {t.config["c"] for t in trials if isinstance(t.outcome, Failed)} == {1, 2}


@pytest.mark.parametrize("strategy", ["descent", "random", "surrogate", "evolution"])
def test_every_strategy_comes_to_an_end(clock: UntrueClock, strategy: str) -> None:
    def body(x: Any, *, a: int, b: int) -> Any:
        return np.concatenate([x[:a] * 2, x[a:] * 2])

    space = Space(a=[1, 2, 4, 8], b=[1, 2, 3, 4])
    f = autotune(space=space, clock=clock, strategy=strategy, candidates=10, version="1")(body)
    assert (f(np.ones(10)) == 2).all()
