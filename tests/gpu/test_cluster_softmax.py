"""Softmax of rows that clusters of blocks share, on a GPU: right wherever rows begin, always the same, and chosen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install 'tunesmith[cuda]'", exc_type=ImportError)

from tunesmith import Config, Problem, ops
from tunesmith.kernels import cluster_softmax
from tunesmith.kernels.rows.cluster import Layout

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU with clusters: sm_90 or newer"
)
KERNEL = cluster_softmax.kernel
ALLOWED = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}
CLUSTERS = (1, 2, 4, 8)


def matrix(rows: int, n: int, dtype: Any, more: int = 0, ahead: int = 0) -> Any:
    """Four times standard normal, with so many elements between rows and ahead of the first."""
    whole = (4 * torch.randn(rows * (n + more) + ahead, device="cuda")).to(dtype)
    return whole[ahead:].view(rows, n + more)[:, :n]


def ready(x: Any, config: Config) -> Any:
    return KERNEL.kernel.for_call((x, *x.shape)).load(config, Problem({}), None).launch


def made(x: Any, config: Config) -> Any:
    return ready(x, config)(x, *x.shape)


def configs(x: Any, number: int) -> list[Config]:
    """Some from all over the space, the default first."""
    problem = KERNEL.dispatcher.problem_of(x, *x.shape).problem
    device = KERNEL.kernel.device((x, *x.shape))
    space = KERNEL.declared.space_for(problem, device)
    return list(dict.fromkeys([cluster_softmax.default(problem, device), *space.sample(number, seed=x.shape[1])]))


def off(mine: Any, exact: Any) -> float:
    """Beyond half a step of the smallest numbers, which in float16 are as large as elements of long rows."""
    finfo = torch.finfo(mine.dtype)
    beyond = ((mine.double() - exact).abs() - 0.5 * finfo.tiny * finfo.eps).clamp(min=0)
    return float((beyond / (exact + exact.mean(-1, keepdim=True))).max())


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_rows_of_any_length_that_begin_anywhere_are_right_and_always_the_same(dtype: Any) -> None:
    for rows, n, more, ahead in (
        (1, 1, 0, 0), (3, 5, 2, 1), (40, 129, 0, 3), (300, 16384, 0, 0), (700, 32001, 7, 0), (9, 50257, 0, 0),
        (9, 100003, 3, 1), (70, 128256, 8, 4), (33, 151936, 64, 0),
    ):  # fmt: skip
        x = matrix(rows, n, dtype, more, ahead)
        exact = x.double().softmax(-1)
        for config in configs(x, 8):
            call = ready(x, config)
            result = call(x, rows, n)
            assert off(result, exact) < ALLOWED[dtype], (rows, n, more, ahead, config)
            assert all(torch.equal(call(x, rows, n), result) for _ in range(5)), (rows, n, config)
    x = matrix(1, 30000, dtype).expand(50, 30000)
    assert off(made(x, configs(x, 1)[0]), x.double().softmax(-1)) < ALLOWED[dtype]


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("n", [33001, 65536])
def test_numbers_that_are_not_finite_or_as_large_as_can_be_are_torchs(n: int, dtype: Any) -> None:
    x = matrix(16, n, dtype)
    most = torch.finfo(dtype).max
    x[0], x[1, n - 1], x[2, 7], x[3, 100 : n - 100] = -math.inf, math.nan, math.inf, -math.inf
    x[4], x[5], x[5, n // 2], x[6, 0], x[7] = -most, -math.inf, 0.0, most, most
    x[8, 1:], x[9, :9], x[10, n - 1] = -most, math.nan, -math.inf
    x = x.repeat(20, 1)
    expected, device = x.double().softmax(-1).to(dtype), KERNEL.kernel.device((x, *x.shape))
    for cluster in CLUSTERS:
        for registers in (0, 4):
            config = Config(CLUSTER=cluster, THREADS=512, REGISTERS=registers)
            if Layout.of(n, x.element_size(), config, device).resident:
                torch.testing.assert_close(made(x, config), expected, equal_nan=True, atol=1e-5, rtol=2e-2)


@pytest.mark.parametrize("dtype", list(ALLOWED))
@pytest.mark.parametrize("n", [33001, 65536])
def test_numbers_that_masks_are_made_of_are_torchs(n: int, dtype: Any) -> None:
    far = [10.0**i * k for i in range(4, 38) for k in (1, 2.5, 3, 7) if 10.0**i * k <= torch.finfo(dtype).max]
    x = matrix(3 * len(far), n, dtype)
    for i, one in enumerate(far):
        x[3 * i, 1000 : n - 1000] = -one  # most threads have nothing else
        x[3 * i + 1] = -one
        x[3 * i + 2, :: n // 7] = one
    expected = x.double().softmax(-1).to(dtype)
    for config in configs(x, 4):
        torch.testing.assert_close(made(x, config), expected, atol=1e-5, rtol=2e-2)


def test_clusters_in_graphs_and_streams_at_once() -> None:
    x = matrix(2000, 65536, torch.bfloat16)
    ways = [Config(CLUSTER=c, THREADS=t, REGISTERS=r) for c, t, r in ((8, 128, 0), (4, 256, 4), (2, 512, 0))]
    calls = [ready(x, config) for config in ways]
    expected = [call(x, *x.shape) for call in calls]
    for mine in expected:
        assert off(mine[::37], x[::37].double().softmax(-1)) < ALLOWED[torch.bfloat16]
    graphs = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [call(x, *x.shape) for _ in range(2)]
        graphs.append((graph, results))
    streams = [torch.cuda.Stream() for _ in range(9)]
    torch.cuda.synchronize()
    for _ in range(3):
        results = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                if i < len(graphs):
                    graphs[i][0].replay()
                else:
                    results.append((i % 3, calls[i % 3](x, *x.shape)))
        torch.cuda.synchronize()
        assert all(torch.equal(result, expected[which]) for which, result in results)
    for (_, results), right in zip(graphs, expected, strict=True):
        assert all(torch.equal(result, right) for result in results)


def test_what_lies_around_rows_is_left_alone() -> None:
    for n, ahead in ((16387, 0), (16384, 3), (40001, 5)):
        x, whole = matrix(5, n, torch.bfloat16, ahead=ahead), torch.full((5 * n + 64,), 7.0, device="cuda")
        y = whole.to(torch.bfloat16)
        for shift in (0, 1, 8, 13):
            y.fill_(7)
            bound = KERNEL.kernel.for_call((x, 5, n)).bound
            config = bound.plan(configs(x, 0)[0])
            run = bound.program.load(config, Problem({}), None).launch
            run(x, y[shift : shift + 5 * n], x.stride(0), n)
            assert (y[:shift] == 7).all()
            assert (y[shift + 5 * n :] == 7).all()
            assert off(y[shift : shift + 5 * n].view(5, n), x.double().softmax(-1)) < ALLOWED[torch.bfloat16]


def test_softmax_is_searched_and_chosen_and_captured() -> None:
    x = matrix(512, 128256, torch.bfloat16)
    summary = ops.rows.tune("softmax", x)
    assert {trial.config["by"] for trial in summary.trials} == {"torch", "row_softmax", "cluster_softmax"}
    assert summary.choice is not None
    assert summary.choice.config["by"] == "cluster_softmax"
    expected = ops.softmax(x)
    assert off(expected, x.double().softmax(-1)) < ALLOWED[torch.bfloat16]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.softmax(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)
    other = matrix(512, 128256, torch.bfloat16, more=3, ahead=1)
    assert off(ops.softmax(other), other.double().softmax(-1)) < ALLOWED[torch.bfloat16]
