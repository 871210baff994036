"""Triton kernels on a GPU: right results through the fast launch, in the current stream, for each specialisation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from tests.conformance.test_triton_backend import GEMM_KNOBS, add, gemm, of_a_pair, with_heuristic  # noqa: E402
from triton import knobs  # noqa: E402

from tunesmith import Config, Failed, Problem  # noqa: E402
from tunesmith.backends.triton.kernel import TritonKernel  # noqa: E402
from tunesmith.backends.triton.launch import TritonExecutable  # noqa: E402
from tunesmith.backends.triton.resources import resources_in_cache  # noqa: E402
from tunesmith.errors import BadInput  # noqa: E402
from tunesmith.kernel import Built, Run  # noqa: E402
from tunesmith.measure.clock import clock_for  # noqa: E402
from tunesmith.measure.gpu_clock import EventClock  # noqa: E402
from tunesmith.workers import compile_all  # noqa: E402

ADD = TritonKernel(add, {"BLOCK", "num_warps"})
SMALL = Config(BLOCK=128, num_warps=4)
NO_FIELDS = Problem({})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    for kernel in (add, gemm, of_a_pair, with_heuristic.fn):
        kernel.device_caches.clear()
    yield
    torch.cuda.synchronize()


def ready(kernel: TritonKernel, config: Config, args: Sequence[Any]) -> TritonExecutable:
    bound = kernel.for_call(args)
    [(_, built)] = compile_all([(config, bound.compile_job(config, NO_FIELDS, kernel.device(args)))], 1)
    assert isinstance(built, Built), built
    return bound.load(config, NO_FIELDS, built)


def vectors(n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = (torch.randn(n, device="cuda", dtype=dtype) for _ in range(2))
    return x, y, torch.full((n,), float("nan"), device="cuda", dtype=dtype)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["n"] // meta["BLOCK"]),)


@pytest.mark.parametrize("n", [4096, 1000, 1, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sums_are_right(n: int, dtype: torch.dtype) -> None:
    x, y, out = vectors(n, dtype)
    args = (grid, x, y, out, n, 2)
    executable = ready(ADD, SMALL, args)
    executable.launch(*args)
    torch.testing.assert_close(out, x + 2 * y)
    assert executable.slow_reason == ""


def test_the_target_and_name_are_those_of_a_stock_launch() -> None:
    x, y, out = vectors(4096)
    ready(ADD, SMALL, (grid, x, y, out, 4096, 1))
    hits: list[bool] = []
    knobs.compilation.listener = lambda **said: hits.append(said["cache_hit"])
    try:
        add[grid](x, y, out, 4096, BLOCK=128, num_warps=4)
    finally:
        knobs.compilation.listener = None
    assert hits == [True]


def test_a_misaligned_view_has_a_binary_of_its_own() -> None:
    x, y, out = vectors(4097)
    aligned, shifted = (grid, x[:4096], y[:4096], out[:4096], 4096, 1), (grid, x[1:], y[1:], out[1:], 4096, 1)
    assert ADD.for_call(aligned) != ADD.for_call(shifted)
    ready(ADD, SMALL, shifted).launch(*shifted)
    torch.testing.assert_close(out[1:], x[1:] + y[1:])
    assert out[0].isnan()


def test_a_matrix_product_is_right() -> None:
    M, N, K = 300, 520, 200
    a, b = (torch.randn(s, device="cuda", dtype=torch.float16) for s in ((M, K), (K, N)))
    kernel = TritonKernel(gemm, GEMM_KNOBS)
    for config in (
        Config(BM=64, BN=64, BK=32, GM=8, num_warps=4, num_stages=3),
        Config(BM=128, BN=64, BK=64, GM=4, num_warps=8, num_stages=2),
    ):
        c = torch.full((M, N), float("nan"), device="cuda", dtype=torch.float16)
        blocks = (-(-M // int(str(config["BM"]))) * -(-N // int(str(config["BN"]))),)
        args = (blocks, a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0))
        ready(kernel, config, args).launch(*args)
        torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)


def test_resources_are_those_the_driver_reports() -> None:
    M = N = K = 512
    a, b, c = (torch.empty(M, N, device="cuda", dtype=torch.float16) for _ in range(3))
    args = ((1,), a, b, c, M, N, K, K, N, N)
    kernel = TritonKernel(gemm, GEMM_KNOBS).for_call(args)
    config = Config(BM=128, BN=128, BK=32, GM=8, num_warps=4, num_stages=3)
    executable = kernel.load(config, NO_FIELDS, None)
    compiled, found = executable.compiled, executable.resources
    assert (found.registers, found.spills) == (compiled.n_regs, compiled.n_spills)
    job = kernel.compile_job(config, NO_FIELDS, kernel.device(args))
    assert job is not None
    assert resources_in_cache(job.output) == found


def test_it_runs_in_the_current_stream() -> None:
    x, y, out = vectors(1 << 20)
    args = (grid, x, y, out, 1 << 20, 1)
    executable = ready(ADD, SMALL, args)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        executable.launch(*args)
    assert torch.cuda.default_stream().query()
    assert not side.query()
    side.synchronize()
    torch.testing.assert_close(out, x + y)


def test_it_can_be_captured_into_a_graph() -> None:
    x, y, out = vectors(4096)
    args = (grid, x, y, out, 4096, 1)
    executable = ready(ADD, SMALL, args)
    executable.launch(*args)
    out.fill_(float("nan"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        executable.launch(*args)
    graph.replay()
    torch.testing.assert_close(out, x + y)


def test_heuristics_tuples_and_hooks_are_right() -> None:
    x = torch.ones(256, device="cuda")
    kernel = TritonKernel(with_heuristic, {"BLOCK"})
    executable = ready(kernel, Config(BLOCK=64), ((1,), x, 128))
    for n in (128, 130):
        x.fill_(1)
        executable.launch((-(-n // 64),), x, n)
        assert int((x == 0).sum()) == n
    pair = (torch.zeros(64, device="cuda"), torch.randn(64, device="cuda"))
    of_two = ready(TritonKernel(of_a_pair, {"BLOCK"}), Config(BLOCK=64), ((1,), pair, 64))
    of_two.launch((1,), pair, 64)
    torch.testing.assert_close(*pair)
    seen: list[str] = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731  a hook is compared by identity
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        executable.launch((2,), x, 128)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert seen == ["with_heuristic"]


def test_out_of_shared_memory_is_known_before_the_end() -> None:
    a = torch.empty(512, 512, device="cuda", dtype=torch.float16)
    args = ((1,), a, a, a, 512, 512, 512, 512, 512, 512)
    kernel = TritonKernel(gemm, GEMM_KNOBS).for_call(args)
    config = Config(BM=256, BN=256, BK=128, GM=8, num_warps=8, num_stages=5)
    [(_, failed)] = compile_all([(config, kernel.compile_job(config, NO_FIELDS, kernel.device(args)))], 1)
    assert isinstance(failed, Failed)
    assert failed.stage == "cut"
    assert failed.reason.startswith("out of shared memory: needs ")


# --- the clock ---


def test_a_memory_bound_kernel_is_timed_near_its_bandwidth() -> None:
    n = 1 << 27
    x, y, out = vectors(n)
    args = (grid, x, y, out, n, 1)
    config = Config(BLOCK=1024, num_warps=4)
    executable = ready(TritonKernel(add, {"BLOCK", "num_warps"}), config, args)
    device = ADD.device(args)
    clock, run = clock_for(device), Run(executable, args)
    samples = sorted(clock.sample(run).seconds for _ in range(15))
    rate = 3 * 4 * n / samples[7]
    assert device.bandwidth == 0 or 0.4 * device.bandwidth < rate < 1.1 * device.bandwidth


def test_the_hosts_launch_cost_is_in_no_sample() -> None:
    import time

    x, y, out = vectors(4096)
    args = (grid, x, y, out, 4096, 1)
    executable = ready(ADD, SMALL, args)
    clock = clock_for(ADD.device(args))
    assert isinstance(clock, EventClock)
    quick = sorted(clock.sample(Run(executable, args)).seconds for _ in range(15))[7]

    def slow(*given: Any) -> Any:
        end = time.perf_counter() + 3e-4
        while time.perf_counter() < end:
            pass
        return executable.launch(*given)

    delayed = TritonExecutable(SMALL, executable.resources, slow, executable.compiled, "", add)
    run = Run(delayed, args)
    late = sorted(clock.sample(run).seconds for _ in range(15))[7]
    assert late < quick + 1e-4
    assert quick < 1e-4


def test_nothing_is_timed_inside_a_capture() -> None:
    x, y, out = vectors(4096)
    args = (grid, x, y, out, 4096, 1)
    executable = ready(ADD, SMALL, args)
    clock = clock_for(ADD.device(args))
    clock.sample(Run(executable, args))
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the graph is empty
        with torch.cuda.graph(graph), pytest.raises(BadInput, match="capture"):
            clock.sample(Run(executable, args))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_kernel_runs_on_its_tensors_gpu() -> None:
    x, y = (torch.randn(4096, device="cuda:1") for _ in range(2))
    out = torch.empty_like(x)
    args = (grid, x, y, out, 4096, 1)
    executable = ready(ADD, SMALL, args)
    executable.launch(*args)
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(out, x + y)
    with pytest.raises(BadInput, match="several devices"):
        ADD.device((grid, x, y.to("cuda:0"), out, 4096, 1))


def test_a_jit_function_of_this_file_is_a_kernel() -> None:
    @triton.jit
    def twice(x, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    x = torch.ones(100, device="cuda")
    args = (grid, x, 100)
    ready(TritonKernel(twice, {"BLOCK"}), Config(BLOCK=64), args).launch(*args)
    assert bool((x == 2).all())


@pytest.mark.parametrize("n", [4096, 1 << 20])
def test_a_graph_leaves_out_what_events_add_to_a_short_kernel(n: int) -> None:
    x, y, out = vectors(n)
    args = (grid, x, y, out, n, 1)
    executable = ready(ADD, SMALL, args)
    took: dict[str, float] = {}
    for name in ("events", "graph", "events-hot", "graph-hot"):
        clock, run = clock_for(ADD.device(args), name), Run(executable, args)
        samples = sorted(clock.sample(run).seconds for _ in range(15))
        took[name] = samples[7]
        assert samples[11] - samples[3] < 0.5e-6
    for cached in ("", "-hot"):
        added = took[f"events{cached}"] - took[f"graph{cached}"]
        assert 0.5e-6 < added < 4e-6, took
    assert took["graph-hot"] < took["graph"]
    torch.testing.assert_close(out, x + y)


def test_what_is_declared_hot_is_read_from_the_cache() -> None:
    n = 1 << 20  # 4 MiB each: they fit in the L2
    x, y, out = vectors(n)
    args = (grid, x, y, out, n, 1)
    executable, clock = ready(ADD, SMALL, args), clock_for(ADD.device(args))

    def took(*hot: torch.Tensor) -> float:
        run = Run(executable, args, hot=hot)
        return sorted(clock.sample(run).seconds for _ in range(15))[7]

    cold, half, warm = took(), took(x), took(x, y)
    assert warm < half < cold


def test_a_sample_says_the_clock_where_it_can_be_read() -> None:
    pytest.importorskip("pynvml")
    x, y, out = vectors(4096)
    args = (grid, x, y, out, 4096, 1)
    hz = clock_for(ADD.device(args)).sample(Run(ready(ADD, SMALL, args), args)).clock_hz
    assert hz is not None
    assert 2e8 < hz < 3e9
