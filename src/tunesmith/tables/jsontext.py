"""JSON that is written back as it was read: the values, and beside them a record of how they were spelled.

The writer sees the values and the record, never the text. What a file does everywhere (its indent, say) is noted once
for each depth; what it does in one place is noted for that place. So a changed value changes its own bytes alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from tunesmith.errors import BadInput

#: One step down: an object's key, (key, n) for its n-th repetition, or a list's index.
Step: TypeAlias = "str | tuple[str, int] | int"
Path: TypeAlias = tuple[Step, ...]

#: Deeper than any table, and far from Python's own limit.
DEEPEST = 64
BOM = "\ufeff"
BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = r'"(?:[^"\\\x00-\x1f]|\\.)*"'
_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"{_STRING}|[{{}}\[\]:,]|{_NUMBER}(?![\w.])|(?:true|false|null|NaN|-?Infinity)\b")


class Members(list[tuple[str, Any]]):
    """A JSON object: its members in the file's order, a key that is given twice twice."""

    def get(self, key: str) -> Any:
        """The value that readers see: the last one of this key; `None` where there is none."""
        return next((value for name, value in reversed(self) if name == key), None)

    def steps(self) -> Iterator[tuple[Step, str, Any]]:
        """(step, key, value) of each member."""
        seen: Counter[str] = Counter()
        for key, value in self:
            yield (key, seen[key]) if seen[key] else key, key, value
            seen[key] += 1


@dataclass(frozen=True)
class Style:
    """How values are spelled.

    Attributes:
        levels: for each depth, the blanks in each role: `first` and `next` before a member, `comma` and `colon` before
            the sign, `value` after the colon, `close` before the bracket, `empty` between two brackets.
        gaps: blanks that differ from these, by place.
        spelled: (value, text) of keys and values that `json.dumps` would spell otherwise, by place.
        before: blanks that the text begins with.
        after: those that it ends with.
        bom: whether it begins with a byte order mark.
    """

    levels: tuple[Mapping[str, str], ...]
    gaps: Mapping[tuple[Path, str], str] = field(default_factory=dict[tuple[Path, str], str])
    spelled: Mapping[tuple[Path, str], tuple[Any, str]] = field(default_factory=dict[tuple[Path, str], tuple[Any, str]])
    before: str = ""
    after: str = "\n"
    bom: bool = False

    @property
    def newline(self) -> str:
        """The file's line end."""
        return "\r\n" if self.levels and any("\r\n" in gap for gap in self.levels[0].values()) else "\n"

    @property
    def indent(self) -> str:
        """What one depth is indented by; empty for a file on one line."""
        return self.levels[0].get("next", self.levels[0].get("first", "")).lstrip("\r\n") if self.levels else ""

    def gap(self, path: Path, depth: int, role: str) -> str:
        """The blanks in a place."""
        found = self.gaps.get((path, role))
        if found is not None:
            return found
        if depth < len(self.levels) and role in self.levels[depth]:
            return self.levels[depth][role]
        return _usual(depth, self.indent, self.newline).get(role, "")


def _usual(depth: int, indent: str, newline: str) -> dict[str, str]:
    inner = newline + indent * (depth + 1) if indent else ""
    return {
        "first": inner, "next": inner or " ", "comma": "", "colon": "", "value": " ",
        "close": newline + indent * depth if indent else "", "empty": "",
    }  # fmt: skip


def indented(by: int, newline: str = "\n", after: str = "\n") -> Style:
    """The style of `json.dumps(indent=by)` and a last line end."""
    return Style(tuple(_usual(depth, " " * by, newline) for depth in range(4)), after=after)


@dataclass(frozen=True)
class Document:
    """A JSON text: values, style, and the line of each member for messages.

    Attributes:
        value: objects are `Members`, arrays lists.
    """

    value: Any
    style: Style
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int], compare=False)

    def line(self, path: Path) -> int:
        """The line of a member, from 1; of what encloses it where it is new."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def replaced(self, path: Path, value: Any) -> Document:
        """The same with one value set.

        Raises:
            KeyError: where there is no such place.
        """
        return replace(self, value=_replaced(self.value, path, value))

    def inserted(self, path: Path, key: str, value: Any, before: str | None = None) -> Document:
        """The same with one more member in the object at `path`, before another of its members or last."""
        members = Members(at(self.value, path))
        keys = [name for name, _ in members]
        members.insert(keys.index(before) if before is not None else len(members), (key, value))
        return self.replaced(path, members)

    def removed(self, path: Path) -> Document:
        """The same without one member."""
        parent = at(self.value, path[:-1])
        kept = Members((key, value) for step, key, value in parent.steps() if step != path[-1])
        return self.replaced(path[:-1], kept)

    def data(self) -> bytes:
        """The text, encoded."""
        style = self.style
        text = "".join([BOM if style.bom else "", style.before, *_spell(self.value, (), 0, style), style.after])
        return text.encode()


def at(value: Any, path: Path) -> Any:
    """What stands at a place.

    Raises:
        StopIteration, IndexError: where there is no such place.
    """
    for step in path:
        value = value[step] if isinstance(step, int) else next(v for s, _, v in value.steps() if s == step)
    return value


def _replaced(old: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return [_replaced(v, rest, new) if i == step else v for i, v in enumerate(old)]
    if step not in {s for s, _, _ in old.steps()}:
        raise KeyError(step)
    return Members((key, _replaced(v, rest, new) if s == step else v) for s, key, v in old.steps())


def plain(value: Any) -> Any:
    """As dicts and lists; of a key that is given twice the last counts, as for every reader."""
    if isinstance(value, Members):
        return {key: plain(inner) for key, inner in value}
    return [plain(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def members(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, Mapping):
        return Members((str(key), members(inner)) for key, inner in cast("Mapping[Any, Any]", value).items())
    is_list = isinstance(value, (list, tuple))
    return [members(inner) for inner in cast("Iterable[Any]", value)] if is_list else value


# --- writing ----------------------------------------------------------------------------------------


def _spell(value: Any, path: Path, depth: int, style: Style) -> Iterator[str]:
    if isinstance(value, Members):
        yield "{"
        for i, (step, key, inner) in enumerate(value.steps()):
            place = (*path, step)
            yield from _separated(i, place, depth, style)
            yield _word(key, place, "key", style)
            yield style.gap(place, depth, "colon") + ":" + style.gap(place, depth, "value")
            yield from _spell(inner, place, depth + 1, style)
        yield style.gap(path, depth, "close" if value else "empty") + "}"
    elif isinstance(value, list):
        yield "["
        for i, inner in enumerate(cast("list[Any]", value)):
            yield from _separated(i, (*path, i), depth, style)
            yield from _spell(inner, (*path, i), depth + 1, style)
        yield style.gap(path, depth, "close" if value else "empty") + "]"
    else:
        yield _word(value, path, "self", style)


def _separated(i: int, place: Path, depth: int, style: Style) -> Iterator[str]:
    if i:
        yield style.gap(place, depth, "comma") + ","
    yield style.gap(place, depth, "next" if i else "first")


def _word(value: Any, path: Path, role: str, style: Style) -> str:
    spelled = style.spelled.get((path, role))
    if spelled is not None and _same(spelled[0], value):
        return spelled[1]
    return json.dumps(value)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)  # repr: NaN is itself, 0.0 is not -0.0


# --- reading ----------------------------------------------------------------------------------------


def read(data: bytes) -> Document:
    """Parse JSON, as Python's own reader takes it: NaN and keys given twice among it.

    Raises:
        BadInput: naming the line and what is wrong there.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"line {data.count(10, 0, error.start) + 1}: not UTF-8 text") from None
    bom = text.startswith(BOM)
    return _Reader(text[bom:]).document(bom)


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.gaps: list[tuple[int, str, Path, str]] = []
        self.spelled: dict[tuple[Path, str], tuple[Any, str]] = {}
        self.lines: dict[Path, int] = {}

    def document(self, bom: bool) -> Document:
        before = self.blanks()
        if self.at == len(self.text):
            raise BadInput("the file is empty")
        value = self.value((), 0)
        after = self.blanks()
        if self.at < len(self.text):
            raise self.wrong("nothing more was expected")
        counts: dict[tuple[int, str], Counter[str]] = {}
        for depth, role, _, gap in self.gaps:
            counts.setdefault((depth, role), Counter())[gap] += 1
        usual = {where: found.most_common(1)[0][0] for where, found in counts.items()}
        deepest = max((depth for depth, _ in usual), default=-1)
        levels = tuple({role: gap for (d, role), gap in usual.items() if d == depth} for depth in range(deepest + 1))
        gaps = {(path, role): gap for depth, role, path, gap in self.gaps if gap != usual[depth, role]}
        return Document(value, Style(levels, gaps, self.spelled, before, after, bom), self.lines)

    def wrong(self, what: str) -> BadInput:
        return BadInput(f"line {self.line}: {what}, found {self.text[self.at : self.at + 20]!r}")

    def blanks(self) -> str:
        match = BLANKS.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        self.line += match.group().count("\n")
        return match.group()

    def token(self, what: str) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.wrong(f"{what} was expected")
        self.at = match.end()
        return match.group()

    def value(self, path: Path, depth: int) -> Any:
        if depth > DEEPEST:
            raise self.wrong(f"nested more than {DEEPEST} deep")
        token = self.token("a value")
        if token == "{":
            return self.object(path, depth)
        if token == "[":
            return self.array(path, depth)
        if token in "]}:,":
            self.at -= 1
            raise self.wrong("a value was expected")
        return self.word(token, path, "self")

    def word(self, token: str, path: Path, role: str) -> Any:
        value = self.meant(token)
        if json.dumps(value) != token:
            self.spelled[path, role] = (value, token)
        return value

    def meant(self, token: str) -> Any:
        try:
            return json.loads(token)
        except ValueError as error:  # a bad escape; a number of thousands of digits
            raise BadInput(f"line {self.line}: {error}") from None

    def object(self, path: Path, depth: int) -> Members:
        found, seen = Members(), Counter[str]()
        gap, comma = self.blanks(), ""
        if self.text.startswith("}", self.at):
            return self.closed(found, path, depth, "empty", gap)
        while True:
            token = self.token("a key in quotes")
            if not token.startswith('"'):
                self.at -= len(token)
                raise self.wrong("a key in quotes was expected")
            key = str(self.meant(token))
            place: Path = (*path, (key, seen[key]) if seen[key] else key)
            self.noted(place, depth, gap, comma, bool(found))
            self.word(token, place, "key")
            self.gaps.append((depth, "colon", place, self.blanks()))
            if self.token("a colon") != ":":
                self.at -= 1
                raise self.wrong("a colon was expected")
            self.gaps.append((depth, "value", place, self.blanks()))
            found.append((key, self.value(place, depth + 1)))
            seen[key] += 1
            comma = self.blanks()
            token = self.token("a comma or }")
            if token == "}":
                return self.closed(found, path, depth, "close", comma, back=0)
            if token != ",":
                self.at -= len(token)
                raise self.wrong("a comma or } was expected")
            gap = self.blanks()

    def array(self, path: Path, depth: int) -> list[Any]:
        found: list[Any] = []
        gap, comma = self.blanks(), ""
        if self.text.startswith("]", self.at):
            return self.closed(found, path, depth, "empty", gap)
        while True:
            place = (*path, len(found))
            self.noted(place, depth, gap, comma, bool(found))
            found.append(self.value(place, depth + 1))
            comma = self.blanks()
            token = self.token("a comma or ]")
            if token == "]":
                return self.closed(found, path, depth, "close", comma, back=0)
            if token != ",":
                self.at -= len(token)
                raise self.wrong("a comma or ] was expected")
            gap = self.blanks()

    def noted(self, place: Path, depth: int, gap: str, comma: str, later: bool) -> None:
        self.lines[place] = self.line
        if later:
            self.gaps.append((depth, "comma", place, comma))
        self.gaps.append((depth, "next" if later else "first", place, gap))

    def closed(self, found: Any, path: Path, depth: int, role: str, gap: str, back: int = 1) -> Any:
        self.at += back
        self.gaps.append((depth, role, path, gap))
        return found
