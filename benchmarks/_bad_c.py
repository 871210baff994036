"""A C kernel whose candidates are honest, or bad in one way each: what `bad_candidates` tunes on the CPU."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

import tunesmith
from tunesmith import Config, Device, Problem, Space
from tunesmith.backends import cc

#: ways to be bad → the stages at which that may be found
BAD: Mapping[str, tuple[str, ...]] = {
    "past_end": ("crash",),
    "past_end_by_one": ("wrong",),
    "aborts": ("crash",),
    "hangs": ("timeout",),
    "allocates": ("crash", "timeout"),  # whichever limit it meets first
    "one_row_wrong": ("wrong",),
    "nan": ("wrong",),
    "half": ("wrong",),
    "exits": ("crash",),
    "prints": ("launch", "timeout"),
    "leaves_child": ("launch",),
}
HONEST = "honest"

SOURCE = (
    r"""
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { honest, """
    + ", ".join(BAD)
    + r""" };
#ifndef HOW
#define HOW honest
#endif
#ifndef PASSES
#define PASSES 1
#endif
void twice(const float *x, float *y, int64_t rows, int64_t n, int64_t mix) {
    int64_t all = rows * n, written = HOW == half ? all / 2 : all;
    if (HOW == past_end) for (int64_t i = 0; i < 1 << 20; i++) y[all + i] = 1.0f;
    if (HOW == past_end_by_one) y[all] = 1.0f;
    if (HOW == aborts) abort();
    if (HOW == hangs) for (volatile int i = 0;; i = 0);
    if (HOW == allocates) for (int i = 0; i < 100; i++) { /* 100 GB */
        char *p = malloc(1L << 30);
        memset(p, 1, 1L << 30);
        *(volatile char *)p;
    }
    if (HOW == exits) exit(0);
    if (HOW == prints) for (int i = 0; i < 100000; i++) printf("%d: a line of a candidate that prints\n", i);
    if (HOW == leaves_child && fork() == 0) { setsid(); sleep(600); _exit(0); }
    for (volatile int pass = 0; pass < PASSES; pass++) /* an honest candidate is slower the more of them it makes */
        for (int64_t i = 0; i < written; i++) y[i] = 2.0f * x[i];
    if (HOW == one_row_wrong) for (int64_t i = 0; i < n; i++) y[(rows / 2) * n + i] *= 1.01f;
    if (HOW == nan_) y[all / 3] = NAN;
}
"""
).replace("nan,", "nan_,")


def mixture(mix: int) -> list[Config]:
    """The candidates of one mix: three honest ones, and one to three bad ones, which do the least work."""
    draw, ways = random.Random(mix), list(BAD)
    first = ways.pop(mix % len(ways))
    bad = [Config(HOW=_spelled(how), PASSES=1) for how in (first, *draw.sample(ways, draw.randint(0, 2)))]
    candidates = [Config(HOW=HONEST, PASSES=passes) for passes in (4, 8, 16)] + bad
    draw.shuffle(candidates)
    return candidates


def _spelled(how: str) -> str:
    return "nan_" if how == "nan" else how  # math.h has a function of that name


def how_of(config: Config) -> str:
    """In which way a candidate is bad, or `honest`."""
    return str(config["HOW"]).rstrip("_")


def space(problem: Problem, device: Device) -> Space:
    """One mix's candidates."""
    return Space.of(mixture(problem.dims["mix"]))


def default(problem: Problem, device: Device) -> Config:
    """The slowest honest one."""
    return Config(HOW=HONEST, PASSES=16)


def make_inputs(problem: Problem) -> dict[str, Any]:
    """x of normal values, y of a value that is never right."""
    rows, n, mix = (problem.dims[name] for name in ("rows", "n", "mix"))
    x = np.random.default_rng(mix).standard_normal((rows, n), dtype=np.float32)
    return {"x": x, "y": np.full((rows, n), 7e7, np.float32), "rows": rows, "n": n, "mix": mix}


def reference(x: Any, **_: Any) -> dict[str, Any]:
    """y in float64."""
    return {"y": 2.0 * x.astype(np.float64)}


twice = tunesmith.autotune(
    space=space, default=default, key=["rows", "n", "mix"], make_inputs=make_inputs, reference=reference, isolate=True
)(cc.kernel(SOURCE, shapes={"x": ("rows", "n"), "y": ("rows", "n")}))
