"""Kernels in CuTe DSL without a GPU: compiled in earnest, by child processes; a launch does what Python says."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "cutlass.cute", reason="needs the packages of: pip install 'tunesmith[cute,cpu]'", exc_type=ImportError
)
pytest.importorskip(
    "cuda.bindings.driver", reason="needs the packages of: pip install 'tunesmith[cute,cpu]'", exc_type=ImportError
)
pytest.importorskip("numpy", reason="needs the packages of: pip install 'tunesmith[cute,cpu]'")

import numpy as np
from tests import cute_kernels
from tests.fake_cuda import H200, FakeDriver, GpuArray, fake_gpu

import tunesmith
from tunesmith import Config, Failed, Problem, Space
from tunesmith.backends import cute, describe
from tunesmith.backends.ahead import compile_space, target_device
from tunesmith.backends.cute.compile import object_beside
from tunesmith.backends.cute.launch import load_module
from tunesmith.cli import main
from tunesmith.conformance import KernelConformance, ready
from tunesmith.errors import BadInput, CompileFailed, MissingEngine, OutOfResources, SpaceError
from tunesmith.kernel import Built, Kernel
from tunesmith.workers import compile_all

# not imported here: it imports torch, which takes seconds
pytestmark = pytest.mark.skipif(
    find_spec("tvm_ffi") is None, reason="needs the packages of: pip install 'tunesmith[cute,cpu]'"
)
EXAMPLE = Path(__file__).parents[2] / "examples" / "cute_rmsnorm.py"
NO_FIELDS = Problem({})


class Array(GpuArray):
    """One that tells its strides too."""

    @property
    def strides(self) -> Any:
        return self.host.strides

    @property
    def itemsize(self) -> int:
        return self.host.itemsize


def arguments(n: int = 1001) -> list[Any]:
    return [Array(np.arange(n, dtype=np.float32)), Array(np.empty(n, np.float32)), 2.0]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """An H200 on which a launch of any object file is saxpy."""

    def launch(x: Any, y: Any, *rest: Any) -> None:
        y.host[:] = 2 * x.host + 1

    def load(path: Path) -> dict[str, Any]:
        assert load_module(path)["launch"]  # it can be loaded: its kernels go to the device when they are launched
        return {"launch": launch}

    monkeypatch.setattr(importlib.import_module("tunesmith.backends.cute.kernel"), "load_module", load)
    with fake_gpu(monkeypatch) as fake:
        yield fake


@pytest.mark.usefixtures("gpu")
class TestCute(KernelConformance):
    def kernel(self) -> cute.CuteKernel:
        return cute.kernel(cute_kernels.saxpy)

    def changed(self) -> Kernel:
        return cute.kernel(cute_kernels.Changed.saxpy)

    def commented(self) -> Kernel:
        return cute.kernel(cute_kernels.Commented.saxpy)

    def configs(self) -> list[Config]:
        return [*cute_kernels.SPACE]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [(Config(BLOCK=64), "knob 'EACH' is missing from Config(BLOCK=64), and has no default")]

    def failing(self) -> tuple[Kernel, Config, str]:
        return self.kernel(), Config(BLOCK=33, EACH=1), "BLOCK must be a multiple of 32, not 33"

    def args(self) -> list[Any]:
        return arguments()

    def check(self, args: list[Any], result: Any) -> None:
        assert result is None
        np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)

    def device(self) -> Any:
        return H200


def compiled(kernel: cute.CuteKernel, config: Config, args: list[Any]) -> Built | Failed:
    kernel = kernel._bound(args, 0)
    [(_, built)] = compile_all([(config, kernel.compile_job(config, NO_FIELDS, H200))], 1)
    assert built is not None
    return built


# --- compiling ---


def test_the_examples_kernel_for_a_chip_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    example = importlib.import_module("cute_rmsnorm")
    problem = Problem({"M": 4096, "N": 1024})
    # those that are compiled fastest: a thread has one or two groups
    configs = [c for c in example.space(problem, None) if c["THREADS"] * c["VEC"] >= 512 and c["THREADS"] < 1024][:26]
    assert len(configs) >= 24
    results = [*compile_space(example.kernel, configs, lambda: example.inputs(problem), target_device("sm_90"), 2)]
    assert [one.failed for one in results] == [None] * len(configs)
    for one in results:
        found = one.resources
        assert found.threads == one.config["THREADS"] * one.config["ROWS"]
        assert found.shared_bytes == 4 * found.threads // 32
        assert found.registers is not None
        assert 12 <= found.registers <= 128
        assert found.spills == 0


def test_the_command_line_compiles_for_a_target(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "kernels_in_cute.py"
    file.write_text(
        "import tunesmith\nfrom tests import cute_kernels\n"
        "def inputs(problem):\n"
        "    import torch\n"
        "    x, y = (torch.empty(problem['n'], device='cuda') for _ in range(2))\n"
        "    return {'x': x, 'y': y, 'a': 2.0}\n"
        "space = tunesmith.Space(BLOCK=[64, 1056], EACH=[1])\n"
        "tuned = tunesmith.autotune(space=space, key=lambda x: {'n': x.shape[0]}, dims=['n'], make_inputs=inputs)(\n"
        "    cute_kernels.saxpy)\n"
    )
    assert main(["compile", f"{file}:tuned", "--target", "sm_90", "--problem", "n=1000", "--json"]) == 0
    [result] = json.loads(capfd.readouterr().out)["results"]
    small, large = result["configs"]
    assert (small["failed"], small["threads"], small["shared_bytes"], small["spills"]) == (None, 64, 0, 0)
    assert large["failed"]["stage"] == "cut"
    assert "1056 threads" in large["failed"]["reason"]


def test_the_architecture_is_the_targets_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    objects = []
    for arch in ("sm_90", "sm_100"):
        kernel = cute.kernel(cute_kernels.saxpy).for_target(
            lambda: dict(zip("xya", arguments(), strict=True)), target_device(arch)
        )
        config = Config(BLOCK=64, EACH=1)
        job = kernel.compile_job(config, NO_FIELDS, target_device(arch))
        [(_, built)] = compile_all([(config, job)], 1)
        assert isinstance(built, Built), built
        objects.append(object_beside(built.path).read_bytes())
    assert len(set(objects)) == 2


def test_what_is_built_is_told_types_and_values(gpu: FakeDriver) -> None:
    args = [*arguments(), 1.0]
    executable = ready(cute_kernels.shifted, Config(BLOCK=64), args)
    assert executable.resources.threads == 64
    executable.launch(*args)
    np.testing.assert_array_equal(args[1].host, 2 * args[0].host + 1)
    with pytest.raises(SpaceError, match="unknown knob 'BLOK': did you mean 'BLOCK'"):
        ready(cute_kernels.shifted, Config(BLOK=64), args)


def test_a_function_that_no_other_process_finds_is_compiled_here(gpu: FakeDriver) -> None:
    def build(given: dict[str, Any], BLOCK: int) -> Any:
        return cute_kernels.Shifted(given["x"], 1.0, BLOCK)

    kernel = cute.built(build, signature_from=["x", "y", "a"]).for_call(arguments())
    assert kernel.compile_job(Config(BLOCK=64), NO_FIELDS, H200) is None
    assert kernel.load(Config(BLOCK=64), NO_FIELDS, None).resources.threads == 64
    with pytest.raises(CompileFailed, match="CompilerDiagnosticError: error: NVVM backend compilation failed"):
        kernel.load(Config(BLOCK=-1), NO_FIELDS, None)


def test_an_artifact_that_was_cut_short_is_made_anew(gpu: FakeDriver) -> None:
    kernel, config, args = cute.kernel(cute_kernels.saxpy), Config(BLOCK=64, EACH=1), arguments()
    built = compiled(kernel, config, args)
    assert isinstance(built, Built)
    built.path.write_text("{")
    assert kernel.for_call(args).load(config, NO_FIELDS, built).resources.threads == 64
    object_beside(built.path).unlink()
    assert kernel.for_call(args).load(config, NO_FIELDS, built).resources.threads == 64


# --- arguments and knobs ---


def test_calls_of_other_layouts_are_other_binaries() -> None:
    wide = np.zeros((4, 8), np.float32)
    arrays = [wide, wide.T, wide[:, ::2], wide.astype(np.float16), wide[1:, 1:], np.broadcast_to(wide[:1], (4, 8))]
    kernel = cute.kernel(cute_kernels.saxpy)
    given = [kernel._bound([array, array, 1.0], 0) for array in arrays]
    assert len(set(given)) == len(arrays)
    assert kernel._bound([wide.copy(), wide, 3.0], 0) == given[0]
    assert kernel._bound([wide, wide, 1], 0) != given[0]


def test_arguments_that_no_kernel_takes_are_refused() -> None:
    kernel, x = cute.kernel(cute_kernels.saxpy), np.zeros(4, np.float32)
    with pytest.raises(BadInput, match=r"argument 'a' is of type builtins\.str; expected an array, a number"):
        kernel._bound([x, x, "2"], 0)
    with pytest.raises(BadInput, match="array 'x' has no dimension"):
        kernel._bound([np.zeros((), np.float32), x, 2.0], 0)
    built = compiled(kernel, Config(BLOCK=64, EACH=1), [Array(np.zeros(4, np.complex64)), *arguments()[1:]])
    assert isinstance(built, Failed)
    assert "CuTe DSL has no dtype 'complex64'; good ones: bfloat16" in built.reason


def test_declarations_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown knob 'BLOK': did you mean 'BLOCK'"):
        cute.kernel(cute_kernels.saxpy, knobs=["BLOK"])
    with pytest.raises(BadInput, match=r"knob 'a' is no cutlass\.Constexpr"):
        cute.kernel(cute_kernels.saxpy, knobs=["a", "BLOCK", "EACH"])
    with pytest.raises(BadInput, match=r"put @cute\.jit before it"):
        cute.kernel(lambda x: x)
    with pytest.raises(BadInput, match="divisible: unknown argument 'z'"):
        cute.kernel(cute_kernels.saxpy, divisible={"z": 8})
    with pytest.raises(BadInput, match="the architecture is that of the device"):
        cute.kernel(cute_kernels.saxpy, options=["--gpu-arch sm_80"])
    with pytest.raises(BadInput, match="give a list"):
        cute.kernel(cute_kernels.saxpy, options="--opt-level 2")
    with pytest.raises(BadInput, match="'EACH' is no knob and can be given by keyword only"):
        cute.kernel(cute_kernels.saxpy, knobs=["BLOCK"])
    with pytest.raises(BadInput, match="values: unknown argument 'N'"):
        cute.built(cute_kernels.build_shifted, signature_from=["x"], values=["N"])


# --- what CuTe DSL's own tuner takes ---


def test_the_arguments_of_its_own_tuner_are_taken(gpu: FakeDriver) -> None:
    tuned = cute_kernels.tuned
    assert [*tuned.space] == [*cute_kernels.SPACE]
    assert tuned.declared.default == Config(BLOCK=128, EACH=2)  # the function's own
    x, y = arguments()[:2]
    with tunesmith.policy("default"):
        tuned(x, y, 1001)
        assert tuned.choice(x, y, 1001).config == Config(BLOCK=128, EACH=2)
    np.testing.assert_array_equal(y.host, 2 * x.host + 1)
    with pytest.raises(BadInput, match="params_dict= is for CuTe DSL kernels, and scale is none"):
        tunesmith.autotune(params_dict={"block": [1]})(_scale())
    with pytest.raises(BadInput, match="give one of params_dict"):
        tunesmith.autotune(params_dict={"BLOCK": [1]}, space=Space(BLOCK=[1]))
    with pytest.raises(BadInput, match="give one of them"):
        tunesmith.autotune(params_dict={"BLOCK": [1]}, key=["n"], update_on_change=["n"])


def _scale() -> Any:
    def scale(x: Any, *, block: int) -> None: ...

    return scale


# --- what names it ---


def test_the_fingerprint_is_the_same_after_it_was_compiled_here(gpu: FakeDriver) -> None:
    script = (
        "from tests import cute_kernels\n"
        "from tunesmith.backends import cute\n"
        "import cutlass, cutlass.cute as c\n"
        "from cutlass.cute.runtime import make_fake_tensor, make_fake_stream\n"
        "if {first}: before = cute.kernel(cute_kernels.saxpy).fingerprint()\n"
        "x = make_fake_tensor(cutlass.Float32, (c.sym_int(),), (1,))\n"
        "c.compile(cute_kernels.saxpy, x, x, cutlass.Float32(1), make_fake_stream(), EACH=1)\n"
        "print(cute.kernel(cute_kernels.saxpy).fingerprint())"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUTE_DSL_ARCH": "sm_90a"}
    done = subprocess.run(
        [sys.executable, "-c", script.format(first=False)], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [cute.kernel(cute_kernels.saxpy).fingerprint()]


def test_variables_that_change_the_code_name_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cute.kernel(cute_kernels.saxpy)._bound([np.zeros(4, np.float32)] * 2 + [1.0], 0)

    def output() -> Path:
        job = kernel.compile_job(Config(BLOCK=64, EACH=1), NO_FIELDS, H200)
        assert job is not None
        return job.output

    usual = output()
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")  # the device's counts
    monkeypatch.setenv("CUTE_DSL_LOG_LEVEL", "10")
    assert output() == usual
    assert kernel.environment() == {}
    monkeypatch.setenv("CUTE_DSL_LINEINFO", "1")
    assert kernel.environment() == {"CUTE_DSL_LINEINFO": "1"}
    assert output() != usual
    assert {"nvidia-cutlass-dsl", "apache-tvm-ffi", "python"} <= set(kernel.versions())


# --- what is missing ---


def test_importing_it_brings_in_no_package_of_nvidias() -> None:
    script = (
        "import sys, tunesmith.backends.cute; assert not {'cuda', 'cutlass', 'tvm_ffi', 'torch'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_doctor_says_what_there_is_and_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    [state] = [one for one in describe() if one.name == "cute"]
    assert state.works
    assert state.why.startswith("nvidia-cutlass-dsl ")
    compiling = importlib.import_module("tunesmith.backends.cute.compile")
    monkeypatch.setattr(compiling, "PACKAGES", ("nvidia-cutlass-dsl-of-no-one",))
    compiling.versions.cache_clear()
    try:
        [state] = [one for one in describe() if one.name == "cute"]
        assert (state.works, state.command) == (False, "pip install 'tunesmith[cute]'")
        kernel = cute.kernel(cute_kernels.saxpy)._bound([np.zeros(4, np.float32)] * 2 + [1.0], 0)
        with pytest.raises(MissingEngine, match=r"is not installed: pip install 'tunesmith\[cute\]'"):
            kernel.compile_job(Config(BLOCK=64, EACH=1), NO_FIELDS, H200)
    finally:
        compiling.versions.cache_clear()


def test_what_a_block_can_not_have_is_said() -> None:
    kernel = cute.kernel(cute_kernels.saxpy)
    built = compiled(kernel, Config(BLOCK=1056, EACH=1), arguments())
    assert isinstance(built, Built)
    with pytest.raises(OutOfResources, match="needs 1056 threads, limit 1024"):
        kernel.resources_of(Config(BLOCK=1056, EACH=1), built, H200)
