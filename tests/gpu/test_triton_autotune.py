"""The decorator on a GPU: searches that measure, captures that are not broken, hooks, descriptors, torch.compile."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import tunesmith
from tunesmith import Config, Failed, Measured
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning
from tunesmith.measure.gpu_clock import EventClock
from tunesmith.options import policy

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def increase(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def gemm(a, b, c, M, N, K, sam, sbk, scm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    program = tl.program_id(0)
    m = program // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
    n = program % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(
            a + m[:, None] * sam + (start + k)[None, :], mask=(m[:, None] < M) & (start + k[None, :] < K), other=0
        )
        y = tl.load(
            b + (start + k)[:, None] * sbk + n[None, :], mask=(start + k[:, None] < K) & (n[None, :] < N), other=0
        )
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * scm + n[None, :], total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


def blocks(*sizes: int, **options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": size}, **options) for size in sizes]


def cover(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["n"] // meta["BLOCK"]),)


def tiles(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["M"] // meta["BM"]) * -(-meta["N"] // meta["BN"]),)


def vectors(n: int = 4096, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = (torch.randn(n, device=device) for _ in range(2))
    return x, y, torch.full((n,), float("nan"), device=device)


def matrices(M: int, N: int, K: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Any, ...]:
    a, b = (torch.randn(s, device="cuda", dtype=dtype) for s in ((M, K), (K, N)))
    return a, b, torch.full((M, N), float("nan"), device="cuda", dtype=dtype), M, N, K, K, N, N


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The Configs of every sample that is taken."""
    taken: list[Config] = []
    real = EventClock.sample

    def sample(self: EventClock, run: Any) -> Any:
        taken.append(run.config)
        return real(self, run)

    monkeypatch.setattr(EventClock, "sample", sample)
    return taken


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    yield
    torch.cuda.synchronize()


# --- a search ----------------------------------------------------------------------------------------


def test_a_search_finds_a_fast_config_and_the_next_process_measures_nothing(samples: list[Config]) -> None:
    configs = [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=w, num_stages=s)
        for bm, bn, bk, w, s in [
            (16, 16, 32, 1, 1), (64, 64, 32, 4, 3), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (256, 128, 64, 8, 12),
        ]
    ]  # fmt: skip
    decorate = tunesmith.autotune(configs, key=["M", "N", "K"])
    kernel, args = decorate(gemm), matrices(2048, 2048, 2048)
    kernel[tiles](*args)
    torch.testing.assert_close(args[2], (args[0].float() @ args[1].float()).bfloat16(), rtol=2e-2, atol=1.0)
    best = kernel.best_config.kwargs
    assert best["BM"] >= 64
    timings = kernel.configs_timings
    assert timings[configs[0]][0] > 2 * timings[kernel.best_config][0]
    trials = kernel.explanation(*args, grid=tiles)[2]
    failed = [t.outcome for t in trials if isinstance(t.outcome, Failed)]
    assert len(failed) == 1
    assert "shared memory" in failed[0].reason
    assert all(t.resources.registers for t in trials if isinstance(t.outcome, Measured))

    asked = len(samples)
    again = decorate(gemm)  # as in a new process: nothing but the store is shared
    args[2].fill_(float("nan"))
    again[tiles](*args)
    assert len(samples) == asked
    assert again.best_config.kwargs == best
    assert not args[2].isnan().any()


def test_r08_what_needs_too_much_shared_memory_says_how_much() -> None:
    configs = [
        triton.Config({"BM": 128, "BN": 256, "BK": 64}, num_warps=8, num_stages=stages) for stages in range(3, 9)
    ]
    kernel, args = tunesmith.autotune(configs, key=["M"])(gemm), matrices(512, 512, 512)
    kernel[tiles](*args)
    outcomes = {t.config["num_stages"]: t.outcome for t in kernel.explanation(*args, grid=tiles)[2]}
    works = {stages for stages, outcome in outcomes.items() if isinstance(outcome, Measured)}
    assert works
    assert works == set(range(3, max(works) + 1))
    for stages, outcome in outcomes.items():
        if stages not in works:
            assert isinstance(outcome, Failed)
            assert "needs" in outcome.reason
            assert "limit 232448" in outcome.reason

    hopeless = tunesmith.autotune(configs[-2:], key=["M"], name="hopeless")(gemm)
    for _ in range(2):  # nothing is launched blindly the second time
        with pytest.raises(NoWorkingConfig, match=r"limit 232448"):
            hopeless[tiles](*args)


def test_what_a_kernel_writes_in_place_is_as_if_it_ran_once() -> None:
    kernel = tunesmith.autotune(blocks(128, 512), ["n"], restore_value=["x"])(increase)
    x = torch.randn(4096, device="cuda")
    expected = x + 1
    kernel[cover](x, 4096)
    torch.testing.assert_close(x, expected)
    kernel[cover](x, 4096)
    torch.testing.assert_close(x, expected + 1)


@pytest.mark.parametrize("options", [{"use_cuda_graph": True}, {"warmup": 5, "rep": 20}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tritons_own_ways_of_timing_work(options: dict[str, Any]) -> None:
    kernel = tunesmith.autotune(blocks(128, 1024), ["n"], **options)(add)
    x, y, out = vectors(1 << 20)
    kernel[cover](x, y, out, 1 << 20)
    torch.testing.assert_close(out, x + y)
    assert all(0 < ms < 5 for timings in kernel.configs_timings.values() for ms in timings)


def test_two_threads_search_two_keys_at_once() -> None:
    kernel = tunesmith.autotune(blocks(128, 512, 1024), ["n"])(add)
    start = threading.Barrier(2)

    def call(n: int) -> None:
        x, y, out = vectors(n)
        torch.cuda.synchronize()
        start.wait()
        kernel[cover](x, y, out, n)
        torch.cuda.synchronize()
        torch.testing.assert_close(out, x + y)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (4096, 1 << 20)))


# --- R09: captures -----------------------------------------------------------------------------------


def captured(act: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    return graph


def test_r09a_a_cold_kernel_in_a_capture_takes_its_default_and_breaks_nothing(samples: list[Config]) -> None:
    kernel = tunesmith.autotune(blocks(128, 1024), ["n"])(add)
    x, y, out = vectors()
    with pytest.warns(TunesmithWarning, match="capture"):
        graph = captured(lambda: kernel[cover](x, y, out, 4096))
    assert samples == []
    graph.replay()
    torch.testing.assert_close(out, x + y)
    captured(lambda: kernel[cover](x, y, out, 4096)).replay()  # the next capture works
    assert samples == []
    kernel[cover](x, y, out, 4096)  # outside, it is tuned
    assert samples


def test_r09b_another_threads_capture_survives_a_search(samples: list[Config]) -> None:
    kernel = tunesmith.autotune(blocks(128, 1024), ["n"])(add)
    x, y, out = vectors()
    mine = vectors(1 << 20)
    torch.cuda.synchronize()
    ready = threading.Event()

    def search() -> None:
        ready.wait()
        kernel[cover](*mine, 1 << 20)

    graph = torch.cuda.CUDAGraph()
    with ThreadPoolExecutor(1) as pool:
        searched = pool.submit(search)
        with torch.cuda.graph(graph):
            out.copy_(x)
            ready.set()
            searched.result(120)
            out.add_(y)
    assert samples
    torch.cuda.synchronize()
    torch.testing.assert_close(mine[2], mine[0] + mine[1])
    graph.replay()
    torch.testing.assert_close(out, x + y)


def test_r09cd_warm_and_stored_kernels_are_captured_without_measuring(samples: list[Config]) -> None:
    decorate = tunesmith.autotune(blocks(128, 1024), ["n"])
    x, y, out = vectors()
    warm = decorate(add)
    warm[cover](x, y, out, 4096)
    asked = len(samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = captured(lambda: warm[cover](x, y, out, 4096))
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(out, x + y)
        out.fill_(float("nan"))
        cold = decorate(add)
        captured(lambda: cold[cover](x, y, out, 4096)).replay()
        torch.testing.assert_close(out, x + y)
    assert len(samples) == asked


def test_r09e_one_config_needs_no_measuring(samples: list[Config]) -> None:
    kernel = tunesmith.autotune(blocks(128), ["n"])(add)
    x, y, out = vectors()
    captured(lambda: kernel[cover](x, y, out, 4096)).replay()
    torch.testing.assert_close(out, x + y)
    assert samples == []


# --- R40: two GPUs ------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_r40_a_kernel_is_measured_and_launched_where_its_tensors_are() -> None:
    kernel = tunesmith.autotune(blocks(128, 1024), ["n"])(add)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, y, out = vectors(device=device)
        kernel[cover](x, y, out, 4096)
        torch.testing.assert_close(out, x + y)
        assert torch.cuda.current_device() == 0
    with pytest.raises(BadInput, match=r"x on cuda:0.*y on cuda:1|several devices"):
        kernel[cover](vectors(device="cuda:0")[0], *vectors(device="cuda:1")[1:], 4096)


# --- what takes another way to the launcher --------------------------------------------------------------


@triton.jit
def copy_blocks(source, target, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    target.store([at, 0], source.load([at, 0]))


def test_a_pre_hook_that_sets_a_descriptors_blocks() -> None:
    def set_blocks(nargs: dict[str, Any]) -> None:
        for name in ("source", "target"):
            nargs[name].block_shape = [nargs["BLOCK"], 64]

    kernel = tunesmith.autotune(blocks(32, 64, pre_hook=set_blocks), [])(copy_blocks)
    x = torch.randn(256, 64, device="cuda", dtype=torch.float16)
    out = torch.full_like(x, float("nan"))
    source, target = (TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 64]) for t in (x, out))
    for _ in range(3):
        out.fill_(float("nan"))
        kernel[lambda meta: (256 // meta["BLOCK"],)](source, target)
        assert torch.equal(out, x)


@triton.jit
def through_device_descriptors(x, out, rows, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, 64], [64, 1], [BLOCK, 64])
    target = tl.make_tensor_descriptor(out, [rows, 64], [64, 1], [BLOCK, 64])
    at = tl.program_id(0) * BLOCK
    target.store([at, 0], source.load([at, 0]))


def test_a_kernel_that_needs_scratch_memory() -> None:
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    kernel = tunesmith.autotune(blocks(32, 64), ["rows"])(through_device_descriptors)
    x = torch.randn(256, 64, device="cuda", dtype=torch.float16)
    for _ in range(3):
        out = torch.full_like(x, float("nan"))
        kernel[lambda meta: (256 // meta["BLOCK"],)](x, out, 256)
        assert torch.equal(out, x)


def test_clusters_and_programmatic_launch() -> None:
    kernel = tunesmith.autotune(
        [triton.Config({"BLOCK": 256, "launch_pdl": True}), triton.Config({"BLOCK": 512}, num_ctas=2)], ["n"]
    )(add)
    x, y, out = vectors(1 << 16)
    for _ in range(2):
        out.fill_(float("nan"))
        kernel[cover](x, y, out, 1 << 16)
        torch.testing.assert_close(out, x + y)
    assert all(isinstance(t.outcome, Measured) for t in kernel.explanation(x, y, out, 1 << 16, grid=cover)[2])


# --- torch.compile -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_torch_compile_traces_a_tuned_kernel_without_a_break() -> None:
    kernel = tunesmith.autotune(blocks(128, 1024), ["n"])(add)

    @torch.compile(fullgraph=True)
    def twice_the_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
        return 2 * out

    x, y, _ = vectors()
    torch.testing.assert_close(twice_the_sum(x, y), 2 * (x + y))


# --- R12: the steady state -----------------------------------------------------------------------------


ARGUMENTS = ", ".join(f"a{i}" for i in range(20))


@triton.jit
def nothing(
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, BLOCK: tl.constexpr
):  # fmt: skip
    pass


@pytest.mark.parametrize("buckets", [{}, {"a18": "pow2"}])
def test_r12_a_warm_call_costs_less_than_a_jitted_one(buckets: dict[str, Any]) -> None:
    kernel = tunesmith.autotune(blocks(128, 256), ["a18", "a19"], buckets=buckets)(nothing)
    tensors = [torch.randn(4, device="cuda") for _ in range(4)]
    keys = [(*tensors, *range(10, 26)), (*tensors, *range(26, 42))]
    with policy("default"):
        mine = best_us(lambda i: kernel[(1,)](*keys[i % 2]))
    stock = best_us(lambda i: nothing[(1,)](*keys[i % 2], BLOCK=128))
    assert mine < stock


def best_us(call: Callable[[int], Any]) -> float:
    """Microseconds a call: the least of some rounds, as noise only adds."""
    for i in range(1000):
        call(i)
    rounds: list[float] = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(200):
            call(i)
        rounds.append((time.perf_counter() - start) / 200 * 1e6)
    torch.cuda.synchronize()
    return min(rounds)
