"""Matrix products of open models: for each, its weights (N, K) by layer, and how many rows M come at once.

python benchmarks/_gemm_shapes.py reduced > linear.csv  # as torch calls them: for `tunesmith tune tunesmith.ops:gpu`
python benchmarks/_gemm_shapes.py ieee > gemm.csv       # for `tunesmith tune gemm`
"""

from __future__ import annotations

import sys
from typing import NamedTuple


class Shape(NamedTuple):
    """activation(x (M, K) · w (N, K)ᵀ)."""

    M: int
    N: int
    K: int
    layer: str
    activation: str | None = None


#: (N, K) of a linear layer's weights, from the models' published configurations: q, k and v are one product, and so are
#: gate and up; "/4" is a quarter of a model that is spread over four GPUs.
LAYERS = {
    "Llama-3.1-8B qkv": (6144, 4096), "Llama-3.1-8B o": (4096, 4096), "Llama-3.1-8B gate_up": (28672, 4096),
    "Llama-3.1-8B down": (4096, 14336), "Llama-3.1-8B lm_head": (128256, 4096),
    "Llama-3.3-70B/4 qkv": (2560, 8192), "Llama-3.3-70B/4 o": (8192, 2048), "Llama-3.3-70B/4 gate_up": (14336, 8192),
    "Llama-3.3-70B/4 down": (8192, 7168),
    "Qwen3-8B gate_up": (24576, 4096), "Qwen3-8B down": (4096, 12288),
    "Qwen3-32B qkv": (10240, 5120), "Qwen3-32B o": (5120, 8192), "Qwen3-32B gate_up": (51200, 5120),
    "Qwen3-32B down": (5120, 25600),
    "Qwen3-30B-A3B qkv": (5120, 2048), "Qwen3-30B-A3B o": (2048, 4096),
    "Mistral-Small-24B qkv": (6144, 5120), "Mistral-Small-24B o": (5120, 4096), "Mistral-Small-24B down": (5120, 32768),
    "Gemma-3-27B qkv": (8192, 5376), "Gemma-3-27B o": (5376, 4096), "Gemma-3-27B down": (5376, 21504),
    "Phi-4 qkv": (7680, 5120), "Phi-4 o": (5120, 5120), "Phi-4 down": (5120, 17920),
    "gpt-oss-20b qkv": (5120, 2880), "gpt-oss-20b o": (2880, 4096),
    "DeepSeek-V3 q_a": (1536, 7168), "DeepSeek-V3 q_b": (24576, 1536), "DeepSeek-V3 o": (7168, 16384),
    "DeepSeek-V3 shared gate_up": (4096, 7168), "DeepSeek-V3 shared down": (7168, 2048),
}  # fmt: skip

#: Sizes that a published run on another GPU is known of, in which the library won, lost and drew.
PUBLISHED = (
    Shape(2048, 2048, 2048, "published: the library won"),
    Shape(16, 4096, 4096, "published: a template won"),
    Shape(2048, 2048, 2048, "published: a draw", "relu"),
)
_DECODE, _PREFILL = (1, 4, 8, 16, 32, 64), (128, 512, 2048, 8192)
#: lm_head sees one row of each sequence, and no prefill
_ROWS = {name: (_DECODE if "lm_head" in name else (*_DECODE, *_PREFILL)) for name in LAYERS}


def shapes(count: int) -> list[Shape]:
    """The published ones, then two layers' decode for one layer's prefill, each with the next number of rows."""
    found, names, i = list(PUBLISHED), list(LAYERS), 0
    while len(found) < count:
        name, turn = names[i % len(names)], i // len(names)
        few, many = [m for m in _ROWS[name] if m <= 64], [m for m in _ROWS[name] if m > 64]
        m = many[(i // 3 + turn) % len(many)] if many and i % 3 == 2 else few[(i + turn) % len(few)]
        found += [shape for shape in [Shape(m, *LAYERS[name], name)] if shape not in found]
        i += 1
    return found


#: those that are tuned for the tables
ALL = shapes(66)


def csv(precision: str) -> str:
    """All of them as problems in bfloat16, weights as linear layers have them."""
    rows = [f"{s.M},{s.N},{s.K},bfloat16,1x,{s.activation or ''},{precision}" for s in ALL]
    return "\n".join(["M,N,K,dtype,b.strides,activation,precision", *rows, ""])


if __name__ == "__main__":
    print(csv(sys.argv[1]), end="")
