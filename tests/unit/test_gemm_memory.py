"""What a launch of a product takes from torch: on several GPUs, in streams, under capture. On stand-ins for CUDA."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tunesmith.kernels import counters
from tunesmith.kernels.gemm import memory


@dataclass
class Cuda:
    """What is current, and what was taken by which way."""

    device: int = 0
    stream: int = 0
    captured: bool = False
    deterministic: bool = False
    asked: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])

    def quick(self, sizes: tuple[int, ...], steps: tuple[int, ...], dtype: Any) -> str:
        self.asked.append((sizes, steps, dtype))
        return f"quick on {self.device}"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    guards: Any = torch._C._dynamo.guards
    monkeypatch.setattr(guards, "_empty_strided_cuda", made.quick, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.captured)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: made.device, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: made.stream, raising=False)
    monkeypatch.setattr(torch._C, "_get_deterministic_algorithms", lambda: made.deterministic)
    monkeypatch.setattr(torch, "empty", lambda sizes, dtype, device: f"by torch on {device.index}")
    return made


@pytest.mark.parametrize("several", [False, True])
def test_memory_is_on_the_arguments_device_whichever_is_current(
    cuda: Cuda, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "only_device", lambda: not several)
    index = 1 if several else 0
    cuda.device = index
    take = memory.fresh((2, 3, 4), torch.float16, SimpleNamespace(index=index))
    assert take() == f"quick on {index}"
    assert cuda.asked == [((2, 3, 4), (12, 4, 1), torch.float16)]
    cuda.deterministic = True  # then torch fills what it takes, where that is asked for
    assert take() == f"by torch on {index}"
    cuda.deterministic = False
    if several:
        cuda.device = 0
        assert take() == "by torch on 1"


def test_counters_are_of_a_stream_and_of_each_capture(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    captures = iter(range(1, 100))
    monkeypatch.setattr(counters, "_take", lambda device, number: [0] * number)
    monkeypatch.setattr(counters, "_capture", lambda stream: next(captures))
    monkeypatch.setattr(counters, "_taken", {})
    one, other, larger = (counters.counters_of(torch.device("cuda", 0), number) for number in (8, 8, 9))
    usual = one()
    assert one() is usual
    assert other() is usual  # launches in one stream follow each other, whatever Config they are of
    assert larger() is not usual
    cuda.stream = 5
    beside = one()
    assert beside is not usual
    assert one() is beside
    cuda.captured = True
    captured = one()
    assert captured is not beside
    assert one() is not captured  # another capture
    cuda.captured = False
    assert one() is beside
    cuda.stream = 0
    assert one() is usual
