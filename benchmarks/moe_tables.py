"""Our tables of `fused_moe`, exported for SGLang and vLLM, looked up by these engines' own functions. No GPU.

    python benchmarks/moe_tables.py [--table FILE] [--wheels FOLDER]

Takes the table that ships with tunesmith, or another one of ours (`benchmarks/moe.py --table FILE` makes one), and
exports each of its layers. Both wheels are downloaded without their dependencies; of them the functions that find
and read a table, and the expression that picks its row, are cut out and run with stand-ins for device and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _engine_lookups import Engines
from _model_shapes import LAYERS
from _results import FOLDER, write
from moe import UPTO, exported
from tables import WHEELS, unzipped

DEVICE, TRITON = "NVIDIA H200", "3.6.0"


def usual() -> Any:
    """The table that ships with tunesmith."""
    from tunesmith import kernels
    from tunesmith.tables import NativeTable
    from tunesmith.tables.packaged import file_name

    return NativeTable.read(Path(kernels.__file__).parent / "tables" / file_name("fused_moe", DEVICE))


def asked(engines: Engines, folder: Path, layer: Any) -> Mapping[str, tuple[Any, Mapping[int, Any] | None]]:
    """Each engine's (look-up, rows) for a layer in bfloat16, as a server on this device would ask."""
    os.environ["SGLANG_MOE_CONFIG_DIR"] = str(folder / "sglang")
    envs = SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=str(folder / "vllm"))
    engines.vllm_moe.space["envs"] = envs
    sizes = layer.E, layer.N, None, 0, 0
    spelled = DEVICE.replace(" ", "_")
    return {
        "sglang": (engines.sglang_moe, engines.sglang_moe.table("get_moe_configs", spelled, TRITON, *sizes)),
        "vllm": (engines.vllm_moe, engines.vllm_moe.table("get_moe_configs", spelled, TRITON, *sizes)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, help="one of ours, of the layers of benchmarks/moe.py")
    parser.add_argument("--wheels", type=Path, help="a folder with both wheels; else they are downloaded")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    options = parser.parse_args()
    from tunesmith.tables import NativeTable, convert

    table = usual() if options.table is None else NativeTable.read(options.table)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "engines"
        figures, findings = exported(table, DEVICE, TRITON, folder)
        engines = Engines(unzipped(Path(scratch), options.wheels))
        for name, layer in LAYERS.items():
            tuned = convert.rows_by_size(table, "M", layer._asdict(), {})
            nearest = {M: min(sorted(tuned), key=lambda key, M=M: abs(key - M)) for M in range(1, UPTO + 1)}
            for engine, (reader, found) in asked(engines, folder, layer).items():
                same = found is not None and all(
                    dict(found[reader.pick(found, M)]) == dict(tuned[key]) for M, key in nearest.items()
                )
                rows.append({"layer": name, "engine": engine, "found": found is not None, "same_rows": same})
                print(rows[-1])
    print(*findings, sep="\n")
    summary = {
        "files": len(rows), "found_by_the_engine": sum(row["found"] for row in rows),
        "same_rows": sum(row["same_rows"] for row in rows), "check_errors": figures["check_errors"],
    }  # fmt: skip
    print(json.dumps(summary))
    source = "the shipped table" if options.table is None else f"{options.table.name}"
    print(write(
        "moe_tables", "cpu", protocol=f"sizes 1 to {UPTO} of {source} for {DEVICE}, Triton {TRITON}; "
        "the engines' own functions, cut out of their wheels",
        command="python benchmarks/moe_tables.py", rows=rows, summary=summary, versions=WHEELS, folder=options.folder,
    ))  # fmt: skip


if __name__ == "__main__":
    main()
