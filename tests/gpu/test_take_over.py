"""The take-over on a GPU: results of Liger's and flash-linear-attention's functions through our search and launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
pytest.importorskip("liger_kernel")
pytest.importorskip("fla")

import tunesmith

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the packages' own
    pytest.mark.timeout(600),  # a search for each kernel of a function
]


@pytest.fixture(autouse=True)
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tunesmith.TakeOver]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    torch.manual_seed(0)
    with tunesmith.take_over() as begun:
        yield begun
        assert begun.left == {}


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=True)


def same(ours: torch.Tensor, torchs: torch.Tensor, *inputs: torch.Tensor, rtol: float = 2e-3, atol: float = 2e-3):
    """Outputs agree, and gradients by the inputs."""
    torch.testing.assert_close(ours, torchs, rtol=rtol, atol=atol)
    out = torch.randn_like(torchs)
    got, expected = (torch.autograd.grad(y, inputs, out.clone()) for y in (ours, torchs))  # some write to it
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def test_ligers_dynamic_tanh() -> None:
    from liger_kernel.ops.dyt import LigerDyTFunction, _dyt_bwd_kernel, _dyt_fwd_kernel

    x, alpha, gamma, beta = tensor(64, 1000), tensor(1), tensor(1000), tensor(1000)
    ours = LigerDyTFunction.apply(x, alpha, gamma, beta)
    same(ours, torch.tanh(alpha * x) * gamma + beta, x, gamma, beta)
    assert _dyt_fwd_kernel.tuned.latest.track == _dyt_bwd_kernel.tuned.latest.track == "search"


def test_ligers_norm_that_is_not_autotuned_is_as_ever() -> None:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    x, w = tensor(64, 512), tensor(512)
    same(LigerRMSNormFunction.apply(x, w, 1e-6), F.rms_norm(x, (512,), w, 1e-6), x)


def test_flas_l2norm_through_its_own_subclass() -> None:
    from fla.modules.norm.l2norm import l2norm, l2norm_fwd_kernel

    x = tensor(4, 300, 128)
    same(l2norm(x), F.normalize(x, dim=-1), x)
    assert l2norm_fwd_kernel.tuned.latest.track == "search"


def test_flas_gated_linear_attention() -> None:
    from fla.ops.gla import chunk_gla

    q, k, v = (tensor(1, 128, 2, 64) for _ in range(3))
    gates = F.logsigmoid(torch.randn(1, 128, 2, 64, device="cuda"))
    state, outs = torch.zeros(1, 2, 64, 64, device="cuda"), []
    for t in range(128):
        state = state * gates[:, t].exp()[..., None] + k[:, t][..., None] * v[:, t][..., None, :]
        outs.append(((q[:, t] * 64**-0.5)[..., None] * state).sum(-2))
    same(chunk_gla(q, k, v, gates)[0], torch.stack(outs, 1), q, k, v, rtol=2e-2, atol=2e-1)
