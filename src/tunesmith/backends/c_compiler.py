"""The C compiler at hand: which one, and what it calls a flag."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tunesmith.backends.artifacts import writable_folder
from tunesmith.backends.cpu import cpu_flags
from tunesmith.core.config import KnobValue
from tunesmith.errors import MissingEngine, SpaceError
from tunesmith.options import options
from tunesmith.workers import run_command

Family = Literal["gcc", "clang", "zig"]
_INSTALL = "install one (apt install gcc), or take the one that comes as a Python package: pip install 'tunesmith[cpu]'"
#: a compiler that can't say its version in this time is not asked to compile
_PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that answered.

    Attributes:
        argv: how to call it.
        version: the first line of what it says about itself.
    """

    argv: tuple[str, ...]
    family: Family
    version: str


def compiler() -> Compiler:
    """The C compiler to use: TUNESMITH_CC, else cc, gcc or clang on PATH, else ziglang's.

    Raises:
        MissingEngine: when there is none; it says what to type.
    """
    return _compiler(options().cc, os.environ.get("PATH"))


@lru_cache(maxsize=8)
def _compiler(asked: str | None, path: str | None) -> Compiler:
    if asked is not None:
        try:
            found = _probe(tuple(shlex.split(asked)))
        except (ValueError, IndexError):
            found = "not a command"
        if isinstance(found, Compiler):
            return found
        raise MissingEngine(f"TUNESMITH_CC={asked}: {found}; {_INSTALL}")
    refused: list[str] = []
    for argv in (*(("cc",), ("gcc",), ("clang",)), _zig()):
        where = shutil.which(argv[0], path=path) if argv else None
        if where is not None:
            found = _probe((where, *argv[1:]))
            if isinstance(found, Compiler):
                return found
            refused.append(found)
    why = f" ({'; '.join(refused)})" if refused else ""
    raise MissingEngine(
        f"no C compiler: neither cc, gcc nor clang is on PATH, and ziglang is not installed{why}; {_INSTALL}"
    )


def _zig() -> tuple[str, ...]:
    """The call of ziglang's compiler, less the Python process of `python -m ziglang`; empty if there is none."""
    spec = find_spec("ziglang")
    folders = spec.submodule_search_locations if spec is not None else None
    return (str(Path(folders[0]) / "zig"), "cc") if folders else ()


def _probe(argv: tuple[str, ...]) -> Compiler | str:
    """A compiler, or why it is none."""
    words = [Path(word).stem for word in argv]
    zig = words[-2:] in (["zig", "cc"], ["ziglang", "cc"])
    command = [*argv[:-1], "version"] if zig else [*argv, "--version"]  # zig answers this without a cache folder
    try:
        ended = run_command(command, _PROBE_S)
    except OSError as error:
        return f"{argv[0]} can't be started: {error.strerror or error}"
    line = ended.output.strip().split("\n")[0]
    if ended.code != 0 or not line:
        return f"`{' '.join(command)}` ended with {ended.code}: {line[:120]}"
    if zig:
        return Compiler(argv, "zig", f"zig {line}")
    return Compiler(argv, "clang" if "clang" in line.lower() else "gcc", line)


# --- knobs that are flags --------------------------------------------------------------------------

#: what a knob is when a Config does not name it
FLAG_DEFAULTS: Mapping[str, KnobValue] = {"opt_level": "O3", "march": "native", "unroll": False, "fast_math": False}
OPT_LEVELS = ("O0", "O1", "O2", "O3")
_MARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")

#: -ffast-math less what reaches beyond the kernel: linked into a shared object, gcc's switches the loading thread to
#: flushing denormals to zero, for every other library too
_FAST_MATH = (
    "-fno-math-errno", "-ffinite-math-only", "-fno-signed-zeros", "-fno-trapping-math", "-fassociative-math",
    "-freciprocal-math",
)  # fmt: skip
#: GNU C for vector types and posix_memalign; zig's checks of undefined behaviour would be timed with the kernel
_ALWAYS = ("-shared", "-fPIC", "-std=gnu11", "-fno-sanitize=undefined", "-fdiagnostics-color=never")


def check_flag_knob(name: str, value: KnobValue) -> None:
    """Refuse a bad value of a knob that is a flag.

    Raises:
        SpaceError: naming the good ones.
    """
    if name == "opt_level":
        good, fine = ", ".join(map(repr, OPT_LEVELS)), isinstance(value, str) and value in OPT_LEVELS
    elif name == "march":
        good = "'native', 'generic', or an architecture's name as the compiler spells it"
        fine = isinstance(value, str) and _MARCH.fullmatch(value) is not None
    else:
        good, fine = "True, False", isinstance(value, bool)
    if not fine:
        raise SpaceError(f"knob {name!r} cannot be {value!r}; good values: {good}")


def flags(compiler: Compiler, knobs: Mapping[str, KnobValue]) -> list[str]:
    """The command line of checked flag knobs; one that is missing has its default."""
    knobs = {**FLAG_DEFAULTS, **knobs}
    found = [*_ALWAYS, f"-{knobs['opt_level']}", *_march(compiler.family, str(knobs["march"]))]
    if knobs["unroll"]:
        found.append("-funroll-loops")
    if knobs["fast_math"]:
        found += _FAST_MATH
    return found


def _march(family: Family, asked: str) -> list[str]:
    arm = platform.machine().lower() in ("aarch64", "arm64")
    if family == "zig":
        return [f"-mcpu={'baseline' if asked == 'generic' else asked.replace('-', '_')}"]
    if asked == "generic":
        return []
    if arm and not asked.startswith("armv"):  # there -march names an architecture, and -mcpu a chip
        return [f"-mcpu={asked}"]
    return [f"-march={asked}"]


def identity(compiler: Compiler, march: KnobValue) -> list[str]:
    """What decides the machine code beside source and flags."""
    paths = [f"{name}={os.environ.get(name, '')}" for name in ("CPATH", "C_INCLUDE_PATH")]
    chip = cpu_flags() if march == "native" else ""  # a cache on a network file system serves unlike machines
    return [compiler.family, compiler.version, platform.system(), platform.machine(), chip, *paths]


def environment(compiler: Compiler) -> tuple[tuple[str, str], ...]:
    """What a compiler needs in its environment: zig a folder of its own where it would find none."""
    if compiler.family != "zig" or os.environ.get("ZIG_GLOBAL_CACHE_DIR"):
        return ()
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    usable = home is not None and os.access(home, os.W_OK)
    return () if usable else (("ZIG_GLOBAL_CACHE_DIR", str(writable_folder("cc") / "zig")),)
