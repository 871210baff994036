"""Which names a grid function reads: what is not plainly a subscript gets everything."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tunesmith.backends.triton.grids import names_read


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


n = 1000
GRIDS: list[tuple[Any, set[str] | None]] = [
    (lambda meta: (n // meta["BLOCK"],), {"BLOCK"}),
    (lambda meta: (cdiv(meta["M"], meta["BM"]) * meta["N"], meta["SPLIT"]), {"M", "BM", "N", "SPLIT"}),
    (lambda META: (-(-META["M"] // META["BM"]) * -(-META["N"] // META["BN"]),), {"M", "BM", "N", "BN"}),
    (lambda meta: (meta["x"].numel() // meta["BLOCK"], 1, 1), {"x", "BLOCK"}),
    (lambda _: (4,), set()),
    (lambda meta: (meta["A"] if meta["B"] > 2 else meta["C"],), {"A", "B", "C"}),
    (lambda meta: (meta.get("BLOCK", 1),), None),
    (lambda meta: (len(meta),), None),
    (lambda meta: (sum(meta[name] for name in ("A", "B")),), None),
    (lambda meta: ((lambda: meta["A"])(),), None),
    (lambda meta: (locals()["meta"]["A"],), None),
    (lambda meta: ("A" in meta,), None),
    (lambda meta: (cdiv(**meta),), None),
    (lambda *meta: (meta[0]["A"],), None),
    (lambda meta, scale=1: (meta["A"] * scale,), None),
    (partial(lambda k, meta: (meta["A"],), 1), None),
    (cdiv, None),
    (dict, None),
]  # fmt: skip


@pytest.mark.parametrize(("grid", "names"), GRIDS)
def test_the_names_a_grid_reads(grid: Any, names: set[str] | None) -> None:
    assert names_read(grid) == names


def test_a_grid_that_assigns_its_parameter_gets_everything() -> None:
    def grid(meta: Any) -> tuple[int]:
        meta = meta["A"]
        return (meta["B"],)

    assert names_read(grid) is None
