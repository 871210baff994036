"""`Candidate`: one way of doing an operation; `Alternatives`: all of them as one kernel, whose first knob is which."""

from __future__ import annotations

import copy
import hashlib
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from tunesmith import fingerprint
from tunesmith.backends import kernel_of
from tunesmith.backends.call import CallExecutable
from tunesmith.backends.cpu import device_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Model, Prediction
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput, SpaceError, unknown
from tunesmith.kernel import Built, Job, Kernel, Specialised
from tunesmith.tuned import TunedKernel

#: the knob that says which candidate a Config is of
BY = "by"
#: Where a candidate may be used, and with which Configs: `None` where it can't be.
Applies: TypeAlias = "Callable[[Problem, Device], bool]"


@dataclass(frozen=True)
class Candidate:
    """One way of doing an operation: it takes the operation's arguments by position and returns its result.

    Attributes:
        kernel: what is called.
        space: its Configs, or a function of (problem, device) that says; without knobs one Config.
        model: what its launches do, for the order in which Configs are compiled.
        applies: whether it can be used for a Problem on a device.
        devices: kinds of devices that it runs on.
        missing: says what it takes and this machine has not got, with the command that installs it; empty for nothing.
        reluctant: of one without knobs: whether each call changes a setting of the whole process and puts it back. Then
            it serves calls outside of CUDA graphs only where no other's are as short.
    """

    kernel: Kernel
    space: Space | Callable[[Problem, Device], Space] = field(default_factory=Space)
    model: Model | None = None
    applies: Applies | None = None
    devices: tuple[str, ...] = ("cpu", "cuda", "hip")
    missing: Callable[[], str] = str
    reluctant: bool = False

    @classmethod
    def of(cls, name: str, given: Any, signature: inspect.Signature) -> Candidate:
        """What a user gave: a Candidate, a tuned kernel, a Kernel, or anything that can be called.

        Raises:
            BadInput: for something else, for a kernel with other parameters than the operation, and for a reluctant one
                with knobs.
        """
        if isinstance(given, Candidate):
            made = given
        elif isinstance(given, TunedKernel):
            made = cls(given.kernel, given.declared.space_for, given.declared.model)
        elif hasattr(given, "compile_job") and not isinstance(given, type):
            made = cls(kernel_of(given))
        elif callable(given):
            made = cls(LibraryCall(name, given, signature))
        else:
            raise BadInput(f"candidate {name!r} is {given!r}; good ones: callables, tuned kernels, Candidate(…)")
        wanted, found = list(signature.parameters), list(made.kernel.signature.parameters)
        if found != wanted:
            raise BadInput(
                f"candidate {name!r} takes ({', '.join(found)}), the operation ({', '.join(wanted)}): "
                "wrap it by returning(kernel, call)"
            )
        if made.reluctant and not (isinstance(made.space, Space) and not made.space.knobs):
            raise BadInput(
                f"candidate {name!r} is reluctant and has a space: only one without knobs may be reluctant; make one "
                "of each Config"
            )
        return made

    def space_for(self, problem: Problem, device: Device) -> Space | None:
        """Its Configs for a Problem, `None` where it can't be used."""
        suits = device.kind in self.devices and (self.applies is None or self.applies(problem, device))
        if not suits or self.missing():
            return None
        return self.space if isinstance(self.space, Space) else self.space(problem, device)


class LibraryCall:
    """A call of a library, or of anything else that has no knobs and is not compiled by us."""

    backend, per_problem, knobs, specialised = "callable", False, frozenset[str](), Specialised()

    def __init__(self, name: str, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self.name, self.function, self.signature = name, function, signature

    def fingerprint(self) -> str:
        return fingerprint.of_function(self.function)

    def environment(self) -> Mapping[str, str]:
        return {}

    def versions(self) -> Mapping[str, str]:
        return {}

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def for_call(self, args: Sequence[Any]) -> LibraryCall:
        return self

    def compile_job(self, config: Config, problem: Problem, device: Device) -> None:
        return None

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        return CallExecutable(config, self.function)


class Alternatives:
    """All candidates of one operation as one Kernel. Its Configs say by which, and with which knobs of that one.

    Args:
        candidates: by name, in the order in which ties are listed.
        library: which of them stays in use unless another is faster beyond doubt.
        depends: packages whose versions are compared when a stored Choice is used.
        settings: of this process, by name, that change what is computed: they are part of the Key.

    Attributes:
        stays: the library's Config.
    """

    backend = "choose"
    knobs = None

    def __init__(
        self, name: str, candidates: Mapping[str, Candidate], library: str, signature: inspect.Signature,
        depends: Sequence[str], settings: Callable[[], Mapping[str, str]] | None,
    ) -> None:  # fmt: skip
        self.name, self.candidates, self.signature = name, dict(candidates), signature
        self.stays = Config({BY: library})
        self._depends, self._settings = tuple(depends), settings
        self._args: tuple[Callable[[], Any], ...] = ()
        self._bound: dict[str, Kernel] = {}
        kernels = [one.kernel for one in candidates.values()]
        self.per_problem = any(kernel.per_problem for kernel in kernels)
        self.specialised = replace(
            _all_of([kernel.specialised for kernel in kernels]),
            settings=None if settings is None else lambda: tuple(settings().items()),
        )

    # --- what a search wants to know ---

    def space(self, problem: Problem, device: Device) -> Space:
        """The Configs of all candidates that can be used.

        Raises:
            BadInput: when there is none.
        """
        spaces = [
            found.having(**{BY: name})
            for name, one in self.candidates.items()
            if (found := one.space_for(problem, device)) is not None
        ]
        if not spaces:
            raise BadInput(f"{self.name}({problem}): no candidate runs on {device.name}")
        whole = spaces[0]
        for one in spaces[1:]:
            whole = whole + one
        return whole

    def default(self, problem: Problem, device: Device) -> Config:
        """The library's call; where that can't be used, the first Config."""
        legal = self.space(problem, device)
        return self.stays if self.stays in legal else next(iter(legal))

    def default_by(
        self, asked: Callable[[Problem, Device], Config] | None
    ) -> Callable[[Problem, Device], Config]:  # fmt: skip
        """What an author wants used where nothing is known; `default` where none is wanted, or one that can't be."""
        if asked is None:
            return self.default

        def default(problem: Problem, device: Device) -> Config:
            wanted = asked(problem, device)
            return wanted if wanted in self.space(problem, device) else self.default(problem, device)

        return default

    def of(self, config: Config) -> tuple[str, Config]:
        """(which candidate, its own Config).

        Raises:
            SpaceError: for a candidate that does not exist.
        """
        name = config.get(BY)
        if name not in self.candidates:
            raise SpaceError(f"{self.name}: {unknown('candidate', name, self.candidates)}")
        return str(name), Config({knob: value for knob, value in config.items() if knob != BY})

    def missing(self, config: Config) -> str:
        """What a Config's candidate takes and this machine has not got; empty for nothing."""
        one = self.candidates.get(str(config.get(BY)))
        return "" if one is None else one.missing()

    # --- as a Kernel ---

    def fingerprint(self) -> str:
        parts = [f"{name} {one.kernel.fingerprint()}" for name, one in self.candidates.items()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def environment(self) -> Mapping[str, str]:
        found = {} if self._settings is None else dict(self._settings())
        for one in self.candidates.values():
            found.update(one.kernel.environment())
        return found

    def versions(self) -> Mapping[str, str]:
        found = fingerprint.versions(self._depends)
        for one in self.candidates.values():
            found.update(one.kernel.versions())
        return found

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return self.candidates[str(self.stays[BY])].kernel.dtypes()

    def for_call(self, args: Sequence[Any]) -> Alternatives:
        bound = copy.copy(self)
        bound._args, bound._bound = tuple(_held_weakly(value) for value in args), {}
        return bound

    def __eq__(self, other: object) -> bool:
        """What else tells binaries of two calls apart is in their Problems, and seen to by candidates' launches."""
        return isinstance(other, Alternatives) and self.candidates is other.candidates

    def __hash__(self) -> int:
        return id(self.candidates)

    def _kernel(self, name: str) -> Kernel:
        """A candidate as the call needs it; bound when it is asked for, as others may not take its arguments."""
        if name not in self._bound:
            self._bound[name] = self.candidates[name].kernel.for_call([get() for get in self._args])
        return self._bound[name]

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Job | None:
        name, own = self.of(config)
        return self._kernel(name).compile_job(own, problem, device)

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        name, own = self.of(config)
        loaded = self._kernel(name).load(own, problem, built)
        return CallExecutable(config, loaded.launch, loaded.resources)


def _held_weakly(value: Any) -> Callable[[], Any]:
    """Gives an argument back, without keeping an array alive (which can be all there is of a device's memory)."""
    return weakref.ref(value) if hasattr(value, "dtype") and hasattr(value, "shape") else lambda: value


def _all_of(many: Sequence[Specialised]) -> Specialised:
    """What decides the binary of any of them."""

    def names(which: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in many for name in cast("tuple[str, ...]", getattr(one, which))))

    where = next((one.where for one in many if one.where is not None), None)
    return Specialised(
        names("alignment"), names("divisibility"), names("width"), names("values"), where, layout=names("layout")
    )


@dataclass(frozen=True)
class Mixed(Model):
    """The performance models of candidates, each for its own Configs; silent about those without."""

    split: Callable[[Config], tuple[str, Config]] = lambda config: ("", config)
    models: Mapping[str, Model] = field(default_factory=dict[str, Model])

    def predict(
        self, problem: Problem, config: Config, device: Device, resources: Resources | None = None
    ) -> Prediction | None:
        name, own = self.split(config)
        model = self.models.get(name)
        return None if model is None else model.predict(problem, own, device, resources)


# --- a kernel that writes its result into an argument ---


def returning(
    kernel: Any, call: Callable[..., tuple[Sequence[Any], Any]], signature_from: Callable[..., Any] | Sequence[str]
) -> Returning:
    """A kernel that writes into an argument as one that returns its result, which is made for each call.

    Args:
        kernel: anything that can be tuned, or is.
        call: from the operation's arguments to (the kernel's arguments by position, what is returned).
        signature_from: the operation's arguments: a callable that takes them, or their names.
    """
    if callable(signature_from):
        signature = inspect.signature(signature_from)
    else:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in signature_from])
    return Returning(kernel.kernel if isinstance(kernel, TunedKernel) else kernel_of(kernel), call, signature)


class Returning:
    """See `returning`."""

    def __init__(self, kernel: Kernel, call: Callable[..., Any], signature: inspect.Signature) -> None:
        self._kernel, self._call, self.signature = kernel, call, signature
        self.name, self.backend, self.knobs, self.per_problem = kernel.name, kernel.backend, kernel.knobs, True
        # Of the kernel's own arguments nothing more is known: they are to be alike for calls of one Problem.
        self.specialised = Specialised(alignment=tuple(signature.parameters))

    def fingerprint(self) -> str:
        return f"{self._kernel.fingerprint()}-{fingerprint.of_function(self._call)[:16]}"

    def environment(self) -> Mapping[str, str]:
        return self._kernel.environment()

    def versions(self) -> Mapping[str, str]:
        return self._kernel.versions()

    def device(self, args: Sequence[Any]) -> Device:
        return device_of(dict(zip(self.signature.parameters, args, strict=False)))

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        return {}

    def for_call(self, args: Sequence[Any]) -> Returning:
        own, _ = self._call(*args)
        bound = copy.copy(self)
        bound._kernel = self._kernel.for_call(own)
        return bound

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Returning) and (self._call, self._kernel) == (other._call, other._kernel)

    def __hash__(self) -> int:
        return hash((self._call, self._kernel))

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Job | None:
        return self._kernel.compile_job(config, problem, device)

    def load(self, config: Config, problem: Problem, built: Built | None) -> CallExecutable:
        loaded, call = self._kernel.load(config, problem, built), self._call
        run = loaded.launch

        def launch(*args: Any) -> Any:
            own, result = call(*args)
            run(*own)
            return result

        return CallExecutable(config, launch, loaded.resources)
