"""`Dispatcher`: finds the launch of each call of one kernel; `Call`: what a call is that it has not seen before."""

from __future__ import annotations

import inspect
import itertools
import linecache
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias, cast

from tunesmith.core.problem import Problem, stride_classes
from tunesmith.dispatch.arguments import (
    ALIGNMENT_BYTES,
    aligned,
    dtype_name,
    exactly,
    integer_facts,
    is_array,
    is_compound,
    leaves,
    plain,
    strides_of,
    structure,
    width_facts,
)
from tunesmith.dispatch.keyfunction import Asked, Form, Seen, Writer, bucketed
from tunesmith.dispatch.spec import KeySpec, names_taken
from tunesmith.errors import BadInput, FingerprintError, MissingEngine, TunesmithError
from tunesmith.options import Policy, scoped_policy

#: Warm keys remembered for one kernel: about a megabyte. A program with more than this many wants buckets; until
#: it has them, a forgotten key costs a look-up in memory, not a search.
WARM_ENTRIES = 4096

#: errors before anything of a call is launched: of its arguments, the kernel's source, or what is installed
REFUSALS = (BadInput, FingerprintError, MissingEngine)

WarmKey: TypeAlias = "tuple[object, ...]"
Launch: TypeAlias = "Callable[..., Any]"

_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """One call as the slow path sees it.

    Attributes:
        args: by position, in the order of the signature, defaults filled in.
        problem: bucketed: what the Key holds.
        exact: not bucketed.
        specialisation: what the binary may rely on, by argument: `("x % 16 == 0", "n == 1")`.
        kinds: what each argument is: an array's dtype, another value's class.
        places: the devices the arrays are on, as torch spells them.
    """

    args: tuple[Any, ...]
    problem: Problem
    exact: Problem
    specialisation: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


class Dispatcher:
    """Finds the launch of each call of one kernel.

    `call` has the kernel's runtime parameters with their defaults, and returns what the launch returns. It is
    one function for the life of the Dispatcher (its code is replaced when it sees what it has not seen before):
    it may be stored, and stand as a class's `__call__`. A warm call takes no lock, and reads nothing but its
    arguments, the policy's scope and one dictionary; where it may have no array, also which device is current.

    Threads: any number may call. Two calls that miss at once resolve at once.

    Args:
        signature: the runtime parameters.
        spec: what the kernel's author said about its key, checked.
        resolve: makes the launch for a call, and says whether it may be remembered for calls like it. It may
            raise: then nothing is. A launch with an attribute `takes_addresses`, names of tensors, may be called
            with the addresses of just these after its arguments.
        own_policy: the policy the kernel's author set, `None` for none; checked.
        name: the kernel's name, for messages.
        extra: what becomes of a call that has keywords beside the parameters: given its arguments and these. Without
            it they are a TypeError.
        notes_latest: keep `latest` up to date, which costs a warm call some nanoseconds.
        refused: what becomes of a call that ends in one of `REFUSALS`: given the error and the arguments. Without
            it the error is the caller's.

    Attributes:
        latest: the launch of the latest call, in a list.
        on_clear: called whenever something new is known, by whoever remembers launches too.

    Raises:
        BadInput: for variadic parameters and for a policy that does not exist.
    """

    def __init__(
        self,
        signature: inspect.Signature,
        spec: KeySpec,
        resolve: Callable[[Call], tuple[Launch, bool]],
        own_policy: str | None = None,
        *,
        name: str = "kernel",
        extra: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
        notes_latest: bool = False,
        refused: Callable[[TunesmithError, tuple[Any, ...]], Any] | None = None,
    ) -> None:
        parameters = tuple(signature.parameters.values())
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                stars = "*" if p.kind is p.VAR_POSITIONAL else "**"
                raise BadInput(f"kernel {name}: {stars}{p.name}: every runtime parameter needs its own name")
        if own_policy is not None:
            Policy.of(own_policy)
        self._name, self._spec, self._resolve, self._refused = name, spec, resolve, refused
        self._asked = tuple(_asked(p.name, spec) for p in parameters)
        self._user_names: tuple[str, ...] | None = None
        if callable(spec.names):
            deciding = [p for p in signature.parameters if p not in spec.opaque]
            self._user_names = names_taken(name, spec.names, deciding, ())
        user_key = None if self._user_names is None else (self._comparable_user_fields, self._user_names)
        self.latest: list[Launch | None] = [None]
        latest = self.latest if notes_latest else None
        where = spec.specialised.where
        self._writer = Writer(
            parameters, self._asked, user_key, scoped_policy.get, self._miss, extra, latest, where,
            spec.specialised.settings,
        )  # fmt: skip
        # Guards what follows. Re-entrant: a finalizer that runs meanwhile may call a kernel.
        self._lock = threading.RLock()
        self._seen: tuple[Seen, ...] = (Seen(),) * len(parameters)
        self._form: Form | None = None
        self._hand_on = True  # until a launch comes that does not take the addresses which the form in force reads
        self._version = 0
        self._warm: dict[WarmKey, Launch] = {}
        self._clears, self._cleared_by = 0, 0
        self.on_clear: list[Callable[[], object]] = []
        self._namespace: dict[str, Any] = {}
        self._number = next(_numbers)
        self._filenames: list[str] = []
        weakref.finalize(self, _forget_sources, self._filenames).atexit = False
        functions = self._define()
        self._function, self._key_of, self._bind = functions["call"], functions["key"], functions["bind"]
        self.call: Callable[..., Any] = self._function

    @property
    def warm_entries(self) -> int:
        """How many warm keys are remembered."""
        return len(self._warm)

    def problem_of(self, *args: Any, **kwargs: Any) -> Call:
        """What a call with these arguments would be. Launches nothing and remembers nothing.

        Raises:
            TypeError: for arguments that don't fit the signature.
            BadInput: for a value that can't be a field of a Problem.
        """
        return self._call_of(self._bind(*args, **kwargs))

    def known(self, *args: Any) -> Launch | None:
        """The launch that is remembered for such a call, right after one; `None` where none is.

        Args:
            args: by position, all of them.
        """
        with self._lock:
            return self._warm.get(self._key_of(*args))

    def warm_up(self, calls: Sequence[tuple[tuple[Any, ...], Launch]]) -> None:
        """Make calls warm that have not come yet: (arguments as in `Call.args`, launch) for each.

        The policy's scope in force counts as for a call. The arguments are not kept.

        Raises:
            BadInput: when the arguments of one can't be told from others.
        """
        for args, _ in calls:
            self._learn(args)
        with self._lock:  # all are learned, so that no form is new any more and none is forgotten
            for args, launch in calls:
                self._remember(args, launch)

    def clear(self) -> None:
        """Forget the warm keys, as something new is known.

        What another thread is resolving at this moment will not be remembered either; what this thread is
        resolving, if `resolve` calls this, will: it is what is new.
        """
        with self._lock:
            self._warm = {}
            self._namespace[self._warm_name] = self._warm
            self._clears += 1
            self._cleared_by = threading.get_ident()
        for tell in self.on_clear:
            tell()

    # --- a miss

    def _miss(self, args: tuple[Any, ...]) -> Any:
        try:
            launch = self._launch_of(args)
        except REFUSALS as error:
            if self._refused is None:
                raise
            return self._refused(error, args)
        self.latest[0] = launch
        return launch(*args)

    def _launch_of(self, args: tuple[Any, ...]) -> Launch:
        call = self._call_of(args)
        clears = self._clears
        self._learn(args)
        launch, remember = self._resolve(call)
        if remember:
            with self._lock:
                if clears == self._clears or self._cleared_by == threading.get_ident():
                    self._remember(args, launch)
        return launch

    def _remember(self, args: tuple[Any, ...], launch: Launch) -> None:
        """Make calls like this one warm. The form may have changed since it missed: its key is that of the new form."""
        if len(self._warm) >= WARM_ENTRIES:
            for oldest in list(itertools.islice(self._warm, WARM_ENTRIES // 2)):
                del self._warm[oldest]
        read = self._form.addresses if self._form is not None else ()
        if read and read != getattr(launch, "takes_addresses", ()):
            self._hand_on = False
            self._take_form()
        self._warm[self._key_of(*args)] = launch

    def _learn(self, args: tuple[Any, ...]) -> None:
        """See to it that the form in force tells such arguments from all others.

        Raises:
            BadInput: when they can't be told, as a dtype or device has no hash.
        """
        with self._lock:
            self._seen = tuple([
                seen.add_opaque(value) if a.opaque else seen.add(value, a.by_value)
                for a, seen, value in zip(self._asked, self._seen, args, strict=True)
            ])  # fmt: skip
            self._take_form()
        try:
            hash(self._key_of(*args))
        except TypeError as error:
            raise BadInput(f"kernel {self._name}: {self._unhashable(args)} can't be part of a key: {error}") from None

    def _take_form(self) -> None:
        """Bring the form for what was seen so far into force, if it is another."""
        form = self._writer.form(self._seen, hand_on=self._hand_on)
        if form != self._form:
            # A call that is inside the old code goes on with the old dictionary, empty from now on.
            old, self._warm, self._form = self._warm, {}, form
            self._version += 1
            functions = self._define()
            self._key_of, self._function.__code__ = functions["key"], functions["call"].__code__
            old.clear()

    def _unhashable(self, args: tuple[Any, ...]) -> str:
        """Which argument has no hash, in words."""
        for a, value in zip(self._asked, args, strict=True):
            try:
                hash(None if a.opaque else a.read(value))
            except TypeError:
                return f"an array's dtype or device ({a.name})" if is_array(value) else f"argument {a.name!r}"
        return "an array's dtype or device"

    @property
    def _warm_name(self) -> str:
        return f"{self._writer.prefix}_warm_{self._version}"

    def _define(self) -> dict[str, FunctionType]:
        """Make the functions of the form in force."""
        text = self._writer.write(self._form, self._warm_name)
        self._namespace.update(self._writer.constants)
        self._namespace[self._warm_name] = self._warm
        # A name for each version: a call that is inside an older one must show the lines of that.
        filename = f"<tunesmith: call of {self._name}, {self._number}.{self._version}>"
        self._filenames.append(filename)
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        functions: dict[str, FunctionType] = {}
        exec(compile(text, filename, "exec"), self._namespace, functions)
        for function in functions.values():
            function.__name__ = function.__qualname__ = self._name  # in TypeErrors for arguments that don't fit
        return functions

    # --- a call's Problem

    def _call_of(self, args: tuple[Any, ...]) -> Call:
        fields: dict[str, object] = {}
        exact: dict[str, object] = {}
        specialisation: list[str] = []
        kinds: list[str] = []
        places: dict[str, None] = {}
        for a, value in zip(self._asked, args, strict=True):
            if a.opaque:
                continue
            kinds.append(dtype_name(value) if is_array(value) else type(value).__qualname__)
            places.update((str(getattr(array, "device", "cpu")), None) for _, array in leaves(a.name, value))
            if a.keyed:
                exact[a.name] = self._key_value(a.name, value)
                fields[a.name] = bucketed(a.name, a.bucket, exact[a.name])
            else:
                said = _fields(a, value)
                fields.update(said)
                exact.update(said)
            specialisation += _facts(a, value)
        if self._user_names is not None:
            named = {a.name: value for a, value in zip(self._asked, args, strict=True) if a.name in self._user_names}
            for name, value in self._user_fields(**named).items():
                if fields.get(name) is not None:
                    raise BadInput(f"kernel {self._name}: the key function returns {name!r}, a field already")
                exact[name] = self._key_value(name, value)
                fields[name] = bucketed(name, self._spec.buckets.get(name), exact[name])
        problem = Problem(fields)
        whole = Problem(exact) if self._spec.buckets else problem
        return Call(args, problem, whole, tuple(specialisation), tuple(kinds), tuple(places))

    def _key_value(self, name: str, given: object) -> object:
        value: Any = plain(given)
        if is_array(value):
            what = f"an array ({dtype_name(value)}, {tuple(value.shape)})"
            raise BadInput(f"kernel {self._name}, key: {name!r} is {what}: name a size")
        return value

    def _user_fields(self, **named: Any) -> Mapping[str, object]:
        fields: Any = cast(Callable[..., Any], self._spec.names)(**named)
        if not isinstance(fields, Mapping):
            raise BadInput(f"kernel {self._name}: the key function returned {fields!r}, not a mapping field → value")
        return cast(Mapping[str, object], fields)

    def _comparable_user_fields(self, **named: Any) -> object:
        buckets, fields = self._spec.buckets, self._user_fields(**named).items()
        values = [(name, bucketed(name, buckets.get(name), plain(value))) for name, value in fields]
        return tuple([(name, value.__class__, value) for name, value in values])


def _forget_sources(filenames: list[str]) -> None:
    for filename in filenames:
        linecache.cache.pop(filename, None)


def _asked(name: str, spec: KeySpec) -> Asked:
    keyed = not callable(spec.names) and name in spec.names
    return Asked(
        name,
        keyed=keyed,
        bucket=spec.buckets.get(name) if keyed else None,
        strides=name in spec.strides,
        layout=name in spec.specialised.layout,
        alignment=name in spec.alignment,
        pointer_facts=name in spec.specialised.alignment,
        integer_facts=name in spec.specialised.divisibility,
        width=name in spec.specialised.width,
        value=name in spec.specialised.values,
        structured=name in spec.specialised.names,
        opaque=name in spec.opaque,
    )


def _fields(a: Asked, value: Any) -> dict[str, object]:
    """The fields of an argument that is not in the key."""
    if a.value and not is_array(value):
        return {}
    if value is None:
        return {a.name: None}
    arrays = leaves(a.name, value) if a.structured or is_array(value) else []  # the warm key tells no more
    fields: dict[str, object] = {f"{name}.dtype": dtype_name(array) for name, array in arrays}
    if a.strides:
        fields[f"{a.name}.strides"] = stride_classes(strides_of(a.name, value))
    if a.alignment:
        fields[f"{a.name}.align"] = ALIGNMENT_BYTES if aligned(a.name, value) else 1
    return fields


def _facts(a: Asked, value: Any) -> list[str]:
    """What a binary may rely on of one argument."""
    if a.value:
        return [f"{a.name} == {exactly(value)!r}"]
    if a.structured and is_compound(value):
        return [f"{a.name} is {structure(value)!r}"]
    integer = integer_facts(value) if a.integer_facts else width_facts(value) if a.width else ()
    facts = [f"{a.name} {fact}" for fact in integer]
    if a.pointer_facts and is_array(value) and aligned(a.name, value):
        facts.append(f"{a.name} % {ALIGNMENT_BYTES} == 0")
    return facts
