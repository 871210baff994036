"""Where a kernel is found by name: `module:attribute` or `path.py:attribute`, both ways."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tunesmith.errors import BadInput, MissingEngine
from tunesmith.measure.failure import attempt

#: decorators around one kernel (triton.heuristics around autotune); an object whose `fn` is itself has no end of them
_LAYERS = 8


def module_of(place: str) -> ModuleType:
    """The module that the part of a target before its colon names, imported.

    Raises:
        BadInput: when there is none, or it can't be imported: in one line, with its place.
    """
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    return import_file(Path(place)) if is_file else _import_module(place)


def behind(value: Any) -> Any:
    """The tuned kernel behind an object that stands in for triton.autotune's, or behind what is around one."""
    for _ in range(_LAYERS):
        if hasattr(value, "tuned") or not hasattr(value, "fn"):
            break
        value = value.fn
    return getattr(value, "tuned", value)


def attribute_of(module: ModuleType, attribute: str) -> Any:
    """What an attribute's dotted name stands for.

    Raises:
        AttributeError: when there is none.
    """
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _import_module(name: str) -> ModuleType:
    """Import by name, the current folder first, as `python -m` does."""
    with_folder = [str(Path.cwd()), *sys.path]
    return _imported(name, name, with_folder, lambda: importlib.import_module(name))


def import_file(path: Path) -> ModuleType:
    """Import a file under its own name, wherever it lies. Its folder can be imported from while it is."""
    if not path.is_file():
        raise BadInput(f"there is no file {str(path)!r}" if not path.exists() else f"{str(path)!r} is not a file")
    file = path.resolve()
    # A file may be named like a module that is loaded (`random.py`): then it goes by another name.
    names = (file.stem, f"_target_{file.stem}")
    for taken in map(sys.modules.get, names):
        if taken is not None and getattr(taken, "__file__", None) == str(file):
            return taken
    name = names[file.stem in sys.modules]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadInput(f"{str(path)!r} is not a Python file; write path.py:attribute")
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def load() -> ModuleType:
        sys.modules[name] = module  # before it runs, so that what it defines can be found by name
        loader.exec_module(module)
        return module

    try:
        return _imported(str(path), str(file), [str(file.parent), *sys.path], load)
    except BadInput:
        sys.modules.pop(name, None)
        raise


def _imported(what: str, file: str, search_path: list[str], load: Callable[[], ModuleType]) -> ModuleType:
    """Run an import, whatever it may raise: someone's module is no bug of ours, and gets one line with its place."""
    before, sys.path[:] = list(sys.path), search_path
    try:
        module, failure, error = attempt("load", load)
    finally:
        sys.path[:] = before
    if isinstance(error, MissingEngine):
        raise error
    if module is None or failure is not None:
        assert failure is not None and error is not None
        raise BadInput(f"{what} cannot be imported: {failure.reason}{_line_in(file, error)}") from error
    return module


def _line_in(file: str, error: BaseException) -> str:
    """Where in a file an error came up, if it did there."""
    if isinstance(error, SyntaxError):
        return ""  # says so itself
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {lines[-1]})" if lines else ""


# --- from a kernel to its name -----------------------------------------------------------------------


def target_of(kernel: object) -> tuple[str, str]:
    """(the target at which another process finds this very kernel, why there is none): one of them is empty."""
    whys: list[str] = []
    main = sys.modules.get("__main__")
    # what a program has imported is better found where it comes from
    for module in [*(module for module in list(sys.modules.values()) if module is not main), main]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if module is not None and (value is kernel or _is_behind(value, kernel)):
                place, why = _place_of(module)
                if place:
                    return f"{place}:{name}", ""
                whys.append(why)
    whys.append("no module has it as an attribute (it was made in a function, or is known by another name)")
    return "", whys[0]


def _is_behind(value: Any, kernel: object) -> bool:
    """Whether it is an object of Triton's kind (a decorator's, around a function `fn`) with this kernel inside."""
    try:
        mine = object.__getattribute__(value, "__dict__")  # others' objects may warn when they are asked
    except AttributeError:
        return False
    return "fn" in mine and behind(value) is kernel


def _place_of(module: ModuleType) -> tuple[str, str]:
    """(how another process imports a module, why it can't)."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        return _place_of_main(module, file)
    if _would_find(module, file):
        return module.__name__, ""
    if file is not None and file.endswith(".py"):
        return str(Path(file).resolve()), ""
    return "", f"module {module.__name__} can't be imported by another process"


def _place_of_main(module: ModuleType, file: str | None) -> tuple[str, str]:
    if file is None or not Path(file).is_file():
        return "", "it is defined at a prompt or in a notebook; define it in a module"
    if not re.search(r"^if\s+__name__\s*==\s*['\"]__main__['\"]", Path(file).read_text(errors="replace"), re.MULTILINE):
        return "", (
            f"{file} is the program itself and importing it would run it; move what runs under "
            'if __name__ == "__main__":, or the kernel to a module'
        )
    spec = getattr(module, "__spec__", None)  # of python -m
    return (spec.name if spec is not None else str(Path(file).resolve())), ""


def _would_find(module: ModuleType, file: str | None) -> bool:
    """Whether an import by its name finds this module's file."""
    parent, _, _ = module.__name__.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else [str(Path.cwd()), *sys.path]
    for finder in sys.meta_path:
        spec = finder.find_spec(module.__name__, path)
        if spec is not None:
            return file is not None and spec.origin == file
    return False
