"""The shipped layer of experts: right where the interpreter runs it, compiled for a GPU that is not here, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from tests.fake_triton import H200, GpuTensor, fake_gpu
from tests.programs import interpreted

from tunesmith import Config, Problem
from tunesmith.cli import main
from tunesmith.core.device import Device
from tunesmith.errors import BadInput
from tunesmith.kernels import fused_moe as package
from tunesmith.kernels.fused_moe import arguments, default, fused_moe, make_inputs, reference, route, space
from tunesmith.kernels.fused_moe.launch import places
from tunesmith.tables.native import Entry, NativeTable

KERNEL = package.kernel.kernel
USUAL = {"w1.strides": "xx1", "w2.strides": "xx1", "topk_weights.dtype": "float32", "topk_ids.dtype": "int32"}


def problem(M: int, E: int, N: int, K: int, top_k: int, dtype: str = "bfloat16") -> Problem:
    dtypes = {f"{array}.dtype": dtype for array in ("x", "w1", "w2")}
    return Problem({"M": M, "E": E, "N": N, "K": K, "top_k": top_k, **dtypes, **USUAL})


# --- numerics -----------------------------------------------------------------------------------------------


def test_it_is_right_on_odd_sizes_strides_and_routings() -> None:
    interpreted("""
import torch
from tests.programs import run
from tunesmith import Config
from tunesmith.kernels.fused_moe import arguments, device, reference, route
from tunesmith.kernels.fused_moe.launch import PARAMETERS, plan

BASE = dict(BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=16, GROUP_SIZE_M=2, num_warps=1, num_stages=1)
torch.manual_seed(0)

def strided(x):
    whole = torch.full([2 * size for size in x.shape], float("nan"), dtype=x.dtype)
    inside = whole[tuple(slice(None, None, 2) for _ in x.shape)]
    inside.copy_(x)
    return inside

def check(M, E, N, K, top_k, dtype=torch.float16, ids=None, odd=False, **how):
    x, w1, w2 = torch.randn(M, K), torch.randn(E, 2 * N, K) / K**0.5, torch.randn(E, K, N) / N**0.5
    x, w1, w2 = (a.to(dtype) for a in (x, w1, w2))
    weights, chosen = route(torch.randn(M, E), top_k)
    chosen = chosen if ids is None else ids
    if odd:
        x, w1, w2, weights, chosen = strided(x), strided(w1), w2.mT.contiguous().mT, strided(weights), chosen.long()
    args = arguments(x, w1, w2, weights, chosen)
    named = dict(zip(PARAMETERS, args))
    made = run(device, plan(Config({**BASE, **how}), named), named)
    exact = reference(x, w1, w2, weights, chosen)
    error = (made["out"].double() - exact).abs().max() / exact.abs().max().clamp(min=0.1)
    assert error < (4e-3 if dtype is torch.float16 else 1e-5), (M, E, N, K, top_k, how, float(error))

check(1, 4, 17, 33, 2)
check(20, 5, 20, 48, 3, torch.float32, odd=True, BLOCK_SIZE_N=32, GROUP_SIZE_M=1)
check(18, 3, 16, 16, 2, ids=torch.zeros(18, 2, dtype=torch.int32))  # all to one expert, twice
check(3, 3, 16, 16, 2, ids=torch.tensor([[-1, 2], [3, 70], [2, 0]], dtype=torch.int32))  # of other devices
check(17, 1, 8, 16, 1, BLOCK_SIZE_M=32)
print("right")
""")


def test_the_places_of_sorted_assignments_suffice_for_any_routing() -> None:
    draw = torch.Generator().manual_seed(0)
    for M, E, top_k, block in ((1, 8, 2, 16), (3, 4, 2, 16), (16, 4, 1, 16), (65, 4, 3, 16), (100, 128, 8, 64)):
        worst = 0
        for _ in range(50):
            ids = torch.randint(0, E, (M * top_k,), generator=draw)
            worst = max(worst, int((-(-torch.bincount(ids, minlength=E) // block) * block).sum()))
        each = [1] * min(E, M * top_k)  # one each, and the rest to one of them
        each[0] += M * top_k - len(each)
        worst = max(worst, sum(-(-count // block) * block for count in each))
        assert worst <= places(M, E, top_k, block) < worst + block * E


# --- what is known without a GPU -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(1, 128, 768, 2048, 8), (4096, 8, 14336, 4096, 2), (3, 4, 5, 7, 2), (64, 1, 8, 8, 1)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_default_is_of_its_space_on_any_chip(sizes: tuple[int, ...], dtype: str) -> None:
    for chip in (H200, Device("cuda", "some GPU", "sm_75", 40)):
        legal = space(problem(*sizes, dtype), chip)
        assert default(problem(*sizes, dtype), chip) in legal
        assert 2 <= legal.size <= 2500


def test_a_default_has_low_tiles_for_few_tokens_and_high_ones_for_many() -> None:
    few, many = (default(problem(M, 8, 14336, 4096, 2), H200)["BLOCK_SIZE_M"] for M in (4, 8192))
    assert few == 16
    assert many >= 64


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, w1, w2 = torch.empty(3, 8), torch.empty(4, 12, 8), torch.empty(4, 8, 6)
    weights, ids = route(torch.randn(3, 4), 2)
    for wrong, said in (
        (lambda: arguments(x[0], w1, w2, weights, ids), r"needs \(M, K\)"),
        (lambda: arguments(x, w1[:, :6], w2, weights, ids), r"w1 should be \(4, 12, 8\)"),
        (lambda: arguments(x, w1, w2, weights[:2], ids), r"topk_weights should be \(3, 2\)"),
        (lambda: arguments(x.half(), w1, w2, weights, ids), "one dtype"),
        (lambda: arguments(x, w1, w2, weights, ids.float()), "int32 or int64"),
        (lambda: arguments(x, w1[:0], w2[:0], weights, ids), "only the number of tokens"),
        (lambda: make_inputs(problem(3, 4, 6, 8, 5), device="cpu"), "top_k=5 of E=4 experts"),
        (lambda: fused_moe(x, w1, w2, weights, ids), r"on the CPU; .* tunesmith\.ops\.fused_moe"),
    ):
        with pytest.raises(BadInput, match=said):
            wrong()


def test_inputs_are_a_routing_in_earnest() -> None:
    made = make_inputs(problem(64, 8, 16, 32, 3), device="cpu")
    assert all(len(set(row)) == 3 for row in made["topk_ids"].tolist())
    assert made["topk_ids"].unique().numel() == 8
    torch.testing.assert_close(made["topk_weights"].sum(1), torch.ones(64))
    assert reference(**made).std() > 0.01
    other = make_inputs(problem(64, 8, 16, 32, 3), seed=1, device="cpu")
    assert not torch.equal(made["topk_ids"], other["topk_ids"])


# --- compiled and launched for a GPU that is not here ------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What the GPU was asked to run; what is passed on is allocated nowhere."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: GpuTensor(*shape, dtype=dtype))
    with fake_gpu(monkeypatch) as fake:
        yield fake


def gpu_arguments(M: int, E: int, N: int, K: int, top_k: int) -> tuple[Any, ...]:
    return (
        GpuTensor(M, K), GpuTensor(E, 2 * N, K), GpuTensor(E, K, N), GpuTensor(M, top_k, dtype=torch.float32),
        GpuTensor(M, top_k, dtype=torch.int32), M, E, N, K, top_k,
    )  # fmt: skip


def test_a_call_launches_its_programs_in_order(launched: Any) -> None:
    args = gpu_arguments(40, 8, 96, 128, 2)
    assert package.kernel(*args).shape == (40, 128)
    names = ["align", "grouped_gemm", "silu_and_mul", "grouped_gemm", "combine"]
    assert [launch.kernel for launch in launched.launches] == names
    config = default(problem(40, 8, 96, 128, 2, "float16"), H200)
    block = config["BLOCK_SIZE_M"]
    down = places(40, 8, 2, block) // block
    assert launched.launches[1].grid == (down * -(-192 // config["BLOCK_SIZE_N"]), 1, 1)
    assert launched.launches[0].grid == (8, 1, 1)
    package.kernel(*args)
    assert [launch.kernel for launch in launched.launches[5:]] == names


def test_no_tokens_launch_nothing(launched: Any) -> None:
    assert package.kernel(*gpu_arguments(0, 8, 96, 128, 2)).shape == (0, 128)
    assert launched.launches == []


def test_all_programs_are_compiled_ahead_by_one_job(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.compiler import compiler

    monkeypatch.setattr(compiler, "get_cache_key", compiler.get_cache_key)  # a child's module sets its own and ends
    bound = KERNEL.for_call(gpu_arguments(40, 8, 96, 128, 2))
    first = default(problem(40, 8, 96, 128, 2, "float16"), H200)
    jobs = [bound.compile_job(first.replace(BLOCK_SIZE_K=k), problem(40, 8, 96, 128, 2), H200) for k in (64, 128)]
    assert jobs[0].output != jobs[1].output  # what Configs share does not stand for either
    requests = jobs[0].request()["requests"]
    assert {request["name"] for request in requests} == {"align", "grouped_gemm", "silu_and_mul", "combine"}
    from tunesmith.kernels.programs import compile_modules

    small = [request for request in requests if request["name"] in ("silu_and_mul", "combine")]
    compile_modules(requests=small)
    left = jobs[0].request()["requests"]
    assert {request["name"] for request in left} == {"align", "grouped_gemm"}


# --- tables for serving engines -----------------------------------------------------------------------------------


def test_a_table_is_exported_for_both_engines_and_they_would_find_it(tmp_path: Path, capsys: Any) -> None:
    sizes = (128, 768, 2048, 8)
    rows = {problem(M, *sizes): Entry(default(problem(M, *sizes), H200), 1e-4) for M in (1, 16, 128, 1024, 4096)}
    rows |= {problem(16, 8, 14336, 4096, 2): Entry(default(problem(16, 8, 14336, 4096, 2), H200), 1e-4)}
    NativeTable("fused_moe", H200.identity, rows, soft={"triton": "3.6.0"}).write(tmp_path / "moe.json")
    asked = [
        str(tmp_path / "moe.json"), "--layer", "experts=128,intermediate=768", "--device", "NVIDIA H200",
        "--triton", "3.6.0", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    for engine in ("sglang", "vllm"):
        assert main(["table", "export", *asked, "--to", f"{engine}-moe"]) == 0
    sglang = tmp_path / "out/configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json"
    vllm = tmp_path / "out/E=128,N=768,device_name=NVIDIA_H200.json"
    assert main(["table", "check", "--device", "NVIDIA H200", str(sglang), str(vllm)]) == 0
    assert "2 tables, 10 rows: 0 errors, 0 warnings" in capsys.readouterr().out
    tuned = json.loads(sglang.read_text())
    assert {int(size): Config(knobs) for size, knobs in tuned.items()} == {
        p["M"]: entry.config for p, entry in rows.items() if p["E"] == 128
    }
    assert list(tuned["1"]) == [
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"
    ]  # fmt: skip
    assert json.loads(vllm.read_text()).pop("triton_version") == "3.6.0"


def test_an_export_takes_the_rows_of_its_layer_alone(tmp_path: Path, capsys: Any) -> None:
    rows = {problem(16, 8, 14336, 4096, k): Entry(default(problem(16, 8, 14336, 4096, k), H200)) for k in (1, 2)}
    NativeTable("fused_moe", H200.identity, rows).write(tmp_path / "moe.json")
    asked = ["table", "export", str(tmp_path / "moe.json"), "--to", "vllm-moe", "--device", "NVIDIA H200"]
    asked += ["--triton", "3.6.0", "-o", str(tmp_path / "out")]
    assert main([*asked, "--layer", "experts=8,intermediate=14336,tp=2"]) == 2
    assert "no row has {'E': 8, 'N': 7168}" in capsys.readouterr().err
    assert main([*asked, "--layer", "experts=8,intermediate=14336"]) == 2
    assert "several rows are of M=16: say which" in capsys.readouterr().err
    assert main([*asked, "--layer", "experts=8,intermediate=14336", "--where", "top_k=2"]) == 0
