"""`prepare` on a GPU: from meta tensors to warm calls, which neither measure nor compile, and can be captured."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.conformance.test_triton_backend import gemm  # noqa: E402
from triton import knobs  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith.errors import BadInput, NotPrepared  # noqa: E402
from tunesmith.measure.arrays import layout_of  # noqa: E402
from tunesmith.store import default_store  # noqa: E402

SHAPES = [(512, 512, 512), (256, 1024, 128), (17, 512, 512)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    gemm.device_caches.clear()
    yield
    torch.cuda.synchronize()


def tuned() -> Any:
    configs = [
        triton.Config({"BM": bm, "BN": 64, "BK": 32, "GM": 8}, num_warps=4, num_stages=stages)
        for bm in (64, 128)
        for stages in (2, 3)
    ]
    return tunesmith.autotune(configs, ["M", "N", "K"])(gemm)


def grid(arguments: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(arguments["M"], arguments["BM"]) * triton.cdiv(arguments["N"], arguments["BN"]),)


def call_of(shape: tuple[int, int, int], device: str) -> dict[str, Any]:
    m, n, k = shape
    make = torch.empty if device == "meta" else torch.randn
    a, b, c = (make(size, device=device, dtype=torch.float16) for size in ((m, k), (k, n), (m, n)))
    return {"a": a, "b": b, "c": c, "M": m, "N": n, "K": k, "sam": k, "sbk": n, "scm": n}


def test_real_calls_neither_measure_nor_compile_and_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned()
    before = torch.cuda.memory_allocated()
    choices = kernel.prepare([call_of(shape, "meta") for shape in SHAPES], grid=grid)
    assert [choice.source for choice in choices] == ["search"] * 3
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)

    compiled: list[Any] = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **said: compiled.append(said))
    calls = [call_of(shape, "cuda") for shape in SHAPES]
    trials = [len(default_store().trials(kernel.explanation(**call)[0])) for call in calls]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            kernel[grid](**call)
    graph.replay()
    for call in calls:
        torch.testing.assert_close(call["c"], call["a"] @ call["b"], rtol=1e-2, atol=1e-1)
    assert [len(default_store().trials(kernel.explanation(**call)[0])) for call in calls] == trials
    assert compiled == []


def test_under_lookup_nothing_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned().prepare([call_of(SHAPES[0], "meta")], grid=grid)
    torch.cuda.synchronize()
    kernel = tuned()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with tunesmith.policy("lookup", strict=True):
        [choice] = kernel.prepare([call_of(SHAPES[0], "meta")])
    assert choice.source == "store"
    assert torch.cuda.max_memory_allocated() == before
    weights = call_of(SHAPES[0], "cuda")
    weights["b"] = torch.nn.Parameter(weights["b"])
    with tunesmith.policy("lookup", strict=True):
        kernel[grid](**weights)
    torch.testing.assert_close(weights["c"], weights["a"] @ weights["b"], rtol=1e-2, atol=1e-1)


def test_what_does_not_fit_says_how_much_it_needs() -> None:
    kernel = tuned()
    with pytest.raises(NotPrepared, match=r"problem 2 .*a needs 2,199,023,255,552 bytes \(2\.0 TiB\) on cuda:0"):
        kernel.prepare([call_of(SHAPES[0], "meta"), call_of((1 << 20, 512, 1 << 20), "meta")], grid=grid)
    assert kernel.lookup(**call_of(SHAPES[0], "cuda")) is not None


def test_inside_a_capture_it_is_an_error() -> None:
    kernel = tuned()
    torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    out = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        out.add_(1)
        with pytest.raises(BadInput, match="inside a CUDA graph's capture"):
            kernel.prepare([call_of(SHAPES[0], "meta")], grid=grid)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int8", "bool"])
def test_arrays_are_filled_on_the_gpu(name: str) -> None:
    described = torch.empty(64, 64, dtype=getattr(torch, name), device="meta")
    tensor = layout_of(described, "cuda:0", "torch").allocate()
    assert tensor.data_ptr() % 16 == 0
    as_bytes = tensor.view(torch.uint8)
    assert float((as_bytes != 0).float().mean()) > 0.4
    if name.startswith("float") or name == "bfloat16":
        assert bool(tensor.float().isfinite().all())
