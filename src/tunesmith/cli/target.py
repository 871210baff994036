"""TARGET, as the command line spells a kernel: a shipped one's name, `module:attribute` or `path.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tunesmith.errors import BadInput, MissingEngine, unknown

if TYPE_CHECKING:
    from tunesmith.tuned import TunedKernel

TargetArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A shipped kernel (see `tunesmith kernels`), module:attribute or path.py:attribute."
    ),
]


def find_target(text: str) -> TunedKernel:
    """The tuned kernel that TARGET names.

    Raises:
        BadInput: when there is none; says which there are.
    """
    place, colon, attribute = text.rpartition(":")
    if not colon:
        return _shipped(text)
    if not place or not attribute:
        raise BadInput(f"{text!r} is not a target; write matmul, module:attribute or path.py:attribute")
    is_file = place.endswith(".py") or "/" in place or "\\" in place
    module = _import_file(Path(place)) if is_file else _import_module(place)
    return _kernel_in(module, attribute, place)


def find_targets(text: str) -> list[TunedKernel]:
    """The tuned kernel that TARGET names; of a file or module without an attribute, every one in it.

    Raises:
        BadInput: when there is none; says which there are.
    """
    from tunesmith import kernels
    from tunesmith.tuned import TunedKernel

    if ":" in text or text in kernels.shipped():
        return [find_target(text)]
    module = _import_file(Path(text)) if text.endswith(".py") else _import_module(text)
    found = [getattr(value, "tuned", value) for value in vars(module).values()]
    mine = list(dict.fromkeys(value for value in found if isinstance(value, TunedKernel)))
    if not mine:
        raise BadInput(f"{text} has no tuned kernel")
    return mine


def _shipped(name: str) -> TunedKernel:
    if name.endswith(".py"):
        raise BadInput(f"{name!r} is a file; write {name}:attribute; {_tuned_there(_import_file(Path(name)))}")
    from tunesmith import kernels

    shipped = kernels.shipped()
    if name in shipped:
        return shipped[name]
    raise BadInput(f"{unknown('kernel', name, shipped)}; or write module:attribute or path.py:attribute")


def _kernel_in(module: ModuleType, attribute: str, place: str) -> TunedKernel:
    from tunesmith.tuned import TunedKernel

    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadInput(f"{place} has no attribute {attribute!r}; {_tuned_there(module)}")
        found = getattr(found, part)
    found = getattr(found, "tuned", found)  # what stands in for triton.autotune's object has its tuned kernel inside
    if not isinstance(found, TunedKernel):
        kind = f"of type {type(found).__name__}, not a kernel with @tunesmith.autotune"
        raise BadInput(f"{place}:{attribute} is {kind}; {_tuned_there(module)}")
    return found


def _tuned_there(module: ModuleType) -> str:
    from tunesmith.tuned import TunedKernel

    names = [n for n, value in vars(module).items() if isinstance(getattr(value, "tuned", value), TunedKernel)]
    return f"tuned kernels there: {', '.join(names) or '(none)'}"


def _import_module(name: str) -> ModuleType:
    """Import by name, the current folder first, as `python -m` does."""
    with_folder = [str(Path.cwd()), *sys.path]
    return _imported(name, name, with_folder, lambda: importlib.import_module(name))


def _import_file(path: Path) -> ModuleType:
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
    from tunesmith.measure.failure import attempt

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
