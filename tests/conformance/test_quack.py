"""quack's tuner replaced by ours, on functions of quack's that are compiled without a GPU, and on one for the CPU."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

for package in ("torch", "triton", "tvm_ffi", "cutlass.cute"):
    pytest.importorskip(
        package, reason=f"needs {package}: pip install 'tunesmith[cute]' torch triton", exc_type=ImportError
    )
pytest.importorskip("einops", reason="needs quack: pip install quack-kernels")
os.environ.setdefault("QUACK_ARCH", "90")  # quack's spaces are made when it is imported
autotuner = pytest.importorskip(
    "quack.autotuner", reason="needs quack: pip install quack-kernels", exc_type=ImportError
)

import torch  # noqa: E402

from tunesmith import Config, Problem, quack  # noqa: E402
from tunesmith.backends.ahead import target_device, without_memory  # noqa: E402
from tunesmith.backends.quack.child import compile_key  # noqa: E402
from tunesmith.errors import BadInput, SpaceError, TunesmithWarning  # noqa: E402
from tunesmith.kernel import Built  # noqa: E402

H100 = target_device("sm_90")
NORM = import_module("quack.rmsnorm").rmsnorm_fwd_tuned  # quack.rmsnorm is a function, too
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch's, about itself: quack calls torch.compile
    PRODUCT = import_module("quack.gemm_interface").gemm_tuned


@dataclass(frozen=True)
class ScaleConfig:
    block: int
    exact: bool = True


def keep_small(configs: list[Any], named: dict[str, Any], **more: Any) -> list[Any]:
    return [one for one in configs if one.kwargs["config"].block <= named["x"].shape[0]]


@pytest.fixture
def scale() -> Any:
    """What quack's `@autotune` makes of a function for the CPU."""

    def scale(x: Any, out: Any, factor: float = 2.0, *, config: ScaleConfig | None = None) -> ScaleConfig:
        assert config is not None
        for start in range(0, x.shape[0], config.block):
            out[start : start + config.block] = factor * x[start : start + config.block]
        return config

    configs = [autotuner.AutotuneConfig(config=ScaleConfig(block)) for block in (1, 8, 64, 4096)]
    return autotuner.autotune(configs, key=["factor"], prune_configs_by={"early_config_prune": keep_small})(scale)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(import_module("quack.cache"), "CACHE_DIR", str(tmp_path))
    return tmp_path


def norm_arguments(n: int = 4096) -> tuple[Any, ...]:
    x = torch.empty(128, n, dtype=torch.bfloat16, device="meta")
    return x, x[0], torch.empty_like(x)


def test_a_call_searches_stores_and_is_answered_by_the_choice(scale: Any) -> None:
    x, out = torch.arange(100.0), torch.empty(100)
    with quack.take_over() as begun:
        chosen = scale(x, out)
        assert scale(x, out, factor=2.0) == chosen
    torch.testing.assert_close(out, 2 * x)
    (tuned,) = begun.taken.values()
    choice = tuned.choice(x, out)
    assert choice.config == Config(block=chosen.block, exact=True)
    assert choice.source in ("search", "store")
    assert chosen.block <= 64  # the largest was pruned by quack's own rule
    assert begun.left == {}
    assert "undone: 1 kernels ours, 0 left to it" in repr(begun)


def test_what_is_undone_is_quacks_again(scale: Any) -> None:
    stock = autotuner.Autotuner.__call__
    first, second = quack.take_over(), quack.take_over()
    assert autotuner.Autotuner.__call__ is not stock
    first.undo()
    scale(torch.zeros(64), torch.empty(64))
    assert list(second.taken)
    second.undo()
    assert autotuner.Autotuner.__call__ is stock


def test_what_can_not_be_ours_is_left_to_quack_with_a_word() -> None:
    def add(*tensors: Any, config: ScaleConfig | None = None) -> int:
        return len(tensors)

    tuner = autotuner.autotune([autotuner.AutotuneConfig(config=ScaleConfig(1))])(add)
    with quack.take_over() as begun, pytest.warns(TunesmithWarning, match="left to quack's own tuner: it has one"):
        assert tuner(1, 2) == 2
    assert list(begun.left.values()) == ["it has one configuration"]
    tuner.configs = tuner.configs * 2
    with pytest.raises(BadInput, match="takes \\*tensors, which can't be named"):
        quack.autotuned(tuner)


def test_spaces_and_heuristics_are_quacks() -> None:
    norms, products = quack.space_of(NORM), quack.space_of(PRODUCT)
    assert (len([*norms]), len([*products])) == (75, 486)
    assert [*quack.space_of([ScaleConfig(1), ScaleConfig(2)])] == [
        Config(block=1, exact=True),
        Config(block=2, exact=True),
    ]
    tuned = quack.autotuned(NORM)
    given = dict(zip(tuned.kernel.signature.parameters, norm_arguments(), strict=False))
    assert len(quack.worth_trying(NORM, given)) == 75
    problem = Problem({"x_0": 128, "x_1": 16384, "x.dtype": "float32", "is_layernorm": True})
    default = quack.default_of(NORM)
    assert default is not None
    theirs = import_module("quack.rmsnorm_config").RmsNormFwdConfig.from_analytical_heuristic(16384, 32, 9, True)
    assert default(problem, H100) == quack.config_of(theirs)
    product = quack.default_of(PRODUCT)
    assert product is not None
    assert product(Problem({}), H100) == quack.config_of(
        import_module("quack.gemm_config").GemmConfig(is_dynamic_persistent=False)
    )
    with pytest.raises(BadInput, match="good ones: what quack's @autotune made"):
        quack.space_of([])


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # of CuTe DSL's, about what quack uses
def test_what_quack_would_compile_is_compiled_for_a_chip_that_is_not_here(cache: Path) -> None:
    kernel = quack.autotuned(NORM).kernel
    arguments = [p.default for p in kernel.signature.parameters.values()]
    arguments[:3] = norm_arguments()
    config = next(iter(quack.space_of(NORM)))
    bound: Any = kernel.for_call(arguments)
    job = bound.compile_job(config, Problem({}), H100)
    assert job is not None
    assert cache in job.output.parents
    assert compile_key(**job.request()) is None  # as a child does
    resources = bound.resources_of(config, Built(job.output, 1.0), H100)
    assert 32 <= resources.registers <= 255
    assert bound.compile_job(config, Problem({}), H100) is None  # it is there, and nothing was launched
    with pytest.raises(SpaceError, match="unknown knob 'threads'"):
        bound.compile_job(config.replace(threads=1), Problem({}), H100)
    with pytest.raises(SpaceError, match="lacks 'cluster_n'"):
        bound.compile_job(Config(num_threads=128), Problem({}), H100)
    assert "QUACK_ARCH" in kernel.environment()


def test_the_examples_arguments_make_quacks_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    example = import_module("quack_norm")
    made = {quack.autotuned(tuner).kernel.name: (tuner, arguments) for tuner, arguments in example.tuners()}
    found = {name: len(quack.worth_trying(tuner, without_memory(make))) for name, (tuner, make) in made.items()}
    assert found == {"rmsnorm_fwd_tuned": 75, "gemm_tuned": 44}
