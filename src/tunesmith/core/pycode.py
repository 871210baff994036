"""What a Python function's code says: the names it takes from outside, and its source less what does not count."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import io
import re
import sys
import tokenize
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, TypeAlias, cast

#: how a name is found, and the name with the attributes that are read of it: ("global", ("helpers", "scale"))
Read: TypeAlias = "tuple[Literal['global', 'closure', 'import'], tuple[str, ...]]"

_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_CLOSURE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD"}
#: what `from __future__ import …` changes in how a text is compiled
_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def reads(code: types.CodeType, bound: frozenset[str] = frozenset()) -> Iterator[Read]:
    """Every name that code, and the functions defined in it, take from outside.

    Args:
        code: a function's.
        bound: variables of functions around it that are not outside.
    """
    found: list[tuple[str, list[str]]] = []
    growing: list[str] | None = None  # the chain that an attribute would continue
    pushed: list[object] = [0, None]  # the latest constants: before an import, its level and the names it takes
    for step in dis.get_instructions(code):
        if step.opname == "EXTENDED_ARG":
            continue
        if step.opname.startswith("LOAD_") and (step.opname == "LOAD_CONST" or "INT" in step.opname):
            pushed = [pushed[-1], step.argval]
        if step.opname in _ATTRIBUTE and growing is not None:
            growing.append(str(step.argval))
            continue
        growing = None
        if step.opname in _GLOBAL:
            growing = [str(step.argval)]
            found.append(("global", growing))
        elif step.opname in _CLOSURE and step.argval in code.co_freevars and step.argval not in bound:
            growing = [str(step.argval)]
            found.append(("closure", growing))
        elif step.opname == "IMPORT_NAME":
            level, members = pushed
            dots = "." * level if isinstance(level, int) else ""
            taken = cast("tuple[str, ...]", members) if isinstance(members, tuple) else ()
            found.append(("import", [dots + str(step.argval), *taken]))
    for kind, chain in found:
        yield ("global" if kind == "global" else "closure" if kind == "closure" else "import"), tuple(chain)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            # a class body's own names look like globals, and are none that its methods see
            yield from (r for r in reads(const, bound | set(code.co_cellvars)) if not _is_body_name(r, const))


def _is_body_name(read: Read, code: types.CodeType) -> bool:
    """Whether a class body within a function reads a name of its own or of the language (`__name__`)."""
    kind, (base, *_) = read
    if kind != "global" or code.co_flags & 0x2:  # CO_NEWLOCALS: a function
        return False
    stores = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}
    return base in stores or base in ("__name__", "__annotations__")


# --- source ---


def normalised(text: str, name: str) -> str | None:
    """A definition less decorators, comments, docstrings, blank lines and common indentation.

    Returns:
        `None` when the text is not the definition of `name`: a file may have changed since it was imported.
    """
    indent = text[: len(text) - len(text.lstrip(" \t"))]
    whole = f"if True:\n{text}" if indent else text
    try:
        tree = ast.parse(whole)
        tokens = list(tokenize.generate_tokens(io.StringIO(whole).readline))
    except (SyntaxError, tokenize.TokenError):
        return text if re.search(rf"\b(?:def|class)\s+{name}\b", text) else None
    node: ast.stmt = tree.body[0]
    if indent and isinstance(node, ast.If):
        node = node.body[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name != name:
        return None
    lines = whole.split("\n")
    within, opening = set[int](), set[int]()  # lines that a string covers from their start on; to their end
    for token in tokens:
        (row, column), (last, _) = token.start, token.end
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column]
        elif last > row and token.type not in (tokenize.NEWLINE, tokenize.NL):
            within.update(range(row + 1, last + 1))
            opening.update(range(row, last))
    dropped, kept = _docstring_rows(node), list[str]()
    for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
        line = lines[row - 1]
        line = line if row in within else line.removeprefix(indent)
        line = line if row in opening else line.rstrip()
        if row not in dropped and (line or row in within):
            kept.append(line)
    return "\n".join(kept)


def is_source_of(text: str, code: types.CodeType) -> bool:
    """Whether a definition's text is what the code was made from: its file may have been edited since.

    Told by parameters, names and constants, which a change of any consequence changes.
    """
    indented = text[:1] in " \t"
    try:
        whole = f"if True:\n{text}" if indented else text
        module = compile(whole, "<source>", "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
    except SyntaxError:
        return True  # a piece that can't stand alone: nothing can be told
    candidates = [c for c in _codes(module) if c.co_name == code.co_name]
    return not candidates or any(_essence(candidate) == _essence(code) for candidate in candidates)


def written_in(text: str, code: types.CodeType) -> types.CodeType | None:
    """The code of a function as its file's text has it, for one that was rewritten in place; `None` where it has none.

    Args:
        code: the rewritten one. It begins where the function does, at its `def` or at the first of its decorators.
    """
    try:
        module = compile(text, code.co_filename, "exec", dont_inherit=True)
    except SyntaxError:
        return None
    before = [c for c in _codes(module) if c.co_name == code.co_name and c.co_firstlineno <= code.co_firstlineno]
    return max(before, key=lambda c: c.co_firstlineno, default=None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _codes(const)


def _essence(code: types.CodeType) -> object:
    """What does not depend on where a function is defined: a closure's variable is a global to a text on its own."""
    plain = sorted({repr(const) for const in code.co_consts if not isinstance(const, types.CodeType)})
    names = sorted({*code.co_names, *code.co_freevars, *code.co_cellvars, *code.co_varnames})
    inner = [_essence(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], plain, names, inner


def _docstring_rows(node: ast.AST) -> set[int]:
    rows: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = part.body[0]
            after = part.body[1].lineno if len(part.body) > 1 else sys.maxsize
            is_text = (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            )
            if is_text and part.lineno < first.lineno and after > (first.end_lineno or 0):
                rows.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return rows


def lambda_source(file: str, code: types.CodeType) -> str | None:
    """The expression of a lambda in the text of its file; `None` where its line and parameters don't single it out."""
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    found = {
        ast.unparse(node)
        for node in _lambdas(file).get(code.co_firstlineno, ())
        if [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)] == names
    }
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=16)  # of a file with many kernels, each lambda is looked up
def _lambdas(file: str) -> dict[int, list[ast.Lambda]]:
    """A file's lambdas by the line where they start."""
    try:
        tree = ast.parse(file)
    except SyntaxError:
        return {}
    by_line: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            by_line.setdefault(node.lineno, []).append(node)
    return by_line
