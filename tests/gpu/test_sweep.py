"""A sweep on a GPU: candidates in one process for all problems, and nothing measured twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith.cli import main
from tunesmith.cli.target import find_target
from tunesmith.store import default_store

EXAMPLE = Path(__file__).parents[2] / "examples" / "triton_gemm.py"


def test_a_list_of_products_is_swept_and_known_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "problems.csv"
    file.write_text("M,N,K\n256,512,512\n64,512,512\n1,512,512\n")
    command = ["sweep", str(file), "--targets", f"{EXAMPLE}:gemm", "--devices", "0", "--json"]
    for fate in ("tuned", "known"):
        assert main(command) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        assert [row["fate"] for row in results] == [fate] * 3
        assert [row["problem"] for row in results] == [f"K=512,M={m},N=512" for m in (256, 64, 1)]
        assert results[0]["device"].startswith("cuda:")
    assert main([*command, "--resume"]) == 0
    kernel = find_target(f"{EXAMPLE}:gemm")
    key = kernel.key(**kernel.inputs("M=64,N=512,K=512"))
    stored = default_store().choice(key)
    assert stored is not None
    assert dict(stored.choice.config) == results[1]["config"]
