"""TARGET, as the command line spells a kernel: a shipped one's name, `module:attribute` or `path.py:attribute`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tunesmith.errors import BadInput, unknown
from tunesmith.targets import attribute_of, behind, import_file, module_of

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
    return _kernel_in(module_of(place), attribute, place)


def find_targets(text: str) -> list[TunedKernel]:
    """The tuned kernel that TARGET names; of a file or module without an attribute, every one in it.

    Raises:
        BadInput: when there is none; says which there are.
    """
    from tunesmith import kernels
    from tunesmith.tuned import TunedKernel

    if ":" in text or text in kernels.shipped():
        return [find_target(text)]
    found = [behind(value) for value in vars(module_of(text)).values()]
    mine = list(dict.fromkeys(value for value in found if isinstance(value, TunedKernel)))
    if not mine:
        raise BadInput(f"{text} has no tuned kernel")
    return mine


def _shipped(name: str) -> TunedKernel:
    if name.endswith(".py"):
        raise BadInput(f"{name!r} is a file; write {name}:attribute; {_tuned_there(import_file(Path(name)))}")
    from tunesmith import kernels

    shipped = kernels.shipped()
    if name in shipped:
        return shipped[name]
    raise BadInput(f"{unknown('kernel', name, shipped)}; or write module:attribute or path.py:attribute")


def _kernel_in(module: ModuleType, attribute: str, place: str) -> TunedKernel:
    from tunesmith.tuned import TunedKernel

    try:
        found: object = behind(attribute_of(module, attribute))
    except AttributeError:
        raise BadInput(f"{place} has no attribute {attribute!r}; {_tuned_there(module)}") from None
    if not isinstance(found, TunedKernel):
        kind = f"of type {type(found).__name__}, not a kernel with @tunesmith.autotune"
        raise BadInput(f"{place}:{attribute} is {kind}; {_tuned_there(module)}")
    return found


def _tuned_there(module: ModuleType) -> str:
    from tunesmith.tuned import TunedKernel

    names = [n for n, value in vars(module).items() if isinstance(behind(value), TunedKernel)]
    return f"tuned kernels there: {', '.join(names) or '(none)'}"
