"""`fused_moe`: a layer of experts on a GPU, in Triton, with the knobs that SGLang and vLLM tune. See device.py.

Each token goes to top_k of the E experts, each of which is silu(x · gateᵀ) * (x · upᵀ) and a product with w2. One
Config serves both products, as it does in these engines, so a table of it can be exported for them. Imports neither
torch nor Triton until a layer is asked for.
"""

from __future__ import annotations

from typing import Any, cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Model, Work
from tunesmith.core.model.work import ITEM_BYTES, TILE_REGISTERS
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput
from tunesmith.kernels.fused_moe.launch import KNOBS, PARAMETERS, SIZES, moe_kernel
from tunesmith.kernels.programs import drawer
from tunesmith.tables import Packaged

__all__ = ["arguments", "default", "fused_moe", "kernel", "make_inputs", "reference", "route", "space", "work"]

#: Tiles that a default is picked from: rows, columns, elements of K, group, warps, stages. They are what engines' own
#: tables for GPUs with 100 to 230 KiB of shared memory say most often.
_TILES = (
    (16, 32, 64, 1, 4, 4), (16, 64, 128, 1, 4, 4), (16, 128, 64, 1, 4, 4), (16, 128, 128, 1, 4, 3),
    (32, 64, 128, 1, 4, 3), (32, 128, 64, 1, 4, 4), (64, 64, 64, 1, 4, 4), (64, 128, 64, 16, 4, 4),
    (64, 256, 64, 16, 8, 3), (128, 128, 64, 16, 8, 3), (128, 256, 64, 16, 8, 3),
)  # fmt: skip
#: ... in float32, where a product is a loop over vector lanes
_TILES_32 = ((16, 32, 64, 1, 4, 3), (32, 32, 32, 1, 4, 3), (64, 64, 32, 16, 8, 3))
#: rows of w1's and w2's products that one row of activations makes
_GATE_AND_UP = 2


# --- what is known without measuring ---


def work(problem: Problem, config: Config) -> Work:
    """What a launch does, for the performance model: both products as one, with experts chosen evenly."""
    M, E, N, K, top_k = _sizes(problem)
    knobs = cast("dict[str, int]", dict(config))
    tile_m, tile_n, tile_k = (knobs[f"BLOCK_SIZE_{side}"] for side in "MNK")
    dtype = str(problem["x.dtype"])
    item = ITEM_BYTES[dtype]
    active = E * (1 - (1 - min(1.0, top_k / E)) ** M)  # experts that some token chose
    each = M * top_k / active if active else 0.0
    down = round(active * max(1, -(-each // tile_m)))
    columns, depths = (_GATE_AND_UP * N, K), (K, N)
    across = [-(-n // tile_n) for n in columns]
    steps = [-(-k // tile_k) for k in depths]
    blocks = down * sum(across)
    stage_bytes = (tile_m + tile_n) * tile_k * item
    passed = M * top_k * ((_GATE_AND_UP + 1) * N + K) * item
    return Work(
        blocks=blocks,
        threads=32 * knobs["num_warps"],
        steps=max(1, round(sum(a * s for a, s in zip(across, steps, strict=True)) / sum(across))),
        stages=knobs["num_stages"],
        flops=2.0 * tile_m * tile_n * tile_k,
        step_bytes=stage_bytes,
        end_bytes=tile_m * tile_n * item,
        once_bytes=(_GATE_AND_UP + 1) * active * N * K * item + 2.0 * M * K * item + passed,
        shared_bytes=knobs["num_stages"] * stage_bytes,
        registers=tile_m * tile_n // (32 * knobs["num_warps"]) + TILE_REGISTERS,
        dtype=dtype,
        matrix_rows=tile_m,
        padding=max(0.0, 1 - each / tile_m),
    )


def default(problem: Problem, device: Device) -> Config:
    """Of a few good tiles the one that the performance model thinks fastest; on a chip of which too little is known the
    smallest."""
    legal = space(problem, device)
    tiles = _TILES_32 if problem["x.dtype"] == "float32" else _TILES
    candidates = [
        Config(
            BLOCK_SIZE_M=m, BLOCK_SIZE_N=n, BLOCK_SIZE_K=k, GROUP_SIZE_M=group, num_warps=warps, num_stages=stages
        )
        for m, n, k, group, warps, stages in tiles
    ]  # fmt: skip
    good = [config for config in candidates if config in legal] or [next(iter(legal))]
    model = Model(work)
    told = [(found.seconds, config) for config in good if (found := model.predict(problem, config, device))]
    return min(told, key=lambda one: one[0])[1] if told else good[0]


def space(problem: Problem, device: Device) -> Space:
    """Tiles that suit the sizes and how many tokens an expert gets; knobs and values as in the engines' own tuners."""
    M, E, N, K, top_k = _sizes(problem)
    item = ITEM_BYTES[str(problem["x.dtype"])]
    each = -(-M * top_k // E)
    axes = Space(
        BLOCK_SIZE_M=[rows for rows in (16, 32, 64, 128, 256) if rows <= max(32, 4 * each)],
        BLOCK_SIZE_N=[columns for columns in (32, 64, 128, 256) if columns < 4 * max(N, 16)],
        BLOCK_SIZE_K=[depth for depth in ((16, 32, 64) if item == 4 else (64, 128, 256)) if depth < 2 * max(N, K, 64)],
        GROUP_SIZE_M=[1, 16, 32, 64],
        num_warps=[4, 8],
        num_stages=[2, 3] if item == 4 else [2, 3, 4, 5],
    )
    shared = device.shared_bytes_per_block

    def _has_work(BLOCK_SIZE_M: int, BLOCK_SIZE_N: int, num_warps: int) -> bool:
        return 128 * num_warps <= BLOCK_SIZE_M * BLOCK_SIZE_N

    def _fits_registers(BLOCK_SIZE_M: int, BLOCK_SIZE_N: int, num_warps: int) -> bool:
        return 32 * num_warps * (64 if item == 4 else 128) >= BLOCK_SIZE_M * BLOCK_SIZE_N

    def _fits_shared(BLOCK_SIZE_M: int, BLOCK_SIZE_N: int, BLOCK_SIZE_K: int, num_stages: int) -> bool:
        return not shared or (BLOCK_SIZE_M + BLOCK_SIZE_N) * BLOCK_SIZE_K * item * (num_stages - 1) <= shared

    def _groups(BLOCK_SIZE_M: int, GROUP_SIZE_M: int) -> bool:
        return GROUP_SIZE_M == 1 or each > BLOCK_SIZE_M

    return (
        axes.where(_has_work, "warps without a tile of 16 x 8 of their own")
        .where(_fits_registers, "the sums of a tile would spill")
        .where(_fits_shared, "even one stage less would not fit the shared memory")
        .where(_groups, "blocks of one expert share its weights: where each has one, there is nothing to group")
    )


def _sizes(problem: Problem) -> tuple[int, ...]:
    return tuple(cast(int, problem[name]) for name in SIZES)


# --- arguments ---


def arguments(
    x: Any,  # (M, K)
    w1: Any,  # (E, 2 N, K): the gates' rows, then the ups'
    w2: Any,  # (E, K, N)
    topk_weights: Any,  # (M, top_k)
    topk_ids: Any,  # (M, top_k), integers
) -> tuple[Any, ...]:
    """A call's arguments as the kernel takes them: with sizes; weights of routing in float32, ids in int32.

    N is the intermediate size on this device, as in the engines' names of tables.

    Raises:
        BadInput: for shapes and dtypes that do not fit.
    """
    import torch

    shapes = {"x": x, "w1": w1, "w2": w2, "topk_weights": topk_weights, "topk_ids": topk_ids}
    said = ", ".join(f"{name} {tuple(array.shape)}" for name, array in shapes.items())
    if (x.ndim, w1.ndim, w2.ndim, topk_ids.ndim) != (2, 3, 3, 2):
        raise BadInput(f"fused_moe of {said}: needs (M, K), (E, 2 N, K), (E, K, N), (M, top_k) twice")
    (M, K), (E, _, N), top_k = x.shape, w2.shape, topk_ids.shape[1]
    wanted = {"w1": (E, 2 * N, K), "w2": (E, K, N), "topk_weights": (M, top_k), "topk_ids": (M, top_k)}
    for name, shape in wanted.items():
        if tuple(shapes[name].shape) != tuple(shape):
            raise BadInput(f"fused_moe of {said}: {name} should be {tuple(map(int, shape))}")
    if min(E, N, K, top_k) < 1:
        raise BadInput(f"fused_moe of {said}: only the number of tokens may be 0")
    if not (x.dtype == w1.dtype == w2.dtype) or not x.dtype.is_floating_point:
        raise BadInput(f"fused_moe: x is {x.dtype}, w1 {w1.dtype}, w2 {w2.dtype}; needs one dtype of floats")
    if topk_ids.dtype not in (torch.int32, torch.int64) or not topk_weights.dtype.is_floating_point:
        raise BadInput(
            f"fused_moe: topk_ids is {topk_ids.dtype}, topk_weights {topk_weights.dtype}; "
            "needs int32 or int64, and floats"
        )
    if x.stride(1) != 1:
        x = x.contiguous()
    weights, ids = topk_weights.to(torch.float32).contiguous(), topk_ids.to(torch.int32).contiguous()
    return x, w1, w2, weights, ids, int(M), int(E), int(N), int(K), int(top_k)


def route(logits: Any, top_k: int, renormalize: bool = True) -> tuple[Any, Any]:  # (M, E)
    """(weights in float32, ids in int32), both (M, top_k): the softmax's largest.

    Args:
        renormalize: so that a token's weights add up to 1.
    """
    import torch

    weights, ids = torch.softmax(logits, -1, dtype=torch.float32).topk(top_k, -1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids.to(torch.int32)


def reference(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, **_: Any) -> Any:
    """The same in float64, expert by expert: (M, K)."""
    import torch

    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in range(w1.shape[0]):
        tokens, choices = torch.where(topk_ids == expert)
        if len(tokens):
            gate, up = (x[tokens].double() @ w1[expert].double().mT).chunk(2, -1)
            made = (torch.nn.functional.silu(gate) * up) @ w2[expert].double().mT
            out.index_add_(0, tokens, made * topk_weights[tokens, choices].double()[:, None])
    return out


def make_inputs(problem: Problem, seed: int = 0, device: str = "cuda") -> dict[str, Any]:
    """Standard normal x, weights that keep its size, and the routing of standard normal logits.

    Raises:
        BadInput: for more experts of a token than there are.
    """
    import torch

    M, E, N, K, top_k = _sizes(problem)
    if not 1 <= top_k <= E:
        raise BadInput(f"fused_moe: top_k={top_k} of E={E} experts; good values: 1 to {E}")
    draw = drawer(device, seed)
    dtype = getattr(torch, str(problem["x.dtype"]))

    def normal(array: str, *shape: int) -> Any:
        swapped = str(problem.get(f"{array}.strides", "xx1")).endswith("1x")
        made = torch.empty((shape[0], shape[2], shape[1]) if swapped else shape, dtype=dtype, device=device)
        for expert in made:  # never all of it in float32 at once
            expert.copy_(torch.randn(expert.shape, generator=draw, device=device) / shape[2] ** 0.5)
        return made.mT if swapped else made

    x = torch.randn((M, K), generator=draw, device=device).to(dtype)
    weights, ids = route(torch.randn((M, E), generator=draw, device=device), top_k)
    made = arguments(x, normal("w1", E, 2 * N, K), normal("w2", E, K, N), weights, ids)
    return dict(zip(PARAMETERS, made, strict=True))


kernel = autotune(
    space=space, knobs=sorted(KNOBS), default=default, key=SIZES, strides=["w1", "w2"],
    flags={"w1.strides": "xx1", "w2.strides": "xx1"}, make_inputs=make_inputs, reference=reference, model=work,
    candidates=96, policy="lookup", clock="graph", hot=["x", "topk_weights", "topk_ids"],
)(moe_kernel())  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "fused_moe", near=("M",)))


def fused_moe(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any) -> Any:
    """The layer with the Config that is known for its shape, else the default: (M, K), in x's dtype.

    A token's result is the sum of its experts' results times `topk_weights`. An id that is none of the E experts counts
    for nothing: those of other devices, where experts are spread over several.

    Raises:
        BadInput: when shapes or dtypes do not fit, and for tensors that are not on a GPU.
    """
    return kernel(*arguments(x, w1, w2, topk_weights, topk_ids))
