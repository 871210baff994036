"""What a reference makes of a kernel's arguments: in float64 where it can, by output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tunesmith.dispatch.arguments import dtype_name, is_numpy_scalar, leaves
from tunesmith.measure.arrays import mapped
from tunesmith.measure.failure import attempt
from tunesmith.measure.inputs import taken_by
from tunesmith.measure.memory import copied, has_content, is_torch, readable
from tunesmith.measure.verify import Allowed, is_float, wrong

#: between an argument and its own copy in float64
SAME = Allowed(0.0, "")


class BadReference(Exception):
    """The reference can't be used."""


class OtherOutputs(Exception):
    """A candidate has not the outputs that the reference has: `arrays`, where it returns them."""

    def __init__(self, text: str, arrays: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.arrays = arrays


def expected(
    kernel: str, reference: Callable[..., Any], arguments: Mapping[str, Any], outputs: Sequence[str], declared: bool
) -> dict[str, Any]:
    """Call the reference on copies of the arguments, floats in float64; where it refuses these, in their own dtype.

    Args:
        kernel: for messages.
        outputs: what the kernel writes or returns, in the order in which the reference returns it.
        declared: whether its author says so, and not what one candidate did.

    Raises:
        BadReference: when it fails, or returns other than so many arrays that are declared.
        OtherOutputs: when it returns or writes other arrays than the candidate.
    """
    for widen in (True, False):
        given = {name: mapped(lambda v, wide=widen: _copy(v, wide), value) for name, value in arguments.items()}
        returned, failure, error = attempt("launch", lambda given=given: reference(**taken_by(reference, given)))
        if failure is None:
            found = _by_name(kernel, returned, given, outputs, declared)
            if not declared:
                _refuse_more(found, returned, given, arguments, outputs)
            return found
    assert failure is not None
    raise BadReference(f"{kernel}: its reference failed: {failure.reason}") from error


def _by_name(
    kernel: str, returned: Any, given: Mapping[str, Any], outputs: Sequence[str], declared: bool
) -> dict[str, Any]:
    found: dict[str, Any]
    kind = type(returned).__name__
    if returned is None:  # it wrote its arguments, as the kernel does
        found = {leaf: array for name in given for leaf, array in readable(name, given[name]) if leaf in outputs}
    elif isinstance(returned, Mapping):
        found = dict(cast("Mapping[str, Any]", returned))
    else:
        arrays = returned_arrays(returned)
        if len(arrays) != len(outputs) and arrays and not declared:
            gives = f"it gives {', '.join(outputs)}" if outputs else "it returns and writes nothing"
            text = f"{gives}, and its reference {len(arrays)} arrays; name what is written, outputs=[…]"
            raise OtherOutputs(text, arrays)
        found = dict(zip(outputs, arrays, strict=False)) if len(arrays) == len(outputs) else {}
    missing = [name for name in outputs if name not in found]
    if missing:
        raise BadReference(
            f"{kernel}: its reference returned {kind}; expected the {len(outputs)} arrays {', '.join(outputs)}, in "
            "this order or by name"
        )
    return found


def returned_arrays(returned: Any) -> list[Any]:
    """What a function returned, a number as an array of one element."""
    if isinstance(returned, (int, float, complex)) or is_numpy_scalar(returned):
        import numpy as np

        return [np.asarray(returned)]
    return [array for _, array in leaves("", returned)]


def _refuse_more(
    found: Mapping[str, Any], returned: Any, given: Mapping[str, Any], arguments: Mapping[str, Any],
    outputs: Sequence[str],
) -> None:  # fmt: skip
    """Refuse a candidate that writes less than the reference.

    Raises:
        OtherOutputs: naming what it does not write.
    """
    if returned is None:
        before = dict(leaf for name, value in arguments.items() for leaf in readable(name, value))
        after = dict(leaf for name, value in given.items() for leaf in readable(name, value))
        more = [name for name in before if name not in outputs and wrong(name, before[name], after[name], SAME)]
    else:
        more = [name for name in found if name not in outputs]
    if more:
        raise OtherOutputs(f"it does not write {', '.join(more)}, as its reference does")


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
