"""Problems of open models for the shipped kernels beside the matrix product: what their tables are tuned for.

python benchmarks/_model_shapes.py rmsnorm > rmsnorm.csv     # for `tunesmith tune rmsnorm`, and for what chooses it:
                                                             # `tunesmith tune tunesmith.row_ops:rms_norm_gpu`
python benchmarks/_model_shapes.py rmsnorm 27 > rmsnorm.csv  # the first 27: what most models have comes first

A table's row serves numbers of rows (tokens, batches) within a factor of two, so these are four apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

#: fields of one problem, by name
Fields: TypeAlias = "dict[str, Any]"

#: from 1 to 131072 rows, each within a factor of two of one of them
ROWS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
#: a token has a row of q and of k for each head
HEAD_ROWS = (*ROWS, 262144)
#: one row of each sequence that is sampled from
SAMPLED_ROWS = (1, 4, 16, 64, 256)
#: tokens of a layer of experts: up to 8192
TOKENS = (16, 64, 1, 256, 1024, 4096, 4)
#: sequences that decode at once, up to 128; and the most keys of one of them: others are bucketed to powers of two
BATCHES, CONTEXTS = (16, 1, 64, 4), (8192, 2048, 32768, 131072)
#: pages of the cache as vLLM has them; 0 is a cache in one piece
PAGE_SIZES = (16, 0)
#: Elements of an input at most: a search has it in float64 too, with what a reference makes of it, in 141 GB.
MOST_ELEMENTS = 2**30
#: ... and of keys and values together
MOST_CACHE_BYTES = 2**32

HIDDEN = {
    4096: "Llama-3.1-8B, Qwen3-8B", 8192: "Llama-3.3-70B", 5120: "Qwen3-32B, Mistral-Small-24B, Phi-4",
    7168: "DeepSeek-V3", 2880: "gpt-oss", 2048: "Qwen3-30B-A3B, Llama-3.2-1B", 5376: "Gemma-3-27B",
    3072: "Llama-3.2-3B, Phi-4-mini", 3840: "Gemma-3-12B", 2560: "Qwen3-4B, Gemma-3-4B",
}  # fmt: skip
HEADS_NORMED = {128: "q and k of Qwen3", 256: "q and k of Gemma-3"}
LAYER_NORMED = {
    1024: "BERT-large, ViT-L", 1152: "SigLIP of Gemma-3", 1280: "Whisper-large", 768: "BERT-base, ViT-B",
    4096: "Command-R7B", 8192: "Command-R", 6144: "StarCoder2-15B",
}  # fmt: skip
EXPERTS = {128: "Qwen3-30B-A3B", 256: "DeepSeek-V3's number"}
VOCABULARIES = {
    128256: "Llama-3", 151936: "Qwen3", 201088: "gpt-oss", 129280: "DeepSeek-V3", 131072: "Mistral-Small",
    262144: "Gemma-3", 100352: "Phi-4",
}  # fmt: skip
#: what gates multiply; "/4" is a quarter of a model that is spread over four GPUs
INTERMEDIATE = {
    14336: "Llama-3.1-8B", 12288: "Qwen3-8B", 7168: "Llama-3.3-70B/4", 2048: "DeepSeek-V3's experts",
    768: "Qwen3-30B-A3B's experts", 8192: "Llama-3.2, Phi-4-mini, Mistral-Small-24B/4", 28672: "Llama-3.3-70B",
    25600: "Qwen3-32B", 17920: "Phi-4", 32768: "Mistral-Small-24B",
}  # fmt: skip
#: heads of queries and of keys, their size. DeepSeek-V3's attention has keys and values of different sizes: not this
ATTENTION = {
    "Llama-3.1-8B, Qwen3-8B, Mistral-Small-24B": (32, 8, 128), "Llama-3.3-70B, Qwen3-32B": (64, 8, 128),
    "Qwen3-30B-A3B": (32, 4, 128), "gpt-oss": (64, 8, 64), "Gemma-3-27B": (32, 16, 128), "Phi-4": (40, 10, 128),
}  # fmt: skip


class Layer(NamedTuple):
    """Experts on one device, their intermediate size there, the model's hidden size, experts of a token."""

    E: int
    N: int
    K: int
    top_k: int


#: from the models' published configurations; "/8" is an eighth of a layer that is spread over eight GPUs
LAYERS = {
    "Qwen3-30B-A3B": Layer(128, 768, 2048, 8),
    "Mixtral-8x7B/2": Layer(8, 7168, 4096, 2),
    "DeepSeek-V3/8": Layer(256, 256, 7168, 8),
}
#: ... and those whose tables are made beside them
MORE_LAYERS = {"Qwen3-235B-A22B/4": Layer(128, 384, 4096, 8)}


def _rows(
    lengths: Mapping[int, str], rows: Sequence[int] = ROWS, dtype: str = "bfloat16", wide: int = 1
) -> list[Fields]:
    """Every number of rows of each length, as far as an input of `wide` times that length is not too large."""
    return [
        {"rows": many, "n": n, "dtype": dtype} for n, many in product(lengths, rows) if many * n * wide <= MOST_ELEMENTS
    ]


def _softmaxes() -> list[Fields]:
    """Samplers and routers compute in float32; a router's logits may be left in bfloat16."""
    sampled = _rows(VOCABULARIES, SAMPLED_ROWS, "float32")
    first = 2 * len(SAMPLED_ROWS)
    routed = [*_rows(EXPERTS, dtype="float32"), *_rows(EXPERTS)]
    return [*sampled[:first], *routed, *sampled[first:]]


def _attentions() -> list[Fields]:
    return [
        {"B": B, "HQ": HQ, "HKV": HKV, "D": D, "S": S, "page_size": page_size, "dtype": "bfloat16"}
        for page_size, S, B, (HQ, HKV, D) in product(PAGE_SIZES, CONTEXTS, BATCHES, ATTENTION.values())
        if 4 * B * S * HKV * D <= MOST_CACHE_BYTES
    ]


def _moes() -> list[Fields]:
    return [
        {"M": M, **layer._asdict(), "dtype": "bfloat16"}
        for M, layer in product(TOKENS, [*LAYERS.values(), *MORE_LAYERS.values()])
    ]


KERNELS: Mapping[str, Callable[[], list[Fields]]] = {
    "rmsnorm": lambda: [*_rows(HIDDEN), *_rows(HEADS_NORMED, HEAD_ROWS)],
    "add_rmsnorm": lambda: _rows(HIDDEN),
    "rmsnorm_backward": lambda: _rows(HIDDEN),
    "layernorm": lambda: _rows(LAYER_NORMED),
    "row_softmax": _softmaxes,
    "silu_and_mul": lambda: _rows(INTERMEDIATE, wide=2),
    "decode_attention": _attentions,
    "fused_moe": _moes,
}


def problems(kernel: str, count: int | None = None) -> list[Fields]:
    """The first `count` of a kernel's problems, all if not given."""
    return KERNELS[kernel]()[:count]


def csv(found: Sequence[Fields]) -> str:
    """Problems as `--problems` reads them."""
    lines = [",".join(map(str, fields.values())) for fields in found]
    return "\n".join([",".join(found[0]), *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("count", type=int, nargs="?", help="how many, from the first on; all if not given")
    options = parser.parse_args()
    if options.count is not None and options.count < 1:
        parser.error(f"count is {options.count}; good values: from 1")
    print(csv(problems(options.kernel, options.count)), end="")


if __name__ == "__main__":
    main()
