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
#: gate and up; "/4" is a quarter of a model that is spread over four GPUs. Models of 0.6 to 671 billion parameters.
LAYERS = {
    "Qwen3-0.6B qkv": (4096, 1024), "Qwen3-0.6B o": (1024, 2048), "Qwen3-0.6B gate_up": (6144, 1024),
    "Qwen3-0.6B down": (1024, 3072),
    "Llama-3.2-1B qkv": (3072, 2048), "Llama-3.2-1B o": (2048, 2048), "Llama-3.2-1B gate_up": (16384, 2048),
    "Llama-3.2-1B down": (2048, 8192),
    "Llama-3.2-3B qkv": (5120, 3072), "Llama-3.2-3B o": (3072, 3072), "Llama-3.2-3B gate_up": (16384, 3072),
    "Llama-3.2-3B down": (3072, 8192),
    "Qwen3-4B qkv": (6144, 2560), "Qwen3-4B o": (2560, 4096), "Qwen3-4B gate_up": (19456, 2560),
    "Qwen3-4B down": (2560, 9728),
    "Gemma-3-4B qkv": (4096, 2560), "Gemma-3-4B o": (2560, 2048), "Gemma-3-4B gate_up": (20480, 2560),
    "Gemma-3-4B down": (2560, 10240),
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
    "Llama-3.3-70B/8 qkv": (1280, 8192), "Llama-3.3-70B/8 o": (8192, 1024), "Llama-3.3-70B/8 gate_up": (7168, 8192),
    "Llama-3.3-70B/8 down": (8192, 3584),
    "Qwen3-235B-A22B/8 qkv": (1280, 4096), "Qwen3-235B-A22B/8 o": (4096, 1024),
    "DeepSeek-V3/8 q_b": (3072, 1536), "DeepSeek-V3/8 o": (7168, 2048),
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
    """The published ones, then layer after layer: two decode, one prefills, each number of rows as often as another."""
    found, names, decoded, prefilled = list(PUBLISHED), list(LAYERS), 0, 0
    for i in range(10 * count):
        if len(found) == count:
            break
        name = names[i % len(names)]
        few, many = [m for m in _ROWS[name] if m <= 64], [m for m in _ROWS[name] if m > 64]
        if many and i % 3 == 2:
            m, prefilled = many[prefilled % len(many)], prefilled + 1
        else:
            m, decoded = few[decoded % len(few)], decoded + 1
        found += [shape for shape in [Shape(m, *LAYERS[name], name)] if shape not in found]
    return found


#: those that are tuned for the tables
ALL = shapes(72)


def csv(precision: str) -> str:
    """All of them as problems in bfloat16, weights as linear layers have them."""
    rows = [f"{s.M},{s.N},{s.K},bfloat16,1x,{s.activation or ''},{precision}" for s in ALL]
    return "\n".join(["M,N,K,dtype,b.strides,activation,precision", *rows, ""])


if __name__ == "__main__":
    print(csv(sys.argv[1]), end="")
