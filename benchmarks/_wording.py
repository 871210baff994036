"""What the benchmarks page says of each result: a title, sentences with figures, and a table of ours beside others.

A result that has no entry gets tables of what it has. An entry that asks for a figure which the result does not have is
a `KeyError` that `page.py` turns into words.
"""

from __future__ import annotations

import _wording_cpu
import _wording_gpu

#: in the order of the page
_ORDER = (
    "triton_dispatch", "dispatch", "triton_cold_search", "tune", "one_config", "serve", "gemm", "rows", "moe", "race",
    "model", "search", "cuda", "cute", "bad_candidates", "tables", "moe_tables", "transfer", "distill", "sweep",
    "scale", "sweep_cpu", "scaling", "cpu_matmul", "report",
)  # fmt: skip
WORDING = {name: {**_wording_gpu.WORDING, **_wording_cpu.WORDING}[name] for name in _ORDER}
