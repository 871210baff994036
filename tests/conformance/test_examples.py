"""The examples do what they say, as far as a machine without a GPU can tell."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tunesmith.cli import main

GEMM = Path(__file__).parents[2] / "examples" / "triton_gemm.py"


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
