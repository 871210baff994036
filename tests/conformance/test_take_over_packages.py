"""The take-over on real packages: flash-linear-attention's and Liger's kernels are ours, and launched as by stock.

Compiled for an H200 that is not there: what is compared is what the launcher is given. And where Triton's interpreter
runs them, their results with torch's own.
"""

import gc
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tunesmith
from tunesmith.errors import TunesmithWarning

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")
fla = pytest.importorskip("fla")
liger_kernel = pytest.importorskip("liger_kernel")
from tests.fake_triton import H200, FakeDriver, fake_gpu  # noqa: E402
from triton.runtime.jit import KernelInterface  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from tunesmith.backends.triton import kernel as triton_kernel  # noqa: E402
from tunesmith.backends.triton_autotune.autotuner import TunedAutotuner  # noqa: E402
from tunesmith.backends.triton_autotune.configs import layers  # noqa: E402
from tunesmith.backends.triton_autotune.taken import TakenSubclass  # noqa: E402

logsigmoid = torch.nn.functional.logsigmoid
#: named in a key and set by the Configs, as the package has it: stock drops them without a word
KNOBS_IN_KEYS = ".*, key. 'B[KV]' is a knob; dropped"
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the packages' own
    pytest.mark.filterwarnings("error::tunesmith.errors.TunesmithWarning"),
    pytest.mark.filterwarnings(f"ignore:{KNOBS_IN_KEYS}:tunesmith.errors.TunesmithWarning"),
]


def import_all(package: ModuleType) -> None:
    """Import a package's modules, but those which want what is not here."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
        try:
            importlib.import_module(found.name)
        except TunesmithWarning:
            raise
        except Exception:  # noqa: BLE001  # other packages, other GPUs
            continue


def autotuned(package: str) -> list[Any]:
    """Every object of stock's, or of a subclass, whose kernel is a package's."""
    found = [one for one in gc.get_objects() if issubclass(type(one), triton.runtime.Autotuner)]
    return [one for one in found if one.base_fn.__module__.split(".")[0] == package]


@pytest.mark.parametrize(("package", "at_least"), [(fla, 200), (liger_kernel, 10)])
def test_every_kernel_is_ours_and_can_be_identified(package: ModuleType, at_least: int) -> None:
    with tunesmith.take_over() as begun:
        import_all(package)
    kernels = autotuned(package.__name__)
    assert len(kernels) >= at_least
    assert begun.left == {}
    assert [kernel for kernel in kernels if not isinstance(kernel, TunedAutotuner)] == []
    for kernel in kernels:
        kernel.tuned.kernel.fingerprint()


# --- launched as by stock --------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    """A driver for tensors on the CPU, so that the packages' own functions can be called."""
    if torch.cuda.is_available():
        pytest.skip("the packages choose a real GPU where there is one: see tests/gpu/test_take_over.py")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    monkeypatch.setattr(triton_kernel.TritonKernel, "device", lambda self, args: H200)
    monkeypatch.setattr(triton_kernel, "_index_of", lambda arguments: 0)
    monkeypatch.setattr(FakeDriver, "get_benchmarker", lambda self: lambda kernel_call, quantiles: [1.0] * 3)
    for package in (fla, liger_kernel):
        for kernel in autotuned(package.__name__):
            list(layers(kernel))[-1].device_caches.clear()  # what another test's driver has loaded
    with fake_gpu(monkeypatch) as fake:
        yield fake


def tensor(*shape: int) -> Any:
    return torch.rand(*shape, dtype=torch.bfloat16, requires_grad=True)


def heads() -> tuple[Any, Any, Any]:
    """Queries, keys, values: (batch, time, head, channel)."""
    return tensor(1, 64, 2, 32), tensor(1, 64, 2, 32), tensor(1, 64, 2, 32)


def convolution() -> None:
    from fla.modules.causal_conv1d import causal_conv1d

    out, _ = causal_conv1d(tensor(2, 32, 64), tensor(64, 4), activation="silu", backend="triton")
    out.sum().backward()


def simple_gla_of_two_sequences() -> None:
    from fla.ops.simple_gla import chunk_simple_gla

    ends = torch.tensor([0, 20, 64])
    chunk_simple_gla(*heads(), logsigmoid(tensor(1, 64, 2)), cu_seqlens=ends)


def gated_delta_rule() -> None:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    chunk_gated_delta_rule(*heads(), logsigmoid(tensor(1, 64, 2)), tensor(1, 64, 2).sigmoid())


def dynamic_tanh() -> None:
    from liger_kernel.ops.dyt import liger_dyt_fwd

    liger_dyt_fwd(tensor(8, 64), tensor(1), tensor(64), tensor(64))


def fused_mlp_by_tma() -> None:
    from liger_kernel.ops.mlp import gemm_swiglu

    gemm_swiglu(tensor(1, 256, 256), tensor(512, 256), tensor(512, 256), 1.0)


@contextmanager
def stocks_own_run() -> Iterator[None]:
    """Within this scope what is ours runs stock's code; there the first Config wins, as all take the same time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TunedAutotuner, "__getitem__", KernelInterface.__getitem__)
        patched.setattr(TunedAutotuner, "run", triton.runtime.Autotuner.run)
        patched.delattr(TakenSubclass, "run")
        yield


@pytest.mark.parametrize(
    "op", [convolution, simple_gla_of_two_sequences, gated_delta_rule, dynamic_tanh, fused_mlp_by_tma]
)
def test_it_is_launched_as_by_stock(op: Callable[[], None], gpu: FakeDriver) -> None:
    with tunesmith.take_over() as begun:
        import_all(fla)
        import_all(liger_kernel)
        with stocks_own_run():
            op()
        stocks = list(gpu.launches)
        gpu.launches.clear()
        with tunesmith.policy("default"):
            op()
    assert begun.left == {}
    assert [(one.kernel, one.grid) for one in gpu.launches] == [(one.kernel, one.grid) for one in stocks]
    tensors = (torch.Tensor, TensorDescriptor)
    assert any(isinstance(value, tensors) for one in stocks for value in one.args)
    for ours, stock in zip(gpu.launches, stocks, strict=True):
        for value, stocks_value in zip(ours.args, stock.args, strict=True):
            if isinstance(stocks_value, torch.Tensor):
                assert isinstance(value, (int, torch.Tensor))
            elif not isinstance(stocks_value, TensorDescriptor):
                assert value == stocks_value, (ours.kernel, ours.args, stock.args)


# --- results ---------------------------------------------------------------------------------------------

RESULTS = """
import tunesmith
begun = tunesmith.take_over()
import torch
import torch.nn.functional as F
from fla.modules.causal_conv1d import causal_conv1d
from fla.modules.norm.l2norm import l2norm
from fla.modules.norm.layernorm import layer_norm
from fla.ops.utils.cumsum import chunk_local_cumsum

torch.manual_seed(0)
x, w, b, filters = torch.randn(2, 64, 32), torch.randn(32), torch.randn(32), torch.randn(32, 4)
x.requires_grad_()
close = torch.testing.assert_close
ours, torchs = l2norm(x), F.normalize(x, dim=-1)
close(ours, torchs)
close(*(torch.autograd.grad(y.square().sum() + y[..., 0].sum(), x)[0] for y in (ours, torchs)))
close(layer_norm(x, w, b), F.layer_norm(x, (32,), w, b))
close(chunk_local_cumsum(x.detach(), 16), x.detach().view(2, 4, 16, 32).cumsum(2).view(2, 64, 32))
padded = F.pad(x.transpose(1, 2), (3, 0))
close(causal_conv1d(x, filters, backend="triton")[0], F.conv1d(padded, filters[:, None], groups=32).transpose(1, 2))
assert not begun.left, begun.left
print(len(begun.taken) > 0)
"""


def test_results_are_torchs_where_the_interpreter_runs_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RESULTS], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr
