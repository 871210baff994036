"""`@autotune`: where a kernel, its Space and the three tracks meet."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from pathlib import Path
from typing import Any, Literal

from tunesmith import tracks
from tunesmith.backends import kernel_of
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Trial
from tunesmith.core.problem import Bucket, Problem, complete
from tunesmith.core.space import Space, space_from
from tunesmith.dispatch import Call, Dispatcher, KeySpec, check_key_spec, check_names
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning, unknown
from tunesmith.kernel import Clock, Default, Executable, Kernel
from tunesmith.measure.clock import clock_for
from tunesmith.measure.failure import attempt, name_the_config
from tunesmith.missed import counted
from tunesmith.options import Policy, options, policy_in_force
from tunesmith.store import Store, default_store
from tunesmith.tables import NativeTable, Tables
from tunesmith.tune import Effort, Subject, Summary, search
from tunesmith.workers import compile_all

SpaceLike = Space | Callable[[Problem, Device], Space]
MakeInputs = Callable[[Problem], Mapping[str, Any]]

#: Choices and loaded binaries kept in memory for a kernel: far more than a model's shapes, a bound all the same.
REMEMBERED = 4096
#: A field of the key that has had this many values, each searched, is likely a length that wants buckets.
MANY_VALUES = 24


def autotune(
    *,
    space: SpaceLike | None = None,
    configs: Iterable[Config | Mapping[str, object]] | None = None,
    key: Sequence[str] | Callable[..., Mapping[str, object]] = (),
    default: Default | None = None,
    buckets: Mapping[str, Bucket] | None = None,
    strides: Sequence[str] = (),
    alignment: Sequence[str] = (),
    restore_value: Sequence[str] = (),
    reset_to_zero: Sequence[str] = (),
    knobs: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
    make_inputs: MakeInputs | None = None,
    reference: Callable[..., Any] | None = None,
    policy: Literal["default", "lookup", "search"] | None = None,
    strategy: str = "exhaustive",
    budget_s: float | None = None,
    clock: Clock | None = None,
    version: str | None = None,
    depends: Sequence[str] = (),
    name: str | None = None,
) -> Callable[[Any], TunedKernel]:
    """Make a kernel find its own fastest Config.

    Args:
        space: the Configs worth trying, or a function of (problem, device) that returns them.
        configs: an explicit list instead of a Space.
        key: names of the arguments that decide which Config is best (sizes and flags), or a function that is
            given the call's arguments by name and returns a mapping. The dtypes of all arrays and the device
            always count.
        default: the Config (or a function of (problem, device)) used where nothing is known and nothing may
            be measured; the Space's first where not given.
        buckets: for names in `key`: `"pow2"`, a list of upper edges, or a function; sizes in one bucket share
            a Config, which was measured on the first of them that came.
        strides: arrays whose stride classes (0, 1, other) count too.
        alignment: arrays whose alignment to 16 bytes counts too.
        restore_value: arrays the kernel writes in place: put back before every launch of a search, and after it.
        reset_to_zero: arrays the kernel adds to: zeroed before every launch of a search, and as the caller left
            them when the winner runs. (triton.autotune leaves them zeroed on the call that tunes, and on no other.)
        knobs: the knobs' names, where `space` is a function and the kernel cannot say.
        dims: what a Problem written by hand needs; the names in `key` where not given.
        flags: further fields of such a Problem, with their usual values.
        make_inputs: from a Problem to the kernel's arguments by name, real random values (same ones each time).
        reference: the same computation in plain code, given the arguments by name.
        policy: this kernel's own policy; a scope or the environment overrides it.
        strategy: how a search goes through the Space.
        budget_s: seconds one search may take.
        clock: what takes the time; the device's own where not given.
        version: stands for the kernel's source in the Key, for a kernel whose source cannot be identified.
        depends: packages whose versions are compared when a stored Config is used.
        name: the kernel's name in the store and in tables; the function's own where not given.

    Returns:
        A decorator. What it returns is called like the kernel, without the knobs.

    Raises:
        BadInput: for a name that is not an argument, a Space and a list at once, contradictory lists.
    """
    if callable(space) and not isinstance(space, Space):
        if configs is not None:
            raise BadInput("give either space= or configs=, not both")
        spaces: SpaceLike = space
    else:
        spaces = space_from(space, configs)

    def decorate(fn: Any) -> TunedKernel:
        known = tuple(knobs) if knobs is not None else spaces.knobs if isinstance(spaces, Space) else None
        kernel = kernel_of(fn, known, version=version, depends=depends, name=name)
        return TunedKernel(
            kernel, spaces, default,
            spec=KeySpec(
                tuple(key) if not callable(key) else key, dict(buckets or {}), tuple(strides), tuple(alignment), kernel.specialised
            ),
            restore=tuple(restore_value), zero=tuple(reset_to_zero), dims=dims, flags=dict(flags or {}),
            make_inputs=make_inputs, reference=reference, policy=policy,
            effort=Effort(strategy, budget_s), clock=clock, wrapped=fn,
        )  # fmt: skip

    return decorate


class TunedKernel:
    """A kernel that knows its Space. Call it as the kernel itself is called, less the knobs.

    Threads: calls may come from any thread. One search runs for a key, the other threads wait for its Choice.
    """

    def __init__(
        self, kernel: Kernel, space: SpaceLike, default: Default | None, *, spec: KeySpec, restore: tuple[str, ...],
        zero: tuple[str, ...], dims: Sequence[str] | None, flags: Mapping[str, object], make_inputs: MakeInputs | None,
        reference: Callable[..., Any] | None, policy: str | None, effort: Effort, clock: Clock | None, wrapped: Any,
    ) -> None:  # fmt: skip
        parameters = list(kernel.signature.parameters)
        own_knobs = space.knobs if isinstance(space, Space) else ()
        check_key_spec(kernel.name, parameters, spec, own_knobs)
        check_names(kernel.name, "restore_value", restore, parameters, own_knobs)
        check_names(kernel.name, "reset_to_zero", zero, parameters, own_knobs)
        both = sorted({*restore} & {*zero})
        if both:
            raise BadInput(
                f"{kernel.name}: {both[0]!r} is in restore_value and in reset_to_zero: put back or zeroed, not both"
            )
        if policy is not None:
            Policy.of(policy)
        if isinstance(space, Space) and isinstance(default, Config):
            space.check(default)
        self.kernel, self.space, self.default, self.spec = kernel, space, default, spec
        self.restore, self.zero = restore, zero
        self.dims = tuple(dims) if dims is not None else () if callable(spec.names) else spec.names
        self.flags, self.make_inputs, self.reference = flags, make_inputs, reference
        self.policy, self.effort, self.clock = policy, effort, clock
        self.tables: tuple[Tables, ...] = ()
        self._choices: OrderedDict[tuple[Policy, Key], Choice] = OrderedDict()
        self._binaries: OrderedDict[tuple[object, ...], Executable] = OrderedDict()
        self._served_unknown: set[Key] = set()  # Keys that the default served as nothing was known: to be asked again
        self._waited: set[Key] = set()  # Keys for which a call has waited in vain: the next does not wait again
        self._lock = threading.Lock()
        self._searched: dict[str, set[object]] = {}
        self._searching_s = 0.0
        self._dispatcher = Dispatcher(kernel.signature, spec, self._resolve, policy, name=kernel.name)
        # A class of its own, whose __call__ is the generated function: a frame less, and keywords bound once.
        self.__class__ = type("TunedKernel", (type(self),), {"__call__": staticmethod(self._dispatcher.call)})
        if wrapped is not None:
            update_wrapper(self, wrapped, updated=())
        self.__name__ = kernel.name
        self.__signature__ = kernel.signature

    # --- calling ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel with the Config that is right for these arguments."""
        return self._dispatcher.call(*args, **kwargs)  # each kernel's own class calls this directly

    def lookup(self, *args: Any, **kwargs: Any) -> Choice | None:
        """The Choice that is known for a call, `None` if there is none. Launches and measures nothing."""
        subject = self._subject(self._dispatcher.problem_of(*args, **kwargs))
        return tracks.known_choice(subject, default_store(), self.tables, "lookup")

    def choice(self, *args: Any, **kwargs: Any) -> Choice:
        """The Choice that a call would use under the policy in force; under `search` that may mean measuring."""
        return self._choose(self._subject(self._dispatcher.problem_of(*args, **kwargs)), policy_in_force(self.policy))

    def explain(self, *args: Any, **kwargs: Any) -> None:
        """Print what a call would use and why: track, source, runner-up, ties. Measures nothing."""
        from tunesmith.report.terminal import print_explanation

        print_explanation(*self.explanation(*args, **kwargs))

    def explanation(self, *args: Any, **kwargs: Any) -> tuple[Key, Choice, Sequence[Trial]]:
        """What `explain` prints: the call's Key, the Choice as far as it is known, and the stored Trials."""
        subject = self._subject(self._dispatcher.problem_of(*args, **kwargs))
        policy = policy_in_force(self.policy)
        store = default_store()
        with self._lock:
            choice = self._choices.get((policy, subject.key))
        if choice is None:
            choice = self._explained(subject, policy, store)
        return subject.key, choice, store.trials(subject.key)

    def _explained(self, subject: Subject, policy: Policy, store: Store) -> Choice:
        default = self._default(subject)
        if policy.track == "default":
            return tracks.default_choice(default(), subject.space, "default")
        known = tracks.known_choice(subject, store, self.tables, policy.track)
        if known is not None:
            return known
        why = tracks.miss(subject, store)
        note = f"{why}; a call would search" if policy.track == "search" and subject.space.cardinality > 1 else why
        return tracks.default_choice(default(), subject.space, policy.track, note=note)

    # --- tuning ----------------------------------------------------------------------------------

    def tune(self, *args: Any, budget_s: float | None = None, strategy: str | None = None, **kwargs: Any) -> Summary:
        """Search for a call's arguments now, whatever the policy; what is known already is not measured again.

        The arguments are as before afterwards; the kernel's result is not computed.

        Raises:
            NoWorkingConfig: when every Config failed.
        """
        subject = self._subject(self._dispatcher.problem_of(*args, **kwargs))
        store = default_store()
        with store.claim(subject.key, options().wait_s) as claimed:
            if not claimed:
                raise BadInput(
                    f"{self.kernel.name}({subject.key.problem}) has been searched by another process for more than "
                    f"{options().wait_s:g} s; wait for it, or raise TUNESMITH_WAIT_S"
                )
            effort = self._effort(budget_s, strategy)
            summary = search(subject, store, self.clock or clock_for(subject.device), effort)
        self._found(subject.key)
        return summary

    def problem(self, text: str | Problem) -> Problem:
        """A Problem written by hand (`M=512,N=512,K=512,dtype=float32`), checked and completed.

        Raises:
            ProblemError: naming the bad field and the good ones.
        """
        given = Problem.parse(text) if isinstance(text, str) else text
        dtypes = self.kernel.dtypes()
        return complete(given, self.dims, tuple(dtypes), dtypes, self.flags)

    def inputs(self, problem: str | Problem) -> dict[str, Any]:
        """Arguments by name for a Problem.

        Raises:
            BadInput: when the kernel was declared without `make_inputs`, or it makes the wrong arguments.
        """
        if self.make_inputs is None:
            raise BadInput(
                f"{self.kernel.name} has no inputs of its own: pass make_inputs= to autotune, "
                "a function from a Problem to the arguments by name"
            )
        made = dict(self.make_inputs(self.problem(problem)))
        parameters = self.kernel.signature.parameters
        for given in made:
            if given not in parameters:
                raise BadInput(f"{self.kernel.name}: make_inputs made {unknown('argument', given, parameters)}")
        return made

    def fix(self, **knobs: object) -> TunedKernel:
        """This kernel with some knobs held at one value.

        Raises:
            SpaceError: for an unknown knob or a value that is not of its axis.
        """
        fixed = Config(knobs)
        space, default = self.space, self.default
        held: SpaceLike = space.fix(**fixed) if isinstance(space, Space) else lambda p, d: space(p, d).fix(**fixed)

        def held_default(problem: Problem, device: Device) -> Config:
            usual = self._default_for(problem, device).replace(**fixed)
            legal = held if isinstance(held, Space) else held(problem, device)
            return usual if usual in legal else next(iter(legal))

        return self._but(held, held_default if default is not None else None)

    def _but(self, space: SpaceLike, default: Default | None) -> TunedKernel:
        return TunedKernel(
            self.kernel, space, default, spec=self.spec, restore=self.restore, zero=self.zero, dims=self.dims, flags=self.flags,
            make_inputs=self.make_inputs, reference=self.reference, policy=self.policy, effort=self.effort, clock=self.clock,
            wrapped=getattr(self, "__wrapped__", None),
        )  # fmt: skip

    def use_table(self, table: str | Path | Tables) -> None:
        """Look Problems up in a table too, after the store and before the heuristic. The last one given is asked first.

        Raises:
            BadInput: for a file that is not a table.
        """
        loaded = NativeTable.read(Path(table)) if isinstance(table, (str, Path)) else table
        self.tables = (loaded, *self.tables)
        with self._lock:
            self._choices.clear()
        self._dispatcher.clear()

    # --- from a call to a launch -----------------------------------------------------------------

    def _resolve(self, call: Call) -> tuple[Callable[..., Any], bool]:
        """The slow path of a call: its launch, and whether the dispatcher may keep it."""
        policy = policy_in_force(self.policy)
        subject = self._subject(call)
        choice = self._choose(subject, policy)
        executable, fresh = self._binary(choice, subject, call)
        launch = executable.launch
        if choice.source == tracks.ONLY and fresh:
            return name_the_config(launch, self.kernel.name, choice.config), False
        if policy.track == "lookup" and choice.source == tracks.DEFAULT:
            return counted(self.kernel.name, subject.key.problem, launch), True
        return launch, choice.source != tracks.MEANWHILE

    def _subject(self, call: Call) -> Subject:
        device = self.kernel.device(call.args)
        space = self.space if isinstance(self.space, Space) else self.space(call.exact, device)
        clock = self.clock.protocol if self.clock is not None else clock_for(device).protocol
        key = Key(
            self.kernel.name, self.kernel.fingerprint(), call.problem, device.identity, clock, soft=dict(self.kernel.versions())
        )  # fmt: skip
        return Subject(self.kernel, key, call.exact, space, device, call.args, self.restore, self.zero)

    def _choose(self, subject: Subject, policy: Policy) -> Choice:
        remembered = (policy, subject.key)
        with self._lock:
            if remembered in self._choices:
                self._choices.move_to_end(remembered)
                return self._choices[remembered]
        choice = self._decide(subject, policy)
        with self._lock:
            if choice.source == tracks.MEANWHILE:
                self._waited.add(subject.key)
                return choice
            if policy.track == "lookup" and choice.source == tracks.DEFAULT:
                self._served_unknown.add(subject.key)
            self._choices[remembered] = choice
            while len(self._choices) > REMEMBERED:
                self._served_unknown.discard(self._choices.popitem(last=False)[0][1])
        return choice

    def _decide(self, subject: Subject, policy: Policy) -> Choice:
        default = self._default(subject)
        if policy.track == "default":
            return tracks.default_choice(default(), subject.space, "default")
        if policy.track == "lookup":
            return tracks.lookup(subject, default, default_store(), self.tables, policy)
        choice, summary = tracks.find(
            subject, default, default_store(), self.tables, lambda: self.clock or clock_for(subject.device),
            self._effort(None, None), options(), 0.0 if subject.key in self._waited else options().wait_s,
        )  # fmt: skip
        if summary is not None:
            self._found(subject.key)
            self._note_many_values(subject.key.problem, summary)
        return choice

    def _effort(self, budget_s: float | None, strategy: str | None) -> Effort:
        budgets = [b for b in (budget_s, self.effort.budget_s, options().budget_s) if b is not None]
        return Effort(strategy or self.effort.strategy, budgets[0] if budgets else None, options().jobs)

    def _default(self, subject: Subject) -> Callable[[], Config]:
        def default() -> Config:
            config = self._default_for(subject.exact, subject.device)
            fault = subject.space.fault(config)
            if fault is not None:
                raise BadInput(f"{self.kernel.name}: its default {config!r} is not of its own Space: {fault}")
            return config

        return default

    def _default_for(self, problem: Problem, device: Device) -> Config:
        if self.default is None:
            space = self.space if isinstance(self.space, Space) else self.space(problem, device)
            first = next(iter(space), None)
            if first is None:
                raise NoWorkingConfig(f"{self.kernel.name}({problem}): the constraints cut every Config of the Space")
            return first
        return self.default if isinstance(self.default, Config) else self.default(problem, device)

    def _binary(self, choice: Choice, subject: Subject, call: Call) -> tuple[Executable, bool]:
        """The compiled Config for a call's specialisation, and whether it was made just now."""
        name = (
            choice.config,
            call.exact if self.kernel.per_problem else None,
            call.specialisation,
            subject.device.identity,
        )
        with self._lock:
            if name in self._binaries:
                self._binaries.move_to_end(name)
                return self._binaries[name], False
        executable = self._compile(choice, subject)
        with self._lock:
            self._binaries[name] = executable
            while len(self._binaries) > REMEMBERED:
                self._binaries.popitem(last=False)
        return executable, True

    def _compile(self, choice: Choice, subject: Subject) -> Executable:
        kernel, config = self.kernel, choice.config
        job = kernel.compile_job(config, subject.exact, subject.device)
        built = next(iter(compile_all([(config, job)], 1)))[1]
        if isinstance(built, Failed):
            raise NoWorkingConfig(
                f"{kernel.name}({subject.exact}): the {choice.source} Config {config!r} does not compile: {built.reason}\n{built.detail}"
            )
        executable, failure, error = attempt("load", lambda: kernel.load(config, subject.exact, built))
        if executable is None or failure is not None:
            assert failure is not None
            raise NoWorkingConfig(
                f"{kernel.name}({subject.exact}): the {choice.source} Config {config!r} does not load: {failure.reason}"
            ) from error
        return executable

    def _found(self, key: Key) -> None:
        """A search has ended: what was answered for its Key without knowing is asked again."""
        with self._lock:
            self._waited.discard(key)
            for remembered in [(policy, known) for policy, known in self._choices if known == key]:
                del self._choices[remembered]
            asked_again = key in self._served_unknown
            self._served_unknown.discard(key)
        if asked_again:
            self._dispatcher.clear()

    def _note_many_values(self, problem: Problem, summary: Summary) -> None:
        """Say once that a field of the key keeps changing and costs a search each time."""
        if callable(self.spec.names):
            return
        self._searching_s += summary.compile_s + summary.measure_s
        for field in self.spec.names:
            values = self._searched.setdefault(field, set())
            if len(values) > MANY_VALUES:
                continue
            values.add(problem.get(field))
            if len(values) == MANY_VALUES and field not in self.spec.buckets:
                warnings.warn(
                    f"{self.kernel.name}: key field {field!r} has had {len(values)} different values, each searched "
                    f"({self._searching_s:.1f} s in all); sizes that may share a Config want buckets={{{field!r}: 'pow2'}}",
                    TunesmithWarning, stacklevel=2,
                )  # fmt: skip
                values.add(object())  # said once

    # --- as an object ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<tuned {self.kernel.backend} kernel {self.kernel.name}{self.kernel.signature}>"

    def __reduce__(self) -> str:
        """Pickled (and copied) by name, as functions are: what was measured is in the store, not in the object."""
        return getattr(self, "__qualname__", self.kernel.name)

    def __copy__(self) -> TunedKernel:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TunedKernel:
        return self
