"""What `ops.matmul` and `ops.linear` choose from: torch's calls, cuBLASLt's algorithms, our kernels, fused or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tunesmith.backends.call import CallExecutable
from tunesmith.chooser import Candidate, Chooser, LibraryCall, choose, returning
from tunesmith.chooser.recent import remembered
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.kernel import Built, settling
from tunesmith.kernels import gemm
from tunesmith.kernels.gemm import SAME, cublaslt
from tunesmith.tables import Packaged

#: how many Configs a search tries, the library's calls among them. They run in this process: libraries' calls and
#: kernels of ours, which are tested all over their spaces, need no worker, whose start takes longer than a search.
TRIED = 72

ACTIVATED: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x, "relu": torch.nn.functional.relu, "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}  # fmt: skip

#: torch's product with a layer's weights: their transpose is made in C++
_LINEAR: Callable[..., Any] = torch._C._nn.linear


def _by_torch(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> Any:
    """Torch's product, with the bias where its library adds it, and then the activation."""
    made = torch.matmul(a, b) if bias is None or a.ndim == 3 or b.ndim == 3 else torch.addmm(bias, a, b)
    if bias is not None and (a.ndim == 3 or b.ndim == 3):
        made += bias
    made = ACTIVATED[activation](made)
    return made if out == SAME else made.to(getattr(torch, out))


class _Torch(LibraryCall):
    """`_by_torch`; where nothing but the product, with its bias, is asked for, no more than that."""

    per_problem = True

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return gemm.kernel.kernel.dtypes()

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        ranks = {len(str(problem[f"{array}.strides"])) for array in ("a", "b")}
        biased = problem.get("bias.dtype") is not None
        bare = problem["activation"] is None and problem["out"] == SAME and len(ranks) == 1
        if not bare or (biased and ranks != {2}):
            return CallExecutable(config, self.function)
        return CallExecutable(config, _added() if biased else _bare(torch.mm if ranks == {2} else torch.bmm))


def _bare(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def launch(
        a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
    ) -> Any:
        return product(a, b)

    def by_turned(x: Any, w: Any) -> Any:
        return product(x, w.mT)

    def settle(args: Sequence[Any], otherwise: Callable[..., Any], turned: bool) -> Callable[..., Any]:
        return product if not turned else _LINEAR if product is torch.mm else by_turned

    return settling(launch, settle)


def _added() -> Callable[..., Any]:
    def launch(
        a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
    ) -> Any:
        return torch.addmm(bias, a, b)

    def settle(args: Sequence[Any], otherwise: Callable[..., Any], turned: bool) -> Callable[..., Any] | None:
        return _LINEAR if turned else None

    return settling(launch, settle)


def _by_addmm_activation(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> Any:
    """Torch's product with bias and activation in one call of its library."""
    return torch._addmm_activation(bias, a, b, use_gelu=activation == "gelu")


def _by_cublaslt(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> Any:
    """Torch's product by the other of its two libraries, whose heuristics know other algorithms."""
    before = torch._C._get_blas_preferred_backend()
    torch._C._set_blas_preferred_backend(torch._C._BlasBackend.Cublaslt)
    try:
        return ACTIVATED[activation](torch.mm(a, b))
    finally:
        torch._C._set_blas_preferred_backend(before)


def _by_either(problem: Problem, device: Device) -> bool:
    """With a bias, torch itself takes cublasLt."""
    return problem.get("bias.dtype") is None and _is_plain(problem)


def _fusable(problem: Problem, device: Device) -> bool:
    return problem["activation"] in ("relu", "gelu") and problem.get("bias.dtype") is not None and _is_plain(problem)


def _is_plain(problem: Problem) -> bool:
    """Whether it is one product, with an output of its inputs' dtype."""
    return problem["out"] == SAME and all(len(str(problem[f"{array}.strides"])) == 2 for array in ("a", "b"))


def _then_epilogue(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> tuple[tuple[Any, ...], Any]:
    """Torch's product without bias, and what our kernel for the rest of it takes."""
    made = torch.mm(a, b)
    return (_epilogue_grid, made, bias, M, N, activation), made


def _epilogue_grid(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["M"] * meta["N"] // meta["BLOCK"]),)


def _by_c(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> tuple[tuple[Any, ...], Any]:
    """What the C kernel takes."""
    made = a.new_empty((M, N))  # whatever a process has for a default dtype and device
    return (a.detach().contiguous().numpy(), b.detach().contiguous().numpy(), made.numpy(), M, N, K), made


def _for_c(problem: Problem, device: Device) -> bool:
    bare = problem["activation"] is None and problem.get("bias.dtype") is None
    return bare and problem["a.dtype"] == "float32" and _is_plain(problem)


def _choose(kind: str, candidates: dict[str, Any], **more: Any) -> Chooser:
    torchs = _Torch("torch", _by_torch, gemm.kernel.kernel.signature)
    made = choose(
        f"linear_{kind}", {"torch": Candidate(torchs), **candidates}, args=_by_torch, reference=_reference,
        key=["batch", "M", "N", "K", "activation", "out", "precision"], strides=["a", "b"], dims=["M", "N", "K"],
        flags={**gemm.kernel.flags, "b.strides": "1x"}, settings=None, policy="lookup", most=TRIED, depends=["torch"],
        isolate=False, eager=remembered, **more,
    )  # fmt: skip
    made.use_table(Packaged("tunesmith.kernels", f"linear_{kind}"))  # by exact sizes: others are torch's
    return made


def _reference(
    a: Any, b: Any, bias: Any, batch: int, M: int, N: int, K: int, activation: str | None, out: str, precision: str
) -> Any:
    return gemm.reference(a, b, bias, activation)


def gpu() -> Chooser:
    """What chooses on a GPU. Every call makes another: `ops.chooser` keeps it."""
    from tunesmith.backends.triton.kernel import TritonKernel
    from tunesmith.kernels import nvidia, skinny_gemm
    from tunesmith.kernels.gemm import device

    epilogue = returning(TritonKernel(device.epilogue, ["BLOCK", "num_warps"]), _then_epilogue, _by_torch)
    return _choose(
        "gpu",
        {
            "torch by cublasLt": Candidate(
                LibraryCall("torch by cublasLt", _by_cublaslt, gemm.kernel.kernel.signature),
                applies=_by_either, devices=("cuda",), reluctant=True,
            ),
            "cublasLt": Candidate(
                cublaslt.CublasLt(), cublaslt.space, applies=cublaslt.applies, devices=("cuda",)
            ),
            "torch fused": Candidate(
                LibraryCall("torch fused", _by_addmm_activation, gemm.kernel.kernel.signature), applies=_fusable
            ),
            "torch, then epilogue": Candidate(
                epilogue, Space(BLOCK=[1024, 4096], num_warps=[4, 8]), applies=_has_epilogue, devices=("cuda", "hip")
            ),
            "skinny": Candidate(
                skinny_gemm.kernel.kernel, skinny_gemm.space, applies=skinny_gemm.applies, devices=("cuda",),
                missing=nvidia.missing,
            ),
            "gemm": Candidate(gemm.kernel.kernel, gemm.space, gemm.kernel.declared.model, devices=("cuda", "hip")),
        },
        make_inputs=gemm.make_inputs, clock="graph", hot=["a"],
    )  # fmt: skip


def _has_epilogue(problem: Problem, device: Device) -> bool:
    return (problem["activation"] is not None or problem.get("bias.dtype") is not None) and _is_plain(problem)


def cpu() -> Chooser:
    """The same for a CPU."""
    from tunesmith.kernels import matmul as in_c

    made = returning(in_c.kernel, _by_c, _by_torch)
    candidate = Candidate(made, in_c.space, applies=_for_c, devices=("cpu",))
    return _choose("cpu", {"C": candidate}, make_inputs=partial(gemm.make_inputs, device="cpu"))
