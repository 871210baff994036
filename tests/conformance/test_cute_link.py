"""Object files of CuTe DSL where its version loads shared libraries alone: linked, loaded and looked up in earnest."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "cutlass.cute", reason="needs the packages of: pip install 'tunesmith[cute,cpu]'", exc_type=ImportError
)
pytest.importorskip("numpy", reason="needs the packages of: pip install 'tunesmith[cute,cpu]'")

import numpy as np
from tests import cute_kernels

from tunesmith import Config, Problem
from tunesmith.backends import cute
from tunesmith.backends.ahead import target_device
from tunesmith.backends.cute.compile import object_beside
from tunesmith.backends.cute.launch import load_module
from tunesmith.errors import CompileFailed, MissingEngine
from tunesmith.kernel import Built
from tunesmith.options import options
from tunesmith.workers import compile_all

# not imported here: it imports torch, which takes seconds
pytestmark = pytest.mark.skipif(
    find_spec("tvm_ffi") is None, reason="needs the packages of: pip install 'tunesmith[cute,cpu]'"
)


@pytest.fixture(autouse=True)
def old_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """CuTe DSL's loader before it had one for object files: after the runtime libraries it leaves all to TVM-FFI."""
    from cutlass.cute import runtime

    load_libraries = runtime.load_module

    def load(path: str, *, enable_tvm_ffi: bool) -> Any:
        if not path.endswith(".so"):
            load_libraries(path, enable_tvm_ffi=enable_tvm_ffi)
        return importlib.import_module("tvm_ffi").load_module(path, keep_module_alive=False)

    monkeypatch.setattr(runtime, "load_module", load)


@pytest.fixture
def exported() -> Path:
    """An object file as a search leaves it in the cache."""
    x = np.zeros(1001, np.float32)
    device, config = target_device("sm_90"), Config(BLOCK=64, EACH=1)
    kernel = cute.kernel(cute_kernels.saxpy).for_target(lambda: {"x": x, "y": x, "a": 2.0}, device)
    [(_, built)] = compile_all([(config, kernel.compile_job(config, Problem({}), device))], 1)
    assert isinstance(built, Built), built
    return object_beside(built.path)


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_CC", "no-such-compiler")
    options.cache_clear()


def test_it_is_linked_once_and_its_function_is_found(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = importlib.import_module("tvm_ffi").from_dlpack(np.zeros(4, np.float32))
    for _ in range(2):
        launch = load_module(exported)["launch"]
        with pytest.raises(ValueError, match=r"saxpy\(x: Tensor\(\[n0\], float32\).*expected device_type=cuda"):
            launch(x, x, 2.0)
        without_a_compiler(monkeypatch)
    assert exported.with_suffix(".so").exists()


def test_without_a_compiler_it_says_what_to_do(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_compiler(monkeypatch)
    with pytest.raises(MissingEngine, match=r"takes a C compiler \(TUNESMITH_CC=no-such-compiler.*tunesmith\[cute\]'$"):
        load_module(exported)


def test_what_the_linker_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass.cute import runtime

    from tunesmith.backends.cute.link import linked

    broken = tmp_path / "launch-broken.o"
    broken.write_bytes(b"\x7fELF")
    with pytest.raises(CompileFailed, match=r"launch-broken\.o can't be linked: .+") as caught:
        linked(broken, runtime.find_runtime_libraries(enable_tvm_ffi=True))
    assert "launch-broken.o" in caught.value.output


def test_another_failure_of_the_loader_is_not_hidden(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutlass.cute import runtime

    def load(path: str, *, enable_tvm_ffi: bool) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runtime, "load_module", load)
    with pytest.raises(RuntimeError, match="out of memory"):
        load_module(exported)
