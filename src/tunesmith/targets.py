"""Where a kernel is found by name: `module:attribute` or `path.py:attribute`, both ways."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tunesmith.errors import BadInput, MissingEngine
from tunesmith.measure.failure import attempt
from tunesmith.places import attribute_of, is_file, load, load_file, place_of

__all__ = ["attribute_of", "behind", "import_file", "module_of", "target_of"]

#: decorators around one kernel (triton.heuristics around autotune); an object whose `fn` is itself has no end of them
_LAYERS = 8


def module_of(place: str) -> ModuleType:
    """The module that the part of a target before its colon names, imported.

    Raises:
        BadInput: when there is none, or it can't be imported: in one line, with its place.
    """
    return import_file(Path(place)) if is_file(place) else _imported(place, place, lambda: load(place))


def behind(value: Any) -> Any:
    """The tuned kernel behind an object that stands in for triton.autotune's, or behind what is around one."""
    for _ in range(_LAYERS):
        if hasattr(value, "tuned") or not hasattr(value, "fn"):
            break
        value = value.fn
    return getattr(value, "tuned", value)


def import_file(path: Path) -> ModuleType:
    """Import a file under its own name, wherever it lies. Its folder can be imported from while it is."""
    if not path.is_file():
        raise BadInput(f"there is no file {str(path)!r}" if not path.exists() else f"{str(path)!r} is not a file")
    if path.suffix != ".py":
        raise BadInput(f"{str(path)!r} is not a Python file; write path.py:attribute")
    return _imported(str(path), str(path.resolve()), lambda: load_file(path))


def _imported(what: str, file: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Run an import, whatever it may raise: someone's module is no bug of ours, and gets one line with its place."""
    module, failure, error = attempt("load", load)
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
                place, why = place_of(module)
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
