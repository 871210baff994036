"""Is a result right? One output against what a reference computed, relative to what its dtype allows.

An element's error is |got − expected| over |expected| + the row's scale, which is the mean of |expected| along the
last dimension: where terms cancel, what is left is as uncertain as the terms were. The mean and not the root of the
mean square: one outlier in a row of thousands would make that many times as large, and hide the others. A row's error
is the sum of |got − expected| over the sum of |expected|. Both have to be within the tolerance, each element and each
row of them: an average over all would hide a ruined row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from tunesmith.dispatch.arguments import dtype_name
from tunesmith.errors import BadInput, unknown
from tunesmith.measure.memory import as_bytes, is_torch, n_bytes

#: what is allowed for all floats, or for outputs by name; of integers by name the largest difference
Tolerance: TypeAlias = "float | Mapping[str, float]"
#: names of what a kernel returns
RETURNED = "the result"
#: How these are derived is part of what a stored Choice was checked by.
RULE = "dtype/1"
#: Distance from 1 to the next number.
EPS = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "complex128": 2.0**-52, "complex64": 2.0**-23, "complex32": 2.0**-10,
    **dict.fromkeys(("float96", "float128", "complex192", "complex256"), 2.0**-52),  # the reference's is float64
}  # fmt: skip
#: ... of 8-bit floats by how their names begin; others of 8 bits have no mantissa.
EPS_8_BIT = {"float8_e3m4": 2.0**-4, "float8_e4m3": 2.0**-3, "float8_e5m2": 2.0**-2}
#: TF32, in which GPUs multiply what is given as float32 (Triton's usual way), has float16's mantissa.
TF32 = "TF32"
#: A sum of K rounded terms is off by about √K roundings: up to K = 65536.
ROOT_K = 256
#: Roundings on the way to a 16-bit output, whose sums are kept in float32: of inputs, of intermediate results, its own.
ROUNDINGS = 4
#: Elements compared at once: in float64, with what is computed of them, below 1 GiB.
_AT_ONCE = 1 << 24


@dataclass(frozen=True, slots=True)
class Allowed:
    """How far a result may be from the reference's.

    Attributes:
        error: relative, of floats; the largest difference, of integers.
        because: what allows it: a dtype's name, or that the user said so.
    """

    error: float
    because: str

    def __str__(self) -> str:
        return f"{self.because} allows {self.error:.1e}"


def allowed_for(name: str, output: Any, inputs: tuple[Any, ...], tolerance: Tolerance | None) -> Allowed:
    """What is allowed for an output of this dtype, computed from these inputs.

    The least precise dtype decides, as intermediate results may be rounded to the inputs'. Inputs of 8-bit floats
    count as bfloat16: they are read and not computed in; an output of these is allowed its own rounding.
    """
    said = tolerance.get(name) if isinstance(tolerance, Mapping) else tolerance
    kind = dtype_name(output)
    if said is not None and (is_float(output) or isinstance(tolerance, Mapping)):
        return Allowed(float(said), "tolerance=")
    if not is_float(output):
        return Allowed(0.0, kind)
    if kind not in EPS:
        return Allowed(next((eps for begin, eps in EPS_8_BIT.items() if kind.startswith(begin)), 1.0), kind)
    names = [kind, *[dtype_name(array) for array in inputs]]
    kinds = [one if one in EPS else "bfloat16" for one in names if "float" in one or "complex" in one]
    worst = max(kinds, key=lambda one: EPS[one])
    if worst in ("float32", "complex64") and getattr(getattr(output, "device", None), "type", "cpu") == "cuda":
        return Allowed(ROUNDINGS * EPS["float16"], f"{worst} in {TF32}")
    return Allowed(EPS[worst] * (ROUNDINGS if EPS[worst] > 1e-6 else ROUNDINGS * ROOT_K), worst)


def spelled(tolerance: Tolerance | None) -> str:
    """A tolerance as it is stored: two that allow the same are spelled alike."""
    if tolerance is None:
        return RULE
    if isinstance(tolerance, Mapping):
        return f"{RULE}({','.join(f'{name}={float(value)!r}' for name, value in sorted(tolerance.items()))})"
    return repr(float(tolerance))


def check_tolerance(kernel: str, tolerance: Any, outputs: Sequence[str]) -> None:
    """Refuse a tolerance that makes no sense.

    Args:
        outputs: arguments that may be written.

    Raises:
        BadInput: naming it.
    """
    by_name = isinstance(tolerance, Mapping)
    said = cast("dict[str, Any]", dict(cast(Any, tolerance)) if by_name else {})
    for name in said:
        if name.partition(".")[0] not in (*outputs, RETURNED):
            raise BadInput(f"{kernel}: tolerance has {unknown('output', name, [*outputs, RETURNED])}")
    values: list[Any] = list(said.values()) if by_name else [tolerance]
    for value in values:
        if value is not None and not (type(value) in (int, float) and 0 <= value < float("inf")):
            raise BadInput(
                f"{kernel}: tolerance={tolerance!r}; good values: a number of at least 0, as 1e-3, or such numbers by "
                "the outputs' names"
            )


# --- poison ------------------------------------------------------------------------------------------------


def poison(output: Any, expected: Any | None) -> None:
    """Overwrite an output with what is surely wrong, so that an element that is not written shows.

    Floats become NaN, and 1 where NaN is expected; integers and bools the complement of what is expected.
    """
    xp = _engine(output)
    known = None if expected is None else _cast(_like(expected, output), output)
    if known is not None and tuple(known.shape) != tuple(output.shape):
        known = None  # which `wrong` will say
    if is_float(output):
        output[...] = float("nan")
        if known is not None and bool((nan := xp.isnan(_wide(known))).any()):
            output[nan] = 1.0
    elif "bool" in dtype_name(output):
        output[...] = True if known is None else ~known
    elif known is None:
        output[...] = int.from_bytes(b"\x5a" * (n_bytes(output) // max(1, _count(output))), "little")
    else:
        output[...] = (255 - as_bytes(known)).view(output.dtype).reshape(output.shape)


# --- comparing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worst:
    """The worst so far: how many times what is allowed, and what to say of it."""

    times: float = 0.0
    text: str = ""


def wrong(name: str, got: Any, expected: Any, allowed: Allowed, poisoned: Any | None = None) -> str:
    """What is wrong with an output, with where and how far; empty when it is right.

    Args:
        got: what the kernel wrote. expected: what the reference computed, in any precision.
        poisoned: what the output held before; elements that still do are not written.
    """
    expected = _like(expected, got)
    if tuple(got.shape) != tuple(expected.shape):
        return f"{name}: shape {tuple(got.shape)} where the reference has {tuple(expected.shape)}"
    with _no_float_warnings(got):
        return _wrong(name, got, expected, allowed, poisoned)


def _wrong(name: str, got: Any, expected: Any, allowed: Allowed, poisoned: Any | None) -> str:
    worst, off, n, unwritten = _Worst(), 0, 0, 0
    usual = _mean_size(expected)
    for start, some, want, before in _blocks(got, expected, poisoned):
        found = _judged(name, start, some, want, allowed, usual, tuple(got.shape))
        off, n = off + found[1], n + int(some.shape[0]) * int(some.shape[1])
        if found[0].times > worst.times:
            worst = found[0]
        if before is not None and found[1]:
            unwritten += _equal_elements(some, before)
    if not worst.times:
        return ""
    said = f"{worst.text} ({off:,} of {n:,} element{'s' if n > 1 else ''} {'are' if off > 1 else 'is'} off"
    return f"{said}; {unwritten:,} {'are' if unwritten > 1 else 'is'} not written)" if unwritten else f"{said})"


def differs(name: str, one: Any, other: Any) -> str:
    """Where two results that should be the same to the bit are not; empty when they are."""
    a, b = as_bytes(one), as_bytes(other)
    off = a != b
    n = int(off.sum())
    if not n:
        return ""
    off = off.reshape(_count(one), -1).any(1)
    first = int(off.nonzero()[0][0])
    return f"{name}: {int(off.sum()):,} elements, the first at {_place(first, tuple(one.shape))}"


def _blocks(got: Any, expected: Any, poisoned: Any | None) -> Iterator[tuple[int, Any, Any, Any | None]]:
    """(first row, rows of the result, of what is expected, of what was there before), some rows at once."""
    columns = int(got.shape[-1]) if len(got.shape) else 1
    if not columns or 0 in got.shape:
        return
    rows = got.reshape(-1, columns), expected.reshape(-1, columns)
    before = None if poisoned is None else poisoned.reshape(-1, columns)
    at_once = max(1, _AT_ONCE // columns)
    for start in range(0, len(rows[0]), at_once):
        part = slice(start, start + at_once)
        yield start, rows[0][part], rows[1][part], None if before is None else before[part]


def _judged(
    name: str, start: int, got: Any, want: Any, allowed: Allowed, usual: float, shape: tuple[int, ...]
) -> tuple[_Worst, int]:
    """The worst element or row of some rows, and how many elements are off."""
    xp = _engine(got)
    stored = _cast(want, got)  # what the dtype makes of it: an overflow to infinity is right
    if not is_float(got):
        return _judged_integers(name, start, got, stored, allowed, shape)
    wide, exact = _wide(got), _wide(want)
    ended = _wide(stored)
    special = ~(xp.isfinite(wide) & xp.isfinite(ended))
    agree = (wide == ended) | (xp.isnan(wide) & xp.isnan(ended))
    bad = special & ~agree
    size, error = xp.abs(exact), xp.abs(wide - exact)
    ordinary = ~special & xp.isfinite(size)
    size = xp.where(ordinary, size, xp.zeros_like(size))
    error = xp.where(ordinary & ~agree, error, xp.zeros_like(size))  # nothing is nearer than the nearest number
    scale = size.mean(1).reshape(-1, 1)
    scale = xp.where(scale > 0, scale, xp.zeros_like(scale) + usual)
    limit = allowed.error * (size + scale)
    relative = error / (size + scale)  # infinity where all that is expected is zeros
    off = bad | (error > limit)
    count = int(off.sum())
    by_row = error.mean(1) / xp.where(scale > 0, scale, xp.ones_like(scale)).reshape(-1)
    if bool(bad.any()):
        at = _first(bad)
        text = f"{_row(name, start, at, got, shape)}: {_said(got, at)} where {_said(stored, at)} is expected"
        return _Worst(float("inf"), text), count
    if count:
        at = _largest(xp.where(off, relative, xp.zeros_like(relative)))
        worst = float(relative[at])
        text = f"{_row(name, start, at, got, shape)}: error {worst:.1e} where {allowed}"
        text += f": {_said(got, at)} where {_said(want, at)} is expected"
        return _Worst(_times(worst, allowed), text), count
    if bool((by_row > allowed.error).any()):
        row = int(by_row.argmax())
        text = f"{name}, row {start + row}: all of it is off by {float(by_row[row]):.1e} where {allowed}"
        return _Worst(_times(float(by_row[row]), allowed), text), int(got.shape[1])
    return _Worst(), 0


def _judged_integers(
    name: str, start: int, got: Any, want: Any, allowed: Allowed, shape: tuple[int, ...]
) -> tuple[_Worst, int]:
    """The same for what is no float."""
    xp = _engine(got)
    error = xp.abs(_wide(got) - _wide(want))
    exactly = (as_bytes(got) != as_bytes(want)).reshape(_count(got), -1).any(1).reshape(got.shape)
    off = exactly if allowed.error == 0 else error > allowed.error
    if not bool(off.any()):
        return _Worst(), 0
    at = _largest(xp.where(off, error, xp.zeros_like(error)))
    text = f"{_row(name, start, at, got, shape)}: {_said(got, at)} where {_said(want, at)} is expected"
    return _Worst(max(1.0, float(error[at])), text), int(off.sum())


def _times(error: float, allowed: Allowed) -> float:
    return error / allowed.error if allowed.error else float("inf")


def _row(name: str, start: int, at: tuple[int, int], got: Any, shape: tuple[int, ...]) -> str:
    flat = (start + at[0]) * int(got.shape[1]) + at[1]
    return f"{name}, row {start + at[0]}, at {_place(flat, shape)}" if len(shape) > 1 else f"{name} at {flat}"


def _place(flat: int, shape: tuple[int, ...]) -> str:
    index: list[int] = []
    for n in reversed(shape):
        flat, last = divmod(flat, n)
        index.insert(0, last)
    return str(tuple(index)) if len(index) > 1 else str(index[0] if index else 0)


def _said(values: Any, at: tuple[int, int]) -> str:
    value = values[at].item()
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


# --- torch and numpy alike ---------------------------------------------------------------------------------


def _engine(array: Any) -> Any:
    if is_torch(array):
        import torch

        return torch
    import numpy as np

    return np


def is_float(array: Any) -> bool:
    """Whether its elements are floats or complex."""
    return "float" in dtype_name(array) or "complex" in dtype_name(array)


def _count(array: Any) -> int:
    """How many elements it has."""
    return int(array.numel() if is_torch(array) else array.size)


def _no_float_warnings(array: Any) -> Any:
    """numpy warns of NaN and infinity; here they are looked at."""
    return nullcontext() if is_torch(array) else _engine(array).errstate(all="ignore")


def _wide(array: Any) -> Any:
    """The values in float64 or complex128."""
    name = "complex128" if "complex" in dtype_name(array) else "float64"
    return array.to(getattr(_engine(array), name)) if is_torch(array) else array.astype(name)


def _cast(values: Any, like: Any) -> Any:
    """The values in the dtype of `like`, an overflow as infinity."""
    if is_torch(like):
        return values.to(like.dtype)
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(like.dtype)


def _like(values: Any, array: Any) -> Any:
    """What a reference returned as an array of the engine, and on the device, of `array`."""
    if is_torch(array):
        import torch

        return torch.as_tensor(values, device=array.device).detach()
    import numpy as np

    return np.asarray(values.detach().cpu() if is_torch(values) else values)


def _mean_size(expected: Any) -> float:
    """The mean of |expected|, the scale of a row of zeros; of floats that are finite."""
    xp, total = _engine(expected), 0.0
    for _, some, _, _ in _blocks(expected, expected, None):
        size = xp.abs(_wide(some))
        total += float(xp.where(xp.isfinite(size), size, xp.zeros_like(size)).sum())
    return total / max(1, _count(expected))


def _equal_elements(a: Any, b: Any) -> int:
    return int((as_bytes(a) == as_bytes(b)).reshape(_count(a), -1).all(1).sum())


def _first(mask: Any) -> tuple[int, int]:
    row = int(mask.any(1).nonzero()[0][0])
    column = int(mask[row].nonzero()[0][0])
    return row, column


def _largest(values: Any) -> tuple[int, int]:
    flat = int(values.reshape(-1).argmax())
    return divmod(flat, int(values.shape[1]))
