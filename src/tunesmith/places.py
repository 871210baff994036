"""Where a function is found by another process: the name of a module, or a file; and how it is imported from there."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def is_file(place: str) -> bool:
    """Whether a place is a file's path, not a module's name."""
    return place.endswith(".py") or "/" in place or "\\" in place


def load(place: str) -> ModuleType:
    """Import what `place_of` named. Raises whatever the module raises, and what `load_file` does."""
    if is_file(place):
        return load_file(Path(place))
    with _searched([str(Path.cwd()), *sys.path]):  # the current folder first, as `python -m` does
        return importlib.import_module(place)


def load_file(path: Path) -> ModuleType:
    """Import a file under its own name, wherever it lies. Its folder can be imported from while it is.

    Raises:
        ImportError: for a file that is no Python.
        Exception: whatever the module raises.
    """
    file = path.resolve()
    # A file may be named like a module that is loaded (`random.py`): then it goes by another name.
    names = (file.stem, f"_target_{file.stem}")
    for taken in map(sys.modules.get, names):
        if taken is not None and getattr(taken, "__file__", None) == str(file):
            return taken
    name = names[file.stem in sys.modules]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that what it defines can be found by name
    try:
        with _searched([str(file.parent), *sys.path]):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


@contextmanager
def _searched(path: Sequence[str]) -> Generator[None]:
    before, sys.path[:] = list(sys.path), path
    try:
        yield
    finally:
        sys.path[:] = before


def attribute_of(module: ModuleType, attribute: str) -> Any:
    """What an attribute's dotted name stands for.

    Raises:
        AttributeError: when there is none.
    """
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def place_of(module: ModuleType) -> tuple[str, str]:
    """(how another process imports a module, why it can't): one of them is empty."""
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
