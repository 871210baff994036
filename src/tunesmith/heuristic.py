"""`Heuristic`: a small decision tree over a Problem's fields, as a kernel's `default`. Data alone: never executed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeAlias, cast

from tunesmith.core.config import Config
from tunesmith.core.problem import FieldValue
from tunesmith.errors import BadInput, ProblemError
from tunesmith.files import write_whole

FORMAT = "tunesmith-heuristic/1"
#: Splits under each other: a heuristic of more is none that a person reads.
DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Split:
    """A question about one field, and what follows.

    Attributes:
        field: of the Problem.
        value: the largest number of `yes`; of a field that is no number, its only value.
    """

    field: str
    value: FieldValue
    yes: Node
    no: Node

    def holds(self, problem: Mapping[str, FieldValue]) -> bool:
        """Whether a Problem goes to `yes`.

        Raises:
            ProblemError: when it has not the field, or not as a number where one is compared.
        """
        if self.field not in problem:
            raise ProblemError(f"the heuristic asks for {self.field!r}; the problem has {', '.join(problem)}")
        given = problem[self.field]
        if not is_number(self.value):
            return type(given) is type(self.value) and given == self.value
        if not is_number(given):
            raise ProblemError(f"the heuristic compares {self.field!r} with {self.value}; it is {given!r}, no number")
        return cast("float", given) <= cast("float", self.value)

    def text(self, *, yes: bool) -> str:
        """`M <= 64`, or its contrary; Python, where the field is a variable."""
        if is_number(self.value):
            return f"{self.field} {'<=' if yes else '>'} {self.value!r}"
        return f"{self.field} {'==' if yes else '!='} {self.value!r}"


Node: TypeAlias = "Split | Config"


def is_number(value: object) -> bool:
    """Whether a field is a number; a truth value is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Heuristic:
    """A decision tree: `autotune(default=Heuristic.read("gemm.json"))`.

    Attributes:
        kernel: whose Configs they are.
        device: `Device.identity` of the chip it was found on.
        about: how it was found and what it loses, for people.
    """

    kernel: str
    tree: Node
    device: str = ""
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, problem: Mapping[str, FieldValue], device: object = None) -> Config:
        """The Config for a Problem, on any device.

        Raises:
            ProblemError: when the Problem lacks a field that is asked for.
        """
        node = self.tree
        while isinstance(node, Split):
            node = node.yes if node.holds(problem) else node.no
        return node

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Config]]:
        """(the conditions that lead to it, Config) of each end; of several bounds of a field the tightest."""

        def walk(node: Node, above: Mapping[tuple[str, bool], str]) -> Iterator[tuple[tuple[str, ...], Config]]:
            if isinstance(node, Config):
                yield tuple(above.values()), node
                return
            exact = not is_number(node.value)
            for yes, after in ((True, node.yes), (False, node.no)):
                name = (f"{node.field}={node.value}" if exact and not yes else node.field, yes)
                yield from walk(after, {**above, name: node.text(yes=yes)})

        return walk(self.tree, {})

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are asked for."""

        def walk(node: Node) -> Iterator[str]:
            if isinstance(node, Split):
                yield node.field
                yield from walk(node.yes)
                yield from walk(node.no)

        return tuple(dict.fromkeys(walk(self.tree)))

    # --- as text -------------------------------------------------------------------------------------

    def python(self, name: str = "default") -> str:
        """The same as Python source, to read or to keep in place of the file: a function for `autotune(default=…)`."""
        names = {said: said if _is_variable(said) else f"problem[{said!r}]" for said in self.fields}
        bound = [said for said, spelled in names.items() if spelled == said]
        lines = ["from tunesmith import Config", "", "", f"def {name}(problem, device):"]
        lines += [f"    {', '.join(bound)} = {', '.join(f'problem[{said!r}]' for said in bound)}"] if bound else []

        def walk(node: Node, indent: str) -> Iterator[str]:
            if isinstance(node, Split):
                question = node.text(yes=True).replace(node.field, names[node.field], 1)
                yield f"{indent}if {question}:"
                yield from walk(node.yes, indent + "    ")
                yield from walk(node.no, indent)
            else:
                yield f"{indent}return {node!r}"

        return "\n".join([*lines, *walk(self.tree, "    "), ""])

    def data(self) -> dict[str, Any]:
        """As JSON types."""

        def spelled(node: Node) -> dict[str, Any]:
            if isinstance(node, Config):
                return {"config": dict(node)}
            how = "at_most" if is_number(node.value) else "is"
            return {"if": {"field": node.field, how: node.value}, "then": spelled(node.yes), "else": spelled(node.no)}

        head = {"format": FORMAT, "kernel": self.kernel, "device": self.device, "about": dict(self.about)}
        return {**head, "tree": spelled(self.tree)}

    def write(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            OSError: when the file cannot be written.
        """
        write_whole(path, self.text().encode())

    def text(self) -> str:
        """What `write` writes."""
        return json.dumps(self.data(), indent=1, ensure_ascii=True) + "\n"

    @classmethod
    def read(cls, path: str | Path) -> Heuristic:
        """Read a file that `write` wrote.

        Raises:
            BadInput: naming the file and what is wrong with it.
        """
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
                raise BadInput(f'it does not begin with "format": "{FORMAT}"')
            head = cast("dict[str, Any]", found)
            about: Any = head.get("about", {})
            if not isinstance(about, dict):
                raise BadInput(f"'about' is {about!r}, not facts by name")
            tree = _node(head.get("tree"), "tree", 0)
            return cls(str(head.get("kernel", "")), tree, str(head.get("device", "")), cast("dict[str, Any]", about))
        except OSError as error:
            raise BadInput(f"heuristic {path} cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path} is not a heuristic: {error}") from None


def _is_variable(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name) and name not in ("problem", "device", "Config")


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _node(value: Any, place: str, depth: int) -> Node:
    """One node of a file.

    Raises:
        BadInput: naming its place, for what is neither a Config nor a question.
    """
    if depth > DEEPEST:
        raise BadInput(f"it is more than {DEEPEST} questions deep")
    if isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        config, question = node.get("config"), node.get("if")
        if isinstance(config, dict) and "if" not in node:
            return Config(cast("dict[str, object]", config))
        if isinstance(question, dict) and "config" not in node:
            name, limit = _question(cast("dict[str, Any]", question), place)
            yes, no = (_node(node.get(way), f"{place}.{way}", depth + 1) for way in ("then", "else"))
            return Split(name, limit, yes, no)
    raise BadInput(f'{place}: needed: {{"config": {{…}}}}, or {{"if": …, "then": …, "else": …}}')


def _question(question: Mapping[str, Any], place: str) -> tuple[str, FieldValue]:
    name, numbers = question.get("field"), "at_most" in question
    value = question.get("at_most" if numbers else "is")
    good = _is_finite(value) if numbers else isinstance(value, (str, bool, type(None)))
    if not isinstance(name, str) or not good or len(question) != 2:
        raise BadInput(f'{place}.if: needed: {{"field": NAME, "at_most": NUMBER}}, or "is": text, true, false or null')
    return name, value
