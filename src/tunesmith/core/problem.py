"""`Problem`: one call's shape, dtypes and flags, with one spelling; and the buckets that make shapes alike."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, TypeAlias

from tunesmith.errors import ProblemError, unknown

#: What a field of a Problem can be.
FieldValue: TypeAlias = "int | float | bool | str | None"

#: dtype names, as torch, numpy and Triton spell them alike.
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128",
)  # fmt: skip

#: digits of the longest integer that is read: far beyond any size, and short enough for Python's own limit
LONGEST_INT = 100
#: text that means a number, a truth value or nothing, so that a string of this form must be quoted
_INT = re.compile(r"[+-]?\d+\Z")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?\Z")
_WORDS: Mapping[str, FieldValue] = {"true": True, "false": False, "none": None}


class Problem(Mapping[str, FieldValue]):
    """One call's shape: dimensions as integers, `ARG.dtype`, `ARG.strides` and `ARG.align` of its arrays, flags.

    Two Problems are equal exactly when their text is.

    >>> Problem({"M": 512, "causal": True, "x.dtype": "float16"})
    Problem('M=512,causal=true,x.dtype=float16')
    >>> Problem.parse("x.dtype=float16,M=512,causal=true")["M"]
    512
    """

    __slots__ = ("_fields", "_hash", "_text")
    _fields: dict[str, FieldValue]
    _text: str
    _hash: int

    def __init__(self, fields: Mapping[str, object]) -> None:
        frozen = {_field_name(name): _field_value(name, fields[name]) for name in sorted(fields)}
        set_once = object.__setattr__
        set_once(self, "_fields", frozen)
        set_once(self, "_text", ",".join(f"{name}={_spell(value)}" for name, value in frozen.items()))
        set_once(self, "_hash", hash(self._text))

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Read `M=512,dtype=float16,causal=true`.

        Raises:
            ProblemError: for text that is not `NAME=VALUE,…`, or a name given twice.
        """
        fields: dict[str, FieldValue] = {}
        for part in _split(text):
            name, equals, value = part.partition("=")
            name = name.strip()
            if not equals or not name:
                raise ProblemError(f"{part.strip()!r} in {text!r} is not NAME=VALUE; write M=512,N=512,dtype=float32")
            if name in fields:
                raise ProblemError(f"{name!r} is given twice in {text!r}")
            fields[name] = read_value(value.strip())
        return cls(fields)

    @property
    def text(self) -> str:
        """The canonical spelling: fields sorted by name, no blanks."""
        return self._text

    @property
    def dims(self) -> dict[str, int]:
        """The fields that are integers."""
        return {name: value for name, value in self._fields.items() if type(value) is int}

    def replace(self, **fields: object) -> Problem:
        """A copy with some fields set."""
        return Problem({**self._fields, **fields})

    def differences(self, other: Problem) -> list[str]:
        """The fields in which two Problems differ, as `offs.dtype: int32, known: int64`."""
        return [f"{name}: {mine}, known: {known}" for name, mine, known in self.differing(other)]

    def differing(self, other: Problem) -> list[tuple[str, str, str]]:
        """The same as (field, this one's value, the other's), each as it is spelled."""
        names = sorted({*self, *other})
        absent = "(absent)"
        mine = {name: _spell(self[name]) if name in self else absent for name in names}
        known = {name: _spell(other[name]) if name in other else absent for name in names}
        return [(name, mine[name], known[name]) for name in names if mine[name] != known[name]]

    def __getitem__(self, name: str) -> FieldValue:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._text == other._text

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Problem({self._text!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Problem is frozen; use problem.replace(…)")

    def __reduce__(self) -> tuple[type[Problem], tuple[dict[str, FieldValue]]]:
        return Problem, (self._fields,)


def read_value(text: str) -> FieldValue:
    """What a spelled value means: an integer, a float, true, false, none, or a string (quoted or not)."""
    if text.startswith('"'):
        try:
            value: object = json.loads(text)
        except ValueError:
            raise ProblemError(f"{text!r} starts with a quote and is not a quoted string") from None
        return str(value)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.match(text):
        if len(text) > LONGEST_INT:
            raise ProblemError(f"{text[:20]}… has {len(text)} digits; good values: integers of at most {LONGEST_INT}")
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def _spell(value: FieldValue) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    plain = bool(value) and not re.search(r'[,="\s]', value) and read_value(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside quotes."""
    parts = re.findall(r'(?:[^,"]|"(?:[^"\\]|\\.)*"|")+', text)
    return [part for part in parts if part.strip()]


def _field_name(name: object) -> str:
    if not isinstance(name, str) or not name or re.search(r'[,="\s]', name):
        raise ProblemError(f"a Problem's field is named by a word without blanks, commas, quotes or '=', not {name!r}")
    return name


def _field_value(name: object, value: object) -> FieldValue:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if abs(value) >= 10**LONGEST_INT:
            raise ProblemError(f"field {name!r} is an integer of more than {LONGEST_INT} digits")
        return int(value)
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ProblemError(f"field {name!r} is {value!r}: a field is a finite number")
        return float(value)
    index: Callable[[], int] | None = getattr(value, "__index__", None)  # numpy's and torch's integers
    if index is not None and not hasattr(value, "shape"):
        return int(index())
    if index is not None and getattr(value, "shape", None) == () and "int" in str(getattr(value, "dtype", "")):
        return int(index())
    raise ProblemError(
        f"field {name!r} is {value!r} of type {type(value).__name__}: a field is an int, float, bool, str or None. "
        "Name a size, not an array, in key="
    )


# --- from what a user writes to what a kernel takes ---------------------------------------------


def complete(
    given: Problem,
    dims: Sequence[str],
    arrays: Sequence[str],
    dtypes: Mapping[str, Sequence[str]],
    optional: Mapping[str, object],
) -> Problem:
    """A Problem as a user spells it, checked and with every field in place.

    Args:
        given: what was written: dimensions, `dtype=` for all arrays or `ARG.dtype=` for one, flags.
        dims: the dimensions that must be there, integers of at least 0.
        arrays: the kernel's array arguments; none for a kernel that does not say, which then takes any `.dtype`.
        dtypes: for each array, the dtype names it takes, the first being what it gets when nothing is said; without any
            it takes all, and the Problem says nothing of it unless asked.
        optional: flags and other fields with the value they have when nothing is said.

    Raises:
        ProblemError: naming the bad field and the good ones.
    """
    known = [*dims, "dtype", *[f"{array}.dtype" for array in arrays], *optional]
    said = [] if arrays else [name for name in given if name == "dtype" or name.endswith(".dtype")]
    for name in given:
        if name not in known and name not in said:
            raise ProblemError(unknown("problem field", name, known))
    fields: dict[str, object] = {name: _dimension(name, given, dims) for name in dims}
    for array in arrays:
        usual = dtypes.get(array)  # none for an array of any dtype: unasked, it is as `make_inputs` makes it
        good = usual or DTYPES
        asked = given.get(f"{array}.dtype", given.get("dtype", usual[0] if usual else None))
        if asked is None:
            continue
        if asked not in good:
            raise ProblemError(f"{array}.dtype cannot be {_spell(asked)}; good values: {', '.join(good)}")
        fields[f"{array}.dtype"] = asked
    for name in said:  # of a kernel that does not say which arrays it takes
        if given[name] not in DTYPES:
            raise ProblemError(f"{name} cannot be {_spell(given[name])}; good values: {', '.join(DTYPES)}")
        fields[name] = given[name]
    for name, usual in optional.items():
        fields[name] = _flag(name, given.get(name, usual), usual)
    return Problem(fields)


def _dimension(name: str, given: Problem, dims: Sequence[str]) -> int:
    if name not in given:
        raise ProblemError(f"dimension {name!r} is missing; needed: {', '.join(dims)}")
    value = given[name]
    if type(value) is not int:
        raise ProblemError(f"dimension {name!r} is {_spell(value)}; good values: integers from 0")
    if value < 0:
        raise ProblemError(f"dimension {name!r} is {value}; good values: integers from 0")
    return value


def _flag(name: str, value: object, usual: object) -> object:
    if isinstance(usual, bool) and not isinstance(value, bool):
        raise ProblemError(f"flag {name!r} is {value}; good values: true, false")
    if type(usual) is int and type(value) is not int:
        raise ProblemError(f"field {name!r} is {value}; good values: integers")
    return value


# --- buckets --------------------------------------------------------------------------------------

#: How a dimension is bucketed: `"pow2"`, a list of upper edges, or a function of the value.
Bucket: TypeAlias = "str | Sequence[int] | Callable[[int], FieldValue]"


def next_power_of_two(n: int) -> int:
    """The bucket of `"pow2"`: the least power of two that is at least `n`; 0 and below are a bucket of their own, 0.

    >>> [next_power_of_two(n) for n in (-1, 0, 1, 2, 3, 4096, 4097)]
    [0, 0, 1, 2, 4, 4096, 8192]
    """
    return 1 << (n - 1).bit_length() if n > 0 else 0


class Edges:
    """The bucket of a list of upper edges: the least edge that is at least `n`.

    What is above the last edge is one more bucket, spelled with a plus.

    >>> by = Edges([256, 1024]); [by(n) for n in (0, 256, 257, 5000)]
    [256, 256, 1024, '1024+']
    """

    def __init__(self, edges: Iterable[int]) -> None:
        self.edges = tuple(edges)
        if not self.edges or any(type(e) is not int for e in self.edges) or list(self.edges) != sorted(set(self.edges)):
            raise ProblemError(f"bucket edges {list(self.edges)!r}: give integers, each larger than the one before")

    def __call__(self, n: int) -> FieldValue:
        i = bisect_left(self.edges, n)
        return self.edges[i] if i < len(self.edges) else f"{self.edges[-1]}+"


def bucket(how: Bucket) -> Callable[[int], FieldValue]:
    """The function that maps a value to its bucket.

    Raises:
        ProblemError: for a way of bucketing that does not exist.
    """
    if how == "pow2":
        return next_power_of_two
    if isinstance(how, str):
        raise ProblemError(f"{unknown('bucket', how, ['pow2'])}, or a list of edges, or a function")
    return how if callable(how) else Edges(how)


# --- strides --------------------------------------------------------------------------------------


def stride_classes(strides: Sequence[int]) -> str:
    """Each stride, in elements, as 0 (broadcast), 1 (contiguous) or x (other).

    >>> stride_classes((4096, 1))
    'x1'
    """
    return "".join("0" if s == 0 else "1" if s == 1 else "x" for s in strides)
