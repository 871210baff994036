"""Tables of every format: their rows, and that they are written back to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from table_files import (
    BF16,
    BLOCKSCALE,
    BPRESHUFFLE,
    FMOE,
    H100,
    KNOBS,
    MXSCALE,
    bf16,
    blockscale,
    csv,
    fmoe,
    ladder,
    put,
)

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Recording, Sample, Trial
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.tables import aiter_triton, autotuner_caches, check, edit, formats, jsontext, policy, tuner_json
from tunesmith.tables.sheet import Sheet

UP = {**KNOBS, "USE_TMA": True}
NO_WARPS = {name: value for name, value in KNOBS.items() if not name.startswith("num_")}
NULLABLE = {1: {"BLOCK_SIZE_M": 16}, 512: None, 1024: {"BLOCK_SIZE_M": 64}}
LORA = {"1": {"2": {"16": {"4096": {"64": {"128": {"BLOCK_SIZE_M": 16}}}}}}}
HELION = [
    {"key": {"intermediate": 2048, "numtokens": 256}, "config": {"block_sizes": [64, 32], "loop_orders": [[0, 1]]}}
]
COLLECTIVE = {
    "source": {"date": "2026-09-01"}, "selection": {"rule": "at or below", "fallback": "nccl"},
    "configs": {"reduce_scatter": {"16": {"strategy": "push", "num_blocks": 128}, "64": {"num_blocks": 4}}},
}  # fmt: skip
AUTOTUNE = {
    "key": [512, "torch.float16"],
    "configs_timings": [
        [
            {"kwargs": {"BLOCK": 64}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None},
            [0.01, 0.009, 0.02],
        ]
    ],
}
KERNEL_TUNER = {
    "device_name": "A100",
    "kernel_name": "k",
    "problem_size": [64],
    "tune_params_keys": ["x"],
    "tune_params": {"x": [1, 2]},
    "cache": {"1": {"x": 1, "time": 2.5}, "2": {"x": 2, "time": "InvalidConfig"}},
}
T4 = {
    "metadata": {},
    "results": [
        {
            "timestamp": "",
            "configuration": {"x": 1},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 2.5, "unit": "ms"}],
        }
    ],
}
INDUCTOR = {"NVIDIA H200+((torch.float16, [64, 64], [64, 1]),)+mm": [{"template_id": "triton:mm", "BLOCK_M": 64}]}
FLASHINFER = {"_metadata": {"gpu": "NVIDIA B200"}, "('op', 'Runner', ((4, 7168),), ())": ["Runner", {"tile": 8}]}
TENSORRT = {
    "metadata": {"device_name": "NVIDIA H100"},
    "shared": {"('op', 'R', 'id', ((8, 4),))": {"runner_id": 0, "tactic": "(5, 1)", "min_time": 0.0123}},
}
OURS = {
    "format": "tunesmith-table/1",
    "kernel": "k",
    "device": "d",
    "rows": {"M=8": {"config": {"x": 1}, "median_s": 1e-5}},
}

#: file name → (content, format, rows, a key of the first)
FILES: dict[str, tuple[bytes, str, int, dict[str, Any]]] = {
    "triton_3_7_1/E=256,N=640,device_name=NVIDIA_GB300_down.json": (
        ladder({1: KNOBS, 63: UP, 64: NO_WARPS, 65: KNOBS, 8191: UP, 8192: KNOBS}, indent=2),
        "sglang-moe", 6, {"M": 1}),
    "triton_3_1_0/E=16,N=6400,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json": (
        ladder([3840, 1792, 512, 4096, 256]), "sglang-moe", 5, {"M": 3840}),
    "triton_3_1_0/E=8,N=8192,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json": (
        ladder({4: {**KNOBS, "kpack": 2, "waves_per_eu": 0}, 131072: KNOBS}, newline="\r\n"),
        "sglang-moe", 2, {"M": 4}),
    "triton_3_5_1/E=161,N=192,device_name=NVIDIA_H200,dtype=fp8_w8a8,per_channel_quant=True.json": (
        ladder([1, 2]), "sglang-moe", 2, {"M": 1}),
    "E=257,N=256,device_name=NVIDIA_B200,dtype=fp8_w8a8,block_shape=[128, 128].json": (
        ladder([1, 64], end=False), "sglang-moe", 2, {"M": 1}),
    f"E=512,N=128,device_name={H100},dtype=fp8_w8a8,block_shape=[128,128].json": (
        ladder([96, 128, 1024], triton_version="3.6.0"), "vllm-moe", 3, {"M": 96}),
    "E=64,N=1024,device_name=Intel(R)_Arc(TM)_Pro_B70_Graphics.json": (
        ladder({1: {**KNOBS, "grf_mode": "256"}}, indent=2, end=False, triton_version="3.7.0"),
        "vllm-moe", 1, {"M": 1}),
    "E=384,N=512,device_name=AMD_Instinct_MI355X,dtype=int4_w4a16,backend=flydsl.json": (
        ladder({1: {"tile_m": 16, "tile_n2": 256}}), "vllm-flydsl", 1, {"M": 1}),
    "N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json": (
        ladder([1, 64, 4096]), "vllm-gemm", 3, {"M": 1}),
    "N=5120,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[32, 32].json": (
        ladder({1: {**KNOBS, "SWAP_AB": True, "SPLIT_K": 8}, 2: KNOBS}), "sglang-gemm", 2, {"M": 1}),
    "sglang/N=24576,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json": (
        ladder(NULLABLE), "sglang-gemm", 3, {"M": 1}),
    "headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float16.json": (
        ladder({128: {"BLOCK_SIZE_M": 4, "num_warps": 4}}, triton_version="3.6.0"),
        "vllm-mamba", 1, {"effective_batch": 128}),
    "lora_expand,K=4096,R=64,S=3,device=NVIDIA_H200.json": (
        ladder({16: {"BLOCK_N": 64, "maxnreg": 96}, 128: {"BLOCK_N": 128}}), "sglang-csgmv", 2, {"chunk": 16}),
    "NVIDIA_H200_EXPAND_TRUE.json": (json.dumps(LORA).encode(), "vllm-lora", 1, {"max_loras": 1, "i": 128}),
    "silu_mul_fp8/nvidia_h100.json": (json.dumps(HELION, indent=2).encode(), "vllm-helion", 1, {"numtokens": 256}),
    "world=8,H=7168,device_name=NVIDIA_GB300.json": (
        json.dumps(COLLECTIVE, indent=2).encode(), "sglang-collective", 2, {"op": "reduce_scatter", "tokens": 16}),
    "moe_sum_reduce_NVIDIA-H200_t8_h2048_bfloat16.json": (
        json.dumps({"8-2048-bfloat16": {"1": {"BLOCK": 16, "evict_policy": "evict_last"}}}).encode(),
        "sglang-sum-reduce", 1, {"M": 1, "shape": "8-2048-bfloat16"}),
    "mxfp8_gemv_gfx95_configs.json": (
        json.dumps({"gfx950:512:7168:4": "w16s1r16t16k"}, indent=1).encode(), "sglang-gemv", 1, {"N": 512, "M": 4}),
    "strategy,E=896,topk=16,device_name=NVIDIA_GB300.json": (
        json.dumps({"meta": {"topk": 16}, "configs": {"1": {"block_size": 448}, "2": "custom"}}).encode(),
        "sglang-front", 2, {"tokens": 1}),
    "minimax.json": (
        json.dumps({"model": "m", "experts": 8, "tokens": {"1": {"best_gemm1": 3}}}).encode(),
        "sglang-compact-moe", 1, {"tokens": 1}),
    "bf16_tuned_gemm.csv": (csv(BF16, bf16(16, 7.9), bf16(64, 9.1)), "aiter-gemm", 2, {"M": 16, "gfx": "gfx942"}),
    "a8w8_blockscale_tuned_gemm.csv": (csv(BLOCKSCALE, blockscale(1), newline="\r\n"), "aiter-gemm", 1, {"M": 1}),
    "a8w8_bpreshuffle_tuned_gemm.csv": (
        csv(BPRESHUFFLE, "gfx942,80,1,24576,1536,torch.float8_e4m3fnuz,ck,0,0,9.0,x,8.39,1.0,0.0"), "aiter-gemm", 1,
        {"q_dtype_w": "torch.float8_e4m3fnuz"}),
    "batched_mxscale_tuned.csv": (
        csv(MXSCALE, "gfx950,4,1,512,512,flydsl,0,0,9.0,x,0.23,1.0,0.0"), "aiter-gemm", 1, {"B": 4}),
    "tuned_fmoe.csv": (csv(FMOE, fmoe(32), end=False), "aiter-fmoe", 1, {"token": 32, "expert": 257}),
    "a8w8_untuned_gemm.csv": (
        csv("M,N,K,q_dtype_w", "1,2,3,torch.int8\t", "", "1, 4, 5,x"), "aiter-gemm-untuned", 2, {"M": 1}),
    "gfx950-GEMM-A16W16-N=128-K=5120.json": (
        json.dumps({"M_LEQ_16": KNOBS, "M_GEQ_4096": KNOBS, "any": {**KNOBS, "cache_modifier": None}}).encode(),
        "aiter-triton", 3, {"bound": "M_LEQ_16"}),
    "add.autotune.json": (json.dumps(AUTOTUNE).encode(), "triton-autotune", 1, {"i": 0}),
    "cache.json": (json.dumps(KERNEL_TUNER, indent=4).encode(), "kernel-tuner", 2, {"config": "1"}),
    "t4.json": (json.dumps(T4).encode(), "t4", 1, {"i": 0}),
    "table.json": (json.dumps(INDUCTOR).encode(), "inductor", 1, {"device": "NVIDIA H200", "op": "mm"}),
    "flashinfer.json": (json.dumps(FLASHINFER).encode(), "flashinfer", 1, {"op": "op", "runner": "Runner"}),
    "rank.json": (json.dumps(TENSORRT).encode(), "tensorrt-llm", 1, {"part": "shared"}),
    "ours.json": (json.dumps(OURS, indent=2).encode(), "native", 1, {"M": 8}),
}  # fmt: skip


def read(tmp_path: Path, name: str) -> Sheet:
    return formats.read(put(tmp_path, name, FILES[name][0]))


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_known_by_its_name_and_shape_and_written_back_to_the_byte(tmp_path: Path, name: str):
    data, format, rows, first = FILES[name]
    sheet = read(tmp_path, name)
    assert (sheet.format, len(sheet.rows), sheet.faults) == (format, rows, ())
    assert first.items() <= sheet.rows[0].key.items()
    assert sheet.document.data() == data
    assert (tmp_path / name).read_bytes() == data
    assert all(data.splitlines()[row.line - 1] for row in sheet.rows)


@pytest.mark.parametrize("name", [name for name, (_, format, _, _) in FILES.items() if format != "aiter-gemm-untuned"])
def test_a_changed_knob_changes_its_own_bytes_and_no_others(tmp_path: Path, name: str):
    sheet = read(tmp_path, name)
    row = sheet.rows[0]
    assert row.config is not None
    knob = next(iter(row.config))
    if sheet.format in ("triton-autotune", "flashinfer", "sglang-gemv"):
        with pytest.raises(BadInput, match="no objects of knobs"):
            edit.set_value(sheet, row, knob, 77)
        return
    changed = edit.set_value(sheet, row, knob, 77)
    old, new = sheet.document.data(), changed.document.data()
    start = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    end = next(i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
    assert b"77" in new[start - 2 : len(new) - end + 2]
    assert b"\n" not in old[start : len(old) - end] or isinstance(row.config[knob], list)
    after = changed.rows[0].config
    assert after is not None
    assert after[knob] == 77
    assert edit.set_value(changed, changed.rows[0], knob, row.config[knob]).rows == sheet.rows


# --- what names say, noise --------------------------------------------------------------------------


def test_a_tree_with_every_grammar_and_noise(tmp_path: Path):
    for name, (data, *_) in FILES.items():
        put(tmp_path, name, data)
    noise = {
        "README.md": b"# hi", "E=8.json": b"{}", "E=8,N=,device_name=X.json": ladder([1]), "empty.json": b"",
        "E=8,N=8,device_name=X,dtype=fp8_w8a8,dtype=bf16.json": ladder([1]), "broken.json": b'{"1": {"a": 16},',
        "evil.json": b'{"1": __import__("os").system("true")}', "plain.csv": b"a,b\n1,2\n",
    }  # fmt: skip
    for name, data in noise.items():
        put(tmp_path, name, data)
    tabbed = ladder([1, 2]).replace(b'    "1"', b'\t"1"')
    put(tmp_path, "E=4,N=8,device_name=X,dtype=fp8_w8a8.json", tabbed)
    put(tmp_path, "E=5,N=8,device_name=X,dtype=fp8_w8a8.json", b"\xef\xbb\xbf" + ladder([1, 2]))
    good, reasons = [], {}
    for path in formats.files(tmp_path):
        try:
            good.append(formats.read(path))
        except BadInput as error:
            reasons[path.name] = str(error)
    assert len(good) == len(FILES) + 2
    assert reasons.keys() == noise.keys() - {"README.md"}
    assert all(len(reason) > 20 for reason in reasons.values())
    assert all(sheet.document.data() == sheet.path.read_bytes() for sheet in good)
    sums = next(sheet for sheet in good if sheet.format == "sglang-sum-reduce")
    assert sums.name is not None
    assert (sums.name.device, sums.name.fields["H"], sums.name.fields["topk"]) == ("NVIDIA_H200", 2048, 8)
    assert sums.rows[0].config == {"BLOCK": 16, "evict_policy": "evict_last"}


@pytest.mark.parametrize("name", ["E=8,N=1024,device_name=NVIDIA_H200.json"])
def test_odd_members_of_a_ladder(tmp_path: Path, name: str):
    text = (
        b'{"triton_version": "3.5.1",\n"16": {"a": 1},\n"0064": {"a": 2},\n"auto": {"a": 3},\n"16": {"a": 4},\n"8": 5}'
    )
    sheet = formats.read(put(tmp_path, name, text))
    assert [(row.key["M"], row.config) for row in sheet.rows] == [(16, {"a": 4}), (64, {"a": 2})]
    assert sheet.about["triton_version"] == "3.5.1"
    said = {fault.line: fault.message for fault in sheet.faults}
    assert "read as 64" in said[3]
    assert "'auto' is no size" in said[4]
    assert "given twice: line 2 is not read" in said[5]
    assert "no object of knobs" in said[6]


def test_null_is_a_row_that_must_stay(tmp_path: Path):
    sheet = read(tmp_path, "sglang/N=24576,K=4096,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json")
    found = sheet.find({"M": 500})
    assert found is not None
    assert (found.row.key["M"], found.row.config) == (512, None)


# --- look-ups of the nested ones ----------------------------------------------------------------------


def test_each_table_is_looked_up_by_its_own_rule(tmp_path: Path):
    collective = read(tmp_path, "world=8,H=7168,device_name=NVIDIA_GB300.json")
    assert collective.find({"op": "reduce_scatter", "tokens": 8}) is None
    found = collective.find({"op": "reduce_scatter", "tokens": 63})
    assert found is not None
    assert str(found) == "tokens=63: floor: key 16, distance 47"
    gemv = read(tmp_path, "mxfp8_gemv_gfx95_configs.json")
    assert gemv.find({"arch": "gfx950", "N": 512, "K": 7168, "M": 3}) is not None
    assert gemv.find({"arch": "gfx950", "N": 512, "K": 7168, "M": 5}) is None
    lora = read(tmp_path, "NVIDIA_H200_EXPAND_TRUE.json")
    asked = {"max_loras": 3, "num_slices": 2, "m": 7, "k": 4096, "n": 64, "i": 128}
    assert lora.find(asked) is not None
    assert lora.find({**asked, "num_slices": 1}) is None
    front = read(tmp_path, "strategy,E=896,topk=16,device_name=NVIDIA_GB300.json")
    assert front.find({"tokens": 3}) is None


def test_bounds_of_aiters_triton_tables(tmp_path: Path):
    sheet = read(tmp_path, "gfx950-GEMM-A16W16-N=128-K=5120.json")
    assert [aiter_triton.find(sheet, m).why for m in (1, 16, 17, 4095, 4096)] == ["M_LEQ_16"] * 2 + ["any"] * 2 + [
        "M_GEQ_4096"
    ]
    assert (sheet.about["N"], sheet.about["K"], sheet.about["arch"], sheet.about["tuned"]) == (
        128,
        5120,
        "gfx950",
        True,
    )


def test_the_look_up_rules_of_a_csv_ask_for_exact_shapes(tmp_path: Path):
    data = csv(BLOCKSCALE, *[blockscale(m) for m in (16, 48, 512)], blockscale(9000 // 8 * 8, n=8192))
    sheet = formats.read(put(tmp_path, "a8w8_blockscale_tuned_gemm.csv", data))
    shape = {"gfx": "gfx950", "cu_num": 256, "N": 4096, "K": 7168}
    assert [
        found.row.key["M"] if (found := sheet.find({**shape, "M": m})) else None for m in (2, 33, 300, 17, 513)
    ] == [16, 48, 512, None, None]
    assert sheet.find({**shape, "N": 4097, "M": 16}) is None
    assert "none is of" in sheet.explain({**shape, "N": 4097, "M": 16})
    assert sheet.rule == policy.RULES["aiter-gemm"]


# --- written by us ------------------------------------------------------------------------------------


def test_rows_for_two_dtypes_of_one_shape_are_two_rows(tmp_path: Path):
    header = "gfx,cu_num,M,N,K,a_dtype,b_dtype,libtype,us,kernelName,tflops,bw,errRatio"
    rows = [f"gfx950,256,64,512,512,{a},{b},flydsl,{us},x,3.36,1.0,0.0" for a, b, us in (
        ("torch.float8_e4m3fn", "torch.float4_e2m1fn_x2", 10.0), ("torch.float4_e2m1fn_x2",) * 2 + (5.0,))]  # fmt: skip
    sheet = formats.read(put(tmp_path, "mx_tuned_gemm.csv", csv(header, *rows)))

    asked = {"gfx": "gfx950", "cu_num": 256, "M": 64, "N": 512, "K": 512, "b_dtype": "torch.float4_e2m1fn_x2"}
    found = [sheet.find({**asked, "a_dtype": dtype}) for dtype in ("torch.float8_e4m3fn", "torch.float4_e2m1fn_x2")]
    assert [one is not None and one.row.us for one in found] == [10.0, 5.0]
    assert all("a_dtype" not in (row.config or {}) for row in sheet.rows)
    assert [one for one in check.check([sheet.path]).findings if one.code == "duplicate"] == []


RECORDING = Recording(
    "gemm", "NVIDIA H200", Problem.parse("x=64,y=32"),
    (Trial(Config(BLOCK=64, num_warps=8), Measured((Sample(2e-3), Sample(4e-3))), compile_s=0.5),
     Trial(Config(BLOCK=128, num_warps=4), Failed("compile", "ptxas"))),
)  # fmt: skip


def test_what_we_write_for_other_tuners_reads_back(tmp_path: Path):
    cache = formats.parse(tmp_path / "cache.json", tuner_json.kernel_tuner(RECORDING).data())
    assert [(row.config, row.us) for row in cache.rows] == [
        ({"BLOCK": 64, "num_warps": 8}, 3000.0),
        ({"BLOCK": 128, "num_warps": 4}, None),
    ]
    assert cache.rows[1].facts == {"failure": "CompilationFailedConfig"}
    results = formats.parse(tmp_path / "t4.json", tuner_json.t4(RECORDING).data())
    assert (results.format, results.rows[0].us, results.rows[1].facts["invalidity"]) == ("t4", 3000.0, "compile")
    document = tuner_json.triton_autotune([512], [(Config(BLOCK=64, num_warps=8), (1e-5, 9e-6, 2e-5))])
    autotune = formats.parse(tmp_path / "gemm.autotune.json", document.data())
    assert (autotune.rows[0].us, autotune.about["kernel"]) == (pytest.approx(10.0), "gemm")
    assert autotune.rows[0].config == {"BLOCK": 64, "num_warps": 8, "num_ctas": 1, "num_stages": 3}
    assert b"\n" not in document.data()


def test_a_cache_of_kernel_tuner_written_by_us_is_what_its_reader_takes(tmp_path: Path):
    from tunesmith import recording

    path = put(tmp_path, "cache.json", tuner_json.kernel_tuner(RECORDING).data())
    (again,) = recording.convert(path)
    assert again.trials[0].outcome.samples_s == pytest.approx((2e-3, 4e-3))
    assert again.trials[1].outcome.stage == "compile"


def test_inductors_keys():
    key = tuner_json.inductor("NVIDIA H200", [("torch.float16", (64, 64), (64, 1))], "mm")
    assert key == next(iter(INDUCTOR))
    two = tuner_json.inductor("", [("torch.float16", (4, 8), (8, 1)), ("torch.float16", (8, 2), (2, 1))], "mm")
    assert two == "((torch.float16, [4, 8], [8, 1]), (torch.float16, [8, 2], [2, 1]))+mm"


def test_a_bundled_table_whose_keys_its_reader_never_makes(tmp_path: Path):
    keys = ", ".join(f"('op', 'R', (({2**i}, 7168),)): ('R', {i})" for i in range(58))
    found, faults = autotuner_caches.read_bundled(
        tmp_path / "b200.py", f"best_configs = {{{keys}}}\nrun = print('never')\n"
    )
    assert (len(found), len(faults)) == (58, 58)
    assert "3 parts, its reader makes keys of 4" in faults[0].message
    good, none = autotuner_caches.read_bundled(tmp_path / "x.py", "best_configs = {('op', 'R', ((8, 8),), ()): 1}")
    assert (len(good), none) == (1, [])


def test_a_format_can_be_named_and_a_wrong_one_is_answered_with_the_good_ones(tmp_path: Path):
    path = put(tmp_path, "E=8,N=1024,device_name=NVIDIA_H200.json", ladder([1]))
    assert formats.read(path).format == "vllm-moe"
    assert formats.read(path, "sglang-moe").format == "sglang-moe"
    with pytest.raises(BadInput, match="sglang-moe"):
        formats.read(path, "sglang")
    with pytest.raises(BadInput, match=r"nothing\.json cannot be read"):
        formats.read(tmp_path / "nothing.json")
    assert jsontext.plain(jsontext.members({"a": [1, {"b": None}]})) == {"a": [1, {"b": None}]}
