"""aiter's rows of FlyDSL kernels, read as knobs: names are read to the last letter, and other libraries' rows are
misses. Needs no FlyDSL."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunesmith
from tunesmith import Config, Device, Problem, known_device
from tunesmith.errors import BadInput
from tunesmith.flydsl import aiter_rows, knobs_of

MI355 = known_device("AMD Instinct MI355X")
HEAD = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
SMALL = "flydsl_bpreshuflle_16x64x512_F8_F8_B16_2x0x1x3x4_default"


@pytest.mark.parametrize(
    ("name", "family", "knobs"),
    [
        (SMALL, "bpreshuffle", {"tile_m": 16, "tile_n": 64, "tile_k": 512, "lds_stage": 2, "use_cshuffle_epilog": 0,
            "use_async_copy": 1, "waves_per_eu": 3, "xcd_swizzle": 4, "scheduler": "default", "split_k": 1}),
        ("flydsl_bpreshuflle_128x128x128_MXF8_MXF8_B16_2x1x0x0_v3_spk4", "bpreshuffle", {"tile_m": 128, "tile_n": 128,
            "tile_k": 128, "lds_stage": 2, "use_cshuffle_epilog": 1, "use_async_copy": 0, "waves_per_eu": 0,
            "xcd_swizzle": 0, "scheduler": "v3", "split_k": 4}),
        ("flydsl_hgemm_abf16_wbf16_fp32_t128x256x64x2_ks4_w2x2x1_bias0_ktail0_gm8_pht_gfx950", "hgemm", {"block_m": 128,
            "block_n": 256, "block_k": 64, "stages": 2, "split_k": 4, "m_waves": 2, "n_waves": 2, "k_waves": 1,
            "group_m": 8, "policy": "ht"}),
        ("flydsl_gemm2_abf16_wbf16_bf16_t32x64x128_split_k16_block_m_warp2_block_n_warp2_async_copyTrue_b_to_ldsTrue_"
            "b_preshuffleFalse_c_to_ldsFalse_gfx950", "gemm2", {"tile_m": 32, "tile_n": 64, "tile_k": 128,
            "split_k": 16, "block_m_warps": 2, "block_n_warps": 2, "async_copy": True, "b_to_lds": True,
            "b_preshuffle": False, "c_to_lds": False}),
    ],
    ids=["bpreshuffle", "mxfp8", "hgemm", "gemm2"],
)  # fmt: skip
def test_a_name_is_read_as_knobs(name: str, family: str, knobs: dict[str, object]) -> None:
    assert knobs_of(name) == (family, Config(**knobs))


@pytest.mark.parametrize("name", ["", SMALL + "_new", "x" + SMALL, SMALL.replace("16x64", "16x"), "ck_gemm_16x64x512"])
def test_a_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="known families: bpreshuffle, mxpreshuffle, hgemm, gemm2"):
        knobs_of(name)


def lookup(path: Path, device: Device = MI355, **sizes: int) -> tuple[Config, float | None] | None:
    """What a kernel of tile_m alone is told, whose table this is."""
    left_out = ("tile_n", "tile_k", "lds_stage", "use_cshuffle_epilog", "use_async_copy", "scheduler", "xcd_swizzle")
    rename = {"tile_m": "TILE_M", "split_k": "", **dict.fromkeys(left_out, "")}
    table = aiter_rows(path, family="bpreshuffle", rename=rename)
    tuned = tunesmith.autotune(
        space=tunesmith.Space(TILE_M=[16, 32], waves_per_eu=[0, 3]), key=["M", "N", "K"], policy="lookup"
    )(lambda M, N, K, *, TILE_M, waves_per_eu: None)
    row = table.lookup(tuned.subject(**sizes).key, Problem(sizes), device)
    return None if row is None else (row.config, row.median_s)


def test_rows_that_a_flydsl_kernel_won_serve(tmp_path: Path) -> None:
    path = tmp_path / "a8w8_bpreshuffle_tuned_gemm.csv"
    rows = [
        f"gfx950,256,16,512,1024,flydsl,7,0,9.0,{SMALL},1.86,1.0,0.0",
        "gfx950,256,64,512,1024,ck,7,0,8.0,a8w8_bpreshuffle_64x16,8.39,1.0,0.0",
        "gfx950,256,128,512,1024,flydsl,7,0,9.0,flydsl_hgemm_of_another_form,14.9,1.0,0.0",
        f"gfx942,304,256,512,1024,flydsl,7,0,9.0,{SMALL},29.8,1.0,0.0",
    ]
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    assert lookup(path, M=16, N=512, K=1024) == (Config(TILE_M=16, waves_per_eu=3), pytest.approx(9e-6))
    assert lookup(path, M=64, N=512, K=1024) is None
    assert lookup(path, M=128, N=512, K=1024) is None
    assert lookup(path, M=256, N=512, K=1024) is None
    assert lookup(path, known_device("AMD Instinct MI300X"), M=256, N=512, K=1024) is not None


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="good values: bpreshuffle, mxpreshuffle, hgemm, gemm2"):
        aiter_rows(tmp_path, family="bpreshuflle")
