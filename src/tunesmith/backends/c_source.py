"""Reads C just far enough: comments, the prototype of one function, macros that are knobs, quoted includes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from types import MappingProxyType

from tunesmith.core.config import KnobValue
from tunesmith.errors import BadInput, SpaceError, unknown

#: what an array argument may point to: C type → dtype
ARRAY_TYPES: Mapping[str, str] = MappingProxyType({
    "float": "float32", "double": "float64", "_Bool": "bool", "bool": "bool",
    "int8_t": "int8", "int16_t": "int16", "int32_t": "int32", "int64_t": "int64",
    "uint8_t": "uint8", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64",
})  # fmt: skip
#: what a scalar argument may be
SCALAR_TYPES = ("int", "long", "int32_t", "int64_t", "size_t", "float", "double")

_SUPPORTED = f"pointers (const or not) to {', '.join(ARRAY_TYPES)}; scalars {', '.join(SCALAR_TYPES)}"
_RESTRICT = {"restrict", "__restrict", "__restrict__"}
#: the parameters of a kernel that is split over threads
_SLICE = ("begin", "end")

#: a string that a macro can be: a name or a number
_WORD = re.compile(r"[A-Za-z_]\w*|[+-]?(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)[uUlLfF]*")
_LEXEME = re.compile(
    r"""(?P<comment>/\*.*?\*/|//(?:[^\\\n]|\\.)*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<blank>[ \t]+)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a C function.

    Attributes:
        ctype: the type as C spells it, `float` for `const float *restrict x`.
        dtype: of an array's elements; empty for a scalar.
        const: an array that is only read.
    """

    name: str
    ctype: str
    dtype: str = ""
    const: bool = False

    @property
    def is_array(self) -> bool:
        return bool(self.dtype)

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.ctype} {'*' if self.is_array else ''}{self.name}"


@dataclass(frozen=True, slots=True)
class Prototype:
    """A C function that can be launched.

    Attributes:
        parameters: what a caller gives, in order: `begin` and `end` are not among them.
        sliced: it takes `begin` and `end`, and does that part of the work.
    """

    name: str
    parameters: tuple[Parameter, ...]
    sliced: bool

    @property
    def arrays(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters if p.is_array)

    @property
    def integers(self) -> tuple[str, ...]:
        """Scalars that can be a dimension."""
        return tuple(p.name for p in self.parameters if not p.is_array and p.ctype not in ("float", "double"))

    @property
    def signature(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(p.name, kind) for p in self.parameters])

    def __str__(self) -> str:
        parts = [*map(str, self.parameters), *(f"int64_t {name}" for name in _SLICE if self.sliced)]
        return f"void {self.name}({', '.join(parts)})"


def rewritten(source: str, *, keep_text: bool) -> str:
    """The source, line by line, with each comment and each run of blanks one blank, and strings kept or emptied."""

    def replace(match: re.Match[str]) -> str:
        if match["text"] is not None:
            return match["text"] if keep_text else match["text"][0] * 2
        return " " + "\n" * match[0].count("\n")

    return _LEXEME.sub(replace, source.replace("\r\n", "\n"))


def normalised(source: str) -> str:
    """The source less comments, blank lines, and indentation: what a fingerprint is made of."""
    lines = rewritten(source, keep_text=True).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def quoted_includes(source: str) -> list[str]:
    """The files named by `#include "…"`, in order."""
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', rewritten(source, keep_text=True), re.MULTILINE)


_KNOB = re.compile(
    r"^\s*#\s*ifndef\s+(?P<name>\w+)\s*\n\s*#\s*(?:define\s+(?P=name)[ \t]+(?P<default>\S.*?)\s*$|error\b)",
    re.MULTILINE,
)


def macro_knobs(*sources: str) -> dict[str, str | None]:
    """Macros that a `-D` may set: name → default, `None` where the source insists on being told.

    They stand as `#ifndef NAME` followed by `#define NAME default`, or by `#error`.

    Args:
        sources: headers first; the last that has a macro says its default.
    """
    found = (match for source in sources for match in _KNOB.finditer(rewritten(source, keep_text=True)))
    return {match["name"]: match["default"] for match in found}


def macro_value(name: str, value: KnobValue) -> str:
    """A knob's value as C spells it.

    Raises:
        SpaceError: for one that C has no word for.
    """
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    raise SpaceError(
        f"knob {name!r} cannot be {value!r}; "
        "good values: integers, floats, True, False, or a string that is a C name or number"
    )


def parse_prototype(source: str, entry: str | None, where: str) -> Prototype:
    """The prototype of a function defined in the source.

    Args:
        source: C.
        entry: the function's name; `None` when the source defines a single void function that is not static.
        where: what to call the source in messages.

    Raises:
        BadInput: when there is no such function, or its prototype has something that can't be called from here.
    """
    functions = list(_functions(source))
    public = list(dict.fromkeys(f.name for f in functions if f.returns == "void" and not f.static))
    if entry is None:
        if len(public) != 1:
            said = (
                f"defines {', '.join(public)}: say which with entry="
                if public
                else "defines no `void NAME(…) {` that is not static"
            )
            raise BadInput(f"{where} {said}")
        entry = public[0]
    chosen = [f for f in functions if f.name == entry]
    if not chosen:
        raise BadInput(f"{where}: {unknown('entry', entry, public)}")
    for f in chosen:
        if f.returns != "void" or f.static:
            kind = "static" if f.static else f"of type {f.returns or 'int'}"
            raise BadInput(f"{where}:{f.line}: {entry} is {kind}; a kernel is `void {entry}(…)` and not static")
    prototypes = [_prototype(f, where) for f in chosen]
    if any(other != prototypes[0] for other in prototypes):
        raise BadInput(f"{where}:{chosen[-1].line}: {entry} is defined twice, with different parameters")
    return prototypes[0]


# --- how -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    returns: str
    static: bool
    parameters: str
    line: int  # of the parameters


def _functions(source: str) -> Iterator[_Function]:
    """Every function definition at the outermost level."""
    text = rewritten(source, keep_text=False)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE)
    depth, start = 0, 0
    for at, sign in enumerate(text):
        if sign == "{":
            if depth == 0:
                found = _definition(text[start:at], text.count("\n", 0, start) + 1)
                if found is not None:
                    yield found
            depth += 1
        elif sign == "}":
            depth = max(0, depth - 1)
        if depth == 0 and sign in ";}":
            start = at + 1


def _definition(head: str, line: int) -> _Function | None:
    """What stands before a `{`, if it is a function's head."""
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)", lambda m: "\n" * m[0].count("\n"), head, flags=re.DOTALL)
    match = re.fullmatch(r"(?P<before>[\w\s*]*?)\b(?P<name>[A-Za-z_]\w*)\s*\((?P<parameters>.*)\)\s*", head, re.DOTALL)
    if match is None:
        return None
    words = match["before"].replace("*", " * ").split()
    returns = " ".join(w for w in words if w not in ("static", "inline", "extern", "__inline", "__inline__"))
    return _Function(
        match["name"],
        returns,
        "static" in words,
        match["parameters"],
        line + head.count("\n", 0, match.start("parameters")),
    )


def _prototype(function: _Function, where: str) -> Prototype:
    parameters: list[Parameter] = []
    line = function.line
    pieces = [] if function.parameters.strip() in ("", "void") else function.parameters.split(",")
    for piece in pieces:
        blank = len(piece) - len(piece.lstrip())
        at = line + piece.count("\n", 0, blank)
        parameters.append(_parameter(piece, function.name, f"{where}:{at}"))
        line += piece.count("\n")
    names = [p.name for p in parameters]
    sliced = tuple(names[-2:]) == _SLICE
    if sliced:
        for p in parameters[-2:]:
            if p != Parameter(p.name, "int64_t"):
                raise BadInput(f"{where}:{function.line}: {function.name} takes `{p}`; good values: int64_t {p.name}")
        parameters = parameters[:-2]
    elif set(_SLICE) & set(names):
        raise BadInput(
            f"{where}:{function.line}: {function.name} takes {_first(_SLICE, names)} elsewhere than at its end; "
            "a kernel that is split over threads ends in `int64_t begin, int64_t end`, no other has these names"
        )
    if len(set(names)) < len(names):
        raise BadInput(f"{where}:{function.line}: {function.name} has two parameters of one name: {', '.join(names)}")
    return Prototype(function.name, tuple(parameters), sliced)


def _first(wanted: Sequence[str], names: Sequence[str]) -> str:
    return next(name for name in wanted if name in names)


def _parameter(piece: str, function: str, where: str) -> Parameter:
    signs = re.findall(r"\w+|\S", piece)
    stars = signs.count("*")
    name = signs[-1] if signs else ""
    before = signs[: signs.index("*")] if stars else signs[:-1]  # what is pointed to, or the scalar's type
    after = signs[signs.index("*") + 1 : -1] if stars else []
    ctype = " ".join(sign for sign in before if sign != "const")
    good = ARRAY_TYPES if stars else SCALAR_TYPES
    if iskeyword(name):
        raise BadInput(
            f"{where}: parameter {name!r} of {function} is a word of Python's, and a call names its arguments: "
            f"call it {name}_ or otherwise"
        )
    fine = name.isidentifier() and stars <= 1 and ctype in good and set(after) <= {"const", *_RESTRICT}
    if not fine:
        raise BadInput(
            f"{where}: parameter `{' '.join(piece.split())}` of {function} is not supported; supported: {_SUPPORTED}"
        )
    return Parameter(name, ctype, ARRAY_TYPES[ctype], "const" in before) if stars else Parameter(name, ctype)
