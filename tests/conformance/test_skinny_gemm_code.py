"""What NVRTC makes of the product of few rows in CUDA C++: when it reads, and how. Needs no GPU."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip(
    "cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install 'tunesmith[cuda]'", exc_type=ImportError
)
pytest.importorskip("torch")
pytest.importorskip("triton")

from tunesmith import Config
from tunesmith.core.device import known_device
from tunesmith.kernels import skinny_gemm
from tunesmith.kernels.gemm import skinny

nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
KERNEL, H200 = skinny_gemm.kernel, known_device("NVIDIA H200")


def test_nothing_is_read_as_constant_or_before_the_kernel_before_has_ended() -> None:
    for M, config in ((8, (2, 1, 8, 2, 2, 1)), (16, (1, 2, 4, 1, 4, 1)), (64, (1, 4, 8, 1, 3, 1))):
        asked = KERNEL.problem(f"M={M},N=4096,K=4096,dtype=bfloat16,bias.dtype=bfloat16,activation=gelu")
        made = KERNEL.kernel.for_target(lambda asked=asked: skinny_gemm.make_inputs(asked, device="meta"), H200)
        job = made.compile_job(Config(dict(zip(skinny.KNOBS, config, strict=True))), asked, H200)
        assert job is not None
        said = job.request()
        texts, names = (list(map(str.encode, part)) for part in (said["headers"].values(), said["headers"]))
        _, program = nvrtc.nvrtcCreateProgram(said["source"].encode(), b"kernel.cu", len(names), texts, names)
        nvrtc.nvrtcCompileProgram(program, len(said["options"]), list(map(str.encode, said["options"])))
        text = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
        nvrtc.nvrtcGetPTX(program, text)
        nvrtc.nvrtcDestroyProgram(program)
        code = text.decode().partition(".visible .entry")[2]
        wait, begun = (code.index(f"griddepcontrol.{word}") for word in ("wait", "launch_dependents"))
        assert wait < min(code.index(word) for word in ("cp.async.c", "ld.global", "st.global"))
        assert begun > max(code.rindex(word) for word in ("cp.async.c", "mma.sync"))
        assert "ld.global.nc" not in code, "the kernel before may write it while this one runs"
