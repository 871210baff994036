"""`tunesmith table check`: what is wrong in tables, and nothing where nothing is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from table_files import BF16, BLOCKSCALE, FMOE, H100, KNOBS, bf16, blockscale, csv, fmoe, ladder, put

from tunesmith.errors import BadInput
from tunesmith.tables.check import Options, check
from tunesmith.tables.resources import needs
from tunesmith.tables.sheet import Finding

GRID = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]


def findings(*paths: Path, **options) -> list[Finding]:
    return check(paths, Options(**options)).findings


def codes(found: Iterable[Finding]) -> set[str]:
    return {finding.code for finding in found}


def one(tmp_path: Path, name: str, data: bytes, **options) -> list[Finding]:
    return findings(put(tmp_path, name, data), **options)


# --- names --------------------------------------------------------------------------------------------


def test_good_tables_have_no_findings(tmp_path: Path):
    put(
        tmp_path,
        "configs/triton_3_6_0/E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json",
        ladder(GRID),
    )
    put(
        tmp_path,
        "vllm/E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ladder(GRID, triton_version="3"),
    )
    put(tmp_path, "vllm/N=512,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json", ladder(GRID))
    put(tmp_path, "vllm/headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float16.json", ladder(GRID))
    put(tmp_path, "aiter/bf16_tuned_gemm.csv", csv(BF16, bf16(16, 7.9), bf16(16, 21.3, units=80), bf16(32, 8.0)))
    put(tmp_path, "aiter/tuned_fmoe.csv", csv(FMOE, fmoe(32), fmoe(64)))
    report = check([tmp_path], Options())
    assert report.findings == []
    assert (report.files, report.errors) == (6, 0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vllm/E=128,N=768,device_name=Radeon_8060S_Graphics,dtype=int4_w4a16.json", "called AMD_Radeon_8060S now"),
        ("triton_3_4_0/E=384,N=128,device_name=,dtype=int4_w4a16.json", "device is empty"),
        ("triton_3_4_0/E=384,N=128,device_name=,dtype=int4_w4a16_down.json", "device is empty"),
        (f"vllm/E=16,N=3072,device_name={H100},dtype=float8.json", "no dtype=float8"),
        (f"vllm/E=64,N=8960,device_name={H100},dtype=bf16.json", "no dtype=bf16"),
        ("vllm/E=256,N=128,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a8.json", "no dtype=int8_w8a8"),
        ("vllm/E=256,N=1024,device_name=AMD_Instinct_MI325X,block_shape=[128,128].json", "without dtype"),
        ("triton_3_1_0/E=256,N=128,device_name=NVIDIA_H20,block_shape=[128, 128].json", "without dtype"),
        ("vllm/E=16,N=1024,device_name=NVIDIA_H100.json", "public drivers report no NVIDIA_H100"),
        ("vllm/E=8,N=512,device_name=NVIDIA_H200_NVL.json", "asks for NVIDIA_H200"),
        ("triton_3_6_0/E=8,N=512,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json", "with a blank"),
    ],
)  # fmt: skip
def test_names_that_nothing_looks_for(tmp_path: Path, name: str, why: str):
    found = one(tmp_path, name, ladder(GRID))
    assert [(f.code, f.severity) for f in found] == [("unreachable", "error")]
    assert why in found[0].message


def test_an_exporter_that_names_logical_sizes_is_caught_by_the_rule_of_the_reader():
    from tunesmith.tables.names import Layer, of_layer

    layer = Layer(384, 2048, 8, "int4_w4a16")
    tuner = of_layer("sglang", Layer(384, 4096, 8, "int4_w4a16"), "NVIDIA H200")  # as one that does not halve N
    assert of_layer("sglang", layer, "NVIDIA H200") != tuner
    assert "N=128," in of_layer("sglang", layer, "NVIDIA H200")
    assert "N=256," in of_layer("vllm", layer, "NVIDIA H200")


@pytest.mark.parametrize("folder", ["triton_3_7_0rc1", "triton_3_6_0+git1234"])
def test_a_folder_that_ends_the_reader(tmp_path: Path, folder: str):
    put(tmp_path, f"{folder}/E=8,N=512,device_name=NVIDIA_H200.json", ladder(GRID))
    assert "folder" in codes(findings(tmp_path))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("triton_3_6_0/E=8,N=512,device_name=NVIDIA_H200.json", "head"),
        ("vllm/N=512,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128,128].json", "head"),
        ("vllm/E=384,N=512,device_name=AMD_Instinct_MI355X,dtype=int4_w4a16,backend=flydsl.json", "head"),
    ],
)
def test_a_head_that_the_reader_takes_for_a_size(tmp_path: Path, name: str, code: str):
    found = one(tmp_path, name, ladder(GRID, triton_version="3.6.0"))
    assert [(f.code, f.line) for f in found] == [(code, 2)]


@pytest.mark.parametrize(
    ("device", "hint"),
    [("NVIDIA_H20O", "did you mean NVIDIA_H20"), ("NVIDIA_H999", "did you mean"), ("FOO", "a new one, or a slip")],
)
def test_a_device_of_no_list_is_a_warning_as_there_are_new_ones(tmp_path: Path, device: str, hint: str):
    found = one(tmp_path, f"vllm/E=8,N=512,device_name={device}.json", ladder(GRID))
    assert [(f.code, f.severity) for f in found] == [("unreachable", "warning")]
    assert f"{device} is in no list of chips" in found[0].message
    assert hint in found[0].message


@pytest.mark.parametrize("device", ["NVIDIA_H200_MIG_1g.18gb", "AMD_Instinct_MI300X", "NVIDIA_H100_80GB_HBM3"])
def test_chips_of_some_list_and_their_slices_are_known(device: str):
    from tunesmith.tables.devices import is_known

    assert is_known(device)


# --- content ----------------------------------------------------------------------------------------


def test_a_broken_or_empty_table_is_an_error_with_its_line(tmp_path: Path):
    name = "triton_3_6_0/E=8,N=512,device_name=NVIDIA_H200.json"
    assert codes(one(tmp_path, name, b'{"1": {"BLOCK_SIZE_M": 16},')) == {"unreadable"}
    assert codes(one(tmp_path, name, b"{}")) == {"empty"}
    assert codes(one(tmp_path, "bf16_tuned_gemm.csv", csv(BF16))) == {"empty"}
    assert codes(one(tmp_path, name, ladder({**dict.fromkeys(GRID, KNOBS), "1.0": KNOBS}))) == {"key"}
    conflict = b"<<<<<<< ours\n" + ladder(GRID) + b">>>>>>> theirs\n"
    assert "conflict marks" in one(tmp_path, name, conflict)[0].message
    with pytest.raises(BadInput, match="there is no"):
        findings(tmp_path / "nowhere")


def test_tables_that_serve_sizes_they_were_not_made_for(tmp_path: Path):
    found = one(tmp_path, f"vllm/E=512,N=128,device_name={H100}.json", ladder([96, 128, 1024]))
    assert [(f.code, f.severity) for f in found] == [("range", "warning")]
    assert "1…95 run with it" in found[0].message
    assert codes(one(tmp_path, f"vllm/E=512,N=64,device_name={H100}.json", ladder([1, 2]))) == {"range"}
    unsorted = one(tmp_path, f"triton_3_1_0/E=16,N=6400,device_name={H100}.json", ladder([1, 4096, 16]))
    assert codes(unsorted) == {"order"}


def test_the_down_projection_must_share_the_tile_of_the_up_projection(tmp_path: Path):
    up = put(tmp_path, "triton_3_6_0/E=8,N=512,device_name=NVIDIA_H200.json", ladder(GRID))
    down = up.with_name(up.name.replace(".json", "_down.json"))
    down.write_bytes(ladder({**dict.fromkeys(GRID, KNOBS), 64: {**KNOBS, "BLOCK_SIZE_M": 64}}))
    found = findings(tmp_path)
    assert codes(found) == {"down"}
    assert "is 64 for size 57, that of the up projection's table 16" in found[0].message
    down.write_bytes(ladder([1, 8192]))
    assert findings(tmp_path) == []


def test_copies_under_names_of_other_chips(tmp_path: Path):
    for chip in ("NVIDIA_H20", "NVIDIA_H20-3e", "AMD_Instinct_MI325X", "AMD_Instinct_MI325_OAM"):
        data = ladder(GRID) if chip.startswith("NV") else ladder([*GRID, 8192])
        put(tmp_path, f"vllm/E=8,N=512,device_name={chip}.json", data)
    found = findings(tmp_path)
    assert [f.code for f in found] == ["copy"]
    assert "NVIDIA_H20, NVIDIA_H20-3e" in found[0].message


def test_tiles_against_the_quantisation(tmp_path: Path):
    wide = {64: {**KNOBS, "BLOCK_SIZE_K": 256}}
    name = "E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape="
    found = one(tmp_path, f"triton_3_6_0/{name}[128, 128].json", ladder({**dict.fromkeys(GRID, KNOBS), **wide}))
    assert [(f.code, f.severity, f.line) for f in found] == [("block", "error", 66)]
    assert "BLOCK_SIZE_K=256" in found[0].message
    assert one(tmp_path, f"vllm/{name}[128,128].json", ladder({**dict.fromkeys(GRID, KNOBS), **wide})) == []
    small = ladder({size: {**KNOBS, "BLOCK_SIZE_K": 64} for size in GRID})
    assert codes(one(tmp_path, f"triton_3_6_0/{name}[32, 32].json", small)) == {"block"}


def test_values_that_no_kernel_takes(tmp_path: Path):
    rows = {
        **dict.fromkeys(GRID, KNOBS),
        1: {**KNOBS, "BLOCK_SIZE_M": 48},
        2: {**KNOBS, "num_warps": 64},
        4: {**KNOBS, "num_warps": "4"},
    }
    found = one(tmp_path, f"vllm/E=8,N=512,device_name={H100}.json", ladder(rows))
    assert [(f.code, f.message.partition(":")[0]) for f in found] == [
        ("value", "row 1"),
        ("threads", "row 2"),
        ("value", "row 4"),
    ]


def test_no_stages_are_what_tables_of_older_compilers_for_amd_say(tmp_path: Path):
    rows = ladder({size: {**KNOBS, "num_stages": 0} for size in GRID})
    assert one(tmp_path, "vllm/E=8,N=512,device_name=AMD_Instinct_MI300X.json", rows) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_warps": 6}, "num_warps=6 is no power of two"),
        ({"num_warps": 64}, "num_warps=64: a block has at most 32"),
        ({"num_stages": 0}, "num_stages=0 is no integer from 1 on"),
    ],
)
def test_options_that_triton_takes_for_no_kernel(tmp_path: Path, options: dict[str, int], said: str):
    timed = [{"kwargs": {"BLOCK": 48}, "num_warps": 4, "num_stages": 3, **options}, [1.0, 0.9, 1.1]]
    data = json.dumps({"key": [1], "configs_timings": [timed]}).encode()
    found = one(tmp_path, "scale.autotune.json", data)
    assert [(f.code, f.severity) for f in found] == [("value", "error")]
    assert said in found[0].message


def test_knobs_of_a_table_for_aiters_triton_kernels(tmp_path: Path):
    data = json.dumps({"any": {**KNOBS, "BLOCK_SIZE_M": 48}, "M_LEQ_64": {**KNOBS, "num_stages": 0}}).encode()
    found = one(tmp_path, "gfx950-GEMM-A16W16.json", data)
    assert [f.message for f in found if f.code == "value"] == [
        "row any: BLOCK_SIZE_M=48 is no power of two (below 2^30)"
    ]


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        ({"GROUP_SIZE_M": 0}, "value", "GROUP_SIZE_M=0 is no integer from 1 on"),
        ({"num_stages": -1}, "value", "num_stages=-1 is no integer from 1 on"),
        ({"num_stages": 0}, "value", "num_stages=0 is no integer from 1 on"),
        ({"num_warps": 3}, "value", "num_warps=3 is no power of two"),
        ({"BLOCK_SIZE_N": -64}, "value", "BLOCK_SIZE_N=-64 is no power of two"),
        ({"num_stages": "3"}, "value", "num_stages='3'"),
        ({"num_warp": 4}, "knob", "did you mean 'num_warps'?"),
        ({"BLOCK_SIZE_K": None}, "knob", "BLOCK_SIZE_K is missing"),
        ({"GROUP_SIZE_M": None}, "knob", "GROUP_SIZE_M is missing"),
        ({"num_stages": 40, "BLOCK_SIZE_N": 128}, "shared-memory", "NVIDIA_H200 has 232448"),
        ({"BLOCK_SIZE_M": 1024, "BLOCK_SIZE_K": 16, "num_stages": 1}, "registers", "512 registers of a thread"),
    ],
)
def test_a_slip_of_the_hand_in_a_table_of_the_very_chip(tmp_path: Path, wrong: dict[str, object], code: str, said: str):
    row = {knob: value for knob, value in {**KNOBS, **wrong}.items() if value is not None}
    found = one(tmp_path, "vllm/E=8,N=512,device_name=NVIDIA_H200.json", ladder({**dict.fromkeys(GRID, KNOBS), 8: row}))
    assert [(f.code, f.message.partition(":")[0]) for f in found] == [(code, "row 8")]
    assert said in found[0].message


def test_what_ran_where_it_was_tuned_is_no_fault_for_an_estimate(tmp_path: Path):
    deep = {**KNOBS, "BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256, "num_stages": 4}
    path = put(tmp_path, f"vllm/E=8,N=512,device_name={H100}.json", ladder({**dict.fromkeys(GRID, KNOBS), 8: deep}))
    assert findings(path) == []  # 1.9 times what the chip has, by the least estimate, and shipped
    assert codes(findings(path, device="NVIDIA_H200")) == {"shared-memory"}


def test_rows_that_cannot_run_on_another_chip(tmp_path: Path):
    big = {**KNOBS, "BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "num_stages": 4, "num_warps": 8}
    assert [needs({**big, "num_stages": n}, "fp8_w8a8").shared_bytes for n in (4, 3)] == [131072, 98304]  # type: ignore[union-attr]
    rows = {**dict.fromkeys(GRID, KNOBS), 2048: big, 4096: {**big, "num_stages": 3}}
    path = put(tmp_path, f"vllm/E=8,N=512,device_name={H100},dtype=fp8_w8a8.json", ladder(rows))
    found = findings(path, device="NVIDIA_L40S")
    assert [(f.code, f.message.partition(":")[0]) for f in found] == [("shared-memory", "row 2048")]
    assert "131072" in found[0].message
    assert "101376" in found[0].message
    assert findings(path) == [], "on the chip it was tuned on it ran"
    assert findings(path, device="NVIDIA_H200") == []


# --- CSV --------------------------------------------------------------------------------------------


def test_times_that_are_none_and_results_that_were_wrong(tmp_path: Path):
    rows = [
        bf16(16, 7.9),
        bf16(32, 0),
        bf16(48, "inf"),
        bf16(64, "nan"),
        bf16(80, 9.0, error=0.6),
        bf16(96, -1),
        bf16(112, 9, error="60.0%"),
    ]
    found = one(tmp_path, "x_bf16_tuned_gemm.csv", csv(BF16, *rows))
    assert [(f.line, f.code) for f in found] == [
        (3, "time"),
        (4, "time"),
        (5, "time"),
        (6, "wrong"),
        (7, "time"),
        (8, "wrong"),
    ]


def test_derived_columns_that_do_not_fit_the_time(tmp_path: Path):
    good = "gfx950,256,16,512,7168,ck,8,2,10.79,k,10.88,1.0,0.0"
    wrong, none = (
        good.replace("10.88", "108.82").replace(",16,", ",32,"),
        good.replace("10.88", "0.0").replace(",16,", ",64,"),
    )
    absurd = "gfx950,256,8192,8192,8192,ck,8,2,1.0,k,1099511.63,1.0,0.0"
    found = one(tmp_path, "a8w8_blockscale_tuned_gemm.csv", csv(BLOCKSCALE, good, wrong, none, absurd))
    assert [(f.line, f.code) for f in found] == [(3, "derived"), (4, "derived"), (5, "derived")]
    assert "no chip does that" in found[2].message


def test_rows_that_are_too_short_are_named_and_never_shifted(tmp_path: Path):
    header = FMOE
    whole = fmoe(64).split(",")
    without_flat = [cell for i, cell in enumerate(whole) if i != header.split(",").index("flat")]
    path = put(tmp_path, "dsv4_fp8fp4_tuned_fmoe.csv", csv(header, fmoe(32), ",".join(without_flat)))
    found = findings(path)
    assert [(f.code, f.severity, f.line) for f in found] == [("ragged", "error", 3)]
    tagged = csv(header + ",_tag", fmoe(32) + ",", fmoe(64))
    found = one(tmp_path, "glm5_fp4_tuned_fmoe.csv", tagged)
    assert [(f.code, f.severity, f.line) for f in found] == [("ragged", "warning", 3)]
    extra = csv(BLOCKSCALE, blockscale(16) + ",")
    assert one(tmp_path, "a8w8_blockscale_tuned_gemm.csv", extra) == []
    last = csv(BF16, bf16(16, 7.9).rpartition(",")[0], bf16(32, 7.9).replace(",0.0,", ",", 1))
    found = one(tmp_path, "bf16_tuned_gemm.csv", last)
    assert [(f.severity, f.line) for f in found] == [("warning", 2), ("error", 3)]


def test_a_header_with_blanks_makes_other_columns(tmp_path: Path):
    found = one(tmp_path, "a8w8_blockscale_tuned_gemm.csv", csv(BLOCKSCALE.replace("M,N", "M, N"), blockscale(16)))
    assert [(f.code, f.line) for f in found] == [("blanks", 1)]


def test_rows_of_one_shape(tmp_path: Path):
    rows = [bf16(16, 7.9), bf16(16, 7.4, lib="ck"), bf16(16, 21.3, units=80), bf16(16, 7.9, gfx="gfx950", units=256)]
    put(tmp_path, "a_bf16_tuned_gemm.csv", csv(BF16, *rows, bf16(16, 6.0, gfx="gfx1250", units=256)))
    put(tmp_path, "b_bf16_tuned_gemm.csv", csv(BF16, bf16(16, 7.9), bf16(17, 8.0)))
    put(tmp_path, "a8w8_tuned_gemm.csv", csv(BF16, bf16(17, 8.0)))
    found = findings(tmp_path)
    assert [(f.path.name[0], f.line, f.code, f.severity) for f in found] == [
        ("a", 3, "duplicate", "error"), ("b", 2, "duplicate", "warning")
    ]  # fmt: skip
    assert "line 2: us=7.9 there, us=7.4 here" in found[0].message
    assert "a_bf16_tuned_gemm.csv line 2, and the same row" in found[1].message


def test_kernels_that_are_not_compiled_in(tmp_path: Path):
    path = put(
        tmp_path,
        "a8w8_blockscale_tuned_gemm.csv",
        csv(BLOCKSCALE, blockscale(16), blockscale(32, kernel="does_not_exist")),
    )
    assert findings(path) == []
    found = findings(path, kernels={"ck_256x16x64"})
    assert [(f.code, f.line) for f in found] == [("kernel", 3)]


def test_sizes_that_nothing_reads_and_sizes_without_a_row(tmp_path: Path):
    path = put(tmp_path, "tuned_fmoe.csv", csv(FMOE, *[fmoe(t) for t in (32, 64, 96, 128, 192, 384)]))
    found = findings(path, upto=600)
    assert [(f.line, f.code) for f in found] == [
        (2, "uncovered"),
        (4, "unreachable"),
        (6, "unreachable"),
        (7, "unreachable"),
    ]
    assert "token 1…16, 129…600 of 1…600 finds no row" in found[0].message
    assert "96 is never looked for: the runtime pads it to 128" in found[1].message
    gemm = csv(BLOCKSCALE, *[blockscale(m) for m in (1, 7, 16, 40, 48, 300, 320, 512)])
    (found_one,) = one(tmp_path, "a8w8_blockscale_tuned_gemm.csv", gemm, upto=600)
    assert "M 17…32, 49…256, 513…600 of 1…600" in found_one.message


def test_a_list_of_shapes_to_tune(tmp_path: Path):
    header = FMOE.partition(",block_m")[0].removeprefix("gfx,cu_num,")
    rows = [fmoe(t).partition(",32,0,20.0")[0].removeprefix("gfx950,256,") for t in (96, 128)]
    found = one(tmp_path, "untuned_fmoe.csv", csv(header, *rows))
    assert [(f.line, f.code) for f in found] == [(2, "unreachable")]
    assert "tune 128 in its place" in found[0].message
    found = one(
        tmp_path, "a8w8_untuned_gemm.csv", csv("M,N,K,q_dtype_w", "1,2,3,torch.int8\t", "", "1, 4, 5,x", end=False)
    )
    assert [f.code for f in found] == ["blanks", "blanks", "line-end"]


# --- other formats ------------------------------------------------------------------------------------


def test_bounds_that_the_reader_never_asks_for(tmp_path: Path):
    rows = {"M_LEQ_16": KNOBS, "M_LEQ_31": KNOBS, "M_GEQ_4096": KNOBS, "any": KNOBS, "_note": "cloned, NOT tuned"}
    found = one(tmp_path, "gfx1250-GEMM-A16WFP4-N=8192-K=1024.json", json.dumps(rows, indent=1).encode())
    assert [(f.code, f.line) for f in found] == [("note", 0), ("unreachable", 10)]
    assert "M_LEQ_31" in found[1].message
    rows = {"M_LEQ_8192": KNOBS, "M_GEQ_4096": KNOBS, "M_GEQ_8192": KNOBS}
    found = one(tmp_path, "GEMM-A16W16-N=128-K=5120.json", json.dumps(rows).encode())
    assert sorted(f.code for f in found) == ["fallback", "unreachable", "unreachable"]
    assert {"M_GEQ_4096" in f.message or "DEFAULT.json" in f.message or "'any'" in f.message for f in found} == {True}


def test_a_cache_of_another_chip(tmp_path: Path):
    cache = {"metadata": {"device_name": "NVIDIA H100", "device_capability": [9, 0]}, "shared": {}}
    cache["shared"] = {"('op', 'R', 'id', ((8, 4),))": {"runner_id": 0, "tactic": "1", "min_time": 0.1}}
    path = put(tmp_path, "rank.json", json.dumps(cache).encode())
    assert findings(path) == []
    assert codes(findings(path, device="NVIDIA_B200")) == {"device"}
    flashinfer = {"_metadata": {"gpu": "NVIDIA B200"}, "('op', 'R', ((8, 4),))": ["R", 1]}
    found = one(tmp_path, "fi.json", json.dumps(flashinfer).encode())
    assert codes(found) == {"unreachable", "metadata", "empty"}
    assert "3 parts" in next(f for f in found if f.code == "unreachable").message


def test_a_table_that_is_shipped_as_python_is_parsed_and_never_run(tmp_path: Path):
    keys = ["('op', 'R', ((8, 4),))", "('op', 'R', ((8, 4),), ())"]
    source = "raise SystemExit\nbest_configs = {\n" + "".join(f"    {key}: ('R', 1),\n" for key in keys) + "}\n"
    path = put(tmp_path, "v0_1_trtllm_fused_moe_NVIDIA_B200.py", source.encode())
    report = check([path])
    assert [(f.code, f.line) for f in report.findings] == [("unreachable", 3)]
    assert (report.files, report.rows) == (1, 2)
    assert check([tmp_path]).files == 0, "in a folder, Python is no table"


def test_what_is_no_table_is_passed_over_in_a_folder_and_refused_by_name(tmp_path: Path):
    path = put(tmp_path, "package.json", b'{"name": "x"}')
    report = check([tmp_path])
    assert (report.findings, [p for p, _ in report.passed_over]) == ([], [path])
    with pytest.raises(BadInput, match="known format"):
        check([path])
