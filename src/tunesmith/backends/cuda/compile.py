"""From CUDA C++ to a cubin, by NVRTC in a child process: it needs no GPU, no driver and no CUDA toolkit.

NVRTC is a library: a compiler that crashes would take its process with it, and it compiles one program at a time for
most of its work. So children do it, each kept for many programs: a start costs 0.2 s, a small kernel 0.05 to 0.4 s.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tunesmith.backends.artifacts import digest, place
from tunesmith.backends.cubin import usage
from tunesmith.core.outcome import Failed
from tunesmith.errors import CompileFailed, MissingEngine
from tunesmith.files import write_whole
from tunesmith.kernel import Built, Task

INSTALL = "pip install 'tunesmith[cuda]'"
#: what NVRTC reads of the environment, and adds to the options it is given
ENVIRONMENT = ("NVRTC_PREPEND_FLAGS", "NVRTC_APPEND_FLAGS")
#: kernels of these chips and later may use what only the very chip has (wgmma, TMA): a cubin is for one chip anyway
_SPECIFIC_FROM = 90
_ALWAYS = ("--std=c++17", "--ptxas-options=-v")
_INTEGERS = "".join(
    f"typedef {signed} int{bits}_t; typedef unsigned {plain} uint{bits}_t;\n"
    for bits, signed, plain in ((8, "signed char", "char"), (16, "short", "short"), (32, "int", "int"))
)
#: standard headers that NVRTC does not bring, so that a source compiles by nvcc too: nothing beside integer types
_STANDARD = MappingProxyType({
    "stdint.h": f"#pragma once\n{_INTEGERS}#ifdef _WIN32\ntypedef long long int64_t; typedef unsigned long long "
    "uint64_t;\n#else\ntypedef long int64_t; typedef unsigned long uint64_t;\n#endif\n",
    "cstdint": '#pragma once\n#include "stdint.h"\nnamespace std { using ::int8_t; using ::uint8_t; using ::int16_t; '
    "using ::uint16_t; using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t; }\n",
})  # fmt: skip


def nvrtc() -> Any:
    """NVIDIA's runtime compiler.

    Raises:
        MissingEngine: when it, or its Python bindings, are not installed.
    """
    try:
        found: Any = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise MissingEngine(f"CUDA kernels are compiled by NVRTC through cuda-bindings ({error}): {INSTALL}") from None
    return found


@cache
def nvrtc_version() -> str:
    """`13.0`.

    Raises:
        MissingEngine: when there is no NVRTC that can be loaded.
    """
    bindings = nvrtc()
    try:
        code, major, minor = bindings.nvrtcVersion()
    except (RuntimeError, OSError) as error:  # its loader's own errors are RuntimeErrors
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingEngine(f"NVRTC can't be loaded ({line}): {INSTALL}") from error
    if int(code):
        raise MissingEngine(f"NVRTC does not say its version ({code.name}): {INSTALL}")
    return f"{major}.{minor}"


def target(arch: str) -> str:
    """What a chip's architecture is called by the compiler: `sm_90a` for `sm_90`."""
    number = int(re.sub(r"\D", "", arch) or 0)
    return f"{arch}a" if number >= _SPECIFIC_FROM and arch[-1:].isdigit() else arch


@cache
def toolkit_folders() -> tuple[str, ...]:
    """Folders of CUDA's own headers (`cuda_fp16.h`): of NVIDIA's Python packages, else of an installed toolkit."""
    found = [_by_pathfinder("cudart"), _by_pathfinder("cccl")]
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    usual = Path(home) / "include"
    if found[0] is None and (usual / "cuda_fp16.h").is_file():
        found += [str(usual), str(usual / "cccl")]
    return tuple(folder for folder in found if folder is not None and Path(folder).is_dir())


def _by_pathfinder(library: str) -> str | None:
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        return pathfinder.find_nvidia_header_directory(library)
    except (ImportError, AttributeError, RuntimeError):  # not installed, or older than this question
        return None


@dataclass(frozen=True)
class Program:
    """One Config of a kernel as NVRTC takes it.

    Attributes:
        file: what its messages call the source.
        headers: name in an `#include` → text.
        expression: what names the kernel, template arguments included.
    """

    stem: str
    file: str
    source: str
    headers: Mapping[str, str]
    options: Sequence[str]
    arch: str
    expression: str

    def task(self) -> Task:
        """What compiles it in a child.

        Raises:
            MissingEngine: when there is no NVRTC.
        """
        request = self._request()
        key = digest(request, nvrtc_version(), [os.environ.get(name, "") for name in ENVIRONMENT])
        output = place("cuda", f"{self.stem}-{key}.json")
        return Task(
            "tunesmith.backends.cuda.compile:compile_program", lambda: {**request, "output": str(output)}, output
        )

    def _request(self) -> dict[str, Any]:
        system = bool(re.search(r"#[ \t]*include[ \t]*<", "\n".join([self.source, *self.headers.values()])))
        headers = {**_STANDARD, **self.headers} if system else dict(self.headers)
        folders = [f"--include-path={folder}" for folder in toolkit_folders()] if system else []
        options = [f"--gpu-architecture={target(self.arch)}", *_ALWAYS, *self.options, *folders]
        return {
            "file": self.file, "source": self.source, "headers": headers, "options": options,
            "expression": self.expression,
        }  # fmt: skip

    def compile_here(self) -> Built:
        """Compile it in this process, unless that was done before.

        Raises:
            CompileFailed: with all that the compiler said.
        """
        task = self.task()
        failed = None if task.output.exists() else compile_program(**task.request())
        if failed is not None:
            raise CompileFailed(f"{failed.reason}\n{failed.detail}".rstrip(), failed.detail)
        return Built(task.output, 0.0)


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel on disk.

    Attributes:
        entry: its name in the cubin.
        spilled_bytes: of a thread, `None` where the compiler did not say.
        log: what the compiler printed.
    """

    entry: str
    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int
    code_bytes: int
    log: str

    @classmethod
    def read(cls, path: Path) -> Artifact:
        """What lies at a Task's `output`.

        Raises:
            OSError, ValueError: when it can't be read, or is no Artifact.
        """
        data = json.loads(path.read_text())
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(f"{path}: {error}") from None


def cubin_beside(path: Path) -> Path:
    """Where the binary of an Artifact lies."""
    return path.with_suffix(".cubin")


# --- in the child ------------------------------------------------------------------------------------


def compile_program(
    *, file: str, source: str, headers: Mapping[str, str], options: Sequence[str], expression: str, output: str
) -> Failed | None:
    """Compile a program and write its cubin, then its Artifact, which says that all is there."""
    compiler = nvrtc()
    program = _made(
        compiler.nvrtcCreateProgram(
            source.encode(), file.encode(), len(headers), [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )  # fmt: skip
    try:
        _made(compiler.nvrtcAddNameExpression(program, expression.encode()))
        (code,) = compiler.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _text(compiler.nvrtcGetProgramLogSize(program), compiler.nvrtcGetProgramLog, program)
        log = log.decode(errors="replace").rstrip("\0 \n")
        if int(code):
            return Failed("compile", _reason(log, code.name), log)
        entry = _made(compiler.nvrtcGetLoweredName(program, expression.encode())).decode()
        cubin = _text(compiler.nvrtcGetCUBINSize(program), compiler.nvrtcGetCUBIN, program)
    finally:
        compiler.nvrtcDestroyProgram(program)
    found, path = usage(cubin, entry), Path(output)
    artifact = Artifact(entry, found.registers, _spilled(log, entry), found.shared_bytes, len(cubin), log)
    write_whole(cubin_beside(path), cubin)
    write_whole(path, json.dumps(asdict(artifact)).encode())
    return None


def _made(answer: Sequence[Any]) -> Any:
    """What a function of NVRTC's returned beside its code, which must be success."""
    if int(answer[0]):
        raise RuntimeError(f"NVRTC refused: {answer[0].name}")
    return answer[1] if len(answer) > 1 else None


def _text(size: Sequence[Any], read: Any, program: Any) -> bytes:
    buffer = bytes(_made(size))  # NVRTC writes into it: that is how its bindings return a text
    _made(read(program, buffer))
    return buffer


def _reason(log: str, code: str) -> str:
    """The line that says why, without the place: the same mistake is to be counted as one."""
    found = re.search(r"\berror\s*(?:#[\w-]+)?: .*", log)
    if found is not None:
        return " ".join(found[0].split())
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else f"NVRTC ended with {code} and said nothing"


def _spilled(log: str, entry: str) -> int | None:
    """Bytes that a thread spills, as ptxas counts its stores."""
    found = re.search(rf"properties for {re.escape(entry)}\n.*?(\d+) bytes spill stores", log)
    return int(found[1]) if found else None
