"""The child's side of compiling a CuTe DSL function: find it, give it arguments without memory, export what comes."""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from tunesmith import fingerprint
from tunesmith.backends.cubin import usage
from tunesmith.backends.cute.arguments import ALIGNMENT_BYTES, Given, is_stream, numeric_of
from tunesmith.backends.cute.compile import INSTALL, Artifact, environment, object_beside
from tunesmith.backends.cute.launch import ENTRY
from tunesmith.backends.cute.object_file import cubin_in, launches_in
from tunesmith.core.outcome import Failed
from tunesmith.errors import CompileFailed, MissingEngine
from tunesmith.files import write_whole
from tunesmith.places import attribute_of, load

#: CuTe's types by what torch and numpy call them; what is not here is not CuTe's
_DTYPES = {
    "bool": "Boolean", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2",
    "float8_e8m0fnu": "Float8E8M0FNU",
    **{f"float{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
#: MLIR's state is the process's
_one_at_a_time = threading.Lock()
#: fingerprints of the functions that were found, by where
_sources: dict[str, str] = {}
#: what CuTe DSL read of the environment when it was imported: it reads it once
_environment_read: list[dict[str, str]] = []


def compile_config(*, where: str, path: list[str], source: str, **request: Any) -> Failed | None:
    """Compile a Config of the function that is found at `where`. Runs in a child.

    Args:
        path: where the parent looks for modules now; this child may be older than that.
    """
    sys.path[:] = path
    os.environ["CUTE_DSL_ARCH"] = str(request["arch"])  # before CuTe DSL is imported, which else takes sm_100a
    place, _, name = where.rpartition(":")
    function = _function_behind(attribute_of(load(place), name))
    if where not in _sources:  # as it was imported: the file may be edited, and this child keeps the old function
        _sources[where] = fingerprint.of_function(function) if source else ""
    if source and _sources[where] != source:
        return Failed("compile", f"{where} has changed since this program imported it: start the program anew")
    try:
        compile_function(function, **request)
    except CompileFailed as error:
        return Failed("compile", str(error), error.output)
    return None


def _function_behind(found: Any) -> Any:
    """The user's function at a name: there may be a tuned kernel in its place, or ours."""
    kernel = getattr(found, "kernel", found)
    return getattr(kernel, "function", kernel)


def compile_function(
    function: Any, *, is_built: bool, given: Mapping[str, Mapping[str, Any]], knobs: Mapping[str, Any],
    options: Sequence[str], arch: str, output: str,
) -> None:  # fmt: skip
    """Compile one Config and write its object file, then its Artifact, which says that all is there.

    Args:
        function: see `Program`. arch: as CuTe DSL calls it, `sm_90a`.

    Raises:
        CompileFailed: whatever went wrong, with all that CuTe DSL said.
    """
    arguments = {name: Given(**one) for name, one in given.items()}
    knobs = {name: _tuples(value) for name, value in knobs.items()}
    with _one_at_a_time, _Said():
        take_architecture(arch)
        host = function({name: _told(one) for name, one in arguments.items()}, **knobs) if is_built else function
        content, module, takes = _compiled(host, arguments, {} if is_built else knobs, options, arch)
    path = Path(output)
    write_whole(object_beside(path), content)
    write_whole(path, _artifact(content, module, takes).content())


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    return tuple(map(_tuples, cast("list[Any]", value))) if isinstance(value, list) else value


def take_architecture(arch: str) -> None:
    """CuTe DSL reads the environment once. What kernels ask it for (`get_arch_enum`) has to be what is compiled for.

    Raises:
        MissingEngine: where it can't be imported.
        CompileFailed: where the environment has changed since it was.
    """
    if not _environment_read:
        _environment_read.append(environment())
    if _environment_read[0] != environment():
        raise CompileFailed("CUTE_DSL_ variables have changed since CuTe DSL was imported: set them before", "")
    try:
        from cutlass.cutlass_dsl import CuTeDSL
    except ImportError as error:
        raise MissingEngine(f"CuTe DSL can't be imported ({error}): {INSTALL}") from error
    CuTeDSL._get_dsl().envar.arch = arch


def _compiled(
    host: Any, given: Mapping[str, Given], knobs: Mapping[str, Any], options: Sequence[str], arch: str
) -> tuple[bytes, str, tuple[str, ...]]:
    """The object file, the host code's text, and the names of a launch's arguments."""
    import cutlass.cute as cute

    positional, by_name, takes = _filled(host, given, knobs)
    asked = " ".join([*options, "--enable-tvm-ffi", f"--gpu-arch {arch}"])
    compiled = cute.compile(host, *positional, **by_name, options=asked)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launch.o"
        compiled.export_to_c(object_file_path=str(path), function_name=ENTRY)
        return path.read_bytes(), str(compiled.ir_module), takes


def _filled(
    host: Any, given: Mapping[str, Given], knobs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], tuple[str, ...]]:
    """What `cute.compile` is given for each parameter of a host function, by position and by name, and what is left."""
    from cutlass.cute.runtime import make_fake_stream

    positional, by_name, takes, in_order = list[Any](), dict[str, Any](), list[str](), True
    for p in inspect.signature(host).parameters.values():
        in_order = in_order and p.kind is not p.KEYWORD_ONLY
        if p.name in given:
            value = _made(given[p.name], p.annotation)
            takes += [p.name] * (given[p.name].kind != "value")
        elif p.name in knobs:
            value = knobs[p.name]
        elif is_stream(p):
            value = make_fake_stream(use_tvm_ffi_env_stream=True)  # the caller's current one
        elif p.default is not p.empty:
            in_order = False  # it keeps its default
            continue
        else:
            raise CompileFailed(f"{p.name!r} of {host!r} is neither an argument, a knob nor a stream", "")
        if in_order:
            positional.append(value)
        else:
            by_name[p.name] = value
    return positional, by_name, tuple(takes)


def _told(given: Given) -> Any:
    """What a `build` function learns of an argument: CuTe's type of an array, the value of what is compiled in."""
    import cutlass

    if given.kind == "array" or (given.kind == "value" and given.dtype):
        return getattr(cutlass, _DTYPES.get(given.dtype, given.dtype))
    return given.value if given.kind == "value" else given.kind


def _made(given: Given, annotation: Any) -> Any:
    """An argument without memory, or a value."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    if given.kind == "none":
        return None
    if given.kind == "value":
        return getattr(cutlass, given.dtype) if given.dtype else given.value
    if given.kind != "array":
        usual = {"int32": "Int32", "int64": "Int64", "float": "Float32", "bool": "Boolean"}[given.kind]
        return getattr(cutlass, numeric_of(annotation) or usual)(1)
    if given.dtype not in _DTYPES:
        raise CompileFailed(f"CuTe DSL has no dtype {given.dtype!r}; good ones: {', '.join(sorted(_DTYPES))}", "")
    dtype, many = getattr(cutlass, _DTYPES[given.dtype]), given.divisible
    unit = given.layout.find("1")
    shape = tuple(cute.sym_int(divisibility=many if i == unit else 1) for i in range(len(given.layout)))
    strides = tuple(int(c) if c in "01" else cute.sym_int64(divisibility=many) for c in given.layout)
    align = ALIGNMENT_BYTES if given.aligned else None
    return make_fake_tensor(dtype, shape, strides, assumed_align=align)


def _artifact(content: bytes, module: str, takes: tuple[str, ...]) -> Artifact:
    cubin = cubin_in(content)
    found, launches = usage(cubin), launches_in(module)
    shared = [one.shared_bytes for one in launches]
    threads = [one.threads for one in launches]
    return Artifact(
        takes,
        found.registers,
        found.stack_words,
        max((one for one in shared if one is not None), default=0) if None not in shared and shared else None,
        max((one for one in threads if one is not None), default=0) if None not in threads and threads else None,
        len(cubin),
    )


class _Said:
    """Whatever is raised within becomes a CompileFailed, in plain words: CuTe DSL colours and decorates its errors."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, (CompileFailed, MissingEngine)):
            detail = plain_text("".join(traceback.format_exception(error)))
            raise CompileFailed(reason_of(error), detail) from error


def plain_text(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def reason_of(error: BaseException) -> str:
    """The line that says why, without the place: the same mistake is to be counted as one."""
    while error.__cause__ is not None and "ICE" in str(error):  # CuTe DSL's wrapping of whatever it met
        error = error.__cause__
    text = plain_text(str(error))
    if "DriverDependencyError" in f"{type(error).__name__} {text}":
        return f"this CuTe DSL compiles only where there is an NVIDIA driver; newer ones do without: {INSTALL}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = next((line for line in lines if re.search(r"error:|Error\b", line)), lines[0] if lines else "")
    return " ".join(f"{type(error).__name__}: {telling.removeprefix(f'{type(error).__name__}: ')}".split())
