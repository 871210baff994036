"""The row-wise kernels that benchmarks compare: their inputs, ours, torch's and Liger's calls, what they move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

#: Input of more than 64 MiB, far more than the L2 holds: the least power of two of rows
LEAST_BYTES = 64 * 1024**2
#: a row's length, and where open models have such rows
NORMS = {
    64: "head of gpt-oss", 128: "head of Qwen3", 256: "head of Gemma-3", 768: "ViT-B", 1024: "BERT-large",
    2048: "Qwen3-30B-A3B", 2880: "gpt-oss-20b", 3072: "Llama-3.2-3B", 4096: "Llama-3.1-8B", 5120: "Qwen3-32B",
    5376: "Gemma-3-27B", 6144: "Mixtral-8x22B", 7168: "DeepSeek-V3", 8192: "Llama-3.3-70B", 12288: "GPT-3",
    16384: "Llama-3.1-405B",
}  # fmt: skip
SOFTMAXES = {
    64: "experts of Qwen2-MoE", 128: "experts of Qwen3-MoE", 256: "experts of DeepSeek-V3", 512: "attention",
    1000: "ImageNet", 1024: "attention", 2048: "attention", 4096: "attention", 5000: "attention", 8192: "attention",
    12288: "attention", 16384: "attention", 32000: "vocabulary of Llama-2", 50257: "vocabulary of GPT-2",
    128256: "vocabulary of Llama-3", 151936: "vocabulary of Qwen3",
}  # fmt: skip


class Case(NamedTuple):
    """One kernel on one shape."""

    kernel: str
    rows: int
    n: int
    where: str


def cases() -> list[Case]:
    """Sixteen shapes of each kernel; all kernels of a length follow each other."""

    def rows(n: int) -> int:
        return 1 << (LEAST_BYTES // (2 * n)).bit_length()

    norms = [
        Case(kernel, rows(n), n, where)
        for n, where in NORMS.items()
        for kernel in ("rmsnorm", "add_rmsnorm", "layernorm")
    ]
    softmaxes = [Case("row_softmax", rows(n), n, where) for n, where in SOFTMAXES.items()]
    return [one for i in range(16) for one in (*norms[3 * i : 3 * i + 3], softmaxes[i])]


def moved(kernel: str) -> int:
    """How many arrays of the input's size are read and written, half of which a copy would read."""
    return 4 if kernel == "add_rmsnorm" else 2


def ways(kernel: str, liger: bool) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
    """Calls that take a kernel's arguments by name: ours, torch's, Liger's where asked for."""
    made = {"ours": _ours(kernel), "torch": _torchs(kernel)}
    return {**made, "liger": _ligers(kernel)} if liger else made


def tuned(kernel: str) -> Any:
    """What is tuned for a case: of softmax all ways of `ops.softmax`, torch's too; else our kernel."""
    from tunesmith import ops
    from tunesmith.kernels import shipped

    return ops.rows.chooser("softmax", "cuda") if kernel == "row_softmax" else shipped()[kernel]


def _ours(kernel: str) -> Callable[[Mapping[str, Any]], Any]:
    from tunesmith import ops

    if kernel == "row_softmax":
        return lambda given: ops.softmax(given["x"])
    by = tuned(kernel)
    return lambda given: by(*given.values())


def _torchs(kernel: str) -> Callable[[Mapping[str, Any]], Any]:
    import torch

    functional = torch.nn.functional

    def layer_norm(given: Mapping[str, Any]) -> Any:
        return functional.layer_norm(given["x"], (given["n"],), given["w"], given["b"], given["eps"])

    def added(given: Mapping[str, Any]) -> Any:
        total = given["x"] + given["residual"]
        return functional.rms_norm(total, (given["n"],), given["w"], given["eps"]), total

    return {
        "row_softmax": lambda given: torch.softmax(given["x"], -1),
        "rmsnorm": lambda given: functional.rms_norm(given["x"], (given["n"],), given["w"], given["eps"]),
        "layernorm": layer_norm,
        "add_rmsnorm": added,
    }[kernel]  # fmt: skip


def _ligers(kernel: str) -> Callable[[Mapping[str, Any]], Any]:
    """Liger's functions, which take any row and are meant for training: they save what a gradient needs."""
    if kernel == "row_softmax":
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        return lambda given: LigerSoftmaxFunction.apply(given["x"])
    if kernel == "rmsnorm":
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        return lambda given: LigerRMSNormFunction.apply(given["x"], given["w"], given["eps"])
    if kernel == "layernorm":
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return lambda given: LigerLayerNormFunction.apply(given["x"], given["w"], given["b"], given["eps"])
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return lambda given: LigerFusedAddRMSNormFunction.apply(given["x"], given["residual"], given["w"], given["eps"])


def turns(given: Mapping[str, Any], cold_bytes: int) -> list[dict[str, Any]]:
    """A kernel's arguments as often as it takes that each is gone from the cache when its turn comes again."""
    import torch

    matrices = [name for name, value in given.items() if isinstance(value, torch.Tensor) and value.ndim == 2]
    each = sum(given[name].numel() * given[name].element_size() for name in matrices)
    number = max(1, min(16, -(-cold_bytes // each)))
    return [dict(given), *[{**given, **{name: given[name].clone() for name in matrices}} for _ in range(number - 1)]]
