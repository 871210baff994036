"""The examples do what they say, as far as a machine without a GPU can tell."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import tunesmith
from tunesmith.cli import main

GEMM = Path(__file__).parents[2] / "examples" / "triton_gemm.py"
ROWS = GEMM.with_name("triton_rows.py")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with a Space of two Configs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns where it is not set
    text = GEMM.read_text().replace("[64, 128, 256]", "[64]").replace("BLOCK_K=[32, 64]", "BLOCK_K=[32]")
    path = tmp_path / "gemm_example.py"
    path.write_text(text.replace("num_stages=[3, 4]", "num_stages=[3]"))
    spec = importlib.util.spec_from_file_location("gemm_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_space_is_what_the_readme_counts() -> None:
    spec = importlib.util.spec_from_file_location("gemm_example", GEMM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.SPACE.cardinality, len(list(module.SPACE))) == (72, 64)


def test_the_matrix_product_compiles_for_a_gpu_that_is_not_here(example: Any, capfd: pytest.CaptureFixture[str]):
    args = ["compile", f"{example.__file__}:gemm", "--target", "sm_90", "--problem", "M=512,N=512,K=512", "--json"]
    assert main(args) == 0
    [result] = json.loads(capfd.readouterr().out)["results"]
    assert result["compiled"] == 2
    assert all(config["registers"] > 0 and config["spills"] == 0 for config in result["configs"])


def test_the_split_product_compiles_for_a_gpu_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    text = GEMM.with_name("triton_split_k.py").read_text()
    for axis in ("BLOCK_M=[16, 32, 64, 128]", "BLOCK_N=[32, 64, 128]", "BLOCK_K=[64, 128]", "num_warps=[4, 8]"):
        text = text.replace(axis, f"{axis[: axis.index('[')]}[{axis.split()[-1]}")  # the last value alone
    text = text.replace("SPLIT_K=[1, 2, 4, 8, 16, 32]", "SPLIT_K=[4]").replace("num_stages=[3, 4]", "num_stages=[3]")
    (path := tmp_path / "split_example.py").write_text(text)

    args = ["compile", f"{path}:split_k", "--target", "sm_90", "--problem", "M=128,N=256,K=4096", "--json"]
    assert main(args) == 0
    [result] = json.loads(capfd.readouterr().out)["results"]
    assert result["compiled"] == 1


_INTERPRETED = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, triton, triton_rows
from triton_rows import rms_norm, softmax, reference
torch.manual_seed(0)
x, w = torch.randn(5, 300).half(), torch.randn(300).half()
# the interpreter of Triton 3.6 can't loop to a number that is an argument, beside numpy 2.4
loops = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
for ROWS, BLOCK in ((1, 512), (2, 512), *([(4, 64), (2, 256)] if loops else [])):
    for kernel in (softmax, rms_norm):
        y = torch.full_like(x, float("nan"))
        args = (x, y) if kernel is softmax else (x, w, y)
        kernel.fn[(-(-5 // ROWS),)](*args, 5, 300, ROWS=ROWS, BLOCK=BLOCK, LOOP=BLOCK < 300)
        torch.testing.assert_close(y.double(), reference(kernel.__name__, x, w), rtol=2e-3, atol=2e-3)
print("right")
"""


def test_the_row_kernels_are_right_where_rows_and_columns_do_not_fit() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", _INTERPRETED, str(ROWS.parent)], env=environment, capture_output=True, text=True
    )
    assert ended.stdout.strip() == "right", ended.stderr


def test_every_config_of_a_row_kernel_covers_the_row() -> None:
    spec = importlib.util.spec_from_file_location("rows_example", ROWS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for n in (64, 3000, 131072):
        configs = list(module.space(tunesmith.Problem({"rows": 16, "n": n}), None))
        assert len(configs) > 10
        assert all(config["LOOP"] == (config["BLOCK"] < n) for config in configs)
