"""`prepare`: Choices and binaries for many calls before the first of them comes, from shapes and dtypes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from tunesmith import tracks
from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice
from tunesmith.core.problem import Problem
from tunesmith.core.shaped import Shaped
from tunesmith.dispatch import Call, Launch
from tunesmith.dispatch.arguments import leaves
from tunesmith.errors import BadInput, LookupMiss, NotPrepared, TunesmithError, TunesmithWarning, unknown
from tunesmith.events import Preparing, say
from tunesmith.kernel import Job, Kernel
from tunesmith.measure.allowed import why_not_to_measure
from tunesmith.measure.arrays import Layout, current_place, is_described, layout_of, mapped, outline_of, spelled_bytes
from tunesmith.measure.failure import attempt
from tunesmith.options import Policy, options, policy_in_force, scoped_policy, within
from tunesmith.workers import compile_all

#: one call to prepare for: as text, or the arguments by name
Wanted: TypeAlias = "str | Problem | Mapping[str, Any]"
#: fills an array that was made of its shape, given the call's other arguments by name; or the value of all elements
Fill: TypeAlias = "Callable[[Any, Mapping[str, Any]], object] | float"
#: misses that a warning names
_NAMED = 5
#: backends whose arrays are torch's tensors on a GPU where nothing else is said
_ON_GPUS = ("triton", "cuda")


@dataclass(frozen=True)
class Steps:
    """What preparing asks of a tuned kernel.

    Attributes:
        opaque: parameters that decide nothing (a grid): a call that is not launched does without.
        inputs: the arguments that `make_inputs` makes of a Problem.
        call_of: a Call of arguments by name.
        must_measure: whether the policy in force means to measure for a Call.
        choose: the Choice for a Call; launches if it has to be measured.
        job: what has to be compiled for a Call and its Config.
        resolve: a Call's launch, and whether it may be kept warm.
        warm_up: makes calls like these warm.
    """

    kernel: Kernel
    own_policy: str | None
    opaque: tuple[str, ...]
    inputs: Callable[[str | Problem], dict[str, Any]]
    call_of: Callable[..., Call]
    must_measure: Callable[[Call], bool]
    choose: Callable[[Call], Choice]
    job: Callable[[Call, Config], Job | None]
    resolve: Callable[[Call], tuple[Launch, bool]]
    warm_up: Callable[[Sequence[tuple[tuple[Any, ...], Launch]]], None]


@dataclass(eq=False)
class _Item:
    """One problem on its way.

    Attributes:
        number: from 1.
        call: what it would be as a call, its arrays without content.
        why: what went wrong. is_miss: whether it was that a strict lookup knows nothing.
    """

    number: int
    wanted: Wanted
    call: Call | None = None
    choice: Choice | None = None
    why: str = ""
    is_miss: bool = False


@dataclass
class Preparation:
    """Everything that `TunedKernel.prepare` was asked for; `run` does it. See there."""

    steps: Steps
    device: str | None = None
    fill: Mapping[str, Fill] = field(default_factory=dict[str, Fill])
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def run(self, problems: Iterable[Wanted]) -> list[Choice]:
        """Prepare for each problem; their Choices, in order."""
        name = self.steps.kernel.name
        why = why_not_to_measure()
        if why:
            raise BadInput(f"{name}.prepare was called {why}, where nothing may be measured or loaded: call it before")
        items = [_Item(number, wanted) for number, wanted in enumerate(self._checked(problems), 1)]
        for item in items:
            say(Preparing(name, item.number, len(items)))
            self._try(item, partial(self._choose, item))
        self._compile(items)
        self._load(items)
        return self._concluded(items)

    def _checked(self, problems: Iterable[object]) -> Iterator[Wanted]:
        """The problems, where they are some and the options make sense."""
        name, parameters = self.steps.kernel.name, self.steps.kernel.signature.parameters
        if isinstance(problems, (str, Mapping)):
            raise BadInput(f"{name}.prepare: {problems!r} is one problem; give a list of them")
        if self.device is not None and not _is_place(self.device):
            raise BadInput(f"{name}.prepare: device={self.device!r}; good values: cpu, cuda, cuda:N")
        for argument in self.fill:
            if argument not in parameters:
                raise BadInput(f"{name}.prepare, fill: {unknown('argument', argument, parameters)}")
        for wanted in problems:
            if not isinstance(wanted, (str, Mapping)):
                raise BadInput(
                    f"{name}.prepare: {wanted!r} is no problem; good ones: text, a Problem, arguments by name"
                )
            yield cast("Wanted", wanted)

    def _try(self, item: _Item, act: Callable[[], object]) -> None:
        """Do something for one problem; what goes wrong is its own and no other's.

        Only words are kept of an error: its frames would hold the problem's tensors until the end.
        """
        if item.why:
            return
        _, failure, error = attempt("launch", act)
        if failure is not None:
            item.why = (str(error) if isinstance(error, TunesmithError) else "") or failure.reason
            item.is_miss = isinstance(error, LookupMiss)
            del error
            gc.collect()  # errors of a search and their frames hold each other

    # --- a Choice for each -----------------------------------------------------------------------

    def _choose(self, item: _Item) -> None:
        """Find the Choice; tensors are made only where it has to be measured, and are gone afterwards."""
        wanted, steps = item.wanted, self.steps
        if not isinstance(wanted, Problem) and isinstance(wanted, Mapping):
            named = self._named(wanted)
            place = self._place(named)
            made: Callable[[], dict[str, Any]] = partial(self._allocated, named, place)
            outlined = {name: mapped(partial(self._outline, place), value) for name, value in named.items()}
        else:
            inputs = {**self.given, **steps.inputs(wanted)}
            made = partial(dict[str, Any], inputs)
            outlined = {name: mapped(outline_of, value) for name, value in inputs.items()}
        item.call = self._call(outlined)
        if not steps.must_measure(item.call):
            item.choice = steps.choose(item.call)
        else:
            missing = [name for name in steps.opaque if outlined.get(name) is None]
            if missing:
                raise BadInput(
                    f"the {missing[0]} is missing, and without it nothing can be launched: prepare(…, {missing[0]}=…), "
                    "or an entry of the problem"
                )
            item.choice = steps.choose(self._call(made()))
        if item.choice.source == tracks.MEANWHILE:
            raise NotPrepared(item.choice.note)

    def _named(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        named = {**self.given, **wanted}
        for name in named:
            if name not in self.steps.kernel.signature.parameters:
                raise BadInput(unknown("argument", name, self.steps.kernel.signature.parameters))
        return named

    def _call(self, named: Mapping[str, Any]) -> Call:
        try:
            return self.steps.call_of(**{**dict.fromkeys(self.steps.opaque), **named})
        except TypeError as error:
            raise BadInput(f"this is no call of {self.steps.kernel.name}: {error}") from None

    # --- arrays ----------------------------------------------------------------------------------

    def _place(self, named: Mapping[str, Any]) -> str:
        """The device of what is only described: the one asked for, else that of the real tensors, else the usual."""
        if self.device is not None:
            return str(self.device)
        real = [str(array.device) for name, value in named.items() for _, array in leaves(name, value)
                if not is_described(array) and hasattr(array, "device")]  # fmt: skip
        return next((at for at in real if at != "cpu"), real[0] if real else _usual_place(self.steps.kernel.backend))

    def _layout(self, place: str, value: Any) -> Layout:
        engine: Literal["torch", "numpy"] = "torch" if self.steps.kernel.backend in _ON_GPUS else "numpy"
        if isinstance(value, Shaped) and self.device is None and engine == "numpy":
            place = "cpu"  # a numpy array, unless a GPU is asked for
        return layout_of(value, place, engine)

    def _outline(self, place: str, value: Any) -> Any:
        return self._layout(place, value).outline() if is_described(value) else value

    def _allocated(self, named: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The arguments with real arrays.

        Raises:
            BadInput: when there is no memory for them, with the bytes of each.
        """
        made: dict[str, Any] = {}
        for name, value in named.items():
            seeds = iter(range(len(made) * 1000, (len(made) + 1) * 1000))
            made[name] = mapped(partial(self._array, named, name, place, seeds), value)
        return made

    def _array(self, named: Mapping[str, Any], name: str, place: str, seeds: Iterator[int], value: Any) -> Any:
        if not is_described(value):
            return value
        layout = self._layout(place, value)
        fill = self.fill.get(name)
        if fill is None and layout.is_wide_integer:
            raise BadInput(
                f"{name} is only described, and integers can be indices or lengths: with zeros in it other work would "
                f"be measured. Give the array itself, or prepare(…, fill={{{name!r}: function of (array, "
                f"arguments)}}); fill={{{name!r}: 0}} says that zeros are right"
            )
        by = None if fill is None else partial(_filled, fill, named)
        array, failure, error = attempt("launch", lambda: layout.allocate(by, next(seeds)))
        if failure is None:
            return array
        if not isinstance(error, (MemoryError, RuntimeError)) or fill is not None:
            assert error is not None
            raise error
        raise BadInput(
            f"{name} needs {spelled_bytes(layout.n_bytes)} on {layout.place}, of {self._total(named, place)} for all "
            f"arguments, and can't be made: {failure.reason}"
        ) from error

    def _total(self, named: Mapping[str, Any], place: str) -> str:
        found = [one for value in named.values() for one in _described(value)]
        return spelled_bytes(sum(self._layout(place, one).n_bytes for one in found))

    # --- binaries, and warm calls ----------------------------------------------------------------

    def _compile(self, items: Sequence[_Item]) -> None:
        """Compile what is not compiled yet for all problems at once; what fails says so when it is loaded."""
        jobs: dict[object, tuple[Config, Job]] = {}
        for item in items:
            if not item.why and item.call is not None and item.choice is not None:
                for config in (item.choice.config, item.choice.called or item.choice.config):
                    job = attempt("compile", partial(self.steps.job, item.call, config))[0]
                    if job is not None and not job.output.exists():
                        jobs[job.output] = config, job
        if len(jobs) > 1:
            for _ in compile_all(jobs.values(), options().jobs):
                pass

    def _load(self, items: Sequence[_Item]) -> None:
        """Load every binary, then make every call warm: a search that ends makes all calls ask again."""
        for scope in self._scopes(items):
            warm: list[tuple[tuple[Any, ...], Launch]] = []
            with within(scope):
                for item in items:
                    self._try(item, partial(self._ready, item, warm))
                self.steps.warm_up(warm)

    def _ready(self, item: _Item, warm: list[tuple[tuple[Any, ...], Launch]]) -> None:
        assert item.call is not None
        launch, kept = self.steps.resolve(item.call)
        if not kept:  # the first launch of what nothing has tried is not kept, the second is
            launch, kept = self.steps.resolve(item.call)
        if kept:
            self.steps.warm_up([(item.call.args, launch)])  # what can't be told from others says so here
            warm.append((item.call.args, launch))

    def _scopes(self, items: Sequence[_Item]) -> Iterator[Policy | None]:
        """The policy's scope in force; and none, where a call outside of it would be given the same Choices."""
        scope = scoped_policy.get()
        yield scope
        if scope is None:
            return
        inside = policy_in_force(self.steps.own_policy)
        with within(None):
            outside = policy_in_force(self.steps.own_policy)
        known = all(item.choice is None or item.choice.source != tracks.DEFAULT for item in items)
        plain = not inside.by and not outside.by
        if outside is inside or (plain and outside.track == "lookup" and inside.track != "default" and known):
            yield None

    # --- the end ---------------------------------------------------------------------------------

    def _concluded(self, items: Sequence[_Item]) -> list[Choice]:
        name = self.steps.kernel.name
        failed = [item for item in items if item.why]
        if failed:
            lines = [f"{_title(item)}: {item.why}" for item in failed]
            text = f"{name}: {len(failed)} of {len(items)} problems are not prepared\n  " + "\n  ".join(lines)
            if all(item.is_miss for item in failed):
                raise LookupMiss(text)
            raise NotPrepared(text)
        choices = [item.choice for item in items if item.choice is not None]
        missed = [item for item in items if item.choice is not None and _is_miss(item.choice)]
        if missed:
            shown = "; ".join(_title(item) for item in missed[:_NAMED])
            more = "; …" if len(missed) > _NAMED else ""
            warnings.warn(
                f"{name}.prepare: nothing is known of {len(missed)} of {len(items)} problems, and nothing may be "
                f"measured: their default Configs are loaded and will serve: {shown}{more}",
                TunesmithWarning, stacklevel=4,
            )  # fmt: skip
        return choices


def _is_miss(choice: Choice) -> bool:
    return choice.source == tracks.DEFAULT and choice.track != "default"


def _title(item: _Item) -> str:
    said = item.call.exact.text if item.call is not None else ""
    if not said and isinstance(item.wanted, (str, Problem)):
        said = str(item.wanted)
    return f"problem {item.number}{f' ({said})' if said else ''}"


def _filled(fill: Fill, named: Mapping[str, Any], array: Any) -> None:
    if callable(fill):
        fill(array, named)
    else:
        array[...] = fill


def _described(value: Any) -> list[Any]:
    """What is only described of an argument: itself, parts of a tuple, the tensor under a descriptor."""
    if isinstance(value, (tuple, list)):
        return [one for part in cast("Sequence[Any]", value) for one in _described(part)]
    return [one for one in (value, getattr(value, "base", None)) if is_described(one)]


def _is_place(device: object) -> bool:
    kind, _, index = str(device).partition(":")
    return str(device) in ("cpu", "cuda") or (kind == "cuda" and index.isdecimal())


def _usual_place(backend: str) -> str:
    return "cpu" if backend == "cc" else current_place(import_torch=backend in _ON_GPUS)
