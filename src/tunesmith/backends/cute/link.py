"""A shared library of an object file, for versions of CuTe DSL that load nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tunesmith.backends import c_compiler
from tunesmith.backends.artifacts import place
from tunesmith.backends.cute.compile import INSTALL
from tunesmith.errors import CompileFailed, MissingEngine
from tunesmith.files import write_whole
from tunesmith.workers import run_command

#: it takes 0.03 s; ziglang's, the first time in a cache folder, more
TIMEOUT_S = 60.0
#: Neither a start file nor the C library: the host code calls the runtime libraries alone. It refers to them by
#: addresses within its instructions, which some linkers take only when told.
_FLAGS = ("-shared", "-nostdlib", "-Wl,-z,notext")


def linked(path: Path, libraries: Sequence[str]) -> Path:
    """The shared library of an object file: made where it was not, in the cache, or where that takes nothing elsewhere.

    Args:
        libraries: what it needs at run time, each of which has to be loaded before it: they are found by name then.

    Raises:
        MissingEngine: without a C compiler.
        CompileFailed: with all that the linker said.
    """
    library = place("cute", path.with_suffix(".so").name)
    if not library.exists():
        write_whole(library, _link(path, libraries))
    return library


def _link(path: Path, libraries: Sequence[str]) -> bytes:
    try:
        cc = c_compiler.compiler()
    except MissingEngine as error:
        raise MissingEngine(
            f"this CuTe DSL loads shared libraries alone, and to link them takes a C compiler ({error}); "
            f"newer versions load object files themselves: {INSTALL}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "launch.so"
        argv = [*cc.argv, *_FLAGS, "-o", str(output), str(path), *libraries]
        ended = run_command(argv, TIMEOUT_S, environ=dict(c_compiler.environment(cc)))
        if ended.code != 0 or not output.exists():
            lines = ended.output.strip().splitlines() or [f"{cc.argv[0]} ended with {ended.code}"]
            raise CompileFailed(f"{path.name} can't be linked: {lines[0]}", ended.output)
        return output.read_bytes()
