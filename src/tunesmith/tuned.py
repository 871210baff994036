"""`TunedKernel`: a kernel with its Space; a call goes key → Choice → binary → launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from types import MethodType
from typing import Any, cast
from weakref import WeakKeyDictionary

from tunesmith import inputs, missed, tracks
from tunesmith.binaries import Binaries, job_for
from tunesmith.confirm import Confirmed, Visits
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.model import explain
from tunesmith.core.notebook import Trials
from tunesmith.core.outcome import Choice, Recording, Trial
from tunesmith.core.problem import Problem
from tunesmith.decide import REMEMBERED, Decider
from tunesmith.declaration import Declaration, Frontend, SpaceLike
from tunesmith.dispatch import Call, Dispatcher, LeftOut
from tunesmith.errors import BadInput, LookupMiss
from tunesmith.events import Summary
from tunesmith.isolate import Isolation
from tunesmith.kernel import Clock, Executable, Job, Kernel
from tunesmith.measure.allowed import captures_spared
from tunesmith.measure.failure import name_the_config
from tunesmith.ncu import compare, counters_of
from tunesmith.neighbours import known_from
from tunesmith.offline import Offline
from tunesmith.options import policy_in_force
from tunesmith.prepare import Fill, Preparation, Steps, Wanted
from tunesmith.record import ROUNDS, record
from tunesmith.refresh import BEST, Refreshed
from tunesmith.search import Solved
from tunesmith.store import default_store
from tunesmith.subject import Subject
from tunesmith.subjects import Subjects
from tunesmith.tables import Tables
from tunesmith.tune import ONLY
from tunesmith.verification import Verification


class TunedKernel:
    """A kernel that knows its Space. Call it as the kernel itself is called, less the knobs.

    Threads: calls may come from any thread. One search runs for a key, the other threads wait for its Choice.
    """

    def __init__(
        self, kernel: Kernel, declared: Declaration, wrapped: Any = None, frontend: Frontend | None = None,
        isolation: Isolation | None = None,
    ) -> None:  # fmt: skip
        declared.check(kernel)
        self.kernel, self.declared = kernel, declared
        said = frontend or Frontend()
        self._binaries = Binaries(REMEMBERED)
        self._subjects = Subjects(kernel, declared, said)
        # An Executable of just one Problem must not serve the others of its bucket: each call asks anew which one.
        self._exact_only = kernel.per_problem and bool(declared.spec.buckets)
        self._isolation = isolation or Isolation(self, declared)
        self._left_out = LeftOut(kernel, declared.spec)
        self._served: WeakKeyDictionary[Callable[..., Any], Choice] = WeakKeyDictionary()
        self._notes_latest = frontend is not None
        self._dispatcher = Dispatcher(
            kernel.signature, declared.spec, self._resolve, declared.policy, name=kernel.name,
            extra=said.extra, notes_latest=self._notes_latest, refused=said.refused,
        )  # fmt: skip
        self._decider = Decider(kernel, declared, said, self._subjects, self._isolation, self._dispatcher.clear)
        self._offline = Offline(kernel, declared, self._subjects, self._decider)
        # A class of its own, whose __call__ is the generated function: a frame less, and keywords bound once.
        own_class = type("TunedKernel", (type(self),), {"__call__": staticmethod(self._dispatcher.call)})
        cast(Any, self).__class__ = own_class
        if wrapped is not None:
            update_wrapper(self, wrapped, updated=())
        self.__name__ = kernel.name
        self.__signature__ = kernel.signature

    @property
    def space(self) -> SpaceLike:
        """The Configs worth trying, or the function of (problem, device) that says."""
        return self.declared.space

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that a Problem written by hand needs."""
        return self.declared.dims

    @property
    def flags(self) -> Mapping[str, object]:
        """Further fields of such a Problem, with their usual values."""
        return self.declared.flags

    @property
    def tables(self) -> tuple[Tables, ...]:
        """What `use_table` was given, the last one first."""
        return self._decider.tables

    # --- calling ---------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the kernel with the Config that is right for these arguments."""
        return self._dispatcher.call(*args, **kwargs)  # each kernel's own class calls this directly

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a method: bound to its object, like any function of a class."""
        return self if owner is None else MethodType(self, owner)

    @property
    def call(self) -> Callable[..., Any]:
        """What a call runs: one function for the kernel's life."""
        return self._dispatcher.call

    @property
    def dispatcher(self) -> Dispatcher:
        """Finds the launch of each call: for whoever remembers launches beside it."""
        return self._dispatcher

    def say(self, text: str) -> None:
        """Print a line that another tuner's users expect, on standard output."""
        from tunesmith.report.terminal import print_line

        print_line(text)

    def forget_latest(self) -> None:
        """Note that the latest call was another's."""
        self._dispatcher.latest[0] = None

    def trials(self, key: Key) -> Trials:
        """What is stored of a Key; a table in a notebook."""
        return Trials(default_store().trials(key))

    @property
    def latest(self) -> Choice | None:
        """The Choice of the latest call, where a frontend asked for it to be noted; `None` before the first."""
        launch = self._dispatcher.latest[0]
        return None if launch is None else self._served.get(launch)

    def lookup(self, *args: Any, **kwargs: Any) -> Choice | None:
        """The Choice that is known for a call, `None` if there is none. Launches and measures nothing."""
        return self._decider.known(self._subjects.of(self._dispatcher.problem_of(*args, **kwargs)))

    def key(self, *args: Any, **kwargs: Any) -> Key:
        """Everything that decides which Choice is right for a call."""
        return self._subjects.of(self._dispatcher.problem_of(*args, **kwargs)).key

    def choice(self, *args: Any, **kwargs: Any) -> Choice:
        """The Choice that a call would use under the policy in force; under `search` that may mean measuring."""
        subject = self._subjects.of(self._dispatcher.problem_of(*args, **kwargs))
        return self._decider.choose(subject, self._decider.allowed(subject, policy_in_force(self.declared.policy)))

    def explain(self, *args: Any, ncu: str | Path | None = None, **kwargs: Any) -> None:
        """Print what a call would use and why: track, source, runner-up, ties. Measures nothing.

        With `model=`, what the performance model says of it too; `ncu` is as of `predicted`.
        """
        from tunesmith.report.terminal import print_explanation

        print_explanation(self, args, kwargs, ncu)

    def explanation(self, *args: Any, **kwargs: Any) -> tuple[Key, Choice, Sequence[Trial]]:
        """What `explain` prints: the call's Key, the Choice as far as it is known, and the stored Trials."""
        call = self._dispatcher.problem_of(*args, **kwargs)
        subject = self._subjects.of(call)
        policy = policy_in_force(self.declared.policy)
        store = default_store()
        choice = self._decider.foreseen(subject, policy)
        notes = [choice.note]
        if self.declared.invariance is not None and policy.track != "default":
            notes.append(self.declared.invariance.told(subject.key, store))
        left_out = self._left_out.of(subject.key)
        if left_out:
            notes.append(f"calls of this key differed in arguments that are not in it: {', '.join(left_out)}")
        slow = getattr(self._binaries.loaded(choice, subject, call), "slow_reason", "")
        if slow:
            notes.append(f"launched the ordinary, slower way: {slow}")
        return subject.key, replace(choice, note="; ".join(filter(None, notes))), store.trials(subject.key)

    def predicted(self, *args: Any, ncu: str | Path | None = None, **kwargs: Any) -> list[tuple[str, str]]:
        """What the performance model says of the Config that a call would use: (what, its value and what it means).

        Empty without `model=`, and on a chip of which too little is known.

        Args:
            ncu: a CSV file of Nsight Compute's, whose bytes of device memory are compared with the model's.

        Raises:
            BadInput: when there is a file to compare and no model, and for a file that can't be read.
        """
        model, subject = self.declared.model, self._subjects.of(self._dispatcher.problem_of(*args, **kwargs))
        key, choice, trials = self.explanation(*args, **kwargs)
        resources = next((trial.resources for trial in trials if trial.config == choice.config), None)
        found = model and model.predict(subject.exact, choice.config, subject.device, resources)
        if ncu is None:
            return explain(found, subject.device) if found else []
        if found is None:
            why = f"too little is known of {subject.device.name}" if model else "its autotune has no model="
            raise BadInput(f"{key.kernel}: nothing to compare {ncu} with: {why}")
        return explain(found, subject.device) + compare(counters_of(ncu, self.kernel.name), found)

    # --- tuning ----------------------------------------------------------------------------------

    def tune(
        self, *args: Any, budget_s: float | None = None, strategy: str | None = None, launches: int | None = None,
        isolate: bool | None = None, near: Sequence[str | Path | Solved] = (), first: Sequence[Config] = (),
        **kwargs: Any,
    ) -> Summary:  # fmt: skip
        """Search for a call's arguments now, whatever the policy; what is known already is not measured again.

        Arrays named in restore_value and reset_to_zero are as before afterwards. Others hold what the last launch of
        the search wrote; nothing, where candidates run in a worker.

        Args:
            isolate: as of `autotune`, for this search.
            near: of strategy `transfer`, what is known beside the store: tables of ours (of another GPU, say) and
                recordings, as paths, or `Solved` Problems. Where given, that is the strategy.
            first: Configs to begin with, as far as the Space has them.

        Raises:
            BadInput: under TUNESMITH_READ_ONLY; for a file of `near` that can't be used.
            NoWorkingConfig: when every Config failed.
            Busy: when another process or thread has been searching the same key for longer than `TUNESMITH_WAIT_S`.
        """
        self._offline.refuse_to_measure("tuned")
        subject = self._isolation.of(self.subject(*args, **kwargs), isolate)
        name = self.declared.name_for(self.kernel.name)
        effort = self._subjects.effort(budget_s, strategy, launches, known_from(near, name))
        return self._offline.tune(subject, replace(effort, first=tuple(first)))

    def refresh(self, *args: Any, best: int = BEST, anyway: bool = False, **kwargs: Any) -> Refreshed | None:
        """Race what is stored for a call's arguments against the next best of then, if it was found under other
        versions; `None` where nothing is stored.

        Args:
            best: how many rivals the Config in use has.
            anyway: also where the versions are the same.

        Raises:
            BadInput: under TUNESMITH_READ_ONLY.
            Busy: when another search has been at the key or the device for longer than `TUNESMITH_WAIT_S`.
        """
        self._offline.refuse_to_measure("refreshed")
        return self._offline.refresh(self._isolation.of(self.subject(*args, **kwargs)), best, anyway)

    def look_again(
        self, *args: Any, budget_s: float | None = None, isolate: bool | None = None, **kwargs: Any
    ) -> Refreshed | None:
        """Race what is stored for a call's arguments against the best of then once more, at another time; `None` where
        nothing is stored.

        For a CPU that others share: a race that was disturbed, and no less than the one before, leaves nothing.

        Args:
            budget_s: seconds at most; as of `autotune` if not given.
            isolate: as of `autotune`, for this race.

        Raises:
            BadInput: under TUNESMITH_READ_ONLY.
            Busy: when another search has been at the key or the device for longer than `TUNESMITH_WAIT_S`.
        """
        self._offline.refuse_to_measure("looked at again")
        return self._offline.look_again(self._isolation.of(self.subject(*args, **kwargs), isolate), budget_s)

    def confirm(
        self, *args: Any, visits: Visits, budget_s: float | None = None, isolate: bool | None = None, **kwargs: Any
    ) -> Confirmed | None:
        """Time those that may be the fastest for a call's arguments once more; all processes that have done so decide
        which is chosen. `None` where nothing is stored.

        For a CPU, where each process makes another one the fastest by a little.

        Args:
            visits: what other processes have found.
            budget_s, isolate: as of `look_again`.

        Raises:
            BadInput, Busy: as of `look_again`.
        """
        self._offline.refuse_to_measure("confirmed")
        return self._offline.confirm(self._isolation.of(self.subject(*args, **kwargs), isolate), visits, budget_s)

    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        """Check the results of the Config that is known for a call against the reference's; times nothing.

        The arguments are as before afterwards. What came of it is kept with a Choice that is stored.

        Raises:
            BadInput: for a kernel without `reference=`.
        """
        return self._offline.verify(self._subjects.of(self._dispatcher.problem_of(*args, **kwargs)))

    def undecide(self, *args: Any, **kwargs: Any) -> None:
        """Let the next search decide anew which values the knobs of `summation` have for a call's family.

        Raises:
            BadInput: for a kernel without `invariant_over`.
        """
        self._offline.undecide(self.key(*args, **kwargs))

    def record(
        self, *args: Any, rounds: int = ROUNDS, only: Sequence[Config] | None = None, isolate: bool | None = None,
        **kwargs: Any,
    ) -> Recording:  # fmt: skip
        """Measure the whole Space for a call's arguments, every Config in every round, and store nothing.

        Args:
            rounds: samples of each Config, interleaved.
            only: measure these Configs instead of the whole Space.
            isolate: as of `autotune`, for this recording.

        Raises:
            BadInput: for a Space too large to enumerate, and in Triton's interpreter.
            Busy: when another search measures on the device for longer than `TUNESMITH_WAIT_S`.
        """
        self._offline.refuse_without_times("recorded")
        subject = self._isolation.of(self.subject(*args, **kwargs), isolate)
        return record(subject, self._subjects.clock(subject.device), self._subjects.effort(), rounds, only)

    def subject(self, *args: Any, **kwargs: Any) -> Subject:
        """What a search for a call would be about."""
        return self._subjects.narrowed(self._subjects.of(self._dispatcher.problem_of(*args, **kwargs)))

    def of_today(self, key: Key, device: Device) -> bool:
        """Whether what the store has of a Key was found for the kernel as it is: see `Subjects.of_today`."""
        return self._subjects.of_today(key, device, default_store())

    def clock(self, device: Device) -> Clock:
        """What times the kernel on a device."""
        return self._subjects.clock(device)

    def why_not_isolated(self, *args: Any, **kwargs: Any) -> str:
        """Why no worker can run the candidates of a search for a call; empty if one can."""
        return self._isolation.why_not(self.subject(*args, **kwargs))

    def prepare(
        self, problems: Iterable[Wanted], *, device: Any = None, fill: Mapping[str, Fill] | None = None, **given: Any
    ) -> list[Choice]:
        """Tune or load for calls that are still to come, so that a later one finds everything in memory.

        Goes as far as the policy in force. What has to be measured is launched on tensors made for it, one problem
        after the other; nothing else is launched or allocated.

        Args:
            problems: text or a Problem, for a kernel with `make_inputs`; or the arguments of a call by name, in which
                a `Shaped` or a tensor on torch's meta device stands for an array. Real arrays are taken as they are.
            device: where described arrays are meant to be, `cuda:1`; the current GPU if not given, or the CPU.
            fill: how described arrays are filled, by argument: a number, or a function of (array, arguments by name)
                that writes the array. Otherwise floats are random, as 8-bit integers are; wider ones need it.
            given: arguments that all problems share.

        Returns:
            The Choices, in order. Those of a `lookup` that knows nothing have `source == "default"`.

        Raises:
            NotPrepared: when some problems failed, each named; the others are prepared all the same.
            LookupMiss: the same, when all of these are misses of a strict lookup.
            BadInput: inside a CUDA graph's capture; for an option that makes no sense.
        """
        steps = Steps(
            self.kernel, self.declared.policy, self.declared.spec.opaque, self.inputs, self._dispatcher.problem_of,
            self._must_measure, self._choose_ahead, self._job, self._resolve, self._dispatcher.warm_up,
        )  # fmt: skip
        place = None if device is None else str(device)
        return Preparation(steps, place, fill or {}, given).run(problems)

    def _must_measure(self, call: Call) -> bool:
        return self._decider.must_measure(call)

    def _choose_ahead(self, call: Call) -> Choice:
        policy = policy_in_force(self.declared.policy)
        return self._decider.choose_ahead(self._subjects.of(call, identify=policy.identifies), policy)

    def _job(self, call: Call, config: Config) -> Job | None:
        return job_for(config, self._subjects.of(call, identify=False))

    def problem(self, text: str | Problem) -> Problem:
        """A Problem written by hand (`M=512,N=512,K=512,dtype=float32`), checked and completed.

        Raises:
            ProblemError: naming the bad field and the good ones.
        """
        return inputs.problem_of(self.kernel, self.declared, text)

    def typed(self, problem: Problem) -> Problem:
        """A Key's Problem as one would write it by hand: without what only the arguments of a call tell."""
        return inputs.typed(self.kernel, self.declared, problem)

    def inputs(self, problem: str | Problem) -> dict[str, Any]:
        """Arguments by name for a Problem.

        Raises:
            BadInput: when the kernel was declared without `make_inputs`, or it makes the wrong arguments.
        """
        return inputs.make_inputs(self.kernel, self.declared, self._dispatcher, problem)

    def fix(self, **knobs: object) -> TunedKernel:
        """This kernel with some knobs held at one value.

        Raises:
            SpaceError: for an unknown knob or a value that is not of its axis.
        """
        declared = self.declared.fix(self.kernel.name, Config(knobs))
        isolation = self._isolation.of_fixed(declared)
        fixed = TunedKernel(self.kernel, declared, getattr(self, "__wrapped__", None), isolation=isolation)
        fixed._decider.tables = self.tables
        return fixed

    def fingerprint(self) -> str:
        """Of the kernel's source and all it reads: what a kernel that calls this one is identified by."""
        return self.kernel.fingerprint()

    def use_table(self, table: str | Path | Tables) -> None:
        """Look Problems up in a table too, after the store and before the heuristic. The last one given is asked first.

        Args:
            table: a file or folder of any known format, or what `tunesmith.tables.load` made of one.

        Raises:
            BadInput: for a file that is not a table.
        """
        if isinstance(table, (str, Path)):
            from tunesmith.tables.loading import load  # the readers of all formats: not needed before

            loaded: Tables = load(table)
        else:
            loaded = table
        if not callable(getattr(loaded, "lookup", None)):
            raise BadInput(f"{table!r} is no table; good ones: a path, or an object with lookup(key, exact, device)")
        self._decider.use_table(loaded)

    # --- from a call to a launch -----------------------------------------------------------------

    def _resolve(self, call: Call) -> tuple[Callable[..., Any], bool]:
        """The slow path of a call: its launch, and whether the dispatcher may keep it."""
        with captures_spared():
            return self._resolved(call)

    def _resolved(self, call: Call) -> tuple[Callable[..., Any], bool]:
        policy = policy_in_force(self.declared.policy)
        subject = self._subjects.of(call, identify=policy.identifies)
        allowed = self._decider.allowed(subject, policy)
        try:
            choice = self._decider.choose(subject, allowed)
        except LookupMiss:
            missed.refused(self.kernel.name, subject.key.problem, self.typed(call.exact))
            raise
        if choice.source != ONLY:  # one Config is right for all
            self._left_out.note(subject.key, call.exact, call.args)
        choice, executable, fresh = self._loaded(choice, subject, call)
        launch, kept = executable.launch, allowed is policy and choice.source != tracks.MEANWHILE
        if choice.source == ONLY and fresh:
            launch, kept = name_the_config(launch, self.kernel.name, choice.config), False
        elif allowed.track == "lookup" and (choice.source == tracks.DEFAULT or choice.distance):
            name, unknown = self.kernel.name, choice.source == tracks.DEFAULT
            launch = missed.counted(name, subject.key.problem, self.typed(call.exact), launch, unknown=unknown)
        if self._notes_latest:
            self._served[launch] = choice
        return launch, kept and not self._exact_only

    def _loaded(self, choice: Choice, subject: Subject, call: Call) -> tuple[Choice, Executable, bool]:
        """(what is used, its compiled Config, whether that was made just now)."""
        return choice, *self._binaries.get(choice, subject, call)

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
