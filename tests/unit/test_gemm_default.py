"""The shipped product's default against what searches of 72 products measured on an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tunesmith import Config, Problem, known_device
from tunesmith.core.stats import geometric_mean
from tunesmith.kernels.gemm import default

FILE = Path(__file__).parents[1] / "data" / "products_h200.json.gz"


def losses(few_rows: bool) -> list[float]:
    """How many times as long as the fastest, of the defaults that were measured (all but a few)."""
    found: list[float] = []
    products: list[dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))["products"]
    for product in products:
        problem, times = Problem(product["problem"]), product["microseconds"]
        if (int(product["problem"]["M"]) <= 64) == few_rows:
            chosen = default(problem, known_device("NVIDIA H200"))
            found += [us / times[0][1] for config, us in times if Config(config) == chosen]
    return found


def test_a_default_is_near_the_fastest_for_few_rows_and_for_many() -> None:
    few, many = losses(few_rows=True), losses(few_rows=False)
    assert len(few) >= 40
    assert len(many) >= 20
    assert geometric_mean(few) < 1.06
    assert geometric_mean(many) < 1.06
    assert max(few + many) < 1.35
