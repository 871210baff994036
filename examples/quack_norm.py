"""quack's rmsnorm and matrix product, tuned by tunesmith in the place of quack's own tuner. quack is not edited.

pip install quack-kernels triton 'tunesmith[cute]'
python examples/quack_norm.py            on an NVIDIA GPU: calls, checked against torch
python examples/quack_norm.py --compile  on any machine: three Configs of each, for sm_90
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from tunesmith import quack

os.environ.setdefault("QUACK_CACHE_DIR", os.path.expanduser("~/.cache/tunesmith/quack"))


def norm_arguments(rows: int = 4096, n: int = 8192) -> dict[str, Any]:
    """x (rows, n) and weight (n,) in bfloat16; out as x, to be written."""
    import torch

    x = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    return {"x": x, "weight": torch.randn(n, device="cuda", dtype=torch.bfloat16), "out": torch.empty_like(x)}


def product_arguments(M: int = 4096, N: int = 4096, K: int = 4096) -> dict[str, Any]:
    """A (M, K) and B (K, N) in bfloat16; out (M, N), to be written."""
    import torch

    A, B, out = (torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in ((M, K), (K, N), (M, N)))
    return {"A": A, "B": B, "out": out}


def tuners() -> list[tuple[Any, Any]]:
    """quack's tuned functions, and what makes arguments for them. `quack.rmsnorm` is a function too, so by name."""
    norms, products = import_module("quack.rmsnorm"), import_module("quack.gemm_interface")
    return [(norms.rmsnorm_fwd_tuned, norm_arguments), (products.gemm_tuned, product_arguments)]


def compile_some() -> None:
    """Without a GPU."""
    from tunesmith.backends.ahead import compile_space, target_device, without_memory

    device = target_device("sm_90")
    for tuner, make in tuners():
        tuned = quack.autotuned(tuner)
        configs = quack.worth_trying(tuner, without_memory(make))
        print(f"{tuned.kernel.name}: {len(configs)} Configs")
        for one in compile_space(tuned.kernel, configs[:3], make, device, 2):
            print(f"  {one.failed or one.resources} {one.config}")


def call_all() -> None:
    """On a GPU: the first call searches and stores; later ones, in any process, launch."""
    import torch

    with quack.take_over() as begun:
        for tuner, make in tuners():
            made = make()
            tuner(**made)
            if "A" in made:
                expected = made["A"].double() @ made["B"].double()
            else:
                x, weight = made["x"].double(), made["weight"].double()
                expected = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)
            torch.testing.assert_close(made["out"].double(), expected, rtol=2e-2, atol=1.0 if "A" in made else 2e-2)
            begun.taken[f"{tuner.fn.__module__}.{tuner.fn.__name__}"].explain(**made)
    print(begun)


if __name__ == "__main__":
    if "--compile" in sys.argv:
        os.environ.setdefault("QUACK_ARCH", "90")  # before quack is imported: its spaces are made then
        compile_some()
    else:
        call_all()
