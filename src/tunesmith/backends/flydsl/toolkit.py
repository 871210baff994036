"""What FlyDSL needs beside itself: torch, a linker for AMD's binaries, and to be told the chip; and what names them.

FlyDSL compiles without a GPU and without ROCm, up to the last step: an object file becomes a code object by `ld.lld`,
which it looks for at `$ROCM_PATH/llvm/bin`. Any recent lld does. Where there is no ROCm, it is shown a folder that has
just this: the lld of the system, or that of ziglang, a Python package.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shlex
import shutil
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tunesmith.backends.artifacts import digest, writable_folder
from tunesmith.errors import MissingEngine
from tunesmith.files import write_whole

INSTALL = "pip install 'tunesmith[flydsl]'"
#: what FlyDSL reads of the environment that changes what it compiles to; the chip is not among it: it is told
ENVIRONMENT = (
    "FLYDSL_COMPILE_OPT_LEVEL", "FLYDSL_COMPILE_BACKEND", "FLYDSL_COMPILE_LLVM_DIR", "FLYDSL_DEBUG_ENABLE_DEBUG_INFO",
    "FLYDSL_EXTRA_SOURCE_DIRS", "FLYDSL_KTRACE_ENABLE", "FLYDSL_KTRACE_BLOCKS", "FLYDSL_KTRACE_BUFFER_BYTES",
    "LLVM_GFX1250_ANY_XNACK_CODEGEN",
)  # fmt: skip
#: ways to tell it the chip, of which it takes the first that is there
_CHIP = ("ARCH", "FLYDSL_GPU_ARCH")
#: what would keep it from compiling here, or from handing over what it compiled
_OTHERWISE = ("COMPILE_ONLY", "FLYDSL_RUNTIME_RUN_ONLY")
#: one at a time in a process: it is told what it has to know by environment variables
_compiling = threading.RLock()


def compiler() -> Any:
    """`flydsl.compiler`.

    Raises:
        MissingEngine: when FlyDSL or torch, which it imports, is not installed.
    """
    try:
        return importlib.import_module("flydsl.compiler")
    except ImportError as error:
        raise MissingEngine(f"kernels in FlyDSL need its compiler, and torch ({error}): {INSTALL}") from None


# --- the linker --------------------------------------------------------------------------------------


def linker() -> tuple[str, Path | None]:
    """How AMD's binaries are linked here: (in words, the folder to show FlyDSL as ROCm's, `None` for its own choice).

    Raises:
        MissingEngine: when there is no linker.
    """
    asked = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    if (asked / "llvm" / "bin" / "ld.lld").is_file():
        return f"ld.lld of {asked}", None
    found = next(_linkers(), None)
    if found is None:
        raise MissingEngine(
            f"FlyDSL links with ld.lld, and it is neither in {asked}/llvm/bin nor on PATH, and ziglang is not "
            "installed: pip install 'tunesmith[cpu]'"
        )
    argv = shlex.join(found)
    script = f'#!/bin/sh\nexec {argv} "$@"\n'
    root = writable_folder("flydsl") / f"rocm-{digest(script)}"
    place = root / "llvm" / "bin" / "ld.lld"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, script.encode())
    if not os.access(place, os.X_OK):
        place.chmod(0o755)
    return argv, root


def _linkers() -> Iterator[tuple[str, ...]]:
    """Commands that link as ld.lld does, those of the system first, the newest first."""
    names = ["ld.lld", *(f"ld.lld-{version}" for version in range(30, 15, -1))]
    for name in names:
        where = shutil.which(name)
        if where is not None:
            yield (where,)
    spec = find_spec("ziglang")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / "zig").is_file():
            yield str(Path(folder) / "zig"), "ld.lld"


@contextmanager
def compiling_for(arch: str) -> Generator[None]:
    """Within this scope, alone in the process, FlyDSL compiles for a chip, which need not be here.

    Raises:
        MissingEngine: when there is no linker.
    """
    _, root = linker()
    wanted: dict[str, str | None] = {**dict.fromkeys(_CHIP, arch), **dict.fromkeys(_OTHERWISE)}
    if root is not None:
        wanted["ROCM_PATH"] = str(root)
    with _compiling:
        before = {name: os.environ.get(name) for name in wanted}
        _set(wanted)
        try:
            yield
        finally:
            _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# --- names -------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Variables that change the code that FlyDSL makes, those that are set."""
    return {name: os.environ[name] for name in ENVIRONMENT if os.environ.get(name)}


@cache
def versions() -> dict[str, str]:
    """What compiles, by content: FlyDSL with a digest of all its files, and ROCm, whose device libraries it links.

    Raises:
        MissingEngine: when FlyDSL is not installed.
    """
    try:
        found = distribution("flydsl")
    except PackageNotFoundError as error:
        raise MissingEngine(f"kernels in FlyDSL need its compiler ({error}): {INSTALL}") from None
    named = {"flydsl": f"{found.version} ({_content(found.read_text('RECORD') or '')})"}
    rocm = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / ".info" / "version"
    return {**named, "rocm": rocm.read_text().strip()} if rocm.is_file() else named


def _content(record: str) -> str:
    """A digest of a package's files: of the list with their digests that pip keeps, else, where it was not installed
    from a wheel, of its Python files."""
    lines = sorted(line for line in record.splitlines() if line.startswith("flydsl/") and ",sha256=" in line)
    hashed = hashlib.sha256("\n".join(lines).encode())
    spec = find_spec("flydsl")
    for folder in (spec.submodule_search_locations or ()) if spec is not None and not lines else ():
        for file in sorted(Path(folder).rglob("*.py")):
            hashed.update(file.read_bytes())
    return hashed.hexdigest()[:12]
