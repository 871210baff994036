"""The product of few rows in CUDA C++ on a GPU: right however matrices lie, always the same, in graphs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install 'tunesmith[cuda]'", exc_type=ImportError)

from tunesmith import Config, Problem, ops
from tunesmith.core.outcome import Measured
from tunesmith.kernel import Built, Job
from tunesmith.kernels import skinny_gemm
from tunesmith.kernels.gemm import arguments, reference
from tunesmith.workers import compile_all

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability() < (8, 0), reason="needs a GPU with matrix units for bfloat16: sm_80 or newer"
)
KERNEL = skinny_gemm.kernel
ALLOWED = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HAS_CLUSTERS = torch.cuda.get_device_capability() >= (9, 0)


def matrix(rows: int, columns: int, dtype: Any, more: int = 0, ahead: int = 0) -> Any:
    """Standard normal, with so many elements of NaN behind each row and ahead of the first."""
    whole = torch.full((ahead + rows * (columns + more),), float("nan"), device="cuda", dtype=dtype)
    made = whole[ahead:].view(rows, columns + more)[:, :columns]
    return made.copy_(torch.randn(rows, columns, device="cuda"))


def configs(args: tuple[Any, ...], number: int) -> list[Config]:
    """The default and some from all over the space."""
    problem, device = KERNEL.dispatcher.problem_of(*args).problem, KERNEL.kernel.device(args)
    space = skinny_gemm.space(problem, device)
    return list(dict.fromkeys([skinny_gemm.default(problem, device), *space.sample(number, seed=args[5])]))


def ready(args: tuple[Any, ...], config: Config) -> Callable[..., Any]:
    return KERNEL.kernel.for_call(args).load(config, Problem({}), None).launch


def compiled(wanted: list[tuple[tuple[Any, ...], Config]]) -> None:
    """Compile them all at once, where one after the other takes minutes."""
    jobs: dict[Any, tuple[Config, Job]] = {}
    for args, config in wanted:
        job = KERNEL.kernel.for_call(args).compile_job(config, Problem({}), KERNEL.kernel.device(args))
        jobs[job.output] = config, job
    for config, built in compile_all(jobs.values(), os.cpu_count() or 1):
        assert isinstance(built, Built), (config, built)


def off(result: Any, exact: Any) -> float:
    size = (exact.abs() + exact.abs().mean()).clamp(min=1e-30)  # relu's may all be 0
    return float(((result.double() - exact).abs() / size).max())


@pytest.mark.parametrize("dtype", list(ALLOWED))
def test_every_form_is_right_on_odd_sizes_and_always_the_same(dtype: Any) -> None:
    wanted: list[tuple[tuple[Any, ...], Config]] = []
    for m, n, k, more in (
        (1, 1, 1, 7), (1, 4097, 1000, 0), (3, 77, 1003, 5), (8, 1000, 2056, 0), (9, 130, 64, 8), (16, 16, 40, 0),
        (17, 1031, 4096, 64), (29, 333, 1291, 5), (32, 2560, 512, 0), (33, 77, 6000, 0), (64, 4096, 1096, 24),
    ):  # fmt: skip
        bias = matrix(1, n, dtype)[0]
        a, b = matrix(m, k, dtype, more), matrix(n, k, dtype, more + 8).mT
        for given, activation in ((None, None), (bias, "gelu"), (bias, "silu"), (None, "relu"), (bias, None)):
            args = arguments(a, b, given, activation)
            wanted += [(args, config) for config in configs(args, 16 if activation is None else 1)]
    compiled(wanted)
    for args, config in wanted:
        exact, call = reference(*args[:3], args[7]), ready(args, config)
        result = call(*args)
        assert off(result, exact) < ALLOWED[dtype], (args[4:8], config)
        assert all(torch.equal(call(*args), result) for _ in range(3)), (args[4:8], config)


def test_matrices_that_lie_otherwise_are_right_whichever_comes_first() -> None:
    def at(gap_a: int, gap_b: int, ahead_a: int, ahead_b: int) -> Any:
        a = matrix(8, 512, torch.bfloat16, gap_a, ahead_a)
        return arguments(a, matrix(96, 512, torch.bfloat16, gap_b, ahead_b).mT)

    kinds = [at(0, 0, 0, 0), at(8, 16, 0, 0), at(1, 0, 0, 0), at(0, 3, 0, 0), at(0, 0, 1, 0), at(0, 0, 0, 5)]
    kinds.append(arguments(matrix(1, 512, torch.bfloat16).expand(8, 512), kinds[0][1]))
    for first in kinds:
        [config] = configs(first, 0)
        call, aligned = ready(first, config), [one.data_ptr() % 16 for one in first[:2]]
        for args in kinds:
            if [one.data_ptr() % 16 for one in args[:2]] == aligned:  # others have a launch of their own
                assert off(call(*args), reference(*args[:2])) < ALLOWED[torch.bfloat16]
    for args in kinds:
        assert off(ops.matmul(*args[:2]), reference(*args[:2])) < ALLOWED[torch.bfloat16]


def test_numbers_that_are_not_finite_are_torchs() -> None:
    a, b = matrix(16, 1024, torch.float16), matrix(64, 1024, torch.float16).mT
    a[3, 5], a[4, 0], b[:, 7] = float("inf"), float("nan"), 0
    a[6, 1000] = float("-inf")
    for activation in (None, "relu"):
        args = arguments(a, b, None, activation)
        expected = reference(a, b, None, activation).half()
        for config in configs(args, 6):
            torch.testing.assert_close(ready(args, config)(*args), expected, equal_nan=True, atol=0.2, rtol=2e-3)


def test_what_lies_around_the_output_is_left_alone() -> None:
    a, b = matrix(5, 256, torch.bfloat16), matrix(77, 256, torch.bfloat16).mT
    args = arguments(a, b)
    for config in configs(args, 4):
        bound = KERNEL.kernel.for_call(args)
        run = bound.bound.load(bound.plan(config), Problem({}), None).launch
        whole = torch.full((5 * 77 + 128,), 7.0, device="cuda", dtype=torch.bfloat16)
        c = whole[64:-64]
        run(a, b, None, c, 256, 256, 5, 77, 256)
        assert (torch.cat([whole[:64], whole[-64:]]) == 7).all()
        assert off(c.view(5, 77), reference(a, b)) < ALLOWED[torch.bfloat16]


@pytest.mark.skipif(not HAS_CLUSTERS, reason="needs a GPU whose kernels can begin early: sm_90 or newer")
@pytest.mark.parametrize("m", [1, 8, 16, 32, 64])
def test_a_product_waits_for_what_the_kernel_before_it_writes(m: int) -> None:
    first = matrix(m, 2048, torch.bfloat16)
    w, scale = matrix(2048, 2048, torch.bfloat16) / 45, matrix(2048, 2048, torch.bfloat16)
    args = arguments(first, w.mT)
    early = [config for config in configs(args, 16) if config["DEPENDENT"]]
    assert early
    for config in early[:4]:
        launch = ready(args, config)

        def chain(between: Callable[[], object], launch: Callable[..., Any] = launch) -> Any:
            x, other = first, torch.empty_like(w)
            for i in range(24):
                torch.mul(w, scale if i % 2 else 1, out=other)  # torch writes b,
                between()
                x = launch(*arguments(x, other.mT))  # and the product before wrote a, or its memory was another's
                between()
                x = launch(*arguments(x, w.mT))
                between()
            return x

        expected = chain(torch.cuda.synchronize)
        assert expected.isfinite().all()
        assert expected.any()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = chain(lambda: None)
        for _ in range(20):
            assert torch.equal(chain(lambda: None), expected)
            graph.replay()
            assert torch.equal(captured, expected)


def test_graphs_and_streams_at_once() -> None:
    args = arguments(matrix(16, 4096, torch.bfloat16), matrix(4096, 4096, torch.bfloat16).mT)
    calls = [ready(args, config) for config in configs(args, 6)]
    expected = [call(*args) for call in calls]
    graphs: list[Any] = []
    for call in calls:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [call(*args) for _ in range(5)]
        graphs.append((graph, results))
    streams = [torch.cuda.Stream() for _ in range(6)]
    torch.cuda.synchronize()
    for _ in range(20):
        made: list[Any] = []
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                which = i // 2 % len(calls)
                if i % 2:
                    graphs[which][0].replay()
                else:
                    made.append((which, calls[which](*args)))
        torch.cuda.synchronize()
        assert all(torch.equal(result, expected[which]) for which, result in made)
        for which in {i // 2 % len(calls) for i in range(1, 6, 2)}:
            assert all(torch.equal(result, expected[which]) for result in graphs[which][1])


@pytest.mark.skipif(not HAS_CLUSTERS, reason="needs a GPU that launches kernels early: sm_90 or newer")
@pytest.mark.parametrize("captured", [False, True])
def test_it_waits_for_kernels_of_two_streams_that_meet_ahead_of_it(captured: bool) -> None:
    a, w, bias = (matrix(*shape, torch.bfloat16) for shape in ((8, 4096), (1024, 4096), (1, 1024)))
    given = [torch.zeros_like(one) for one in (a, w, bias[0])]
    args = arguments(given[0], given[1].mT, given[2])
    config = configs(args, 0)[0].replace(DEPENDENT=1)
    call, exact = ready(args, config), reference(a, w.mT, bias[0])
    busy, side = torch.ones(2**25, device="cuda"), torch.cuda.Stream()

    def run() -> Any:
        main = torch.cuda.current_stream()
        for one in given:
            one.zero_()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(5):
                busy.sin_()
            torch.add(w, 0, out=given[1])
            torch.add(bias[0], 0, out=given[2])
        torch.add(a, 0, out=given[0])
        main.wait_stream(side)
        return call(*args)

    assert off(run(), exact) < ALLOWED[torch.bfloat16]
    graph, result = torch.cuda.CUDAGraph(), None
    if captured:
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = run()
    for _ in range(20):
        if captured:
            graph.replay()
        made = result if captured else run()
        assert off(made, exact) < ALLOWED[torch.bfloat16]


def test_more_than_2_to_the_31_elements() -> None:
    n, k = 2**19 + 8, 4104  # 4.3 GB
    if torch.cuda.mem_get_info()[0] < 8 * n * k:
        pytest.skip(f"needs {8 * n * k / 1e9:.0f} GB of free GPU memory")
    b = torch.empty(n, k, device="cuda", dtype=torch.bfloat16).normal_()
    a = matrix(16, k, torch.bfloat16)
    args = arguments(a, b.mT)
    for config in configs(args, 2):
        result = ready(args, config)(*args)
        for part in (slice(0, 999), slice(n - 999, n)):
            assert off(result[:, part], reference(a, b[part].mT)) < ALLOWED[torch.bfloat16]
    pitch = 2**27  # rows of x that far apart
    far = torch.empty(17, pitch, device="cuda", dtype=torch.bfloat16)[:, :k].copy_(matrix(17, k, torch.bfloat16))
    args = arguments(far, b[:640].mT)
    assert off(ready(args, configs(args, 0)[0])(*args), reference(*args[:2])) < ALLOWED[torch.bfloat16]


def test_products_are_searched_and_captured_with_it() -> None:
    a, b = matrix(16, 4096, torch.bfloat16), matrix(4096, 4096, torch.bfloat16).mT
    summary = ops.tune(a, b.mT)
    measured = {trial.config["by"] for trial in summary.trials if isinstance(trial.outcome, Measured)}
    assert {"torch", "gemm", "skinny"} <= measured
    expected = ops.matmul(a, b)
    assert off(expected, reference(a, b)) < ALLOWED[torch.bfloat16]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = ops.matmul(a, b)
    graph.replay()
    torch.cuda.synchronize()
    assert off(result, reference(a, b)) < ALLOWED[torch.bfloat16]
