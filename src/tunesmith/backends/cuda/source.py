"""Reads CUDA C++ just far enough: the parameters of one `__global__` function, and which arguments they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword
from types import MappingProxyType

from tunesmith.backends.c_source import rewritten
from tunesmith.errors import BadInput, unknown

#: what a pointer may point to: C++ type → dtypes of arrays that go there, the usual one first; `void` takes any
ARRAY_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "float": ("float32",), "double": ("float64",), "bool": ("bool",), "void": (),
    "__half": ("float16",), "half": ("float16",), "__half2": ("float16",), "half2": ("float16",),
    "__nv_bfloat16": ("bfloat16",), "__nv_bfloat162": ("bfloat16",),
    "__nv_fp8_e4m3": ("float8_e4m3fn",), "__nv_fp8_e5m2": ("float8_e5m2",),
    "char": ("int8",), "signed char": ("int8",), "int8_t": ("int8",), "unsigned char": ("uint8",),
    "uint8_t": ("uint8",), "short": ("int16",), "int16_t": ("int16",), "unsigned short": ("uint16",),
    "uint16_t": ("uint16",), "int": ("int32",), "int32_t": ("int32",), "unsigned": ("uint32",),
    "uint32_t": ("uint32",), "long": ("int64",), "long long": ("int64",), "int64_t": ("int64",),
    "unsigned long": ("uint64",), "unsigned long long": ("uint64",), "uint64_t": ("uint64",), "size_t": ("uint64",),
    "float2": ("float32", "complex64"), "float4": ("float32", "complex64"), "double2": ("float64", "complex128"),
    "int2": ("int32",), "int4": ("int32",), "uint2": ("uint32",), "uint4": ("uint32",),
})  # fmt: skip
#: what a scalar may be: C++ type → its code in Python's struct module
SCALAR_TYPES: Mapping[str, str] = MappingProxyType({
    "bool": "?", "char": "b", "signed char": "b", "int8_t": "b", "unsigned char": "B", "uint8_t": "B", "short": "h",
    "int16_t": "h", "unsigned short": "H", "uint16_t": "H", "int": "i", "int32_t": "i", "unsigned": "I",
    "uint32_t": "I", "long": "q", "long long": "q", "int64_t": "q", "unsigned long": "Q", "unsigned long long": "Q",
    "uint64_t": "Q", "size_t": "Q", "__half": "e", "half": "e", "float": "f", "double": "d",
})  # fmt: skip
#: the type that a template parameter is, where the dtype of an array says so
OF_DTYPE: Mapping[str, str] = MappingProxyType({
    "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16", "bool": "bool",
    "float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2", "int8": "signed char", "uint8": "unsigned char",
    "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int", "int64": "long long",
    "uint64": "unsigned long long",
})  # fmt: skip

_QUALIFIERS = frozenset({"const", "volatile", "restrict", "__restrict", "__restrict__", "__grid_constant__"})
_NAME = r"[A-Za-z_]\w*"
#: what may stand between `__global__` and a kernel's name, in any order, beside `void`
_ATTRIBUTE = r"(?:__\w+__\s*\((?:[^()]|\([^()]*\))*\)|static|inline|__forceinline__|__noinline__)"
_HEAD = re.compile(rf"\b__global__\s+(?:{_ATTRIBUTE}\s*)*void\s+(?:{_ATTRIBUTE}\s*)*(?P<name>{_NAME})\s*\(", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        ctype: the type as C++ spells it, `float` for `const float *__restrict__ x`.
        dtypes: of an array that goes there, the usual one first; empty for a scalar, and for `void *`, which takes any.
        const: an array that is only read.
    """

    name: str
    ctype: str
    is_array: bool
    dtypes: tuple[str, ...] = ()
    const: bool = False

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.ctype} {'*' if self.is_array else ''}{self.name}"


@dataclass(frozen=True, slots=True)
class Prototype:
    """A `__global__` function that can be launched.

    Attributes:
        expression: what names it to the compiler: its name, with template arguments where it is a template.
        deduced: template parameters that an array's dtype decides: name → the parameters declared with it.
    """

    name: str
    expression: str
    parameters: tuple[Parameter, ...]
    deduced: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def arrays(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters if p.is_array)

    @property
    def signature(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(p.name, kind) for p in self.parameters])

    @property
    def prefix(self) -> str:
        """What no parameter's name begins with: names in the source of a launch do."""
        prefix = "_t"
        while any(p.name.startswith(prefix) for p in self.parameters):
            prefix += "_"
        return prefix

    def of_dtypes(self, dtypes: Mapping[str, str | None]) -> Prototype:
        """This for a call, with the template parameters that its arrays decide.

        Args:
            dtypes: by parameter; `None` for an argument that is no array.

        Raises:
            BadInput: when arrays disagree, or have a dtype that no type of CUDA's is known for.
        """
        expression, parameters = self.expression, list(self.parameters)
        for template, names in self.deduced.items():
            found = {name: dtypes.get(name) for name in names if dtypes.get(name) is not None}
            if len(set(found.values())) != 1:
                said = ", ".join(f"{name} is {dtype}" for name, dtype in found.items()) or "none of them is an array"
                raise BadInput(f"{self.name}: {', '.join(names)} are of one type {template}, and {said}")
            dtype = str(next(iter(found.values())))
            if dtype not in OF_DTYPE:
                raise BadInput(f"{self.name}: {unknown(f'dtype for {template}', dtype, OF_DTYPE)}")
            expression = _with_argument(expression, template, OF_DTYPE[dtype])
            parameters = [
                replace(p, ctype=OF_DTYPE[dtype], dtypes=(dtype,)) if p.ctype == template else p for p in parameters
            ]
        return replace(self, expression=expression, parameters=tuple(parameters), deduced={})

    def __str__(self) -> str:
        return f"__global__ void {self.expression}({', '.join(map(str, self.parameters))})"


def parse_prototype(source: str, entry: str | None, types: Mapping[str, str], where: str) -> Prototype:
    """The prototype of a kernel defined in the source.

    Args:
        entry: its name, or that of a template with arguments, `reduce<float, BLOCK>`; not needed where the source
            defines one kernel that is no template.
        types: what the types that the source makes itself are, or what the parameters of these names are.
        where: what to call the source in messages.

    Raises:
        BadInput: when there is no such kernel, or its prototype has something that can't be called from here.
    """
    found = {kernel.name: kernel for kernel in _kernels(source)}
    if entry is None:
        if len(found) != 1:
            said = (
                f"defines {', '.join(found)}: say which with entry="
                if found
                else "defines no `__global__ void NAME(…)`"
            )
            raise BadInput(f"{where} {said}")
        entry = next(iter(found))
    base, arguments = _split_entry(entry)
    kernel = found.get(base.rpartition("::")[2])
    if kernel is None:
        raise BadInput(f"{where}: {unknown('entry', base, found)}")
    if kernel.template and not arguments:
        shown = ", ".join(name for _, name in kernel.template)
        raise BadInput(
            f"{where}:{kernel.line}: {kernel.name} is a template: say with which arguments, as "
            f"entry='{kernel.name}<{shown}>'; macros may stand in them, and a typename that stands for itself is taken "
            "from the dtype of the arrays"
        )
    known, deduced = _template_types(kernel, arguments, types)
    parameters = [
        _parameter(piece, kernel.name, {**known, **types}, deduced, f"{where}:{at}") for piece, at in kernel.pieces
    ]
    by_type = {name: tuple(p.name for p in parameters if p.is_array and p.ctype == name) for name in deduced}
    for name, arrays in by_type.items():
        if not arrays:
            raise BadInput(
                f"{where}:{kernel.line}: no array of {kernel.name} is a `{name} *`: say what it is in types="
            )
    for name in types:
        if not re.search(rf"\b{re.escape(name)}\b", source):
            raise BadInput(f"types= names {name!r}, which {where} does not")
    return Prototype(kernel.name, entry, tuple(parameters), by_type)


# --- how -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    template: tuple[tuple[str, str], ...]  # (kind, name) of its template parameters
    pieces: tuple[tuple[str, int], ...]  # (text, line) of its parameters
    line: int


def _kernels(source: str) -> Iterator[_Kernel]:
    """Every `__global__` function of the source, declared or defined."""
    text = rewritten(source, keep_text=False)
    text = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE)
    for head in _HEAD.finditer(text):
        end = _closing(text, head.end() - 1)
        line = text.count("\n", 0, head.end()) + 1
        before = text[: head.start()]
        before = before[max(before.rfind(sign) for sign in ";{}") + 1 :]
        pieces = [] if text[head.end() : end].strip() in ("", "void") else _split(text[head.end() : end])
        placed: list[tuple[str, int]] = []
        for piece in pieces:
            blank = len(piece) - len(piece.lstrip())
            placed.append((" ".join(piece.split()), line + piece.count("\n", 0, blank)))
            line += piece.count("\n")
        yield _Kernel(head["name"], _template(before), tuple(placed), text.count("\n", 0, head.start("name")) + 1)


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes; the end where it does not."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return at
    return len(text)


def _split(text: str) -> list[str]:
    """At the commas that stand in no bracket."""
    pieces, depth, start = list[str](), 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "(<[{") - (sign in ")>]}")
        if sign == "," and not depth:
            pieces.append(text[start:at])
            start = at + 1
    return [*pieces, text[start:]]


def _template(before: str) -> tuple[tuple[str, str], ...]:
    match = re.search(r"\btemplate\s*<(.*)>", before, re.DOTALL)
    if match is None:
        return ()
    found: list[tuple[str, str]] = []
    for piece in _split(match[1]):
        words = piece.partition("=")[0].split()
        if len(words) >= 2:
            found.append((" ".join(words[:-1]), words[-1]))
    return tuple(found)


def _split_entry(entry: str) -> tuple[str, list[str]]:
    base, sign, rest = entry.partition("<")
    inner = rest.rstrip().removesuffix(">")
    return base.strip(), [piece.strip() for piece in _split(inner)] if sign else []


def _template_types(
    kernel: _Kernel, arguments: Sequence[str], types: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(template parameter → the type given for it, those that arrays decide)."""
    known: dict[str, str] = {}
    deduced: list[str] = []
    for (kind, name), argument in zip(kernel.template, arguments, strict=False):
        if kind not in ("typename", "class"):
            continue
        if argument == name and name not in types:
            deduced.append(name)
        else:
            known[name] = types.get(argument, argument)
    return known, tuple(deduced)


def _with_argument(expression: str, name: str, ctype: str) -> str:
    """A name expression with one of its template arguments replaced."""
    base, arguments = _split_entry(expression)
    return f"{base}<{', '.join(ctype if argument == name else argument for argument in arguments)}>"


def _parameter(piece: str, kernel: str, types: Mapping[str, str], deduced: Sequence[str], where: str) -> Parameter:
    signs = re.findall(r"[\w:]+|\S", piece)
    name = signs[-1] if signs else ""
    stars = signs.count("*")
    words = signs[: signs.index("*")] if stars else signs[:-1]
    after = signs[signs.index("*") + 1 : -1] if stars else []
    ctype = _canonical([word for word in words if word not in _QUALIFIERS])
    ctype = types.get(name, types.get(ctype, ctype))
    ctype = _canonical(ctype.replace("*", " ").split()) if ctype not in deduced else ctype
    good = [*(ARRAY_TYPES if stars else SCALAR_TYPES), *deduced]
    if iskeyword(name):
        raise BadInput(
            f"{where}: parameter {name!r} of {kernel} is a word of Python's, and a call names its arguments: "
            f"call it {name}_ or otherwise"
        )
    if stars > 1 or ctype not in good or not name.isidentifier() or not set(after) <= _QUALIFIERS:
        kind = "pointers to" if stars else "scalars"
        raise BadInput(
            f"{where}: parameter `{piece}` of {kernel} is not supported; good {kind}: {', '.join(good)}; "
            "say what a type of the source's own is in types="
        )
    if not stars and ctype in deduced:
        raise BadInput(f"{where}: the scalar `{piece}` of {kernel} has a type that arrays decide: say it in types=")
    dtypes = ARRAY_TYPES.get(ctype, ()) if stars else ()
    return Parameter(name, ctype, bool(stars), dtypes, bool(stars) and "const" in words)


def _canonical(words: Sequence[str]) -> str:
    """One spelling of a type: `unsigned` for `unsigned int`, `int64_t` for `std::int64_t`."""
    plain = [word.rpartition("::")[2] for word in words]
    if len(plain) > 1 and "int" in plain:
        plain.remove("int")
    if "unsigned" in plain:
        plain = ["unsigned", *(word for word in plain if word != "unsigned")]
    return " ".join(plain)
