"""Kernels in C: knobs are macros and compiler flags, the compiler is a child process, the call goes through ctypes."""

from __future__ import annotations

import ctypes
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tunesmith import fingerprint
from tunesmith.backends import c_compiler
from tunesmith.backends.artifacts import digest, place
from tunesmith.backends.c_files import included, read_source
from tunesmith.backends.c_launch import Size, launcher, names_in
from tunesmith.backends.c_source import Prototype, macro_knobs, macro_value, normalised, parse_prototype
from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config, KnobValue
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, CompileFailed, SpaceError, unknown
from tunesmith.kernel import Built, Command, Specialised
from tunesmith.workers import compile_one

#: more threads than this are a mistake and not a wish
_MOST_THREADS = 4096


def kernel(
    source: str | Path,
    *,
    entry: str | None = None,
    work: Size | None = None,
    shapes: Mapping[str, Sequence[Size]] | None = None,
    name: str | None = None,
    headers: Iterable[str | Path] = (),
    flags: Sequence[str] = (),
) -> CKernel:
    """A kernel in C. Its prototype in the source says what a call takes.

    >>> scale = kernel('''
    ... #include <stdint.h>
    ... void scale(const float *x, float *y, float a, int64_t n, int64_t begin, int64_t end) {
    ...     for (int64_t i = begin; i < end; i++) y[i] = a * x[i];
    ... }
    ... ''', work="n", shapes={"x": ("n",), "y": ("n",)})
    >>> scale.signature
    <Signature (x, y, a, n)>

    Args:
        source: C text, or the path of a .c file.
        entry: the function; not needed where the source defines one void function that is not static.
        work: how many units `begin, end` split over the knob `threads`: a parameter's name, a number, or a
            function of parameters and knobs by name (`lambda N, NR: -(-N // NR)`).
        shapes: of array arguments, in the same terms: `{"a": ("M", "K")}`. Checked at every call.
        name: the entry's, if not given.
        headers: files that the source includes by name in quotes and that do not lie beside it.
        flags: further arguments for the compiler.

    Raises:
        BadInput: for a prototype that can't be called from here, or a name that the source does not know.
    """
    text, path, where = read_source(source, "C source")
    _check_flags(flags)
    prototype = parse_prototype(text, entry, where)
    found = included(text, path, [Path(h).expanduser().absolute() for h in headers], where)
    made = CKernel(
        name or prototype.name,
        text,
        path,
        prototype,
        work,
        {a: tuple(s) for a, s in (shapes or {}).items()},
        found,
        tuple(flags),
    )
    made.check_declaration(where)
    return made


def _check_flags(flags: Sequence[str]) -> None:
    """Refuse flags that bring in files: a change of theirs would go unnoticed."""
    if isinstance(flags, str):
        raise BadInput(f"flags={flags!r} is one string; give a list: flags=[{flags!r}]")
    for flag in flags:
        if re.match(r"(-I|-i(nclude|macros|quote|system|dirafter|prefix|sysroot)|--include|-B|-specs|@)", flag):
            raise BadInput(f"flag {flag!r} brings in files whose changes would go unnoticed; name headers in headers=")


@dataclass(frozen=True)
class CExecutable:
    """A loaded shared object."""

    config: Config
    resources: Resources
    launch: Callable[..., None]
    path: Path


@dataclass(frozen=True, eq=False)
class CKernel:
    """A kernel in C; see `kernel`.

    Attributes:
        text: the source.
        path: of the file it came from.
        headers: those it includes in quotes, with their text.
    """

    name: str
    text: str
    path: Path | None
    prototype: Prototype
    work: Size | None
    shapes: Mapping[str, tuple[Size, ...]]
    headers: Mapping[Path, str]
    flags: tuple[str, ...]
    backend: str = "cc"
    per_problem: bool = False
    specialised: Specialised = field(default_factory=Specialised)

    # --- what it is ---

    @cached_property
    def signature(self) -> inspect.Signature:
        return self.prototype.signature

    @cached_property
    def macros(self) -> dict[str, str | None]:
        """Macros that a knob may set, with the source's own defaults."""
        return macro_knobs(*self.headers.values(), self.text)

    @cached_property
    def knobs(self) -> frozenset[str]:
        own = {"threads"} if self.prototype.sliced else set[str]()
        return frozenset({*self.macros, *c_compiler.FLAG_DEFAULTS, *own})

    def check_declaration(self, where: str) -> None:
        """Refuse a kernel whose sizes name what does not exist.

        Raises:
            BadInput: naming it and what does.
        """
        prototype = self.prototype
        if prototype.sliced and self.work is None:
            raise BadInput(
                f"{where}: {prototype.name} takes begin and end: "
                "say of what in work=, as a parameter's name or a function"
            )
        if self.work is not None and not prototype.sliced:
            raise BadInput(
                f"{where}: work= needs a kernel that ends in `int64_t begin, int64_t end`; this is {prototype}"
            )
        for array in self.shapes:
            if array not in prototype.arrays:
                raise BadInput(f"shapes=: {unknown('array argument', array, prototype.arrays)}")
        good = [*prototype.integers, *sorted(self.knobs)]
        for size in (
            *(s for shape in self.shapes.values() for s in shape),
            *([] if self.work is None else [self.work]),
        ):
            for name in names_in(size):
                if name not in good:
                    raise BadInput(f"{prototype.name}: {unknown('name in a size', name, good)}")

    @cached_property
    def _fingerprint(self) -> str:
        def spelled(size: Size) -> str | int:
            return fingerprint.of_function(size) if callable(size) else size

        shapes = {array: [spelled(size) for size in shape] for array, shape in sorted(self.shapes.items())}
        work = None if self.work is None else spelled(self.work)
        headers = [[path.name, normalised(text)] for path, text in self.headers.items()]
        return digest(
            "tunesmith-c-kernel/1", normalised(self.text), headers, str(self.prototype), shapes, work, list(self.flags)
        )

    def fingerprint(self) -> str:
        return self._fingerprint

    def environment(self) -> Mapping[str, str]:
        return {}  # CPATH and the like name the artifact

    def versions(self) -> Mapping[str, str]:
        return {"cc": c_compiler.compiler().version}

    def for_call(self, args: Sequence[Any]) -> CKernel:
        return self

    def device(self, args: Sequence[Any]) -> Device:
        found = device_of(dict(zip(self.signature.parameters, args, strict=False)))
        if found.kind != "cpu":
            raise BadInput(f"{self.name} is a C kernel and its arguments are on {found.name}; expected cpu")
        return found

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {p.name: (p.dtype,) for p in self.prototype.parameters if p.is_array}

    # --- a Config of it ---

    def check(self, config: Config) -> None:
        """Refuse a Config that can't be compiled, before a compiler sees it.

        Raises:
            SpaceError: naming the knob, its bad value and the good ones.
        """
        for name, value in config.items():
            if name == "threads":
                self._check_threads(value)
            elif name in c_compiler.FLAG_DEFAULTS:
                c_compiler.check_flag_knob(name, value)
            elif name not in self.macros:
                raise SpaceError(
                    f"{self.name}: {unknown('knob', name, sorted(self.knobs))}; "
                    f"a macro is one where the source says `#ifndef {name}`, `#define {name} default`, `#endif`"
                )
            else:
                macro_value(name, value)
        for name, usual in self.macros.items():
            if usual is None and name not in config:
                raise SpaceError(f"{self.name}: knob {name!r} is missing, and the source has no default for it")

    def _check_threads(self, value: KnobValue) -> None:
        if not self.prototype.sliced:
            raise SpaceError(
                f"{self.name} has no knob 'threads': its prototype does not end in `int64_t begin, int64_t end`"
            )
        if type(value) is not int or not 1 <= value <= _MOST_THREADS:
            raise SpaceError(f"knob 'threads' cannot be {value!r}; good values: integers from 1 to {_MOST_THREADS}")

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Command:
        """What compiles a Config. Configs that differ in threads alone share an artifact.

        Raises:
            SpaceError: for a Config that can't be compiled.
            MissingEngine: when there is no compiler.
        """
        return self._command(config)

    def _command(self, config: Config) -> Command:
        self.check(config)
        cc = c_compiler.compiler()
        known = {name: value for name, value in config.items() if name in c_compiler.FLAG_DEFAULTS}
        defines = [f"-D{name}={macro_value(name, config[name])}" for name in config if name in self.macros]
        arguments = [*c_compiler.flags(cc, known), *self._search_path(), *defines, *self.flags]
        march = known.get("march", c_compiler.FLAG_DEFAULTS["march"])
        key = digest(self._as_compiled, list(self.headers.values()), arguments, c_compiler.identity(cc, march))
        source = place("cc", f"{self._stem}-{digest(self._as_compiled)}.c", self._as_compiled)
        output = place("cc", f"{self._stem}-{key}.so")
        argv = (*cc.argv, *arguments, "-o", "{output}", str(source), "-lm")
        return Command(argv, output, environ=c_compiler.environment(cc))

    @property
    def _stem(self) -> str:
        return self.prototype.name

    @cached_property
    def _as_compiled(self) -> str:
        """The source as the compiler gets it: its messages name the user's file, which may change meanwhile."""
        return self.text if self.path is None else f"#line 1 {json.dumps(str(self.path))}\n{self.text}"

    def _search_path(self) -> list[str]:
        """Folders for quoted includes: the source's own first, as if it lay there."""
        folders = dict.fromkeys([*([self.path.parent] if self.path else []), *(h.parent for h in self.headers)])
        return [part for folder in folders for part in ("-iquote", str(folder))] if self.headers else []

    def load(self, config: Config, problem: Problem, built: Built | None) -> CExecutable:
        """Make a Config ready to launch; compiles it here where `built` is `None`.

        Raises:
            CompileFailed: with all the compiler said; or when what it made can't be loaded.
        """
        command = self._command(config)
        path = (built or compile_one(command)).path
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # cut short by a full disk or a crash, or made by somebody else: make it anew, once
            path.unlink(missing_ok=True)
            path = compile_one(command).path
            library = _load(path)
        try:
            function = library[self.prototype.name]  # a new object each time: its argument types are its own
        except AttributeError:
            raise CompileFailed(
                f"{path} has no function {self.prototype.name!r}: is its definition switched off by a macro?"
            ) from None
        threads = config.get("threads", 1)
        assert isinstance(threads, int)
        launch = launcher(function, self.prototype, self.shapes, self.work, self._sizes(config), threads)
        return CExecutable(config, Resources(threads=threads, code_bytes=path.stat().st_size), launch, path)

    def _sizes(self, config: Config) -> dict[str, KnobValue]:
        """Knobs as a size may read them: the Config's, and the source's defaults that are plain integers."""
        usual = {
            n: int(text.strip("() "), 0)
            for n, text in self.macros.items()
            if text and re.fullmatch(r"\(*\s*\d+\s*\)*", text)
        }
        return {"threads": 1, **c_compiler.FLAG_DEFAULTS, **usual, **config}


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileFailed(f"what the compiler made can't be loaded: {error}", str(error)) from None
