"""The shipped decode attention and its operator on a GPU: right for all lengths and caches, in graphs, tuned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.library import opcheck

from tunesmith import Config, Problem, ops, ops_attention
from tunesmith.kernels import decode_attention as package
from tunesmith.kernels.decode_attention import arguments, decode_attention, make_inputs, reference
from tunesmith.options import options

KERNEL = package.kernel.kernel
BASE = Config(BLOCK_N=64, BLOCK_H=16, SPLITS=1, num_warps=4, num_stages=2)
HOW = ({}, {"SPLITS": 4}, {"SPLITS": 64, "BLOCK_N": 16}, {"BLOCK_H": 32, "SPLITS": 2, "num_stages": 3})
ALLOWED = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}
NAMES = ("q", "k", "v", "lens", "pages", "scale", "B", "HQ", "HKV", "D", "S", "page_size")


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BUDGET_S", "15")
    options.cache_clear()


def off(args: tuple[Any, ...], result: Any) -> float:
    exact = reference(**dict(zip(NAMES, args, strict=True)))
    return float((result.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))


def cache(lens: list[int], HQ: int, HKV: int, D: int, S: int, page: int, dtype: Any) -> tuple[Any, ...]:
    """A call, with not a number wherever no sequence has keys."""
    B, many = len(lens), -(-S // page) if page else 0
    shape = (B * many + 1, page, HKV, D) if page else (B, S, HKV, D)
    q, k, v = (torch.randn(s, device="cuda").to(dtype) for s in ((B, HQ, D), shape, shape))
    pages = torch.randperm(B * many, device="cuda").view(B, many) if page else None
    for x in (k, v):
        if page:
            x[-1] = float("nan")
        for b, n in enumerate(lens if not page else ()):
            x[b, n:] = float("nan")
    return q, k, v, torch.tensor(lens, device="cuda"), pages


def launch_of(args: tuple[Any, ...], **knobs: Any) -> Any:
    return KERNEL.for_call(args).load(BASE.replace(**knobs), Problem({}), None).launch


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("how", HOW)
def test_every_config_is_right_for_all_lengths_and_caches(dtype: Any, how: dict[str, Any]) -> None:
    cases = (
        ([129], 40, 1, 64, 200, 16), ([77, 33], 6, 3, 20, 80, 3), ([0, 1, 63, 64, 65, 1000], 8, 2, 128, 1000, 0),
        ([900, 2, 500], 32, 8, 128, 1024, 64), ([5], 1, 1, 80, 8, 1),
    )  # fmt: skip
    for lens, HQ, HKV, D, S, page in cases[: 2 if dtype is torch.float32 else None]:  # which takes long to compile
        args = arguments(*cache(lens, HQ, HKV, D, S, page, dtype))
        launch = launch_of(args, **how)
        for _ in range(3):
            assert off(args, launch(*args)) < ALLOWED[dtype], (how, lens, HQ, HKV, D, S, page)


def test_heads_may_lie_outside_of_keys_and_a_long_sequence_is_cut() -> None:
    q, k, v, lens, pages = cache([700, 90], 16, 4, 128, 800, 32, torch.bfloat16)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    args = arguments(q, *turned, lens, pages, 0.05, 100)
    assert off(args, decode_attention(q, *turned, lens, pages, 0.05, 100)) < ALLOWED[torch.bfloat16]
    whole = arguments(q, k, v, lens, pages)
    assert off(whole, decode_attention(q, k, v, lens, pages)) < ALLOWED[torch.bfloat16]


def test_one_choice_serves_all_numbers_of_keys_of_its_bucket() -> None:
    for S in (1024, 1023, 600, 513):
        given = cache([S, 3], 8, 2, 64, S, 0, torch.float16)
        assert off(arguments(*given), ops.decode_attention(*given)) < ALLOWED[torch.float16]


def test_a_cache_of_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 24 * 1024**3:
        pytest.skip("needs 24 GiB of free memory")
    pages = 2**31 // (64 * 8 * 128) + 64
    k = torch.zeros(pages, 64, 8, 128, device="cuda", dtype=torch.float16)
    k[-4:] = torch.randn(4, 64, 8, 128, device="cuda").half()
    q, lens = torch.randn(1, 32, 128, device="cuda").half(), torch.tensor([200], device="cuda")
    args = arguments(q, k, k, lens, torch.arange(pages - 4, pages, device="cuda")[None])
    for how in ({}, {"SPLITS": 4}):
        assert off(args, launch_of(args, **how)(*args)) < ALLOWED[torch.float16]


def test_the_same_bits_each_time_and_in_a_graph_of_longer_sequences() -> None:
    given = cache([1000, 1, 400], 32, 8, 128, 2048, 16, torch.bfloat16)
    first = ops.decode_attention(*given)
    assert all(torch.equal(first, ops.decode_attention(*given)) for _ in range(50))
    q, k, v, lens, pages = given
    lens = lens.int()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.decode_attention(q, k, v, lens, pages)
    lens += 17
    graph.replay()
    torch.cuda.synchronize()
    assert off(arguments(q, k, v, lens, pages), made) < ALLOWED[torch.bfloat16]


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("page", [0, 16])
def test_every_way_is_right_and_an_operator(dtype: Any, page: int) -> None:
    given = cache([40, 3, 0], 8, 2, 64, 48, page, dtype)
    args = arguments(*given)
    for made in (
        decode_attention(*given), ops.decode_attention(*given), ops_attention._by_torch(*args),
        ops_attention._by_cut(*args),
    ):  # fmt: skip
        assert off(args, made) < max(ALLOWED[dtype], 1e-3)  # torch may be allowed TF32
        assert not made[2].any()
    q, k, v, lens, pages = given
    clean = q, k.nan_to_num(), v.nan_to_num(), lens, pages  # what is no number does not equal itself
    opcheck(torch.ops.tunesmith.decode_attention, (*clean, None, None))
    compiled = torch.compile(lambda *rest: ops.decode_attention(*rest) + 1, fullgraph=True, backend="aot_eager")
    assert off(args, compiled(*given) - 1) < max(4 * ALLOWED[dtype], 1e-3)


def test_a_search_chooses_and_what_it_finds_serves(short_searches: None) -> None:
    q, k, v, lens, pages = cache([2000, 700, 1500, 1], 32, 8, 128, 2048, 16, torch.bfloat16)
    summary = ops_attention.tune(q, k, v, lens, pages)
    assert summary.choice is not None
    assert {trial.config["by"] for trial in summary.trials} == {"torch", "decode_attention"}
    assert off(arguments(q, k, v, lens, pages), ops.decode_attention(q, k, v, lens, pages)) < ALLOWED[torch.bfloat16]
    assert "serves (store)" in ops_attention.scores(q, k, v, lens, pages)


def test_a_problem_by_hand_can_be_tuned(short_searches: None) -> None:
    made = make_inputs(Problem.parse("B=8,HQ=32,HKV=8,D=128,S=4096,page_size=0,q.dtype=bfloat16"))
    summary = package.kernel.tune(**made)
    assert summary.choice is not None
    assert not [reason for _, failure in summary.failures if (reason := failure.reason) and failure.stage == "wrong"]
    assert off(tuple(made.values()), package.kernel(**made)) < ALLOWED[torch.bfloat16]
