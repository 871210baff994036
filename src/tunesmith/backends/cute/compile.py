"""From a CuTe DSL function to an object file, in a child process: no GPU is needed.

`cute.compile` is not safe for threads and keeps nothing, so children do it, each kept for many Configs, and what they
make is kept here. A start costs a child the import of CuTe DSL and of the user's module (1 to 3 s), a Config 0.2 s or
more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from tunesmith.backends.artifacts import digest, place
from tunesmith.backends.cuda.compile import target
from tunesmith.core.config import KnobValue
from tunesmith.errors import MissingEngine
from tunesmith.kernel import Built, Task

#: the largest kernels take a minute on a busy core
TIMEOUT_S = 300.0
INSTALL = "pip install 'tunesmith[cute]'"
#: packages that make the code; the DSL's own number is the same for CUDA 12 and 13, so its libraries count too
PACKAGES = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
_LIBRARIES = ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")
_VARIABLES = "CUTE_DSL_"
#: what CuTe DSL reads of the environment and what changes no code: where files go, what is printed, its own cache.
#: The architecture is that of the device, whatever the environment says.
_HARMLESS = (
    "ARCH", "CACHE_DIR", "DISABLE_FILE_CACHING", "DUMP_DIR", "FILE_CACHING_CAPACITY", "FILTER_STACKTRACE",
    "JIT_CACHE_MAX_ELEMS", "JIT_TIME_PROFILING", "KEEP", "KEEP_CUBIN", "KEEP_IR", "KEEP_PTX", "KEEP_SASS",
    "LOG_AUTOTUNE", "LOG_LEVEL", "LOG_TO_CONSOLE", "LOG_TO_FILE", "NO_CACHE", "PRINT_AFTER_PREPROCESSOR", "PRINT_IR",
)  # fmt: skip


@cache
def versions() -> Mapping[str, str]:
    """Of CuTe DSL and what it launches through.

    Raises:
        MissingEngine: when one is not installed.
    """
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise MissingEngine(
                f"CuTe DSL kernels need {' and '.join(PACKAGES)}; {package} is not installed: {INSTALL}"
            ) from None
    for library in _LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, str]:
    """Variables that change the code which CuTe DSL makes."""
    harmless = {_VARIABLES + name for name in _HARMLESS}
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in harmless}


@dataclass(frozen=True)
class Program:
    """One Config of a kernel as a child is told it.

    Attributes:
        function: of the user's: a host function, or what makes one of knobs (`is_built`).
        where: `place:name`, where the child finds the function; empty where it can't.
        source: the function's fingerprint, which the child's has to have too; empty where there is none.
        identity: the kernel's fingerprint.
        given: argument → `Given`, as JSON types. knobs: all of the Config.
    """

    name: str
    function: Callable[..., Any]
    is_built: bool
    where: str
    source: str
    identity: str
    given: Mapping[str, Mapping[str, Any]]
    knobs: Mapping[str, KnobValue]
    options: Sequence[str]
    arch: str

    @property
    def output(self) -> Path:
        """Where its Artifact belongs.

        Raises:
            MissingEngine: without CuTe DSL.
        """
        named = [self.identity, dict(self.given), dict(self.knobs), list(self.options), target(self.arch)]
        key = digest("tunesmith-cute/1", named, dict(versions()), environment())
        return place("cute", f"{self.name}-{key}.json")

    def task(self) -> Task | None:
        """What compiles it in a child; `None` where that must be done here."""
        output = self.output
        if not self.where:
            return None
        return Task(
            "tunesmith.backends.cute.child:compile_config",
            lambda: {"where": self.where, "path": list(sys.path), "source": self.source, **self._request(output)},
            output,
            timeout_s=TIMEOUT_S,
        )

    def _request(self, output: Path) -> dict[str, Any]:
        return {
            "is_built": self.is_built, "given": dict(self.given), "knobs": dict(self.knobs),
            "options": list(self.options), "arch": target(self.arch), "output": str(output),
        }  # fmt: skip

    def compile_here(self) -> Built:
        """Compile it in this process, unless that was done before.

        Raises:
            CompileFailed: with all that CuTe DSL said.
        """
        from tunesmith.backends.cute.child import compile_function

        output = self.output
        if not output.exists():
            compile_function(self.function, **self._request(output))
        return Built(output, 0.0)


@dataclass(frozen=True)
class Artifact:
    """A compiled Config on disk.

    Attributes:
        takes: the arguments of a launch, in order.
        registers, stack_words: of a thread, the most of all its kernels; `None` where the cubin does not say.
        shared_bytes: of a block, static and dynamic, the most of all its kernels; `None` where a call decides.
        threads: of a block, likewise.
    """

    takes: tuple[str, ...]
    registers: int | None
    stack_words: int | None
    shared_bytes: int | None
    threads: int | None
    code_bytes: int

    @classmethod
    def read(cls, path: Path) -> Artifact:
        """What lies at a Task's `output`.

        Raises:
            OSError, ValueError: when it can't be read, or is no Artifact.
        """
        data: dict[str, Any] = json.loads(path.read_text())
        try:
            return cls(takes=tuple(data.pop("takes")), **data)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from None

    def content(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def object_beside(path: Path) -> Path:
    """Where the object file of an Artifact lies."""
    return path.with_suffix(".o")
