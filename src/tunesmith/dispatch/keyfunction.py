"""Writes a kernel's warm path as Python source: a function of the kernel's own parameters, a look-up, a launch.

A warm key must never be coarser than the Problem, and what tells two calls apart depends on what each argument
is: a tensor is told by its dtype and device, a scalar by its class and perhaps its value. So the source is
written for what was seen so far, and such that anything else can't hit. What was always the same (an argument's
class, dtype, device) is guarded, which costs half of what it would as an element of the key; what varied is an
element. When a guard fails, an attribute is missing or a key is new, the Dispatcher notes what it sees and asks
for the source of that.
"""

from __future__ import annotations

import inspect
import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tunesmith.core.problem import Bucket, Edges, bucket, stride_classes
from tunesmith.dispatch.arguments import (
    ALIGNMENT_BYTES,
    Protocol,
    StrideClasses,
    aligned,
    device_told,
    exactly,
    integer_facts,
    is_array,
    is_compound,
    plain,
    protocol_of,
    strides_of,
    structure,
    width_facts,
)
from tunesmith.errors import BadInput

#: Classes of one argument for which source is written. With more, a function reads it (a microsecond instead of
#: a tenth), so that ever new classes do not make ever new source.
WRITTEN_CLASSES = 4
#: Values of one integer that stand in the warm key as they are, where only what they are divisible by matters: to
#: read it is cheaper than to look at it. An argument that takes more (a position, a length) is looked at.
WRITTEN_VALUES = 16
#: classes whose values are compared in a key as they are
_PLAIN = {int, float, bool, str, type(None)}
_INT32 = range(-(2**31), 2**31)


@dataclass(frozen=True)
class Asked:
    """What a kernel's author asked of one parameter.

    Attributes:
        keyed: its value is a field of the Problem.
        bucket: how the value is bucketed, `None` for as it is.
        strides: its stride classes are a field.
        layout: its stride classes decide the binary.
        alignment: whether its address is divisible by 16 is a field.
        pointer_facts: whether its address is divisible by 16 decides the binary.
        integer_facts: whether it is 1, divisible by 16, or wider than 32 bits decides the binary.
        width: whether it is wider than 32 bits decides the binary.
        value: its value is compiled in.
        structured: of a tuple or a descriptor, all parts decide the binary.
        opaque: it decides nothing.
    """

    name: str
    keyed: bool = False
    bucket: Bucket | None = None
    strides: bool = False
    layout: bool = False
    alignment: bool = False
    pointer_facts: bool = False
    integer_facts: bool = False
    width: bool = False
    value: bool = False
    structured: bool = False
    opaque: bool = False

    @property
    def by_value(self) -> bool:
        """Whether it counts as a scalar with its value, even where it is a tensor."""
        return self.keyed or self.value

    def comparable(self, given: object) -> object:
        """A key's value for a warm key, where `True`, `1` and `1.0` must differ."""
        value = bucketed(self.name, self.bucket, plain(given))
        return value.__class__, value

    def read(self, given: Any) -> object:
        """The part of a warm key for an argument of any kind: what `Writer` writes where the kinds are few."""
        if self.value:
            return exactly(given)
        facts = integer_facts(given) if self.integer_facts else self.width and width_facts(given)
        if self.keyed:
            return given.__class__, self.comparable(given), facts
        if not is_array(given):
            odd = self.structured and is_compound(given)
            return given.__class__, structure(given) if odd else facts
        classes = (self.strides or self.layout) and stride_classes(strides_of(self.name, given))
        bit = (self.alignment or self.pointer_facts) and aligned(self.name, given)
        return "array", given.dtype, device_told(given), classes, bit


def bucketed(name: str, how: Bucket | None, value: object) -> object:
    """An integer's bucket; `None` stays `None`.

    Raises:
        BadInput: for a value that is neither.
    """
    if how is None or value is None:
        return value
    if type(value) is not int:
        raise BadInput(f"{name} is {value!r}, a {type(value).__name__}: buckets are for integers")
    return plain(bucket(how)(value))


@dataclass(frozen=True)
class Seen:
    """What one argument has been so far.

    Attributes:
        protocols: the ways in which it was an array.
        classes: its classes when it was none.
        dtypes, devices: of torch's tensors; two stand for any number.
        misaligned: whether one of torch's tensors did not begin at a multiple of 16 bytes.
        values: integers it has been, unless it counts by value; of what decides nothing (a grid), tuples. One more
            than are written stand for any number.
    """

    protocols: tuple[Protocol, ...] = ()
    classes: tuple[type, ...] = ()
    dtypes: tuple[Any, ...] = ()
    devices: tuple[Any, ...] = ()
    misaligned: bool = False
    values: frozenset[object] = frozenset()

    def add(self, value: Any, keyed: bool) -> Seen:
        """What it has been with one more call. In the key it counts as a scalar, which a tensor can stand for."""
        protocol = None if keyed else protocol_of(value)
        if protocol is None:
            full = value.__class__ in self.classes or len(self.classes) > WRITTEN_CLASSES
            seen = self if full else replace(self, classes=(*self.classes, value.__class__))
            if keyed or value.__class__ is not int or value in self.values or len(self.values) > WRITTEN_VALUES:
                return seen
            return replace(seen, values=self.values | {value})
        protocols = self.protocols if protocol in self.protocols else (*self.protocols, protocol)
        if protocol != "torch":
            return replace(self, protocols=protocols)
        # guarded by `is`: dtypes that are equal and not the same object count as two
        known = len(self.dtypes) > 1 or any(value.dtype is dtype for dtype in self.dtypes)
        dtypes = self.dtypes if known else (*self.dtypes, value.dtype)
        known = len(self.devices) > 1 or value.device in self.devices
        devices = self.devices if known else (*self.devices, value.device)
        misaligned = self.misaligned or value.data_ptr() % ALIGNMENT_BYTES != 0
        return replace(self, protocols=protocols, dtypes=dtypes, devices=devices, misaligned=misaligned)

    def add_opaque(self, value: Any) -> Seen:
        """The same for what decides nothing: its first values stand in the warm key, so that others are noticed."""
        plain_tuple = value.__class__ is tuple and all(part.__class__ is int for part in value)
        if plain_tuple and self.classes in ((), (tuple,)):
            full = value in self.values or len(self.values) > WRITTEN_VALUES
            return self if full else replace(self, classes=(tuple,), values=self.values | {value})
        return replace(self, classes=(object,))


@dataclass(frozen=True)
class Form:
    """What differs between two versions of one kernel's source.

    Attributes:
        guard: an expression that is false, or has no attribute to read, for what was not seen.
        key: the elements of the warm key.
        addresses: the tensors whose addresses the guard has read and hands on: a launch that takes these gets them
            after the arguments, and need not ask again.
    """

    guard: str
    key: str
    addresses: tuple[str, ...] = ()


class Writer:
    """Writes one kernel's functions.

    Nothing a user wrote gets into the text but the names of parameters, which Python has checked to be
    identifiers. Every other name is a constant's: a prefix that no parameter starts with, and a word of this file.

    Args:
        parameters: of the signature, none of them variadic.
        asked: for each parameter, what its author asked.
        user_key: a callable that makes something comparable of the arguments it names, and these names.
        policy: returns what the scope says, hashable.
        miss: the slow path, which is given the tuple of arguments.
        extra: what becomes of a call that has keywords beside the parameters: given the tuple and these.
        latest: a list of one element, which each warm call sets to its launch.
        where: tells which device a call without an array is for.
        settings: tells which settings of this process are in force.

    Attributes:
        constants: name → value of every constant in the source written so far.
    """

    def __init__(
        self,
        parameters: Sequence[inspect.Parameter],
        asked: Sequence[Asked],
        user_key: tuple[Callable[..., object], Sequence[str]] | None,
        policy: Callable[[], object],
        miss: Callable[[tuple[Any, ...]], Any],
        extra: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
        latest: list[Any] | None = None,
        where: Callable[[], object] | None = None,
        settings: Callable[[], object] | None = None,
    ) -> None:
        self._asked = tuple(asked)
        self.prefix = "_t"
        while any(a.name.startswith(self.prefix) for a in asked):
            self.prefix += "_"
        self.constants: dict[str, object] = {}
        self._shared_values: dict[str, list[object]] = {}
        self._head = self._write_head(parameters)
        self._arguments = "".join(f"{a.name}, " for a in asked)
        self._first = f"{self._constant('policy', policy)}()"
        if user_key is not None:
            named = ", ".join(f"{name}={name}" for name in user_key[1])
            self._first += f", {self._constant('user_key', user_key[0])}({named})"
        if settings is not None:
            self._first += f", {self._constant('settings', settings)}()"
        self._where = f"{self._constant('where', where)}()" if where is not None else ""
        self._miss = self._constant("miss", miss)
        self._extra = self._constant("extra", extra) if extra is not None else ""
        self._latest = self._constant("latest", latest) if latest is not None else ""
        self._misses = self._constant("misses", (KeyError, AttributeError, TypeError))
        self._torch_strides = self._constant("torch_strides", StrideClasses())
        self._host_strides = self._constant("host_strides", StrideClasses(in_bytes=True))

    def form(self, seen: Sequence[Seen], *, hand_on: bool = False) -> Form:
        """How calls are told apart whose arguments are what was seen, one for each parameter.

        Args:
            hand_on: the launches take the addresses that are read.
        """
        guards: dict[str, list[str]] = {}  # constant and operator → what must be it
        addresses: list[str] = []  # which must all be aligned
        parts = [self._first]
        if self._where and not any(one.protocols and not one.classes for one in seen):
            parts.append(self._where)
        for i, (a, one) in enumerate(zip(self._asked, seen, strict=True)):
            if a.opaque:
                parts += [a.name] * (one.classes == (tuple,) and len(one.values) <= WRITTEN_VALUES)
            elif len(one.classes) > WRITTEN_CLASSES or (one.protocols and not _simple(one)):
                parts.append(f"{self._constant(f'read_{i}', a.read)}({a.name})")
            elif one.protocols == ("torch",):
                parts += self._torch(a, one, guards, addresses)
            elif one.protocols:
                parts += self._host(a, one)
            else:
                parts += self._scalar(i, a, one, guards)
        # `int is m.__class__ is n.__class__`: one constant for all that must be it
        chains = [f" {start.split()[1]} ".join([start.split()[0], *names]) for start, names in guards.items()]
        if addresses:
            read = [f"({self._address(n)} := {n}.data_ptr())" if hand_on else f"{n}.data_ptr()" for n in addresses]
            chains.append(f"({' | '.join(read)}) & {ALIGNMENT_BYTES - 1} == 0")
        return Form(" and ".join(chains) or "True", ", ".join(parts), tuple(addresses) if hand_on else ())

    def _address(self, name: str) -> str:
        return f"{self.prefix}_at_{name}"

    def write(self, form: Form | None, warm: str) -> str:
        """The functions `call`, `bind` and `key`.

        `call` and `bind` have the kernel's parameters and return what the launch returns, and the tuple of
        arguments; `key` is given these and returns the warm key.

        Args:
            form: `None` before the first call: then every call is a miss.
            warm: the name of the dictionary warm key → launch.
        """
        launch, hit = f"{self.prefix}_launch", ""
        if form is not None:
            hit = f"""
    try:
        {launch} = {warm}[{form.key},] if {form.guard} else None
    except {self._misses}:
        {launch} = None
    if {launch} is not None:{
                f'''
        {self._latest}[0] = {launch}'''
                if self._latest
                else ""
            }
        return {launch}({self._arguments}{", ".join(map(self._address, form.addresses))})"""
        more, head = f"{self.prefix}_more", self._head
        if self._extra:
            head = f"{head}, **{more}" if head else f"**{more}"
            hit = f"""
    if {more}:
        return {self._extra}(({self._arguments}), {more}){hit}"""
        return f"""def call({head}):{hit}
    return {self._miss}(({self._arguments}))
def key({self._arguments}):
    return ({form.key if form else None},)
def bind({self._head}):
    return ({self._arguments})
"""

    def _scalar(self, i: int, a: Asked, seen: Seen, guards: dict[str, list[str]]) -> list[str]:
        """The elements for an argument that was never an array, and a guard of its class if there was one."""
        name, classes = a.name, seen.classes
        only_int = classes == (int,)
        parts: list[str] = []
        if len(classes) == 1:
            guards.setdefault(f"{self._shared('class', classes[0])} is", []).append(f"{name}.__class__")
        else:
            parts.append(f"{name}.__class__")
        made = bucket(a.bucket) if a.bucket is not None else None
        if not a.by_value or classes == (type(None),):
            pass
        elif a.value:
            simple = set(classes) <= _PLAIN - {float}
            parts.append(name if simple else f"{self._constant('exactly', exactly)}({name})")
        elif a.bucket is None and set(classes) <= _PLAIN:
            parts.append(name)
        elif only_int and a.bucket == "pow2":
            parts.append(f"({name} - 1).bit_length() if {name} > 0 else -1")
        elif only_int and isinstance(made, Edges):
            bisect, steps = self._constant("bisect", bisect_left), self._constant(f"edges_{i}", made.edges)
            parts.append(f"{bisect}({steps}, {name})")
        else:
            parts.append(f"{self._constant(f'comparable_{i}', a.comparable)}({name})")
        if only_int and not a.by_value and len(seen.values) <= WRITTEN_VALUES:
            parts += [name] * (a.integer_facts or a.width)
        elif not a.value and not (a.keyed and a.bucket is None):
            parts += self._facts(a, classes)
        return parts

    def _facts(self, a: Asked, classes: tuple[type, ...]) -> list[str]:
        """The elements for what a binary relies on of an argument that was never an array."""
        name = a.name
        if a.structured and not set(classes) <= _PLAIN:
            return [f"{self._constant('structure', structure)}({name})"]
        if not (a.integer_facts or a.width) or set(classes) <= _PLAIN - {int}:
            return []
        if classes != (int,):
            facts = integer_facts if a.integer_facts else width_facts
            return [f"{self._constant(facts.__name__, facts)}({name})"]
        width = f"{_INT32.start} <= {name} < {_INT32.stop} or {name} >= {2**63} and 2"  # True, 2 or False
        return [f"{name} & 15 == 0 or {name} == 1 and 2", width] if a.integer_facts else [width]

    def _torch(self, a: Asked, seen: Seen, guards: dict[str, list[str]], addresses: list[str]) -> list[str]:
        """The elements for an argument that was always a tensor of torch's, or one and `None`."""
        name = a.name
        parts: list[str] = []
        if len(seen.dtypes) == 1 and not seen.classes:
            guards.setdefault(f"{self._shared('dtype', seen.dtypes[0])} is", []).append(f"{name}.dtype")
        else:
            parts.append(f"{name}.dtype")
        if len(seen.devices) == 1 and not seen.classes:
            self._guard_device(name, seen.devices[0], guards)
        else:
            parts.append(f"{name}.device")
        parts += [f"{self._torch_strides}[{name}.stride()]"] * (a.strides or a.layout)
        if not (a.alignment or a.pointer_facts):
            pass
        elif seen.misaligned or seen.classes:
            parts.append(f"{name}.data_ptr() & {ALIGNMENT_BYTES - 1} == 0")
        else:
            addresses.append(name)
        return [_unless_none(name, parts)] if seen.classes else parts

    def _guard_device(self, name: str, device: Any, guards: dict[str, list[str]]) -> None:
        """A GPU is told by its number, which is cheaper to read than its device: no build of torch has two kinds."""
        if getattr(device, "type", "") == "cuda" and type(device.index) is int:
            guards.setdefault(f"{device.index} ==", []).append(f"{name}.get_device()")
        else:
            guards.setdefault(f"{self._shared('device', device)} ==", []).append(f"{name}.device")

    def _host(self, a: Asked, seen: Seen) -> list[str]:
        """The elements for an argument that was always an array of numpy's, or one and `None`."""
        name = a.name
        parts = [f"{name}.__class__", f"{name}.dtype"]  # the class, as numpy's scalars have the dtypes of its arrays
        parts += [f"{self._host_strides}[{name}.strides, {name}.itemsize]"] * (a.strides or a.layout)
        parts += [f"{name}.ctypes.data & {ALIGNMENT_BYTES - 1} == 0"] * (a.alignment or a.pointer_facts)
        return [_unless_none(name, parts)] if seen.classes else parts

    def _write_head(self, parameters: Sequence[inspect.Parameter]) -> str:
        """The parameters as they stand between the parentheses of a `def`."""
        words: list[str] = []
        for i, p in enumerate(parameters):
            before = parameters[i - 1].kind if i else None
            if before is p.POSITIONAL_ONLY and p.kind is not p.POSITIONAL_ONLY:
                words.append("/")
            if before is not p.KEYWORD_ONLY and p.kind is p.KEYWORD_ONLY:
                words.append("*")
            default = "" if p.default is p.empty else f"={self._constant(f'default_{i}', p.default)}"
            words.append(f"{p.name}{default}")
        if parameters and parameters[-1].kind is inspect.Parameter.POSITIONAL_ONLY:
            words.append("/")
        return ", ".join(words)

    def _shared(self, word: str, value: object) -> str:
        """The name of a constant that several guards may use. Each reading of a device makes a new, equal object."""
        same = operator.eq if word == "device" else operator.is_
        known = self._shared_values.setdefault(word, [])
        for i, other in enumerate(known):
            if same(other, value):
                return f"{self.prefix}_{word}_{i}"
        known.append(value)
        return self._constant(f"{word}_{len(known) - 1}", value)

    def _constant(self, word: str, value: object) -> str:
        name = f"{self.prefix}_{word}"
        self.constants.setdefault(name, value)
        return name


def _simple(seen: Seen) -> bool:
    """Whether source is written for an argument that was an array: of one protocol, and otherwise at most `None`."""
    return len(seen.protocols) == 1 and seen.protocols != ("array",) and set(seen.classes) <= {type(None)}


def _unless_none(name: str, parts: Sequence[str]) -> str:
    return f"None if {name} is None else ({', '.join(parts)})"
