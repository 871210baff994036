"""Kernels in FlyDSL are compiled in earnest for AMD's GPUs; where one would launch, its launcher's name says what it
does to tensors of the host. Run by test_flydsl_backend.py, in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
import pytest
import torch
from flydsl.compiler.jit_function import CompiledFunction
from tests import flydsl_kernels
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Device, Failed, Problem, Space, flydsl, known_device
from tunesmith.backends import describe
from tunesmith.backends.ahead import compile_space
from tunesmith.backends.flydsl import toolkit
from tunesmith.backends.flydsl.compile import Artifact, code_object_beside
from tunesmith.conformance import KernelConformance, ready
from tunesmith.errors import BadInput, CompileFailed, MissingEngine, OutOfResources, SpaceError
from tunesmith.kernel import Built, Kernel
from tunesmith.workers import compile_all

ROOT = Path(__file__).parents[2]
MI300, MI355 = known_device("AMD Instinct MI300X"), known_device("AMD Instinct MI355X")
#: the module, which its package's function of that name hides
KERNELS = importlib.import_module("tunesmith.backends.flydsl.kernel")
#: what LLVM calls a processor in a code object's header
PROCESSOR = {"gfx942": 0x4C, "gfx950": 0x4F}
NO_FIELDS = Problem({})


def source(old: str = "", new: str = "") -> Any:
    """The kernels' module with its text changed."""
    import tempfile

    text = Path(flydsl_kernels.__file__).read_text()
    assert old in text
    folder = Path(tempfile.mkdtemp(prefix="tunesmith-flydsl-test-"))
    file = folder / "flydsl_kernels_changed.py"
    file.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"changed_{abs(hash(new))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def saxpy(**more: Any) -> flydsl.FlydslKernel:
    return flydsl.kernel(flydsl_kernels.saxpy, **more)


def transpose() -> flydsl.FlydslKernel:
    return flydsl.kernel(flydsl_kernels.build_transpose, knobs=["BLOCK"], launch=["x", "y"], name="transpose")


def arguments(n: int = 1024) -> list[Any]:
    return [torch.arange(n, dtype=torch.float32), torch.empty(n), 2.0, n]


def act(function: Any, *args: Any) -> None:
    """What a launch does where there is no GPU."""
    ACTS[function._keepalive._entry](*args)


def do_saxpy(x: Any, y: Any, a: float, *_: Any) -> None:
    torch.add(x * a, 1.0, out=y)


def do_transpose(x: Any, y: Any, *_: Any) -> None:
    y.copy_(x.T)


ACTS = {"saxpy": do_saxpy, "launch": do_transpose}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYDSL_RUNTIME_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "flydsl"))
    for name in (*toolkit.ENVIRONMENT, "ARCH", "FLYDSL_GPU_ARCH", "FLYDSL_AUTOTUNE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Tensors of the host are on an MI300X."""
    monkeypatch.setattr(KERNELS, "device_of", lambda args: MI300)
    monkeypatch.setattr(KERNELS, "gpu_for", lambda name, index: MI300)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: 7)
    monkeypatch.setattr(CompiledFunction, "__call__", act)
    return MI300


def built(kernel: Any, config: Config, device: Device = MI300) -> Built:
    [(same, found)] = compile_all([(config, kernel.compile_job(config, NO_FIELDS, device))], 1)
    assert same == config
    assert isinstance(found, Built), found
    return found


@pytest.mark.usefixtures("gpu")
class TestFlydsl(KernelConformance):
    def kernel(self) -> flydsl.FlydslKernel:
        return saxpy()

    def changed(self) -> Kernel:
        return flydsl.kernel(source("* a + 1.0", "* a + 2.0").saxpy)

    def commented(self) -> Kernel:
        return flydsl.kernel(source("    copy = ", "\n    # how much at once\n    copy = ").saxpy)

    def configs(self) -> list[Config]:
        return [Config(BLOCK=64), Config(BLOCK=256, VEC=4, waves_per_eu=2)]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [
            (Config(BLOCK=64, waves_per_eu=99), "integers from 0 to 16"),
            (Config(BLOCK=64, fast_fp_math=1), "True, False"), (Config(VEC=1), "knob 'BLOCK' is missing"),
        ]  # fmt: skip

    def failing(self) -> tuple[Kernel, Config, str]:
        return saxpy(), Config(BLOCK=100), "no whole number of waves"

    def args(self) -> list[Any]:
        return arguments()

    def check(self, args: list[Any], result: Any) -> None:
        torch.testing.assert_close(args[1], 2 * args[0] + 1)

    def device(self) -> Device:
        return MI300


# --- compiling ---


@pytest.mark.parametrize("device", [MI300, MI355], ids=lambda device: device.arch)
def test_a_kernel_is_compiled_for_a_chip_that_is_not_here(device: Device) -> None:
    kernel = saxpy().for_call(arguments())
    made = built(kernel, Config(BLOCK=256, VEC=4), device)
    code = code_object_beside(made.path).read_bytes()
    machine, flags = struct.unpack_from("<H", code, 18)[0], struct.unpack_from("<I", code, 48)[0]
    assert (code[:4], machine, flags & 0xFF) == (b"\x7fELF", 224, PROCESSOR[device.arch])
    found = kernel.resources_of(Config(BLOCK=256, VEC=4), made, device)
    assert (found.threads, found.spills, found.shared_bytes) == (256, 0, 0)
    assert 4 <= (found.registers or 0) < 64
    assert found.code_bytes == len(code)


def test_the_examples_are_compiled_ahead_and_a_hint_reaches_the_compiler() -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import flydsl_rows
    finally:
        sys.path.pop(0)
    registers: dict[tuple[str, object], int | None] = {}
    for tuned, problem in ((flydsl_rows.axpy, "n=1048576"), (flydsl_rows.rms_norm, "rows=64,n=8192")):
        configs = [tuned.declared.default.replace(BLOCK=64, waves_per_eu=waves) for waves in (0, 4)]
        for one in compile_space(
            tuned.kernel, configs, lambda t=tuned, p=problem: t.inputs(Problem.parse(p)), MI300, 1
        ):
            assert one.failed is None
            assert one.resources.shared_bytes == (4 if tuned is flydsl_rows.rms_norm else 0)
            registers[tuned.kernel.name, one.config["waves_per_eu"]] = one.resources.registers
    assert (registers["rms_norm", 0] or 0) > 128  # what four waves leave to each
    assert registers["rms_norm", 4] == 128


def test_what_no_block_can_have_is_cut() -> None:
    kernel = saxpy().for_call(arguments(4096))
    with pytest.raises(OutOfResources, match="needs 2048 threads, limit 1024"):
        kernel.resources_of(Config(BLOCK=2048), built(kernel, Config(BLOCK=2048)), MI300)


def test_what_a_build_function_refuses_is_said() -> None:
    kernel = transpose().for_call([torch.empty(96, 96), torch.empty(96, 96), 96])
    [(_, found)] = compile_all([(Config(BLOCK=64), kernel.compile_job(Config(BLOCK=64), NO_FIELDS, MI300))], 1)
    assert isinstance(found, Failed)
    assert found.stage == "compile"
    assert "96 columns are no multiple of 64 threads" in found.reason


def test_a_kernel_that_no_other_process_finds_is_compiled_here(gpu: Device) -> None:
    @flyc.jit
    def saxpy(x: fx.Tensor, y: fx.Tensor, a: fx.Float32, n: fx.Int32, BLOCK: fx.Constexpr[int]):
        flydsl_kernels._saxpy(x, y, a, BLOCK, 1).launch(grid=(n // BLOCK, 1, 1), block=(BLOCK, 1, 1))

    with pytest.warns(tunesmith.errors.TunesmithWarning, match="launched in the default stream"):
        kernel = flydsl.kernel(saxpy)
    args = arguments()
    assert kernel.for_call(args).compile_job(Config(BLOCK=64), NO_FIELDS, gpu) is None
    ready(kernel, Config(BLOCK=64), args).launch(*args)
    TestFlydsl().check(args, None)


def test_values_that_are_compiled_in_have_binaries_of_their_own(gpu: Device) -> None:
    kernel = transpose()
    assert list(kernel.signature.parameters) == ["x", "y", "n"]
    jobs = [
        kernel.for_call([torch.empty(n, n), torch.empty(n, n), n]).compile_job(Config(BLOCK=64), NO_FIELDS, gpu)
        for n in (64, 128, 64)
    ]
    outputs = [job.output for job in jobs if job is not None]
    assert outputs[0] == outputs[2] != outputs[1]


def test_a_binary_of_another_source_chip_or_environment_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    config, args = Config(BLOCK=64), arguments()

    def output(kernel: Any, device: Device = MI300) -> Path:
        return kernel.for_call(args).compile_job(config, NO_FIELDS, device).output

    first = output(saxpy())
    assert output(saxpy()) == first
    assert output(saxpy(), MI355) != first
    assert output(flydsl.kernel(source("* a + 1.0", "* a + 3.0").saxpy)) != first
    monkeypatch.setenv("FLYDSL_COMPILE_OPT_LEVEL", "1")
    assert output(saxpy()) != first
    assert saxpy().environment() == {"FLYDSL_COMPILE_OPT_LEVEL": "1"}


def test_versions_name_the_compiler_by_content() -> None:
    assert "flydsl" in toolkit.versions()
    assert toolkit._content("flydsl/a.py,sha256=1,2\n") != toolkit._content("flydsl/a.py,sha256=2,2\n")


def test_the_documentation_compiles(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "flydsl-kernels.md").read_text()
    file = tmp_path / "flydsl_page.py"
    file.write_text(page.split("```python\n")[1].split("```")[0])
    spec = importlib.util.spec_from_file_location("flydsl_page", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.tuned.kernel.for_call(arguments())
    found = kernel.resources_of(module.tuned.declared.default, built(kernel, module.tuned.declared.default), MI300)
    assert (found.threads, found.spills) == (256, 0)


def test_a_decorated_function_is_found_by_a_child() -> None:
    tuned = flydsl_kernels.decorated
    assert list(tuned.kernel.signature.parameters) == ["x", "y", "a", "n", "VEC"]  # VEC is compiled in
    kernel = tuned.kernel.for_call([*arguments(), 2])
    assert kernel.resources_of(Config(BLOCK=128), built(kernel, Config(BLOCK=128)), MI300).threads == 128


def test_a_file_that_was_changed_is_not_compiled_under_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = source("* a + 1.0", "* a + 6.0")
    kernel = flydsl.kernel(module.saxpy).for_call(arguments())
    job = kernel.compile_job(Config(BLOCK=64), NO_FIELDS, MI300)
    file = Path(module.__file__)
    kernel.fingerprint()
    file.write_text(file.read_text().replace("* a + 6.0", "* a + 7.0"))
    [(_, found)] = compile_all([(Config(BLOCK=64), job)], 1)
    assert isinstance(found, Failed)
    assert "has been changed since saxpy was imported" in found.reason


# --- in use ---


def test_a_call_searches_stores_and_restores(gpu: Device) -> None:
    configs = [Config(BLOCK=64), Config(BLOCK=256)]
    clock = ScriptedClock(dict(zip(configs, (2e-6, 1e-6), strict=True)))
    tuned = tunesmith.autotune(
        configs=configs, key=["n"], restore_value=["y"], strides=["x"], clock=clock, default=Config(BLOCK=64)
    )(saxpy())
    args = arguments()
    tuned(*args)
    TestFlydsl().check(args, None)
    asked = len(clock.asked)
    tuned(*args)
    assert len(clock.asked) == asked
    assert tuned.choice(*args).config == Config(BLOCK=256)
    key = tuned.subject(*args).key
    assert key.device == MI300.identity
    assert key.problem["x.strides"] == "1"
    assert "flydsl" in dict(key.soft)


def test_a_call_with_another_layout_gets_a_binary_for_it(gpu: Device) -> None:
    kernel = transpose()
    square, out = torch.arange(4096.0).reshape(64, 64), torch.empty(64, 64)
    executable = ready(kernel, Config(BLOCK=64), [square, out, 64])
    seen: list[Any] = []
    ACTS["launch"] = lambda *args: (seen.append(args), do_transpose(*args))
    try:
        for x in (square, square.T, square.T):
            executable.launch(x, out, 64)
            torch.testing.assert_close(out, x.T)
    finally:
        ACTS["launch"] = do_transpose
    assert [args[2] for args in seen] == [7, 7, 7]  # torch's current stream


def test_arguments_without_an_annotation_are_what_they_are(gpu: Device) -> None:
    ACTS["decorated"] = do_saxpy
    x, y, a, n = arguments()
    with tunesmith.policy("default"):
        for _ in range(2):
            y.zero_()
            flydsl_kernels.decorated(x, y, a, n)
            TestFlydsl().check([x, y], None)
        with pytest.raises(BadInput, match=r"'n' is 4294967296, which has more than 32 bits"):
            flydsl_kernels.decorated(x, y, a, 1 << 32)


def test_of_several_gpus_the_arrays_own_is_made_the_current_one(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[int] = [0]
    seen: list[int] = []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        at.append(index)
        yield
        at.pop()

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: at[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setitem(ACTS, "saxpy", lambda *args: (seen.append(at[-1]), do_saxpy(*args)))
    args = arguments()
    for index in (0, 1):
        replace(saxpy().for_call(args), index=index).load(Config(BLOCK=64), NO_FIELDS, None).launch(*args)
    assert seen == [0, 1]
    assert at == [0]


def test_arguments_that_flydsl_does_not_take_are_refused() -> None:
    x, y, a, n = arguments()
    with pytest.raises(BadInput, match=r"'x' has strides \(2,\); .*give x.contiguous\(\)"):
        saxpy().for_call([x[::2], y, a, n])
    with pytest.raises(BadInput, match=r"'n' is 4294967296, which has more than 32 bits"):
        saxpy().for_call([x, y, a, 1 << 32])
    with pytest.raises(BadInput, match=r"'y' is of type NoneType; expected a torch tensor"):
        saxpy().for_call([x, None, a, n])
    with pytest.raises(BadInput, match="unknown knob 'BLOK': did you mean 'BLOCK'"):
        saxpy(knobs=["BLOK"])
    with pytest.raises(BadInput, match=r"a function that builds it, with knobs=\[…\] and launch="):
        flydsl.kernel(flydsl_kernels.build_transpose)
    made = flydsl.kernel(flydsl_kernels.build_transpose, knobs=["BLOCK"], launch=["x", "out"])
    made = made.for_call([torch.empty(64, 64), torch.empty(64, 64), 64])
    with pytest.raises(BadInput, match=r"launcher takes \(x, y, stream\), and launch= says \(x, out\)"):
        made.compile_here(Config(BLOCK=64), MI300)


def test_a_machine_without_an_amd_gpu_says_what_it_can_do() -> None:
    args = arguments()
    with pytest.raises(MissingEngine, match=r"x, y is on one \(cpu:.*tunesmith compile FILE.py:KERNEL --target gfx942"):
        saxpy().device(args)
    with pytest.raises(BadInput, match="not for sm_90; good targets: gfx942, gfx950"):
        saxpy().for_target(dict, known_device("NVIDIA H200"))
    with pytest.raises(BadInput, match=r"make_inputs: .*missing .* 'x'"):
        saxpy().for_target(dict, MI300)
    with pytest.raises(MissingEngine, match="torch finds none here"):
        saxpy().for_call(args).load(Config(BLOCK=64), NO_FIELDS, None)


# --- what is missing ---


def test_doctor_says_what_is_there_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    [state] = [one for one in describe() if one.name == "flydsl"]
    assert state.works
    assert "linked by" in state.why
    monkeypatch.setattr(toolkit, "_linkers", lambda: iter(()))
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    [state] = [one for one in describe() if one.name == "flydsl"]
    assert (state.works, state.command) == (False, "pip install 'tunesmith[cpu]'")
    with pytest.raises(MissingEngine, match="neither in /nowhere/llvm/bin nor on PATH"):
        saxpy().for_call(arguments()).compile_job(Config(BLOCK=64), NO_FIELDS, MI300)


def test_without_flydsl_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flydsl.compiler", None)
    with pytest.raises(MissingEngine, match=r"pip install 'tunesmith\[flydsl\]'$"):
        flydsl.kernel(flydsl_kernels.saxpy)


def test_a_linker_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bad = tmp_path / "llvm" / "bin" / "ld.lld"
    bad.parent.mkdir(parents=True)
    bad.write_text("#!/bin/sh\nexit 1\n")
    bad.chmod(0o755)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setenv("FLYDSL_RUNTIME_ENABLE_CACHE", "0")
    with pytest.raises(CompileFailed, match="lld invocation failed"):
        flydsl.kernel(source("* a + 1.0", "* a + 5.0").saxpy).for_call(arguments()).compile_here(
            Config(BLOCK=64), MI300
        )


# --- FlyDSL's own autotune ---


def theirs(**more: Any) -> Any:
    from flydsl.autotune import Config as TheirConfig

    return TheirConfig(**more)


def test_its_autotunes_arguments_are_taken(gpu: Device) -> None:
    clock = ScriptedClock(lambda config: 1e-6 * int(str(config["waves_per_eu"])))
    tuned = flydsl.autotune(
        configs=[theirs(BLOCK=block, waves_per_eu=2) for block in (64, 128, 256)],
        key=["n"], warmup=5, rep=25, restore_value=["y"],
        prune_configs_by=lambda configs, args: [c for c in configs if c.kwargs["BLOCK"] <= args["n"] // 4],
        default=lambda *args, **kwargs: theirs(BLOCK=128 if kwargs["n"] > 512 else 64, waves_per_eu=1), clock=clock,
    )(flydsl_kernels.saxpy)  # fmt: skip
    args = arguments()
    with tunesmith.policy("default"):
        assert tuned.choice(*args).config == Config(BLOCK=128, waves_per_eu=1)
    tuned(*args)
    TestFlydsl().check(args, None)
    assert clock.timed == {
        *(Config(BLOCK=block, waves_per_eu=2) for block in (64, 128, 256)), Config(BLOCK=128, waves_per_eu=1)
    }  # fmt: skip
    assert tuned.choice(*args).config == Config(BLOCK=128, waves_per_eu=1)
    assert "x.strides" in tuned.subject(*args).key.problem


def test_functions_of_the_call_know_what_the_key_says(gpu: Device) -> None:
    def configs(x: Any, y: Any, a: Any, n: Any, VEC: int) -> list[Any]:
        return [theirs(BLOCK=64 if x.shape[0] > 100 else 128)]

    args = arguments()
    tuned = flydsl.autotune(configs=configs, key=["x", "VEC"], knobs=["BLOCK"])(flydsl_kernels.saxpy)
    problem = tuned.subject(*args).key.problem
    assert (problem["x.0"], problem["VEC"]) == (1024, 1)
    assert list(tuned.declared.space_for(problem, gpu)) == [Config(BLOCK=64)]
    for default, what in (
        (lambda n, **_: theirs(BLOCK=n), "its value of 'n' is asked for: add 'n' to key="),
        (lambda n, **_: theirs(BLOCK=n // 2), "its value of 'n'"),
        (lambda y, **_: theirs(BLOCK=y.shape[0]), "its shape of 'y'"),
        (lambda y, **_: theirs(BLOCK=y.numel()), r"\.numel of 'y'"),
    ):
        curious = flydsl.autotune(configs=configs, key=["x", "VEC"], knobs=["BLOCK"], default=default)
        with pytest.raises(BadInput, match=what):
            curious(flydsl_kernels.saxpy).choice(*args)


def test_options_that_are_not_taken_say_what_to_give_instead() -> None:
    for option, instead in (("do_bench", "clock="), ("validate_hook", "reference="), ("pre_hook", "reset_to_zero=")):
        with pytest.raises(BadInput, match=instead):
            flydsl.autotune([theirs(BLOCK=64)], **{option: lambda *_: None})
    with pytest.raises(BadInput, match="has a pre_hook"):
        flydsl.autotune([theirs(BLOCK=64, pre_hook=print)])(flydsl_kernels.saxpy)


def test_its_offline_configurations_serve_a_lookup(
    gpu: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    chip = {"name": MI300.name, "arch": MI300.arch, "compute_units": MI300.units}
    for number, (units, block) in enumerate(((80, 64), (304, 256))):
        identity = {"name": "saxpy", "key": {"n": 1024}, "device": {**chip, "compute_units": units}}
        text = json.dumps({"version": 1, "identity": identity, "config": {"BLOCK": block}})
        (tmp_path / f"saxpy-{number}.json").write_text(text)
    (tmp_path / "saxpy-9.json").write_text("{")
    monkeypatch.setenv("FLYDSL_AUTOTUNE_CONFIG_DIR", str(tmp_path))
    declare = flydsl.autotune(
        configs=[theirs(BLOCK=64), theirs(BLOCK=256)], key=["n"], artifact_name="saxpy", policy="lookup"
    )
    with pytest.warns(tunesmith.errors.TunesmithWarning, match=r"saxpy-9\.json is left out"):
        tuned = declare(flydsl_kernels.saxpy)
    choice = tuned.choice(*arguments())
    assert choice.config == Config(BLOCK=256)
    assert choice.source.endswith("saxpy-1.json")
    assert tuned.choice(*arguments(2048)).config == Config(BLOCK=64)  # the Space's first


def test_a_build_function_is_tuned_for_what_it_is_built_with(gpu: Device) -> None:
    clock = ScriptedClock({Config(BLOCK=32): 1e-6, Config(BLOCK=64): 2e-6})
    tuned = tunesmith.autotune(space=Space(BLOCK=[32, 64]), key=["n"], clock=clock)(transpose())
    x, y = torch.arange(4096.0).reshape(64, 64), torch.empty(64, 64)
    tuned(x, y, 64)
    torch.testing.assert_close(y, x.T)
    assert tuned.choice(x, y, 64).config == Config(BLOCK=32)
    with pytest.raises(SpaceError, match="unknown knob 'BLOK'"):
        tuned.kernel.for_call([x, y, 64]).compile_job(Config(BLOK=1), NO_FIELDS, gpu)


def test_what_is_kept_of_a_binary_can_be_read_back(tmp_path: Path) -> None:
    kernel = saxpy().for_call(arguments())
    made = kernel.build_here(Config(BLOCK=128), MI300)
    assert kernel.build_here(Config(BLOCK=128), MI300).path == made.path
    assert Artifact.read(made.path).arch == "gfx942"
    (tmp_path / "cut.json").write_text('{"arch": "gfx942"}')
    with pytest.raises(ValueError, match=r"cut\.json"):
        Artifact.read(tmp_path / "cut.json")
