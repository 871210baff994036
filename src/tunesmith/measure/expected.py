"""What a reference makes of a kernel's arguments: in float64 where it can, by output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tunesmith.dispatch.arguments import dtype_name, leaves
from tunesmith.measure.arrays import mapped
from tunesmith.measure.failure import attempt
from tunesmith.measure.inputs import taken_by
from tunesmith.measure.memory import copied, has_content, is_torch, readable
from tunesmith.measure.verify import is_float


class BadReference(Exception):
    """The reference can't be used."""


def expected(
    kernel: str, reference: Callable[..., Any], arguments: Mapping[str, Any], outputs: Sequence[str]
) -> dict[str, Any]:
    """Call the reference on copies of the arguments, floats in float64; where it refuses these, in their own dtype.

    Args:
        kernel: for messages.
        outputs: what the kernel writes or returns, in the order in which the reference returns it.

    Raises:
        BadReference: when it fails, or returns other than so many arrays.
    """
    for widen in (True, False):
        given = {name: mapped(lambda v, wide=widen: _copy(v, wide), value) for name, value in arguments.items()}
        returned, failure, error = attempt("launch", lambda given=given: reference(**taken_by(reference, given)))
        if failure is None:
            return _by_name(kernel, returned, given, outputs)
    assert failure is not None
    raise BadReference(f"{kernel}: its reference failed: {failure.reason}") from error


def _by_name(kernel: str, returned: Any, given: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any]
    kind = type(returned).__name__
    if returned is None:  # it wrote its arguments, as the kernel does
        found = {leaf: array for name in given for leaf, array in readable(name, given[name]) if leaf in outputs}
    elif isinstance(returned, Mapping):
        found = dict(cast("Mapping[str, Any]", returned))
    else:
        arrays = [array for _, array in leaves("", returned)]
        if not arrays and len(outputs) == 1 and isinstance(returned, (int, float, complex)):
            arrays = [returned]
        found = dict(zip(outputs, arrays, strict=False)) if len(arrays) == len(outputs) else {}
    missing = [name for name in outputs if name not in found]
    if missing:
        raise BadReference(
            f"{kernel}: its reference returned {kind}; expected the {len(outputs)} arrays {', '.join(outputs)}, in "
            "this order or by name"
        )
    return found


def _copy(value: Any, widen: bool) -> Any:
    """A copy of an array, floats in float64; anything else itself."""
    if not has_content(value):
        return value
    if not (widen and is_float(value)):
        return copied(value)
    name = "complex128" if "complex" in dtype_name(value) else "float64"
    if is_torch(value):
        import torch

        return value.detach().to(getattr(torch, name), copy=True)
    return value.astype(name)
