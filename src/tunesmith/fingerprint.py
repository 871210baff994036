"""Names a Python function's content: its source, the functions it calls, the values it reads. Never where it lies.

What is part of it: the function's own source from its `def` on (decorators hold the space and are cut; comments,
blank lines and docstrings don't count), its defaults, and, followed by name through its globals, closure and the
attributes of modules, the same for each function and class of the user's own and the content of each value.
Functions of the standard library, of installed packages and of compiled modules are named and not entered;
`depends=` brings their versions in. A function whose source can't be had (exec, a prompt), and a lambda that is not the
only one of its parameters on its line, is named by bytecode and constants, which another Python spells otherwise.

A value that changes while the program runs gives another fingerprint then. What can't be identified raises.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import importlib.metadata
import inspect
import json
import linecache
import logging
import re
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path, PurePath
from typing import Any, TypeAlias, cast

from tunesmith.core.pycode import is_source_of, lambda_source, normalised, reads, written_in
from tunesmith.errors import BadInput, FingerprintError

#: packages that are named and never entered, even where the function asked about is theirs
_LIBRARIES = {"cupy", "cutlass", "flydsl", "jax", "numba", "numpy", "scipy", "torch", "triton"}
#: what decorators of FlyDSL's are told of a function: it changes what is compiled
_FLYDSL_OPTIONS = ("compile_hints", "_known_block_size", "_name")
#: types whose repr is their content
_PLAIN: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type(...), type(NotImplemented),
    PurePath, re.Pattern, Decimal, Fraction, date, time, timedelta, types.GenericAlias, types.UnionType,
)  # fmt: skip


def of_function(function: Callable[..., Any], *, version: str | None = None) -> str:
    """The fingerprint of a function, method, partial, or JIT-compiled function.

    Args:
        function: what is to be named.
        version: stands for the content: the caller answers for changing it when the content does.

    Raises:
        FingerprintError: when it reads something whose content can't be identified; names the variable and its type.
    """
    if version is not None:
        if not version:
            raise BadInput("version='' stands for nothing; give a text that you change with the kernel")
        return _hash([f"version {version}"])
    walk = _Walk(_package(getattr(function, "__module__", None)))
    walk.value(function, (getattr(function, "__name__", type(function).__name__),))
    return _hash(walk.parts)


def versions(depends: Iterable[str] = ()) -> dict[str, str]:
    """The versions of Python and of the packages a kernel says it depends on.

    Raises:
        BadInput: for a package that is not installed.
    """
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in depends:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise BadInput(
                f"depends names {package!r}, which is not installed; good values: names that pip list shows"
            ) from None
    return found


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(["tunesmith-fingerprint/1", *parts]).encode()).hexdigest()[:32]


# --- the walk --------------------------------------------------------------------------------------

#: how a value was reached, for messages: function, then variable, then parts of it
_Path: TypeAlias = tuple[str, ...]


class _Walk:
    """Writes down, in an order that depends on content alone, everything reachable from a function.

    Attributes:
        parts: what was written.
        package: the top-level package of the function asked about: it is entered wherever it lies.
    """

    def __init__(self, package: str) -> None:
        self.parts: list[str] = []
        self.package = package
        self._met: dict[int, int] = {}  # id of a function or class → when it was met
        self._open: list[int] = []  # ids of the containers around the value at hand: cycles end there
        self._kept: list[object] = []  # so that no id is given twice

    def say(self, kind: str, text: object = "") -> None:
        self.parts.append(f"{kind} {text}")

    def _is_new(self, thing: object) -> bool:
        if id(thing) in self._met:
            self.say("met", self._met[id(thing)])
            return False
        self._met[id(thing)] = len(self._met)
        self._kept.append(thing)
        return True

    # --- values ---

    def value(self, value: Any, path: _Path) -> None:
        """Write down a value's content."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, enum.Enum):
            self.say("enum", f"{kind.__module__}.{kind.__qualname__}.{value.name}")
            self.value(value.value, path)
        elif kind in _PLAIN or isinstance(value, (PurePath, re.Pattern)) or kind.__module__ == "typing":
            self.say(kind.__name__, repr(cast(object, value)))
        elif isinstance(value, types.ModuleType):
            self.module(value)
        elif isinstance(value, type):
            self.class_(value, path)
        elif not (self._callable(value, path) or self._array(value, path) or self._container(value, path)):
            self._refuse(value, path)

    def _callable(self, value: Any, path: _Path) -> bool:
        match value:
            case types.FunctionType():
                self.function(value)
            case types.MethodType():
                self.value(value.__func__, path)
                self.value(value.__self__, (*path, "__self__"))
            case functools.partial():
                self.say("partial")
                for part, name in ((value.func, "func"), (value.args, "args"), (value.keywords, "keywords")):
                    self.value(part, (*path, name))
            case types.BuiltinFunctionType():
                self.say("builtin", f"{value.__module__}.{value.__qualname__}")
                if value.__self__ is not None and not isinstance(value.__self__, types.ModuleType):
                    self.value(value.__self__, (*path, "__self__"))
            case types.WrapperDescriptorType() | types.MethodDescriptorType() | types.ClassMethodDescriptorType():
                self.say("builtin", f"{value.__objclass__.__module__}.{value.__qualname__}")
            case _:
                return self._callable_object(value, path)
        return True

    def _callable_object(self, value: Any, path: _Path) -> bool:
        """Objects that stand for a function: tuned and JIT-compiled kernels, caches, ufuncs of an installed package."""
        kind = cast("type[Any]", type(value))
        inner = getattr(value, "fn", None) or getattr(value, "__wrapped__", None) or _of_flydsl(value)
        name = getattr(value, "__name__", None)
        if callable(getattr(kind, "fingerprint", None)):
            self.say("kernel", value.fingerprint())
        elif inner is not None and callable(inner) and (hasattr(value, "run") or self._is_foreign_type(kind)):
            self.say("wrapped", kind.__qualname__)
            if inner is not _of_flydsl(value):
                self.value(inner, path)
            else:
                self.function(inner, rewritten=True)
                for option in _FLYDSL_OPTIONS:
                    self.value(getattr(value, option, None), (*path, option))
        elif callable(value) and isinstance(name, str) and self._is_foreign_type(kind):
            self.say("named", f"{kind.__module__}.{name}")
        else:
            return False
        return True

    def _is_foreign_type(self, kind: type) -> bool:
        return self._is_foreign(kind.__module__, _file_of_module(kind.__module__))

    def _array(self, value: Any, path: _Path) -> bool:
        """numpy's arrays and scalars, dtypes and devices of numpy, torch and Triton, constants of Triton and FlyDSL."""
        kind = cast("type[Any]", type(value))
        ours = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__}
        if ours & {("numpy", "ndarray"), ("numpy", "generic")} and not value.dtype.hasobject:
            self.say("array", f"{value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}")
        elif any(
            (top, name) in ours
            for top in ("numpy", "torch", "triton")
            for name in ("dtype", "device", "memory_format", "layout")
        ):
            self.say(kind.__name__, str(value))
        elif ("triton", "constexpr") in ours:
            self.say("constexpr")
            self.value(value.value, path)
        elif kind.__module__.startswith("flydsl.") and hasattr(value, "value"):
            self.say("constant", kind.__name__)
            self.value(value.value, path)
        else:
            return False
        return True

    def _container(self, value: Any, path: _Path) -> bool:
        match value:
            case tuple() | list() | deque():
                items = cast("Sequence[object]", value)
                parts: list[tuple[str, object]] = [(f"[{i}]", part) for i, part in enumerate(items)]
            case set() | frozenset():
                self.say("set", sorted(self._alone(part, path) for part in cast("Iterable[object]", value)))
                return True
            case dict() | types.MappingProxyType():
                pairs = cast("Mapping[object, object]", value).items()
                parts = [part for name, v in pairs for part in ((f"[{name!r}]", name), (f"[{name!r}]", v))]
            case types.SimpleNamespace():
                parts = [part for name, v in vars(value).items() for part in ((f".{name}", name), (f".{name}", v))]
            case logging.Logger():
                self.say("logger", value.name)
                return True
            case _ if is_dataclass(value):
                parts = [("", type(value)), *((f".{f.name}", getattr(value, f.name, None)) for f in fields(value))]
            case _:
                return False
        self._parts(cast(object, value), parts, path)
        return True

    def _parts(self, whole: object, parts: Sequence[tuple[str, object]], path: _Path) -> None:
        """Write down a container by its named parts."""
        if id(whole) in self._open:
            self.say("around", self._open.index(id(whole)))
            return
        self._open.append(id(whole))
        self.say(type(whole).__qualname__, len(parts))
        for name, part in parts:
            self.value(part, (*path, name))
        self._open.pop()

    def _alone(self, value: object, path: _Path) -> str:
        """A member of a set, written on its own so that members can be sorted."""
        walk = _Walk(self.package)
        walk.value(value, (*path, "{}"))
        return _hash(walk.parts)

    def _refuse(self, value: object, path: _Path) -> None:
        function, *variable = path
        spelled = "".join(variable[:1]) + "".join(
            part if part[:1] in "[.{" else f".{part}" for part in variable[1:] if part
        )
        what = f"{function!r} reads {spelled!r}, which is" if spelled else f"{function!r} is"
        raise FingerprintError(
            f"kernel {what} of type {type(value).__module__}.{type(value).__qualname__}: "
            "its content can't be identified. Pass it as an argument, make it a constant, "
            "or give the kernel version='…' to stand for all that it reads"
        )

    # --- functions, classes, modules ---

    def function(self, function: types.FunctionType, rewritten: bool = False) -> None:
        """Write down a function: by name if it is somebody else's, else source, defaults and all it reads.

        Args:
            rewritten: its code is made of its source and does not look like it.
        """
        code = _code_of(function)
        if _is_dsl_wrapper(function):
            self.say("dsl", code.co_name)
            self.value(cast(Any, function).__wrapped__, (function.__name__,))
            return
        if self._is_foreign(function.__module__, code.co_filename):
            self.say("named", f"{function.__module__}.{function.__qualname__}")
            return
        if not self._is_new(function):
            return
        source = _source(function, rewritten)
        self.say("source", source) if source is not None else self._code(code, function.__name__)
        name = function.__name__
        self.value(function.__defaults__, (name, "__defaults__"))
        self.value(function.__kwdefaults__, (name, "__kwdefaults__"))
        self._reads(function)

    def _reads(self, function: types.FunctionType) -> None:
        """Write down the values behind every name that a function's code takes from outside of it."""
        code = _code_of(function)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for kind, dotted in sorted(set(reads(code))):
            base, *attributes = dotted
            if kind == "import":
                self.say("import", base)
                for module in _modules_named(base, attributes, function):
                    self._imported(module)
                continue
            try:
                value = cells[base].cell_contents if kind == "closure" else _global(function, base)
            except (KeyError, ValueError):  # an empty cell
                raise FingerprintError(
                    f"kernel {function.__name__!r} reads {base!r}, which is not defined (yet): "
                    "define it before the kernel's first call"
                ) from None
            self.say(kind, base)
            self._attribute(value, attributes, (function.__name__, base))

    def _attribute(self, value: Any, attributes: Sequence[str], path: _Path) -> None:
        """Follow `helpers.scale` through modules; what is no module is written whole, whichever attribute is read."""
        for i, name in enumerate(attributes):
            if not isinstance(value, types.ModuleType):
                break
            if self._is_foreign(value.__name__, getattr(value, "__file__", None)):
                self.say("named", ".".join((value.__name__, *attributes[i:])))
                return
            self.say("attribute", name)
            if not hasattr(value, name):
                self.say("missing")
                return
            value, path = getattr(value, name), (*path, name)
        self.value(value, path)

    def _code(self, code: types.CodeType, name: str) -> None:
        self.say("code", f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_flags}")
        for const in code.co_consts:
            self._code(const, name) if isinstance(const, types.CodeType) else self.value(const, (name, "a constant"))

    def class_(self, cls: type, path: _Path) -> None:
        """Write down a class: its source, its bases, plain attributes, and what its methods read."""
        if self._is_foreign_type(cls):
            self.say("named", f"{cls.__module__}.{cls.__qualname__}")
            return
        if not self._is_new(cls):
            return
        source = _source(cls)
        self.say("class", cls.__qualname__ if source is None else source)
        for base in cls.__bases__:
            self.value(base, path)
        for name, member in sorted(vars(cls).items()):
            for method in _methods(member):
                self.say("method", name)
                if source is None:
                    self.function(method)
                elif not self._is_foreign(method.__module__, method.__code__.co_filename) and self._is_new(method):
                    self._reads(method)
            if type(member) in (*_PLAIN, tuple) and not name.startswith("__"):
                self.say("member", name)
                self.value(member, (cls.__name__, name))

    def module(self, module: types.ModuleType) -> None:
        """Write down a module that is read as a whole."""
        file = getattr(module, "__file__", None)
        self.say("module", module.__name__)
        if not self._is_foreign(module.__name__, file) and file is not None and self._is_new(module):
            self.say("file", _file_text(file))

    def _imported(self, name: str) -> None:
        """A module imported inside a function: it is not imported for this, its file is read."""
        try:
            spec = find_spec(name) if name else None
        except (ImportError, ValueError):
            spec = None
        # `frozen` and `built-in` are no places: such modules are Python's own
        if spec is not None and spec.has_location and spec.origin and not self._is_foreign(name, spec.origin):
            self.say("file", _file_text(spec.origin))

    def _is_foreign(self, module: str | None, file: str | None) -> bool:
        """Whether something belongs to Python, an installed package or tunesmith: it is named, and not entered."""
        package = _package(module)
        if package in _LIBRARIES or package == "builtins":
            return True
        if package == self.package:
            return False
        return package == "tunesmith" or _is_installed(package, file)


def _of_flydsl(value: Any) -> Any:
    """The function inside what FlyDSL's decorators make: a launcher's or a kernel's; `None` for anything else."""
    if not type(value).__module__.startswith("flydsl."):
        return None
    return getattr(value, "func", None) or getattr(value, "_func", None)


def _code_of(function: types.FunctionType) -> types.CodeType:
    """A function's code as it was written: CuTe DSL puts another in its place when it first compiles it."""
    original = getattr(function, "_original_code", None)
    if isinstance(original, types.CodeType):
        return original
    replaced = getattr(function, "_preprocessed", False) is True  # by a version that does not keep the original
    return _as_written(function.__code__) if replaced else function.__code__


@lru_cache(maxsize=1024)  # the file may be edited later
def _as_written(code: types.CodeType) -> types.CodeType:
    """What the file says of code that was put in another's place; the code itself where there is no such file."""
    return written_in("".join(linecache.getlines(code.co_filename)), code) or code


def _is_dsl_wrapper(function: types.FunctionType) -> bool:
    """Whether it is CuTe DSL's function around a user's (`@cute.jit`, `@cute.kernel`), which says where that is."""
    return _package(function.__globals__.get("__name__")) == "cutlass" and hasattr(function, "__wrapped__")


def _methods(member: Any) -> Iterator[types.FunctionType]:
    """The functions behind a class's attribute, less those that a decorator wrote (`dataclass`)."""
    parts = (member, getattr(member, "__func__", None), getattr(member, "func", None))
    for part in (*parts, *(getattr(member, name, None) for name in ("fget", "fset", "fdel"))):
        if isinstance(part, types.FunctionType) and part.__code__.co_filename != "<string>":
            yield part


def _modules_named(name: str, members: Sequence[str], function: types.FunctionType) -> list[str]:
    """The modules that an import statement may bring in: the one it names, and its members that are modules.

    Raises:
        FingerprintError: for a relative import of a function that belongs to no package.
    """
    if name.startswith("."):
        package = function.__globals__.get("__package__") or ""
        try:
            name = resolve_name(name, package)
        except ImportError as error:
            raise FingerprintError(
                f"kernel {function.__name__!r} imports {name!r}, and it can't be told what that is: {error}"
            ) from None
    return [name, *(f"{name}.{member}" for member in members if member != "*")]


def _global(function: types.FunctionType, name: str) -> Any:
    if name in function.__globals__:
        return function.__globals__[name]
    return vars(builtins)[name]


# --- whose it is -----------------------------------------------------------------------------------


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _file_of_module(module: str | None) -> str | None:
    return getattr(sys.modules.get(module or ""), "__file__", None)


@cache
def _is_installed(package: str, file: str | None) -> bool:
    if file is None or file.startswith("<"):
        return package in sys.stdlib_module_names
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "platstdlib"))


# --- source ----------------------------------------------------------------------------------------


def _file_text(file: str) -> str:
    """A module's source; of a compiled one, its content's hash."""
    content = Path(file).read_bytes()
    return content.decode() if file.endswith(".py") else hashlib.sha256(content).hexdigest()


def _source(thing: types.FunctionType | type, rewritten: bool = False) -> str | None:
    """What counts of a function's or class's source; `None` where it can't be had."""
    try:
        if isinstance(thing, types.FunctionType) and thing.__name__ == "<lambda>":
            lines, _ = inspect.findsource(thing)  # a lambda's own lines are seldom a statement: look through the file
            return lambda_source("".join(lines), thing.__code__)
        if isinstance(thing, types.FunctionType):  # its own code: getsource(thing) follows __wrapped__
            code = _code_of(thing)
            text = inspect.getsource(code)
            return normalised(text, code.co_name) if rewritten or is_source_of(text, code) else None
        return normalised(inspect.getsource(thing), thing.__name__)
    except (OSError, TypeError, SyntaxError):  # of a file that is being edited
        return None
