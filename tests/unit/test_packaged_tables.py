"""Tables that ship inside a package: found for the chip at hand, read when asked for, and useful for near sizes too."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunesmith
from tunesmith import Config, Problem, Space, known_device
from tunesmith.cli import main
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.errors import TunesmithWarning
from tunesmith.kernels import shipped
from tunesmith.store import default_store
from tunesmith.tables import NativeTable, Near, Packaged, Row
from tunesmith.tables.native import Entry
from tunesmith.tables.packaged import file_name

#: what chooses between torch and the shipped kernels on a GPU
CHOOSERS = (
    "tunesmith.ops:gpu", "tunesmith.ops_attention:gpu", "tunesmith.ops_moe:gpu",
    *(f"tunesmith.row_ops:{one}_gpu" for one in ("softmax", "rms_norm", "layer_norm", "add_rms_norm", "silu_and_mul")),
)  # fmt: skip
H200, H100 = known_device("NVIDIA H200"), known_device("NVIDIA H100 80GB HBM3")
SHIPPED = Path(tunesmith.__file__).parent / "kernels" / "tables"


def table_of(rows: dict[str, int], device: str = H200.identity, kernel: str = "mm") -> NativeTable:
    made = {Problem.parse(text): Entry(Config(BLOCK=block), 1e-5) for text, block in rows.items()}
    return NativeTable(kernel, device, made, "f1", "p1")


def ask(table: Any, text: str, device: Any = H200, kernel: str = "mm") -> Row | None:
    problem = Problem.parse(text)
    return table.lookup(Key(kernel, "f1", problem, device.identity, "p1"), problem, device)


def block(row: Row | None) -> object:
    return None if row is None else row.config["BLOCK"]


# --- near sizes ----------------------------------------------------------------------------------------


def test_a_row_serves_its_own_problem_and_near_ones() -> None:
    table = Near(table_of({"M=16,N=4096,act=relu": 1, "M=32,N=4096,act=relu": 2, "M=16,N=4096": 3}), ["M", "N"])
    exact = ask(table, "M=16,N=4096,act=relu")
    assert exact is not None
    assert (exact.distance, exact.median_s) == ("", 1e-5)
    near = ask(table, "M=20,N=4096,act=relu")
    assert near is not None
    assert (block(near), near.distance, near.median_s) == (1, "the nearest row, of M=16,N=4096", None)
    assert block(ask(table, "M=26,N=4096,act=relu")) == 2
    assert block(ask(table, "M=20,N=4096")) == 3
    assert ask(table, "M=16,N=4096,act=silu") is None  # all else has to be the same
    assert ask(table, "M=16") is None
    assert ask(table, "M=16,N=4096", kernel="other") is None
    assert ask(table, "M=16,N=4096", device=H100) is None


def test_what_is_further_than_a_factor_of_two_in_all_is_no_neighbour() -> None:
    table = Near(table_of({"M=100,N=1000": 1}), ["M", "N"])
    for text, found in (
        ("M=200,N=1000", 1), ("M=50,N=1000", 1), ("M=201,N=1000", None), ("M=140,N=1400", 1), ("M=150,N=1400", None),
        ("M=150,N=700", None), ("M=0,N=1000", None),
    ):  # fmt: skip
        assert block(ask(table, text)) == found, text


def test_of_two_equally_near_the_smaller_serves() -> None:
    for order in (("M=8", "M=18"), ("M=18", "M=8")):
        assert block(ask(Near(table_of(dict(zip(order, map(len, order), strict=True))), ["M"]), "M=12")) == len("M=8")


# --- in a package ----------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for tables of a package that can be imported."""
    (tmp_path / "shipping" / "tables").mkdir(parents=True)
    (tmp_path / "shipping" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shipping", raising=False)  # another test's
    importlib.invalidate_caches()
    return tmp_path / "shipping" / "tables"


def test_the_table_of_the_kernel_and_the_chip_is_found(package: Path) -> None:
    tables = Packaged("shipping", "mm")
    table_of({"M=16": 1}).write(package / "mm-NVIDIA_H200.json")  # after it was made: nothing had been read
    table_of({"M=16": 2}, H100.identity).write(package / file_name("mm", H100.name))
    assert (block(ask(tables, "M=16")), block(ask(tables, "M=16", device=H100))) == (1, 2)
    assert ask(tables, "M=17") is None
    assert ask(tables, "M=16", kernel="mm[BLOCK=1]") is None
    assert ask(tables, "M=16", device=known_device("NVIDIA B200")) is None
    assert block(ask(Packaged("shipping", "mm", near=["M"]), "M=17")) == 1
    (package / "mm-NVIDIA_H200.json").unlink()
    assert block(ask(tables, "M=16")) == 1  # it is read once


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": "tunesmith-table/1"}', b"\xff"])
def test_a_table_that_is_not_sound_is_one_warning(package: Path, content: bytes) -> None:
    (package / "mm-NVIDIA_H200.json").write_bytes(content)
    tables = Packaged("shipping", "mm")
    with pytest.warns(TunesmithWarning, match="ships with shipping is not used: .*mm-NVIDIA_H200.json") as heard:
        assert ask(tables, "M=16") is ask(tables, "M=16") is None
    assert len(heard) == 1


def scale(x: Any, n: int, *, BLOCK: int) -> Any:
    return x * BLOCK


def test_a_kernel_uses_it_behind_the_store_and_what_its_user_gives(package: Path) -> None:
    kernel = tunesmith.autotune(space=Space(BLOCK=[1, 2, 3, 4]), key=["n"], policy="lookup")(scale)
    kernel.use_table(Packaged("shipping", "scale", near=["n"]))
    x, chip = np.ones(8), kernel.kernel.device([])
    problem = kernel.key(x, 8).problem.text
    table_of({problem: 2}, chip.identity, "scale").write(package / file_name("scale", chip.name))
    assert kernel(x, 8)[0] == 2
    assert kernel(x, 12)[0] == 2
    assert kernel(x, 17)[0] == 1  # no neighbour: the default
    assert kernel.choice(x, 12).distance == "the nearest row, of n=8"
    kernel.use_table(table_of({problem: 3}, chip.identity, "scale"))
    assert kernel(x, 8)[0] == 3
    default_store().put_choice(kernel.key(x, 8), Choice(Config(BLOCK=4), "search", "search"), {})
    fresh = tunesmith.autotune(space=Space(BLOCK=[1, 2, 3, 4]), key=["n"], policy="lookup")(scale)
    fresh.use_table(Packaged("shipping", "scale"))
    assert fresh(x, 8)[0] == 4


def test_a_neighbour_that_does_not_fit_is_no_warning(package: Path) -> None:
    """The Space depends on the size, so what serves one need not be legal for the next."""
    kernel = tunesmith.autotune(
        space=lambda problem, device: Space(BLOCK=[1, 2] if problem["n"] < 10 else [1, 4]), key=["n"], policy="lookup",
        knobs=["BLOCK"],
    )(scale)  # fmt: skip
    kernel.use_table(Packaged("shipping", "scale", near=["n"]))
    x, chip = np.ones(8), kernel.kernel.device([])
    table_of({kernel.key(x, 8).problem.text: 2}, chip.identity, "scale").write(package / file_name("scale", chip.name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(x, 9)[0] == 2
        assert kernel(x, 12)[0] == 1


@pytest.mark.parametrize("name", sorted(shipped()))
def test_each_shipped_kernel_has_a_place_for_its_table(
    name: str, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Packaged, "_read", lambda self, chip: asked.append(f"{self._kernel} on {chip}"))
    for table in shipped()[name].tables:
        monkeypatch.setattr(table, "_found", {})  # an earlier call may have asked
    key = Key(name, "f1", Problem({"M": 1}), H200.identity, "p1")
    assert [table.lookup(key, key.problem, H200) for table in shipped()[name].tables] == [None]
    assert asked == [f"{name} on NVIDIA H200"]


def test_tables_that_ship_are_sound(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this source, and legal: a change to a kernel needs its tables made anew, or taken out."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    assert main(["guard", "--static", *CHOOSERS, *shipped(), str(SHIPPED)]) == 0, capsys.readouterr().out
    assert "were not checked" not in capsys.readouterr().out


# --- made from a store --------------------------------------------------------------------------------------


def test_a_command_makes_one_of_what_the_store_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, path = default_store(), tmp_path / "made" / "mm.json"
    for size, found in ((16, 1), (32, 2)):
        key = Key("mm", "f1", Problem({"M": size}), H200.identity, "p1")
        store.put_choice(key, Choice(Config(BLOCK=found), "search", "search", 1e-5), {"triton": "3.6.0"})
    assert main(["table", "make", "mm", "--device", "NVIDIA H200", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}: 2 rows, 2 of them from the store\n"
    assert block(ask(NativeTable.read(path), "M=32")) == 2
    before = path.read_bytes()
    assert main(["table", "make", "mm", "--device", H200.identity, "-o", str(path)]) == 0
    assert path.read_bytes() == before
    part = Key("mm", "f1", Problem({"M": 1}), "cuda:NVIDIA H200:sm_90:120", "p1")
    store.put_choice(part, Choice(Config(BLOCK=1), "search", "search"), {})
    for arguments, said in (
        (["mm", "--device", "NVIDIA H200"], "several devices are named 'NVIDIA H200'"),
        (["mn", "--device", "NVIDIA H200"], "unknown kernel 'mn'"),
        (["mm", "--device", "NVIDIA B200"], "unknown device of mm 'NVIDIA B200'"),
    ):
        assert main(["table", "make", *arguments, "-o", str(path)]) == 2
        assert said in capsys.readouterr().err


# --- for serving engines -------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "intermediate"), [(128, 768), (128, 384), (8, 7168), (256, 256)])
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_what_ships_for_engines_is_what_an_export_of_our_table_makes(
    engine: str, experts: int, intermediate: int, tmp_path: Path
) -> None:
    ours = SHIPPED / file_name("fused_moe", "NVIDIA H200")
    asked = ["--layer", f"experts={experts},intermediate={intermediate}", "--where", f"E={experts},N={intermediate}"]
    told = ["--device", "NVIDIA H200", "--triton", "3.6.0", "-o", str(tmp_path)]
    assert main(["table", "export", str(ours), "--to", f"{engine}-moe", *asked, *told]) == 0
    [made] = [path for path in tmp_path.rglob("*.json") if path.is_file()]
    assert made.read_bytes() == (SHIPPED / "engines" / engine / made.relative_to(tmp_path)).read_bytes()


def test_what_ships_for_engines_is_sound() -> None:
    assert main(["table", "check", str(SHIPPED / "engines"), "--device", "NVIDIA H200", "--upto", "8192"]) == 0
