"""What a Config makes of a call of `decode_attention`: the programs of device.py, and the arrays between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tunesmith.core.config import Config
from tunesmith.core.problem import next_power_of_two
from tunesmith.kernels.programs import Fresh, Plan, Program, ProgramsKernel

SIZES = ("B", "HQ", "HKV", "D", "S", "page_size")
#: what a call is made of: see `kernels.decode_attention.arguments`
PARAMETERS = ("q", "k", "v", "lens", "pages", "scale", *SIZES)
KNOBS = frozenset({"BLOCK_N", "BLOCK_H", "SPLITS", "num_warps", "num_stages"})
#: the least side of a tile that a GPU's matrix units take
LEAST = 16
_DEVICE = "tunesmith.kernels.decode_attention.device"


def padded(size: int) -> int:
    """A head's size as a tile has it."""
    return max(LEAST, next_power_of_two(size))


def plan(config: Config, args: Mapping[str, Any]) -> Plan:
    """What a Config makes of a call's arguments (PARAMETERS)."""
    import torch

    knobs = cast("dict[str, int]", dict(config))
    B, HQ, HKV, D, page = (args[name] for name in ("B", "HQ", "HKV", "D", "page_size"))
    splits, wide = knobs["SPLITS"], padded(D)
    blocks = -(-(HQ // HKV) // knobs["BLOCK_H"])
    q, k, v, pages = (args[name] for name in ("q", "k", "v", "pages"))
    strides = (*q.stride()[:2], *k.stride()[:3], *v.stride()[:3], 0 if pages is None else pages.stride()[0])
    several = splits > 1
    arrays = ("q", "k", "v", "lens", "pages", "scale", "S")
    attend = Program(
        "attend", (B * HKV * blocks, splits),
        (*arrays, *((None, "parts", "sums") if several else ("out", None, None))), (HQ, HKV, D, *strides),
        Config({**knobs, "BLOCK_D": wide, "PAGE": page}),
    )  # fmt: skip
    merge = Program(
        "merge", (B * HQ,), ("parts", "sums", "out"), (D,), Config(SPLITS=splits, BLOCK_D=wide, num_warps=4)
    )  # fmt: skip
    out = Fresh("out", (B, HQ, D), q.dtype)
    if not several:
        return Plan((attend,), (out,), "out")
    parts = Fresh("parts", (B, HQ, splits, D), torch.float32), Fresh("sums", (B, HQ, splits), torch.float32)
    return Plan((attend, merge), (out, *parts), "out")


def attention_kernel() -> ProgramsKernel:
    """The kernel that the tuner sees."""
    return ProgramsKernel(
        "decode_attention", _DEVICE, ("attend", "merge"), PARAMETERS, ("q", "k", "v"), ("lens", "pages"), KNOBS, plan
    )
