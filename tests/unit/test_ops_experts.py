"""`ops.fused_moe` and `ops.decode_attention`: right by every way on the CPU, and operators for torch.compile."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.library import opcheck

from tunesmith import Config, Problem, ops, ops_attention, ops_moe
from tunesmith.core.device import known_device
from tunesmith.errors import BadInput
from tunesmith.kernels import decode_attention, fused_moe
from tunesmith.options import options

ALLOWED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
H200 = known_device("NVIDIA H200")


@pytest.fixture(autouse=True)
def own_choosers() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ops_moe._cpu.cache_clear()  # every test has a store of its own
    ops_attention._cpu.cache_clear()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BUDGET_S", "4")
    options.cache_clear()


def layer(dtype: Any = torch.float32, M: int = 9, E: int = 8, N: int = 24, K: int = 16, top_k: int = 2) -> Any:
    weights, ids = ops.route(torch.randn(M, E), top_k)
    w1, w2 = torch.randn(E, 2 * N, K) / K**0.5, torch.randn(E, K, N) / N**0.5
    return torch.randn(M, K).to(dtype), w1.to(dtype), w2.to(dtype), weights, ids


def cache(dtype: Any = torch.float32, page: int = 0) -> Any:
    B, HQ, HKV, D, S = 4, 6, 2, 20, 33
    shape = (20, page, HKV, D) if page else (B, S, HKV, D)
    q, k, v = (torch.randn(s).to(dtype) for s in ((B, HQ, D), shape, shape))
    pages = torch.randperm(20).view(B, 5).int() if page else None
    return q, k, v, torch.tensor([0, 1, 20, 33]), pages


def off(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())


# --- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_experts_are_right_by_every_way_also_those_of_other_devices(dtype: Any) -> None:
    x, w1, w2, weights, ids = layer(dtype)
    ids[0, 0], ids[1] = -1, 99
    exact = fused_moe.reference(x, w1, w2, weights, ids)
    args = fused_moe.arguments(x, w1, w2, weights, ids)
    assert off(ops.fused_moe(x, w1, w2, weights, ids), exact) < ALLOWED[dtype]
    assert off(ops.fused_moe(x, w1.mT.contiguous().mT, w2, weights, ids.long()), exact) < ALLOWED[dtype]
    ways = [ops_moe._by_loop, ops_moe._by_all, *([ops_moe._by_groups] if ops_moe._has_groups(x, w1, w2) else [])]
    for way in ways:
        assert off(way(*args), exact) < ALLOWED[dtype], way
    assert not exact[1].any()
    assert ops.fused_moe(x[:0], w1, w2, weights[:0], ids[:0]).shape == (0, 16)


def test_an_expert_that_was_not_asked_changes_nothing_however_it_fails() -> None:
    x, w1, w2, weights, ids = layer(torch.float32)
    ids[ids == 0] = -1
    exact = fused_moe.reference(x, w1, w2, weights, ids)
    w1[0] = float("nan")
    for way in (ops_moe._by_loop, ops_moe._by_all):
        assert off(way(*fused_moe.arguments(x, w1, w2, weights, ids)), exact) < ALLOWED[torch.float32], way


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("page", [0, 7])
def test_attention_is_right_by_every_way_whatever_lies_behind_a_sequence(dtype: Any, page: int) -> None:
    q, k, v, lens, pages = cache(dtype, page)
    if not page:
        k[1, 1:], v[1, 1:] = float("nan"), float("nan")
    for scale, most in ((None, None), (0.2, 20)):
        args = decode_attention.arguments(q, k, v, lens, pages, scale, most)
        exact = decode_attention.reference(*args[:6], S=args[10])
        assert off(ops.decode_attention(q, k, v, lens, pages, scale, most), exact) < ALLOWED[dtype]
        for way in (ops_attention._by_torch, ops_attention._by_cut):
            assert off(way(*args), exact) < ALLOWED[dtype], way
        assert not exact[0].any()
    assert not ops.decode_attention(q, k, v, lens, pages, max_len=0).any()


def test_mistakes_are_named() -> None:
    x, w1, w2, weights, ids = layer()
    with pytest.raises(BadInput, match=r"w1 should be \(8, 48, 16\)"):
        ops.fused_moe(x, w1[:, 1:], w2, weights, ids)
    q, k, v, lens, _ = cache()
    with pytest.raises(BadInput, match="cannot share"):
        ops.decode_attention(q[:, :5], k, v, lens)


# --- as torch's operators -----------------------------------------------------------------------------------------


def test_opcheck() -> None:
    opcheck(torch.ops.tunesmith.fused_moe, layer())
    opcheck(torch.ops.tunesmith.decode_attention, (*cache(), None, None))
    opcheck(torch.ops.tunesmith.decode_attention, (*cache(page=7), 0.2, 30))


def test_torch_compile_takes_them_whole() -> None:
    args, other = layer(), cache(page=7)
    compiled = torch.compile(
        lambda args, other: (ops.fused_moe(*args) + 1, ops.decode_attention(*other) + 1), fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    made, attended = compiled(args, other)
    torch.testing.assert_close(made, ops.fused_moe(*args) + 1)
    torch.testing.assert_close(attended, ops.decode_attention(*other) + 1)


# --- choosing -----------------------------------------------------------------------------------------------------


def test_a_search_measures_every_way_and_is_used(short_searches: None) -> None:
    args = layer(torch.bfloat16, top_k=4)
    summary = ops_moe.tune(*args)
    assert {trial.config["by"] for trial in summary.trials} >= {"torch, all experts"}
    assert "serves (store)" in ops_moe.scores(*args)
    assert off(ops.fused_moe(*args), fused_moe.reference(*args)) < ALLOWED[torch.bfloat16]
    q, k, v, lens, _ = cache()
    assert ops_attention.tune(q, k, v, lens).choice is not None
    assert "decode_attention_cpu(4x6x20" in ops_attention.scores(q, k, v, lens)


def test_on_a_gpu_our_kernels_serve_where_nothing_is_known() -> None:
    """Torch's loop would wait for the host, which a CUDA graph cannot."""
    sizes = {"M": 16, "E": 8, "N": 64, "K": 128, "top_k": 2, "w1.strides": "xx1", "w2.strides": "xx1"}
    problem = Problem({**sizes, **dict.fromkeys(("x.dtype", "w1.dtype", "w2.dtype"), "bfloat16")})
    chosen = ops_moe._gpu()
    usual = chosen.declared.default(problem, H200)
    assert usual == Config({"by": "fused_moe", **fused_moe.default(problem, H200)})
    assert {config["by"] for config in chosen.declared.space_for(problem, H200)} == {"torch", "fused_moe"}
    problem = Problem({
        "B": 4, "HQ": 32, "HKV": 8, "D": 128, "S": 4096, "page_size": 16,
        **dict.fromkeys(("q.dtype", "k.dtype", "v.dtype"), "float16"),
    })  # fmt: skip
    usual = ops_attention._gpu().declared.default(problem, H200)
    assert usual == Config({"by": "decode_attention", **decode_attention.default(problem, H200)})


def test_a_problem_by_hand_is_the_calls() -> None:
    chosen = ops_moe.chooser("cpu")
    made = chosen.inputs("M=9,E=8,N=24,K=16,top_k=2,dtype=bfloat16")
    call = chosen.dispatcher.problem_of(*fused_moe.arguments(*layer(torch.bfloat16))).problem
    assert chosen.dispatcher.problem_of(**made).problem == call
    chosen = ops_attention.chooser("cpu")
    made = chosen.inputs("B=4,HQ=6,HKV=2,D=20,S=35,page_size=7,dtype=float32")
    call = chosen.dispatcher.problem_of(*decode_attention.arguments(*cache(page=7))).problem
    assert chosen.dispatcher.problem_of(**made).problem == call
