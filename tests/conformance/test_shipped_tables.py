"""The tables that ship with tunesmith are sound, and would be called unsound if they were not. No GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.fake_triton import H200

from tunesmith import Config, Problem, TunedKernel, ops, ops_attention, ops_moe
from tunesmith.guard.static import check
from tunesmith.kernels import gemm, shipped
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry
from tunesmith.tables.packaged import FOLDER, file_name

TABLES = Path(str(files("tunesmith.kernels"))) / FOLDER
PROBLEM = "M=2048,N=2048,K=2048,dtype=bfloat16,b.strides=1x"


def kernels() -> list[TunedKernel]:
    kinds = ("cuda", "cpu")
    of_rows = [ops.rows.chooser(operation, kind) for operation in ops.rows.OPERATIONS for kind in kinds]
    others = [made(kind) for made in (ops.chooser, ops_attention.chooser, ops_moe.chooser) for kind in kinds]
    return [*shipped().values(), *of_rows, *others]


def table_of(kernel: TunedKernel, config: Mapping[str, Any], fingerprint: str | None = None) -> NativeTable:
    now = kernel.kernel.fingerprint() + kernel.declared.spec_fingerprint
    rows: dict[Problem, Entry] = {kernel.problem(PROBLEM): Entry(Config(config))}
    return NativeTable(kernel.kernel.name, H200.identity, rows, now if fingerprint is None else fingerprint)


def faults(path: Path) -> list[str]:
    return [f"{one.where}: {one.what}" for one in check(kernels(), [path])[0] if one.fault]


def test_what_ships_is_sound() -> None:
    assert TABLES.is_dir()
    assert faults(TABLES) == []
    for path in TABLES.glob("*.json"):
        table = NativeTable.read(path)
        assert path.name == file_name(table.kernel, table.device.split(":")[1]), "no call would find it"
        assert table.fingerprint
        assert table.kernel in {kernel.kernel.name for kernel in kernels()}


def test_what_is_not_sound_is_a_fault(tmp_path: Path) -> None:
    product = gemm.kernel.problem(PROBLEM)
    good = dict(gemm.default(product, H200))
    illegal = {**good, "TMA": False, "PERSISTENT": True}
    for kernel, more in ((gemm.kernel, {}), (ops.chooser("cuda"), {"by": "gemm"})):
        path = tmp_path / f"{kernel.kernel.name}.json"
        table_of(kernel, {**good, **more}).write(path)
        assert faults(path) == []
        table_of(kernel, {**good, **more}, "another").write(path)
        assert "made for another source (another, now" in faults(path)[0]
        table_of(kernel, {**illegal, **more}).write(path)
        assert "is refused by the kernel's Space" in faults(path)[0]
    for config in ({"by": "torch"}, {"by": "cublasLt", "ALGORITHM": 3}):
        table_of(ops.chooser("cuda"), config).write(path)
        assert faults(path) == []
    table_of(ops.chooser("cuda"), {"by": "cublasLt", "ALGORITHM": 99}).write(path)
    assert "refused" in faults(path)[0]
