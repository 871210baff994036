"""What a Config makes of a call of `fused_moe`: the programs of device.py, and the arrays between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.problem import next_power_of_two
from tunesmith.kernels.programs import Fresh, Plan, Program, ProgramsKernel

SIZES = ("M", "E", "N", "K", "top_k")
#: what a call is made of: see `kernels.fused_moe.arguments`
PARAMETERS = ("x", "w1", "w2", "topk_weights", "topk_ids", *SIZES)
#: spelled as in the tables of serving engines
KNOBS = frozenset({"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages"})
_DEVICE = "tunesmith.kernels.fused_moe.device"
_PROGRAMS = ("align", "grouped_gemm", "silu_and_mul", "combine")
#: assignments that a program of `align` looks at at once, elements of a row that one of the others does
_CHUNK, _ELEMENTS = 1024, 1024
#: `tl.histogram` wants a bin for each thread of a warp at least
_FEWEST_BINS = 32


def places(M: int, E: int, top_k: int, block: int) -> int:
    """As many places as sorted assignments can take, whatever the routing: no expert's last block is full."""
    assignments = M * top_k
    blocks = min(assignments, E + max(0, assignments - E) // block)
    return blocks * block


def plan(config: Config, args: Mapping[str, Any]) -> Plan:
    """What a Config makes of a call's arguments (PARAMETERS)."""
    import torch

    knobs = cast("dict[str, int]", dict(config))
    M, E, N, K, top_k = (args[name] for name in SIZES)
    block, dtype, assignments = knobs["BLOCK_SIZE_M"], args["x"].dtype, M * top_k
    most = places(M, E, top_k, block)
    integers = torch.int32

    def product(a: str, w: str, c: str, rows: int, columns: int, depth: int, sharers: int, row: int) -> Program:
        constants = {**knobs, "EVEN_K": depth % knobs["BLOCK_SIZE_K"] == 0, "WEIGHTED": w == "w2"}
        across = -(-columns // knobs["BLOCK_SIZE_N"])
        return Program(
            "grouped_gemm", (most // block * across,), (a, w, c, "topk_weights", "order", "experts", "padded"),
            (columns, depth, most, rows, sharers, row, *args[w].stride()), Config(constants),
        )  # fmt: skip

    def elementwise(size: int) -> int:
        return -(-size // _ELEMENTS)

    align = Config(
        BLOCK_SIZE_M=block, EXPERTS=max(_FEWEST_BINS, next_power_of_two(E + 1)), CHUNK=_CHUNK, num_warps=4
    )  # fmt: skip
    lane = Config(BLOCK=_ELEMENTS, num_warps=4)
    programs = (
        Program("align", (E,), ("topk_ids", "order", "experts", "padded"), (assignments, E), align),
        product("x", "w1", "projected", assignments, 2 * N, K, top_k, args["x"].stride()[0]),
        Program("silu_and_mul", (assignments, elementwise(N)), ("projected", "activated"), (N,), lane),
        product("activated", "w2", "parts", assignments, K, N, 1, N),
        Program("combine", (M, elementwise(K)), ("parts", "topk_ids", "out"), (K, E), Config({**lane, "TOP_K": top_k})),
    )
    fresh = (
        Fresh("order", (most,), integers), Fresh("experts", (most // block,), integers),
        Fresh("padded", (1,), integers), Fresh("projected", (assignments, 2 * N), dtype),
        Fresh("activated", (assignments, N), dtype), Fresh("parts", (assignments, K), dtype),
        Fresh("out", (M, K), dtype),
    )  # fmt: skip
    return Plan(programs, fresh, "out")


def moe_kernel() -> ProgramsKernel:
    """The kernel that the tuner sees."""
    return ProgramsKernel(
        "fused_moe", _DEVICE, _PROGRAMS, PARAMETERS, ("x", "w1", "w2"), ("topk_weights", "topk_ids"), KNOBS, plan
    )
