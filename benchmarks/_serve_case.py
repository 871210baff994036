"""The kernels that `serve.py` tunes and serves: the matrix product of `examples/`, and a stand-in that needs no GPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from tunesmith import Problem, Space, autotune

#: under which the table is made and served
NAME = "gemm"


@dataclass(frozen=True)
class Case:
    """What is tuned over M, and where it is looked at.

    Attributes:
        tuned: from further arguments of `autotune` to the tuned kernel.
        inputs: of an M, the arguments of a call by position: a grid first, where there is one.
        launch: calls the kernel as its users do, given these.
        error: from the arguments after a launch to the largest error over the largest value.
        space: the configurations.
        ends: the last M of each class; within a class no tile of the Space is cut by M.
        few: Ms of warm calls: the GPU must be busy for less than the host, or the queue never fill.
        synchronise: waits for the device.
    """

    tuned: Callable[..., Any]
    inputs: Callable[[int], Sequence[Any]]
    launch: Callable[[Any, Sequence[Any]], Any]
    error: Callable[[Sequence[Any]], float]
    space: Space
    ends: Sequence[int]
    few: Sequence[int]
    synchronise: Callable[[], None]
    device: str
    gpu: bool


def gemm() -> Case:
    """c = a · b in float16 with N = K = 4096: the 64 Configs of `examples/triton_gemm.py`.

    M is not specialised, as in kernels that serve: its binaries would be other ones for M = 1 and for multiples of 16,
    of which another Config may be the fastest.
    """
    import torch
    import triton
    import triton_gemm

    from tunesmith import Tiles

    def tuned(**more: Any) -> Any:
        how = {
            "space": triton_gemm.SPACE, "key": ["M", "N", "K"], "model": Tiles(), "name": NAME, "isolate": False,
            **more,
        }  # fmt: skip
        return autotune(**how)(triton.jit(triton_gemm.gemm.fn.fn, do_not_specialize=["M"]))

    def inputs(m: int) -> list[Any]:
        return list(triton_gemm.inputs(Problem({"M": m, "N": 4096, "K": 4096})).values())

    def launch(kernel: Any, args: Sequence[Any]) -> Any:
        return kernel[args[0]](*args[1:])

    def error(args: Sequence[Any]) -> float:
        a, b, c = args[1:4]
        rows = slice(max(0, len(a) - 256), None)
        expected = a[rows].double() @ b.double()
        return float((c[rows].double() - expected).abs().max() / expected.abs().max())

    return Case(
        tuned, inputs, launch, error, triton_gemm.SPACE,
        [1, 2, 4, 8, 16, 32, *range(64, 4096, 64), *range(4096, 8193, 128)],
        [3, 17, 40, 64], torch.cuda.synchronize, torch.cuda.get_device_name().split()[-1].lower(), True,
    )  # fmt: skip


def stand_in() -> Case:
    """A function that does nothing for as long as tiles in waves over 132 cores would take."""
    peak = {(64, 64): 0.5, (64, 128): 0.7, (128, 128): 0.85, (128, 256): 1.0}

    def gemm(M: int, *, BLOCK_M: int, BLOCK_N: int, stages: int) -> None:
        waves = -(-(-(-M // BLOCK_M) * (4096 // BLOCK_N)) // 132)
        cost = 5e-6 + waves * BLOCK_M * BLOCK_N / peak[BLOCK_M, BLOCK_N] / 3.3e8 * (1 + 0.1 * (stages != 3))
        end = time.perf_counter() + cost
        while time.perf_counter() < end:
            pass

    space = Space(BLOCK_M=[64, 128], BLOCK_N=[64, 128, 256], stages=[2, 3]).where(
        lambda BLOCK_M, BLOCK_N: (BLOCK_M, BLOCK_N) in peak, "not one of the four tiles"
    )

    def tuned(**more: Any) -> Any:
        return autotune(**{"space": space, "key": ["M"], "name": NAME, "version": "1", **more})(gemm)

    ends = range(64, 2049, 64)
    return Case(
        tuned, lambda m: [m], lambda kernel, args: kernel(*args), lambda _: 0.0, space, ends,
        [3, 17, 40, 64], lambda: None, "cpu", False,
    )  # fmt: skip
