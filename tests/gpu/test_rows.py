"""The shipped kernels over rows, and the operations made of them, on a GPU: right, in place once, beside torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.library import opcheck

from tunesmith import Config, Problem, TunedKernel, ops
from tunesmith.kernels import add_rmsnorm, layernorm, rmsnorm, rmsnorm_backward, row_softmax, shipped, silu_and_mul
from tunesmith.kernels.rows import softmax
from tunesmith.subject import Effort

F = torch.nn.functional
KERNELS = ("row_softmax", "rmsnorm", "rmsnorm_backward", "add_rmsnorm", "layernorm", "silu_and_mul")
ALLOWED = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5}


def off(result: Any, exact: Any) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max().clamp(min=0.1))


def normal(*shape: int, dtype: Any) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("name", KERNELS)
def test_configs_from_all_over_the_space_are_right(name: str, dtype: Any) -> None:
    kernel = shipped()[name]
    for rows, n in ((1, 1), (300, 100), (1000, 1024), (37, 5003), (5, 70001)):
        problem = kernel.problem(f"rows={rows},n={n},dtype={str(dtype).rpartition('.')[2]}")
        given = kernel.inputs(problem)
        exact = kernel.declared.against.reference(**given)
        device = kernel.kernel.device(tuple(given.values()))
        space = kernel.declared.space_for(problem, device)
        for config in {kernel.declared.default_for(name, problem, device), *space.sample(2, seed=rows)}:
            args = tuple(value.clone() if hasattr(value, "clone") else value for value in given.values())
            result = kernel.kernel.for_call(args).load(config, Problem({}), None).launch(*args)
            made = (args[3], args[4]) if name == "rmsnorm_backward" else result
            pairs = zip(made, exact, strict=True) if isinstance(exact, tuple) else [(made, exact)]
            for mine, right in pairs:
                assert off(mine, right) < ALLOWED[dtype], (name, rows, n, config)


def test_strides_of_all_kinds() -> None:
    for n in (64, 100, 4096):
        x = normal(7, 2 * n + 1, dtype=torch.float16)[:, 3 : n + 3]  # odd distances, and no alignment
        w = normal(n, dtype=torch.float16)
        assert off(rmsnorm.rmsnorm(x, w), rmsnorm.reference(x, w)) < ALLOWED[torch.float16]
        assert off(row_softmax.softmax(x.mT), x.mT.double().softmax(-1)) < ALLOWED[torch.float16]
        assert off(layernorm.layernorm(x.expand(2, 7, n), w), layernorm.reference(x, w).expand(2, 7, n)) < 4e-3
        both = normal(3, 4, 2 * n, dtype=torch.float16)[:, ::2]
        assert silu_and_mul.silu_and_mul(both).shape == (3, 2, n)
    assert row_softmax.softmax(normal(0, 5, dtype=torch.float16)).shape == (0, 5)


def split_softmax(x: Any, split: int, block: int, warps: int) -> Any:
    """A function that makes the softmax of x's rows, each by so many programs."""
    kernel, (rows, n) = row_softmax.kernel.kernel, x.shape
    config = Config(SPLIT=split, ROWS=1, BLOCK=block, PER_UNIT=0, STAGES=1, num_warps=warps)
    args = x, rows, n
    ready = kernel.for_call(args).load(config, Problem({}), None).launch
    return lambda x=x: ready(x, rows, n)


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_rows_that_programs_share_are_right_and_always_the_same(dtype: Any) -> None:
    ways = ((2, 8192, 16), (3, 4096, 8), (4, 16384, 32), (5, 4096, 16), (6, 8192, 32), (8, 2048, 8), (16, 4096, 4))
    for (split, block, warps), n in zip(ways, (40000, 50257, 128256, 70001, 151936, 33001, 128257), strict=True):
        x = 4 * normal(700, n, dtype=dtype)
        call = split_softmax(x, split, block, warps)
        first = call()
        for mine, given in zip(first.split(100), x.split(100), strict=True):
            exact = given.double().softmax(-1)
            assert off(mine, exact) < ALLOWED[dtype], (split, n)
            assert float(((mine.double() - exact).abs() / (exact + 1e-6)).max()) < 10 * ALLOWED[dtype], (split, n)
        assert all(torch.equal(call(), first) for _ in range(60)), (split, n)
        few = x[:3].contiguous()
        assert torch.equal(split_softmax(few, split, block, warps)(), first[:3])


def test_rows_that_programs_share_are_torchs_where_numbers_are_not_finite() -> None:
    x = normal(9, 60000, dtype=torch.bfloat16)
    x[0], x[1, 50000], x[2, 7], x[3, 100:59900] = -math.inf, math.nan, math.inf, -math.inf
    x[4], x[5], x[5, 40000] = torch.finfo(torch.bfloat16).min, -math.inf, 0.0
    for split in (2, 4, 8):
        made = split_softmax(x, split, 2048, 16 if split == 2 else 8)()
        torch.testing.assert_close(made, x.softmax(-1), equal_nan=True, atol=1e-5, rtol=2e-2)


def test_rows_that_programs_share_in_graphs_and_streams_at_once() -> None:
    x = 4 * normal(300, 128256, dtype=torch.bfloat16)
    calls = [split_softmax(x, *how) for how in ((8, 4096, 8), (4, 8192, 16), (2, 16384, 32))]
    expected = [call() for call in calls]
    graphs = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [call() for _ in range(3)]
        graphs.append((graph, results))
    streams = [torch.cuda.Stream() for _ in range(24)]
    torch.cuda.synchronize()
    for _ in range(5):  # more launches at once than units hold programs that wait
        made = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if i < len(graphs):
                    graphs[i][0].replay()
                else:
                    made.append((i % 3, calls[i % 3]()))
        torch.cuda.synchronize()
        assert all(torch.equal(result, expected[which]) for which, result in made)
    for (_, results), right in zip(graphs, expected, strict=True):
        assert all(torch.equal(result, right) for result in results)


def test_programs_that_do_not_hear_of_the_others_go_on_without_them() -> None:
    """As where the GPU has no room for these: here they are not even asked for."""
    x = 4 * normal(200, 70001, dtype=torch.bfloat16)
    expected = split_softmax(x, 4, 4096, 8)()
    y, partial = torch.empty_like(x), torch.empty(200, 4, 2, device="cuda")
    arrived = torch.zeros(200, device="cuda", dtype=torch.int32)
    for after in (4, 0):
        softmax.row_softmax[(800,)](
            x, y.fill_(0), partial, arrived, 70001, 200, 70001, ROWS=1, BLOCK=4096, PER_UNIT=0, STAGES=1, SPLIT=4,
            PATIENCE=0, HELD=5, LOOP=False, VECTOR=0, num_warps=8,
        )  # fmt: skip
        assert torch.equal(y, expected)
        assert (arrived == after).all()


def test_a_sum_written_in_place_leaves_what_lies_around_alone() -> None:
    whole, residual, w = normal(64, 4096, dtype=torch.bfloat16), normal(64, 3001, dtype=torch.bfloat16), None
    x, before = whole[:, 7:3008], whole.clone()
    exact = add_rmsnorm.reference(x.clone(), residual.clone(), w)
    add_rmsnorm.add_rmsnorm_(x, residual, w)
    assert off(x, exact[0]) < ALLOWED[torch.bfloat16]
    assert off(residual, exact[1]) < ALLOWED[torch.bfloat16]
    x.copy_(before[:, 7:3008])
    assert torch.equal(whole, before)


def test_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 24 * 1024**3:
        pytest.skip("needs 24 GiB of free memory")
    rows = 2**31 // 4096 + 64
    x = torch.zeros(rows, 4096, device="cuda", dtype=torch.float16)
    x[-64:] = normal(64, 4096, dtype=torch.float16)
    assert off(rmsnorm.rmsnorm(x)[-64:], rmsnorm.reference(x[-64:])) < ALLOWED[torch.float16]
    assert off(row_softmax.softmax(x)[-64:], row_softmax.reference(x[-64:])) < ALLOWED[torch.float16]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["add_rmsnorm", "rmsnorm_backward"])
def test_a_whole_space_leaves_what_one_launch_of_the_winner_leaves(name: str) -> None:
    usual = shipped()[name]
    kernel = TunedKernel(usual.kernel, replace(usual.declared, effort=Effort("exhaustive")))  # of any number
    given = kernel.inputs("rows=2000,n=1024,dtype=float16")
    if name == "rmsnorm_backward":
        given["dw"].fill_(3.0)  # the caller's own, to which the call adds
    once = {key: value.clone() if hasattr(value, "clone") else value for key, value in given.items()}
    left = {key: value.clone() if hasattr(value, "clone") else value for key, value in given.items()}
    summary = kernel.tune(*left.values(), isolate=False)
    assert summary.choice is not None
    assert summary.choice.checked
    assert not [failed for _, failed in summary.failures if failed.stage == "wrong"]
    assert summary.counts["measured"] > 100
    assert not summary.counts["untried"]
    written = ("dw",) if name == "rmsnorm_backward" else ("x", "residual")
    for key in written:
        assert torch.equal(left[key], given[key]), key
    kernel(*left.values())
    bound = kernel.kernel.for_call(tuple(once.values()))
    bound.load(summary.choice.config, Problem({}), None).launch(*once.values())
    if name == "rmsnorm_backward":
        assert torch.equal(left["dx"], once["dx"])
        # atomic additions come in any order: the last bits differ between any two launches
        torch.testing.assert_close(left["dw"], once["dw"], rtol=1e-4, atol=1e-4)
        exact = kernel.declared.against.reference(**given)[1] + 3
        assert off(left["dw"], exact) < 1e-3
    else:
        assert all(torch.equal(left[key], once[key]) for key in written)


def test_operations_search_choose_and_stay_right() -> None:
    x, w, b = normal(4096, 4096, dtype=torch.bfloat16), *(normal(4096, dtype=torch.bfloat16) for _ in range(2))
    both = normal(2048, 8192, dtype=torch.bfloat16)
    for operation, args, exact in (
        ("softmax", (x,), row_softmax.reference(x)),
        ("rms_norm", (x, w), rmsnorm.reference(x, w)),
        ("layer_norm", (x, w, b), layernorm.reference(x, w, b)),
        ("silu_and_mul", (both,), silu_and_mul.reference(both, 4096)),
    ):
        summary = ops.rows.tune(operation, *args)
        assert {trial.config["by"] for trial in summary.trials} > {"torch"}, operation
        call = getattr(ops, operation)
        for _ in range(2):
            assert off(call(*args), exact) < ALLOWED[torch.bfloat16], operation
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call(*args)
        graph.replay()
        torch.cuda.synchronize()
        assert off(result, exact) < ALLOWED[torch.bfloat16], operation


def test_an_operation_in_place_is_tuned_and_runs_once() -> None:
    x, residual, w = (normal(*size, dtype=torch.bfloat16) for size in ((4096, 2048), (4096, 2048), (2048,)))
    before = x.clone(), residual.clone()
    summary = ops.rows.tune("add_rms_norm_", x, residual, w)
    assert {trial.config["by"] for trial in summary.trials} == {"torch", "add_rmsnorm"}
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
    exact = add_rmsnorm.reference(x, residual, w)
    ops.add_rms_norm_(x, residual, w)
    assert off(x, exact[0]) < ALLOWED[torch.bfloat16]
    assert off(residual, exact[1]) < ALLOWED[torch.bfloat16]


def test_gradients_are_torchs_and_accumulate() -> None:
    x, w, slope = (normal(*size, dtype=torch.float32) for size in ((3, 70, 1000), (1000,), (3, 70, 1000)))
    x.requires_grad_()
    w.requires_grad_()
    ours = torch.autograd.grad(ops.rms_norm(x, w), (x, w), slope)
    theirs = torch.autograd.grad(F.rms_norm(x.double(), (1000,), w.double(), 1e-6), (x, w), slope.double())
    for mine, right in zip(ours, theirs, strict=True):
        assert off(mine, right.double()) < 1e-4
    _, once = rmsnorm_backward.rmsnorm_backward(slope, x.detach(), w.detach())
    _, twice = rmsnorm_backward.rmsnorm_backward(slope, x.detach(), w.detach(), dw=once.clone())
    assert off(twice, 2 * once.double()) < 1e-5


def test_a_gradients_gradient_and_one_that_is_deterministic() -> None:
    x, w, slope = (normal(*size, dtype=torch.float32).requires_grad_() for size in ((5, 300), (300,), (5, 300)))

    def second(norm: Any) -> Any:
        first = torch.autograd.grad(norm(x, w), (x, w), slope, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), (x, w, slope))

    theirs = second(lambda x, w: rmsnorm.reference(x, w).float())
    for mine, right in zip(second(ops.rms_norm), theirs, strict=True):
        assert off(mine, right.double()) < 1e-4
    many, steep = (normal(20000, 512, dtype=torch.bfloat16) for _ in range(2))
    scale = normal(512, dtype=torch.bfloat16).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        made = [torch.autograd.grad(ops.rms_norm(many, scale), scale, steep)[0] for _ in range(5)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, made[0]) for one in made)


def test_autograd_notices_what_is_written_in_place() -> None:
    weight = normal(512, dtype=torch.float32).requires_grad_()
    for write in (ops.add_rms_norm_, add_rmsnorm.add_rmsnorm_):
        for which in (0, 1):
            both = normal(64, 512, dtype=torch.float32), normal(64, 512, dtype=torch.float32)
            product = (weight * both[which]).sum()
            with torch.no_grad():
                write(*both)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()
    with torch.inference_mode():
        ops.add_rms_norm_(normal(64, 512, dtype=torch.float32), normal(64, 512, dtype=torch.float32))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_are_torchs() -> None:
    many, w = normal(3, 8, 64, dtype=torch.float32), normal(64, dtype=torch.float32)
    calls = (
        (ops.softmax, lambda x: torch.softmax(x, -1)),
        (lambda x: ops.rms_norm(x, w), lambda x: F.rms_norm(x, (64,), w, 1e-6)),
        (lambda x: ops.linear(x, many[0]), lambda x: F.linear(x, many[0])),
    )
    for ours, theirs in calls:
        for _ in range(2):
            ours(many[0])
        for seen in (
            lambda call: torch.vmap(call)(many),
            lambda call: torch.func.grad(lambda x: call(x).square().sum())(many[0]),
            lambda call: torch.func.jvp(call, (many[0],), (many[1],))[1],
        ):
            try:
                expected = seen(theirs)
            except (NotImplementedError, RuntimeError):
                continue  # what torch itself can't do here
            torch.testing.assert_close(seen(ours), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_opcheck_and_compile() -> None:
    x, w, b = normal(8, 64, dtype=torch.float16), *(normal(64, dtype=torch.float16) for _ in range(2))
    opcheck(torch.ops.tunesmith.softmax, (x,))
    opcheck(torch.ops.tunesmith.rms_norm, (x, w, 1e-6))
    opcheck(torch.ops.tunesmith.layer_norm, (x, w, b, 1e-5))
    opcheck(torch.ops.tunesmith.add_rms_norm_, (x.clone(), x.clone(), w, 1e-6))
    opcheck(torch.ops.tunesmith.silu_and_mul, (x,))
    opcheck(torch.ops.tunesmith.rms_norm_backward, (x, x, w, 1e-6))
    compiled = torch.compile(lambda x, w: ops.silu_and_mul(ops.rms_norm(x, w)), fullgraph=True)
    torch.testing.assert_close(compiled(x, w), ops.silu_and_mul(ops.rms_norm(x, w)), atol=1e-2, rtol=1e-2)
