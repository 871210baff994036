"""The worked example of "Add a kernel language" is complete: it passes the suite, tunes, and is what the page shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

for package in ("numba", "numpy"):
    pytest.importorskip(package, reason=f"needs {package}: pip install numba", exc_type=ImportError)

import numpy as np  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith import Config  # noqa: E402
from tunesmith.conformance import KernelConformance  # noqa: E402
from tunesmith.kernel import Kernel  # noqa: E402

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from numba_language import NumbaKernel  # noqa: E402

TILE = 16


def transpose(x, y, n):
    for i in range(0, n, TILE):
        for j in range(0, n, TILE):
            for a in range(i, min(i + TILE, n)):
                for b in range(j, min(j + TILE, n)):
                    y[b, a] = x[a, b]


def with_one_constant_changed():
    def transpose(x, y, n):
        for i in range(1, n, TILE):
            y[i, i] = x[i, i]

    return transpose


def commented():
    def transpose(x, y, n):
        # what it does
        for i in range(0, n, TILE):
            for j in range(0, n, TILE):
                for a in range(i, min(i + TILE, n)):  # a row
                    for b in range(j, min(j + TILE, n)):
                        y[b, a] = x[a, b]

    return transpose


class TestNumba(KernelConformance):
    def kernel(self) -> NumbaKernel:
        return NumbaKernel(transpose, ("TILE",))

    def changed(self) -> Kernel:
        return NumbaKernel(with_one_constant_changed(), ("TILE",))

    def commented(self) -> Kernel:
        return NumbaKernel(commented(), ("TILE",))

    def configs(self) -> list[Config]:
        return [Config(TILE=tile, fastmath=fast) for tile in (4, 64) for fast in (True, False)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(TILE=4, fastmath=1), "True, False")]

    def failing(self) -> tuple[Kernel, Config, str]:
        return self.kernel(), Config(TILE="wide"), "range"

    def args(self) -> list[Any]:
        return [np.arange(100.0).reshape(10, 10), np.empty((10, 10)), 10]

    def check(self, args: list[Any], result: Any) -> None:
        np.testing.assert_array_equal(args[1], args[0].T)


def test_it_is_tuned_like_any_other() -> None:
    tuned = tunesmith.autotune(space=tunesmith.Space(TILE=[1, 8, 64]), key=["n"])(NumbaKernel(transpose, ("TILE",)))
    x = np.arange(128.0 * 128).reshape(128, 128)
    y = np.empty_like(x)
    tuned(x, y, 128)
    np.testing.assert_array_equal(y, x.T)
    assert tuned.choice(x, y, 128).config["TILE"] in (1, 8, 64)
    assert tuned.choice(x, y, 128).source == "search"


def test_the_page_shows_the_whole_of_it() -> None:
    text = (ROOT / "examples" / "numba_language.py").read_text()
    assert text in (ROOT / "docs" / "add-a-language.md").read_text()
    assert len(text.splitlines()) < 80
