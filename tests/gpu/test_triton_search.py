"""A search on a GPU that compiles and times at once: what is timed beside compilers is near what is timed without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.conformance.test_triton_backend import gemm  # noqa: E402

import tunesmith  # noqa: E402
from tunesmith import Config, Sample  # noqa: E402
from tunesmith.backends.cpu import device_of  # noqa: E402
from tunesmith.core.stopping import APART  # noqa: E402
from tunesmith.events import Compiled, Event, Sampled, watched  # noqa: E402
from tunesmith.kernel import Run  # noqa: E402
from tunesmith.measure.gpu_clock import EventClock  # noqa: E402


class Noting(EventClock):
    """Notes what it answers for each Config."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.noted: dict[Config, list[float]] = {}

    def sample(self, run: Run) -> Sample:
        sample = super().sample(run)
        self.noted.setdefault(run.config, []).append(sample.seconds)
        return sample


def test_compilers_beside_a_sample_do_not_spoil_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    gemm.device_caches.clear()
    n = 1024
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    clock = Noting(device_of({"a": a}))
    configs = [
        {"BM": bm, "BN": bn, "BK": bk, "GM": 8, "num_warps": warps, "num_stages": 3}
        for bm in (32, 64, 128) for bn in (32, 64, 128) for bk in (32, 64) for warps in (4, 8)
    ]  # fmt: skip

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(meta["M"], meta["BM"]) * triton.cdiv(meta["N"], meta["BN"]),)

    f = tunesmith.autotune(configs=configs, key=["M", "N", "K"], clock=clock)(gemm)
    events: list[Event] = []
    with watched(events.append):
        f.tune(a, b, c, n, n, n, n, n, n, grid=grid)
    kinds = [type(event) for event in events]
    assert kinds.index(Sampled) < max(i for i, kind in enumerate(kinds) if kind is Compiled)
    spoilt = [config for config, (first, *rest) in clock.noted.items() if rest and first > APART / 2 * min(rest)]
    assert spoilt == []
    f[grid](a, b, c, n, n, n, n, n, n)
    torch.testing.assert_close(c, a @ b, atol=0.5, rtol=0.02)
