"""The shipped layer of experts and its operator on a GPU: right for every routing, in graphs, tuned, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.library import opcheck

from tunesmith import Config, Problem, ops, ops_moe
from tunesmith.cli import main
from tunesmith.kernels import fused_moe as package
from tunesmith.kernels.fused_moe import arguments, fused_moe, make_inputs, reference, route
from tunesmith.options import options

KERNEL = package.kernel.kernel
BASE = Config(BLOCK_SIZE_M=16, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64, GROUP_SIZE_M=1, num_warps=4, num_stages=3)
HOW = ({"BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128}, {"BLOCK_SIZE_M": 64, "GROUP_SIZE_M": 16}, {"BLOCK_SIZE_M": 128})
ALLOWED = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BUDGET_S", "15")
    options.cache_clear()


def off(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


def layer(M: int, E: int, N: int, K: int, top_k: int, dtype: Any) -> tuple[Any, ...]:
    def normal(*shape: int) -> Any:
        return (torch.randn(*shape, device="cuda") / shape[-1] ** 0.5).to(dtype)

    x = torch.randn(M, K, device="cuda").to(dtype)
    return x, normal(E, 2 * N, K), normal(E, K, N), *route(torch.randn(M, E, device="cuda"), top_k)


def launch_of(args: tuple[Any, ...], **knobs: Any) -> Any:
    return KERNEL.for_call(args).load(BASE.replace(**knobs), Problem({}), None).launch


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("how", HOW)
def test_every_config_is_right_on_odd_sizes_and_strides(dtype: Any, how: dict[str, Any]) -> None:
    if dtype is torch.float32:
        how = {**how, "BLOCK_SIZE_K": 32}
    for number, sizes in enumerate(((1, 8, 96, 128, 2), (77, 5, 65, 130, 3), (300, 60, 256, 512, 4))):
        x, w1, w2, weights, ids = layer(*sizes, dtype)
        if number % 2:
            x, w1, w2 = torch.cat([x, x], 1)[:, : x.shape[1]], w1.mT.contiguous().mT, torch.cat([w2, w2], 2)[:, :, ::2]
        args = arguments(x, w1, w2, weights, ids)
        launch = launch_of(args, **how)
        for _ in range(3):
            assert off(launch(*args), reference(x, w1, w2, weights, ids)) < ALLOWED[dtype], (how, sizes)


@pytest.mark.parametrize("block", [16, 64, 128])
def test_every_routing_is_right_also_a_skewed_one_and_experts_of_others(block: int) -> None:
    x, w1, w2, weights, _ = layer(1100, 16, 128, 256, 4, torch.bfloat16)
    draw = torch.randint(-8, 24, (1100, 4), device="cuda", dtype=torch.int32)
    skewed = torch.where(torch.rand(1100, 4, device="cuda") < 0.9, 3, draw.clamp(0, 15)).int()
    for ids in (torch.zeros_like(draw), torch.full_like(draw, 15), draw, skewed, torch.full_like(draw, -1)):
        args = arguments(x, w1, w2, weights, ids)
        made = launch_of(args, BLOCK_SIZE_M=block)(*args)
        assert off(made, reference(x, w1, w2, weights, ids)) < ALLOWED[torch.bfloat16]


def test_many_assignments_and_many_experts_are_sorted_right() -> None:
    x, w1, w2, weights, ids = layer(9000, 300, 64, 64, 10, torch.float16)
    args = arguments(x, w1, w2, weights, ids)
    assert off(launch_of(args, BLOCK_SIZE_M=64)(*args), reference(x, w1, w2, weights, ids)) < ALLOWED[torch.float16]


def test_the_same_bits_each_time_and_in_a_graph_of_another_routing() -> None:
    x, w1, w2, weights, ids = layer(64, 32, 128, 256, 4, torch.bfloat16)
    first = ops.fused_moe(x, w1, w2, weights, ids)
    assert all(torch.equal(first, ops.fused_moe(x, w1, w2, weights, ids)) for _ in range(50))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.fused_moe(x, w1, w2, weights, ids)
    other = route(torch.randn(64, 32, device="cuda"), 4)
    weights.copy_(other[0])
    ids.copy_(other[1])
    graph.replay()
    torch.cuda.synchronize()
    assert off(made, reference(x, w1, w2, weights, ids)) < ALLOWED[torch.bfloat16]


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_every_way_is_right_and_an_operator(dtype: Any) -> None:
    x, w1, w2, weights, ids = layer(40, 8, 64, 128, 2, dtype)
    ids[0], ids[1, 0] = -1, 8
    exact = reference(x, w1, w2, weights, ids)
    args = arguments(x, w1, w2, weights, ids)
    ways = [fused_moe, ops.fused_moe, *([ops_moe._by_groups] if ops_moe._has_groups(x, w1, w2) else [])]
    for way in (*ways, ops_moe._by_all, ops_moe._by_loop):
        given = args if way.__name__.startswith("_") else args[:5]
        # in torch's own float32 products TF32 may be allowed
        assert off(way(*given), exact) < max(ALLOWED[dtype], 1e-3), way
    opcheck(torch.ops.tunesmith.fused_moe, (x, w1, w2, weights, ids))
    compiled = torch.compile(lambda *given: ops.fused_moe(*given) + 1, fullgraph=True, backend="aot_eager")
    assert off(compiled(x, w1, w2, weights, ids) - 1, exact) < max(2 * ALLOWED[dtype], 1e-3)


def test_a_search_chooses_and_what_it_finds_serves(short_searches: None) -> None:
    args = layer(16, 16, 256, 512, 2, torch.bfloat16)
    summary = ops_moe.tune(*args)
    assert summary.choice is not None
    assert {trial.config["by"] for trial in summary.trials} == {"torch", "fused_moe"}
    assert off(ops.fused_moe(*args), reference(*args)) < ALLOWED[torch.bfloat16]
    assert "serves (store)" in ops_moe.scores(*args)


def test_tuned_into_a_table_and_exported_for_both_engines(tmp_path: Path, short_searches: None) -> None:
    import triton

    sizes = "E=16,N=256,K=512,top_k=2"
    table = tmp_path / "moe.json"
    asked = [word for M in (1, 64) for word in ("--problem", f"M={M},{sizes},dtype=bfloat16")]
    assert main(["tune", "fused_moe", *asked, "--table", str(table)]) == 0
    device = torch.cuda.get_device_name()
    for engine in ("sglang", "vllm"):
        command = [
            "table", "export", str(table), "--to", f"{engine}-moe", "--layer", "experts=16,intermediate=256",
            "--device", device, "--triton", triton.__version__, "--where", sizes, "-o", str(tmp_path / engine),
        ]  # fmt: skip
        assert main(command) == 0
        assert main(["table", "check", str(tmp_path / engine)]) == 0
    made = make_inputs(Problem.parse(f"M=64,{sizes},x.dtype=bfloat16"))
    assert off(package.kernel(**made), reference(**made)) < ALLOWED[torch.bfloat16]
