"""Of several tables in a folder the call's own is used, or none: never the first one that happens to fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from table_files import BF16, H100, bf16, csv, put
from test_tables_loading import H200, MI300, SHAPE, ask, block_m, kernel_of, ladder_of

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.tables import NativeTable, load
from tunesmith.tables.native import Entry

HEAD = "E=8,N=8,device_name=NVIDIA_H200"


def folder_of_kinds(folder: Path) -> Path:
    kinds = {"": 16, ",dtype=fp8_w8a8": 32, ",dtype=fp8_w8a8,block_shape=[128, 128]": 64, "_down": 128}
    for kind, size in kinds.items():
        put(folder, f"{HEAD}{kind}.json", ladder_of(size))
    return folder


def test_tables_of_other_dtypes_are_not_taken_for_one_another(tmp_path: Path):
    table = load(folder_of_kinds(tmp_path))
    with pytest.warns(TunesmithWarning, match="3 tables are for such a call") as caught:
        assert [ask(table, f"E=8,N=8,M={m}") for m in (16, 32, 64, 128)] == [None] * 4
    assert len(caught) == 1
    assert "say which with given=" in table.explain(Problem.parse("E=8,N=8,M=16"), H200)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"dtype": "bfloat16"}, 16), ({"dtype": ""}, 16), ({"dtype": "fp8_w8a8", "block_shape": ""}, 32),
        ({"block_shape": "[128,128]"}, 64), ({"dtype": "bfloat16", "down": True}, 128), ({"dtype": "int4_w4a16"}, None),
    ],
)  # fmt: skip
def test_what_is_given_says_which(tmp_path: Path, given: dict[str, object], size: int | None):
    table = load(folder_of_kinds(tmp_path), given=given)  # type: ignore[arg-type]
    found = {m: block_m(ask(table, f"E=8,N=8,M={m}")) for m in (16, 32, 64, 128)}
    near = {} if size is None else {m: size for m in found if size / 2 <= m <= size * 2}
    assert found == {m: near.get(m) for m in found}


def test_a_table_for_one_kind_is_not_given_to_another(tmp_path: Path):
    bf = put(tmp_path, f"{HEAD}.json", ladder_of(16))
    assert ask(load(bf, given={"dtype": "fp8_w8a8"}), "E=8,N=8,M=16") is None
    assert ask(load(bf, given={"per_channel_quant": True}), "E=8,N=8,M=16") is None
    assert block_m(ask(load(bf, given={"per_channel_quant": False}), "E=8,N=8,M=16")) == 16


def test_aiters_table_for_one_size_comes_before_that_for_all(tmp_path: Path):
    of = {"DEFAULT.json": 1, "GEMM-A16W16-N=8-K=8.json": 2}
    for name, value in of.items():
        put(tmp_path, f"gemm_a16w16/{name}", json.dumps({"any": {"BLOCK_SIZE_M": value}}).encode())
    table = load(tmp_path)
    assert block_m(ask(table, "M=1,N=8,K=8", MI300)) == 2
    assert block_m(ask(table, "M=1,N=9,K=8", MI300)) == 1
    said = table.explain(Problem.parse("M=1,N=8,K=8"), MI300)  # type: ignore[attr-defined]
    assert said.endswith("GEMM-A16W16-N=8-K=8.json: M=1 → any")
    put(tmp_path, "gemm_a8w8/GEMM-A8W8-N=8-K=8.json", b'{"any": {"BLOCK_SIZE_M": 3}}')
    with pytest.warns(TunesmithWarning, match="2 tables are for such a call"):
        assert ask(load(tmp_path), "M=1,N=8,K=8", MI300) is None
    assert block_m(ask(load(tmp_path, given={"kernel": "gemm_a8w8"}), "M=1,N=8,K=8", MI300)) == 3


def test_csv_tables_of_other_kernels_are_not_taken_for_one_another(tmp_path: Path):
    put(tmp_path, "a_a8w8_tuned_gemm.csv", csv("gfx,cu_num,M,N,K,us,kernelName", "gfx942,304,16,896,4096,1.0,a8w8"))
    assert kernel_of(ask(load(tmp_path), f"M=16,{SHAPE}", MI300)) == "a8w8"
    put(tmp_path, "bf16_tuned_gemm.csv", csv(BF16, bf16(16, 7.9)))
    with pytest.warns(TunesmithWarning, match="2 tables are for such a call"):
        assert ask(load(tmp_path), f"M=16,{SHAPE}", MI300) is None


def test_devices_are_found_as_each_format_spells_them(tmp_path: Path):
    rows = {"1": {"1": {"64": {"8": {"8": {"1": {"BLOCK_M": 16}}}}}}}
    lora = load(put(tmp_path, "NVIDIA_A100_SXM4_80GB_SHRINK.json", json.dumps(rows).encode()), size="m")
    of = "max_loras=1,num_slices=1,m=64,k=8,n=8,i=1"
    assert ask(lora, of, Device("cuda", "NVIDIA A100-SXM4-80GB", "sm_80", 108)) is not None
    assert ask(lora, of, Device("cuda", "NVIDIA A100-SXM4-40GB", "sm_80", 108)) is None
    helion = load(put(tmp_path, "silu/nvidia_h100.json", b'[{"key": {"n": 64}, "config": {"a": 1}}]'))
    assert ask(helion, "n=64", Device("cuda", H100.replace("_", " "), "sm_90", 132)) is not None
    assert ask(helion, "n=64", Device("cuda", "NVIDIA H100 PCIe", "sm_90", 132)) is None
    assert ask(helion, "n=64", H200) is None


def test_a_rule_that_is_asked_for_is_used(tmp_path: Path):
    path = put(tmp_path, f"{HEAD}.json", ladder_of(64))
    served = {
        rule: [block_m(ask(load(path, rule=rule), f"E=8,N=8,M={m}")) for m in (63, 64, 65)]
        for rule in ("exact", "floor", "ceil", "pow2", "nearest")
    }
    assert served == {
        "exact": [None, 64, None], "floor": [None, 64, 64], "ceil": [64, 64, None], "pow2": [64, 64, None],
        "nearest": [64, 64, 64],
    }  # fmt: skip


def test_a_table_of_ours_is_exact_in_a_folder_too(tmp_path: Path):
    table = NativeTable("moe", H200.identity, {Problem({"tokens": 64}): Entry(Config(a=1))})
    table.write(tmp_path / "a.json")
    head = json.loads(table.data())
    late = {"rows": head.pop("rows"), "soft": {"x": "y" * 300}, **head}
    put(tmp_path, "late/a.json", json.dumps(late).encode())
    put(tmp_path, f"both/{HEAD}.json", ladder_of(64))
    table.write(tmp_path / "both" / "z.json")
    for path in (tmp_path / "a.json", tmp_path / "late" / "a.json", tmp_path / "late", tmp_path / "both"):
        assert ask(load(path), "tokens=64") is not None, path
        assert ask(load(path), "tokens=65") is None, path
        assert ask(load(path), "tokens=64,x=1") is None, path
    assert block_m(ask(load(tmp_path / "both"), "E=8,N=8,M=64")) == 64


def test_trees_of_versions_side_by_side_keep_their_tables_apart(tmp_path: Path):
    for i, tree in enumerate(("a", "b")):
        put(tmp_path, f"{tree}/triton_3_5_1/E={18 + i},N=8,device_name=NVIDIA_H200.json", ladder_of(8))
        put(tmp_path, f"{tree}/triton_3_5_1/{HEAD}.json", ladder_of(16 * (i + 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = load(tmp_path, triton="3.5.1")
    assert len(table.sheets) == 4  # type: ignore[attr-defined]


def test_a_path_that_cannot_be_asked_for_is_bad_input(tmp_path: Path):
    with pytest.raises(BadInput, match="cannot be read: File name too long"):
        load(tmp_path / ("x" * 300 + ".json"))
