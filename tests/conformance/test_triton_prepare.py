"""`prepare` of Triton kernels: compiled in earnest for an H200 that is not there, from tensors that are not there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.fakes import ScriptedClock

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import torch  # noqa: E402
import triton.language as tl  # noqa: E402
from tests.conformance.test_triton_backend import of_a_pair, with_heuristic  # noqa: E402
from tests.fake_triton import FakeDriver, GpuTensor, fake_gpu  # noqa: E402
from triton import knobs  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith import Config, Shaped, policy  # noqa: E402
from tunesmith.errors import BadInput, NotPrepared, TunesmithWarning  # noqa: E402
from tunesmith.measure.arrays import Layout, is_described, layout_of, mapped, outline_of  # noqa: E402
from tunesmith.store import default_store  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[FakeDriver]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(Layout, "allocate", allocated)
    with fake_gpu(monkeypatch) as fake:
        yield fake
        gc.collect()  # Triton 3.9 asks the driver to unload a kernel that goes


def allocated(self: Layout, fill: Any = None, seed: int = 0) -> GpuTensor:
    offset = self.offset * self.dtype.itemsize
    return GpuTensor(*self.shape, dtype=self.dtype, index=torch.device(self.place).index, offset=offset)


@triton.jit
def add(x, y, out, n, step, BLOCK: tl.constexpr, ACT: tl.constexpr = None):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum = tl.load(x + i * step, mask=i < n) + tl.load(y + i, mask=i < n)
    if ACT == "relu":
        sum = tl.maximum(sum, 0.0)
    tl.store(out + i, sum, mask=i < n)


def tuned(fn: Any = add, key: Any = ("n",), **options: Any) -> Any:
    configs = [triton.Config({"BLOCK": block}, num_warps=1) for block in (64, 32)]
    clock = ScriptedClock(lambda config: 1e-6 * config["BLOCK"])  # type: ignore[operator]
    return tunesmith.autotune(configs, list(key), clock=clock, **options)(fn)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def of(n: int, dtype: torch.dtype = torch.float32, step: int = 1, **more: Any) -> dict[str, Any]:
    return {"x": meta(n, dtype=dtype), "y": meta(n, dtype=dtype), "out": meta(n, dtype=dtype), "n": n, "step": step,
            **more}  # fmt: skip


def real(n: int, dtype: torch.dtype = torch.float32, step: int = 1, index: int = 0) -> tuple[Any, ...]:
    return (*(GpuTensor(n, dtype=dtype, index=index) for _ in range(3)), n, step)


def grid(arguments: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(arguments["n"], arguments["BLOCK"]),)


class Work:
    """What has been done since the last look: compilations, reads of the store, samples, modules loaded."""

    def __init__(self, kernel: Any, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kernel, self._gpu = kernel, gpu
        self._compiled: list[Any] = []
        self._read: list[Any] = []
        monkeypatch.setattr(knobs.compilation, "listener", lambda **said: self._compiled.append(said))
        store = type(default_store())
        for name in ("choice", "trials"):
            usual = getattr(store, name)
            monkeypatch.setattr(store, name, lambda *a, usual=usual: (self._read.append(a), usual(*a))[1])
        self.since()

    def since(self) -> int:
        clock = self._kernel.tuned.declared.clock
        found = [self._compiled, self._read, clock.asked, self._gpu.loaded]
        done = sum(len(one) for one in found)
        for one in found:
            one.clear()
        return done


@pytest.mark.about_time("the winner that its times say is asserted")
def test_meta_tensors_prepare_for_real_ones(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned()
    problems = [of(256), of(100), of(256, torch.float16), of(256, step=16, ACT="relu"), of(1)]
    with pytest.warns(TunesmithWarning, match=r"step \(1, then 16\)"):  # it is not in the key
        choices = kernel.prepare(problems, grid=grid, device="cuda:0")
    assert [choice.config["BLOCK"] for choice in choices] == [32] * 5
    work = Work(kernel, gpu, monkeypatch)
    launches = len(gpu.launches)
    kernel[grid](*real(256))
    kernel[grid](*real(100))
    kernel[grid](*real(256, torch.float16))
    kernel[grid](*real(256, step=16), ACT="relu")
    kernel[grid](*real(1))
    assert len(gpu.launches) == launches + 5
    assert gpu.launches[-2].args[3:] == (256, 16, 32, "relu")
    assert kernel.best_config.kwargs == {"BLOCK": 32}
    assert work.since() == 0

    kernel[grid](*real(256)[:2], GpuTensor(256, dtype=torch.float32, offset=4), 256, 1)  # not aligned: another binary
    assert work.since() > 0


def test_another_gpu_is_asked_for_by_name(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned()
    kernel.prepare([{**of(256), "grid": (2,)}], device=torch.device("cuda", 1))
    work = Work(kernel, gpu, monkeypatch)
    kernel[(2,)](*real(256, index=1))
    assert gpu.launches[-1].device == 1
    assert work.since() == 0
    real_ones = dict(zip(("x", "y", "out", "n", "step"), real(100, index=1), strict=True))
    kernel.prepare([{**real_ones, "y": meta(100)}], grid=(1,))  # where the real ones are
    work.since()
    kernel[(1,)](*real(100, index=1))
    assert work.since() == 0


def test_lookup_compiles_and_launches_nothing(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned().prepare([of(256)], grid=grid, device="cuda:0")
    gpu.launches.clear()
    kernel = tuned()
    with policy("lookup"):
        with pytest.warns(TunesmithWarning, match=r"nothing is known of 1 of 2 problems.*\(n=100"):
            known, default = kernel.prepare([of(256), of(100, torch.float16)], device="cuda:0")
        work = Work(kernel, gpu, monkeypatch)
        assert (known.source, default.source, default.config["BLOCK"]) == ("store", "default", 64)
        assert gpu.launches == []
        kernel[grid](*real(256))
        kernel[grid](*real(100, torch.float16))
    assert work.since() == 0


def test_a_search_needs_a_grid_and_make_inputs_may_bring_it(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(problem: Any) -> dict[str, Any]:
        n = problem["n"]
        return {**dict(zip(("x", "y", "out", "n", "step"), real(n), strict=True)), "grid": (n // 64,)}

    kernel = tuned(make_inputs=inputs)
    with pytest.raises(NotPrepared, match=r"problem 1 \(.*n=256.*the grid is missing.*prepare\(…, grid=…\)"):
        kernel.prepare([of(256)], device="cuda:0")
    kernel.prepare(["n=256", "n=128"])
    assert gpu.launches[-1].grid == (2, 1, 1)
    work = Work(kernel, gpu, monkeypatch)
    kernel[grid](*real(256))
    assert work.since() == 0


def test_heuristics_tuples_and_hooks_are_prepared_for_too(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tuned(with_heuristic)
    kernel.prepare([{"x": Shaped((128,)), "n": 128}, {"x": Shaped((130,)), "n": 130}], grid=grid, device="cuda:0")
    work = Work(kernel, gpu, monkeypatch)
    for n in (128, 130):
        kernel[grid](GpuTensor(n, dtype=torch.float32), n)
    assert [launch.args[-1] for launch in gpu.launches[-2:]] == [True, False]
    assert work.since() == 0

    pair = tuned(of_a_pair, key=())
    pair.prepare([{"pair": (meta(64), meta(64)), "n": 64}], grid=(1,), device="cuda:0")
    work = Work(pair, gpu, monkeypatch)
    pair[(1,)]((GpuTensor(64, dtype=torch.float32), GpuTensor(64, dtype=torch.float32)), 64)
    assert work.since() == 0


def test_a_parameter_of_a_module_finds_what_a_tensor_did() -> None:
    """On the CPU, where real tensors are: the launch is a Python function's."""

    @tunesmith.autotune(configs=[Config(B=1)], key=["n"], version="1", policy="default")
    def of_weight(w, n, x=None, *, B):
        return B

    asked: list[Any] = []
    usual = type(of_weight.kernel).load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(of_weight.kernel), "load", lambda *a: (asked.append(a), usual(*a))[1])
        of_weight.prepare([{"w": meta(4), "n": 4}, {"w": None, "n": 4, "x": Shaped((4,))}], device="cpu")
        loaded = len(asked)
        weight = torch.nn.Parameter(torch.ones(4))
        assert of_weight(weight, 4) == of_weight(weight.detach(), 4) == 1
    assert len(asked) == loaded


# --- arrays of torch's ---------------------------------------------------------------------------------

CPU_DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("name", CPU_DTYPES)
def test_floats_are_random_numbers_of_ordinary_size(name: str) -> None:
    tensor = layout_of(meta(64, 64, dtype=getattr(torch, name)), "cpu", "torch").allocate(seed=3)
    assert tensor.dtype is getattr(torch, name)
    parts = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.float().flatten()
    assert bool(parts.isfinite().all())
    assert float((parts != 0).float().mean()) > 0.99
    assert 0.4 < float(parts.std()) < 1.6
    assert len(parts.unique()) > 8


def test_the_programs_own_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(0)
    expected = torch.randn(4)
    torch.manual_seed(0)
    layout_of(meta(8), "cpu", "torch").allocate()
    assert torch.equal(torch.randn(4), expected)


def test_views_keep_their_strides_and_their_alignment() -> None:
    base = meta(64, 64, dtype=torch.float16)
    for described in (base.T, base[1:, 3:], base[:1].expand(8, 64), base[0, 0], base[:0], base[:, :8]):
        layout = layout_of(described, "cpu", "torch")
        tensor, outline = layout.allocate(), layout.outline()
        assert is_described(described)
        assert not is_described(outline)
        assert isinstance(outline, torch.Tensor)
        for one in (tensor, outline, outline_of(tensor)):
            assert (one.shape, one.stride(), one.dtype) == (described.shape, described.stride(), described.dtype)
            assert one.device == torch.device("cpu")
            assert one.data_ptr() % 16 == (described.storage_offset() * 2 % 16 if described.numel() else 0)
    with pytest.raises(BadInput, match="give the array itself to prepare"):
        layout_of(base, "cpu", "torch").outline().sum()


class Pair(NamedTuple):
    first: Any
    second: Any


def test_parts_of_tuples_and_descriptors_are_found() -> None:
    described = mapped(lambda value: "seen" if is_described(value) else value, Pair(meta(2), [1, (meta(3), None)]))
    assert described == Pair("seen", [1, ("seen", None)])
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    of_tensor = descriptor(meta(8, 16, dtype=torch.float16), [8, 16], [16, 1], [4, 16])
    made = mapped(lambda value: layout_of(value, "cpu", "torch").allocate(), of_tensor)
    assert (made.base.device.type, of_tensor.base.device.type) == ("cpu", "meta")
    assert made.block_shape == [4, 16]
