"""`Config`: one frozen point of a Space, knob name to value, with one spelling."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any, NoReturn, TypeAlias, cast

from tunesmith.errors import BadInput

#: What a knob can be set to. Tuples hold permutations (an order of loops, say).
KnobValue: TypeAlias = "int | float | bool | str | tuple[KnobValue, ...] | None"


class Config(Mapping[str, KnobValue]):
    """One point of a Space.

    Two Configs are equal exactly when their text is: `True`, `1` and `1.0` are three values.

    >>> Config({"BLOCK_M": 64}, num_warps=4)
    Config(BLOCK_M=64, num_warps=4)
    >>> Config(num_warps=4, BLOCK_M=64).text
    '{"BLOCK_M":64,"num_warps":4}'
    """

    __slots__ = ("_hash", "_knobs", "_text")
    _knobs: dict[str, KnobValue]
    _text: str
    _hash: int

    def __init__(self, knobs: Mapping[str, object] | None = None, /, **named: object) -> None:
        if not isinstance(knobs, (Mapping, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"a Config is made from a mapping of knobs, not from {knobs!r}")
        given = dict(knobs or {})
        twice = sorted(given.keys() & named.keys())
        if twice:
            raise BadInput(f"knob {twice[0]!r} is given twice: {given[twice[0]]!r} and {named[twice[0]]!r}")
        given.update(named)
        frozen = {_knob_name(name): _knob_value(name, given[name]) for name in sorted(given, key=str)}
        set_once = object.__setattr__
        set_once(self, "_knobs", frozen)
        set_once(self, "_text", json.dumps(frozen, separators=(",", ":"), ensure_ascii=False))
        set_once(self, "_hash", hash(self._text))

    @property
    def text(self) -> str:
        """The canonical spelling: JSON with sorted keys and no blanks."""
        return self._text

    @classmethod
    def parse(cls, text: str) -> Config:
        """Read the canonical spelling (or any JSON object).

        Raises:
            BadInput: when the text is not a JSON object of knob values.
        """
        try:
            knobs: Any = json.loads(text)
        except ValueError as error:
            raise BadInput(f"not a Config: {text[:80]!r} is not JSON ({error})") from None
        if not isinstance(knobs, dict):
            raise BadInput(f"not a Config: {text[:80]!r} is not a JSON object")
        return cls(knobs)  # pyright: ignore[reportUnknownArgumentType]

    def replace(self, **knobs: object) -> Config:
        """A copy with some knobs set to other values."""
        return Config({**self._knobs, **knobs})

    def __getitem__(self, name: str) -> KnobValue:
        return self._knobs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __len__(self) -> int:
        return len(self._knobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._text == other._text

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: Config) -> bool:
        return self._text < other._text

    def __repr__(self) -> str:
        """Python that makes this Config again, ready to paste."""
        # ASCII alone: Python reads µ and its look-alikes as one name
        if all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in self._knobs):
            return f"Config({', '.join(f'{name}={value!r}' for name, value in self._knobs.items())})"
        return f"Config({self._knobs!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Config is frozen; use config.replace({name}={value!r})")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Config is frozen")

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, KnobValue]]]:
        return Config, (self._knobs,)


def _knob_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise BadInput(f"a knob's name is a non-empty string, not {name!r}")
    return name


def _knob_value(name: object, value: object) -> KnobValue:
    if value is None or isinstance(value, (bool, str)):
        if isinstance(value, str) and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise BadInput(f"knob {name!r} is {value!r}: half of a surrogate pair is no text")
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(f"knob {name!r} is {value!r}: a knob is a finite number")
        return float(value)
    if isinstance(value, (tuple, list)):
        return tuple(_knob_value(name, part) for part in cast("tuple[object, ...]", value))
    raise BadInput(
        f"knob {name!r} is {value!r} of type {type(value).__name__}: "
        "a knob is an int, float, bool, str, None or a tuple of these"
    )
