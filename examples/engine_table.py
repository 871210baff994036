"""A table of tuned experts for SGLang and one for vLLM, under the names that these engines look for, and checked.

On a machine with the GPU, tune into one of our tables, and make the engines' of it:

tunesmith tune fused_moe --problems layer.csv --table moe.json
python examples/engine_table.py moe.json engine-configs

Without a table of yours, on any machine, it takes the kernel's defaults for an H200, to see how the rest goes:

python examples/engine_table.py --defaults engine-configs
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tunesmith import Problem, known_device
from tunesmith.cli import main as tunesmith
from tunesmith.kernels import fused_moe
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry

DEVICE, TRITON = "NVIDIA H200", "3.6.0"
#: Qwen3-30B-A3B on one GPU: experts, intermediate size, hidden size, experts of a token
SIZES = {"E": 128, "N": 768, "K": 2048, "top_k": 8}
TOKENS = (1, 16, 64, 256, 1024, 4096)
LAYER = f"experts={SIZES['E']},intermediate={SIZES['N']}"


def defaults(path: Path) -> None:
    """Write one of our tables, a row for each number of tokens, of what the performance model thinks fastest."""
    device = known_device(DEVICE)
    assert device is not None
    dtypes = {f"{name}.dtype": "bfloat16" for name in ("x", "w1", "w2")}
    problems = [Problem({"M": tokens, **SIZES, **dtypes}) for tokens in TOKENS]
    rows = {problem: Entry(fused_moe.default(problem, device)) for problem in problems}
    NativeTable("fused_moe", device.identity, rows).write(path)


def main(table: str, folder: str) -> int:
    """Export for both engines, then check what was written for every number of tokens up to 8192."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "moe.json" if table == "--defaults" else Path(table)
        if table == "--defaults":
            defaults(path)
        for engine in ("sglang-moe", "vllm-moe"):
            where = ["--to", engine, "--layer", LAYER, "--device", DEVICE, "--triton", TRITON, "-o", folder]
            if code := tunesmith(["table", "export", str(path), *where]):
                return code
    return tunesmith(["table", "check", folder, "--device", DEVICE, "--upto", "8192"])


if __name__ == "__main__":
    if {"-h", "--help"} & {*sys.argv}:
        print(__doc__)
        sys.exit()
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
