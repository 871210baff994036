"""`Bench`: what the candidates of one search are launched on, in the process that searches or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol, TypeAlias
from weakref import ref

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Resources
from tunesmith.core.problem import Problem
from tunesmith.kernel import Around, Built, Executable, Kernel, Run
from tunesmith.measure.canary import give_back_memory
from tunesmith.measure.check import Check, Checker
from tunesmith.measure.failure import attempt, is_out_of_memory, told_of_failures
from tunesmith.measure.inputs import Snapshot, WrittenSlice
from tunesmith.measure.mutation import Mutations, find_mutations
from tunesmith.measure.rotation import Rotation

#: (ready to launch, what became of it where it is not, the exception)
Loaded: TypeAlias = "tuple[Executable | None, Failed | None, BaseException | None]"
#: (what a Clock times, what became of it where it can't be timed, the exception)
Ready: TypeAlias = "tuple[Run | None, Failed | None, BaseException | None]"


class Bench(Protocol):
    """Makes candidates ready to be timed, for one stretch of a search; left, everything is as it was before."""

    def load(self, config: Config, built: Built | None) -> Loaded:
        """Make a compiled Config ready to launch. Launches nothing."""
        ...

    def ready(self, executable: Executable) -> Ready:
        """Check a loaded candidate and make it something to time. May launch it, so nobody else may be measuring."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What launching candidates has shown that a user should know: arguments that are written and not declared,
        results that could not be checked."""
        ...

    def tell(self, config: Config, error: BaseException) -> None:
        """A Config never came to its launch: whatever stands around launches hears of it."""
        ...

    def __enter__(self) -> Bench: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None: ...

    def close(self) -> None:
        """The search is over."""
        ...


class LocalBench:
    """Candidates in this process, on a call's own arguments.

    Args:
        exact: the Problem that is measured.
        arguments: the call's, by name in the signature's order; as before when the Bench is left.
        restore: arguments put back before each launch. zero: arguments zeroed before each launch.
        slices: of those arguments, functions that say which part is written.
        hot: arguments that are in the cache when a launch begins.
        around: makes, of arguments by name, what else is done around each launch.
        check: what results are compared with. fresh: other inputs to do so with, by number.
    """

    def __init__(
        self, kernel: Kernel, exact: Problem, arguments: Mapping[str, Any], *, restore: Sequence[str] = (),
        zero: Sequence[str] = (), slices: Mapping[str, WrittenSlice] | None = None, hot: Sequence[str] = (),
        around: Callable[[Mapping[str, Any]], Around] | None = None, check: Check | None = None,
        fresh: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self._kernel, self._exact, self._arguments = kernel, exact, arguments
        self._args = tuple(arguments.values())
        self._restore, self._zero, self._slices = restore, zero, slices
        self._check = check or Check()
        self._mutations: Mutations | None = None
        self._mutation_notes: list[str] = []
        self._protected: set[str] = set()
        self._checker = None if not self._check.wanted else Checker(
            kernel.name, self._check, arguments, restore, zero, fresh, around
        )  # fmt: skip
        self._others = Rotation(arguments, hot)
        self._hot = [value for name, value in arguments.items() if name in hot and value is not None]
        self._make_around = around
        self._around: Around | None = None
        self._runs: list[ref[Run]] = []

    def __enter__(self) -> LocalBench:
        _ = self._snapshot  # taken now, so that what can't be restored is refused before anything is compiled
        self._around = self._make_around(self._arguments) if self._make_around is not None else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self._around is not None:
            self._around.after()
            self._around = None
        self._snapshot.put_back()

    def close(self) -> None:
        """The inputs' copies go, and with what clocks have kept for candidates the memory of their graphs: whoever
        still has one (an error's frames, a cycle that is collected later) does not keep it from the next search."""
        self._others.close()
        for run in filter(None, [made() for made in self._runs]):
            run.state.clear()
        self._runs.clear()

    @cached_property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self._arguments, self._restore, self._zero, self._slices)

    @property
    def notes(self) -> Sequence[str]:
        of_copies = [self._others.note] if self._others.note else []
        return [*self._mutation_notes, *of_copies, *(self._checker.notes if self._checker is not None else ())]

    @property
    def has_watched(self) -> bool:
        """Whether it is known what launches write: a candidate has been launched for that."""
        return self._mutations is not None

    def load(self, config: Config, built: Built | None) -> Loaded:
        def load() -> Executable:
            return self._kernel.load(config, self._exact, built)

        def again() -> Executable:
            give_back_memory()
            return load()

        loaded, failure, error = attempt("load", load)
        if failure is not None and is_out_of_memory(failure):  # a driver knows nothing of what torch keeps in reserve
            del error
            loaded, failure, error = attempt("load", again)
        return loaded, failure, error

    def ready(self, executable: Executable) -> Ready:
        if self._mutations is None:
            found, failure, error = attempt("launch", lambda: self._watched(executable))
            if found is None:
                return None, failure, error
            self._mutations = found
            self._refuse_where_written(found)
        if self._checker is None:
            return self.run_of(executable), None, None
        self._snapshot.put_back()
        failure, compared = self._checker.judge(executable, self._mutations.written)
        self._protect_more(executable.config)
        return (None, failure, None) if failure is not None else (self.run_of(executable, compared), None, None)

    def _refuse_where_written(self, found: Mutations) -> None:
        """What a launch writes is no input: each launch writes the same memory, and it is put back where it is read."""
        outputs = [name for name in self._check.outputs if self._arguments.get(name) is not None]
        written = list(dict.fromkeys([*outputs, *found.written, *found.in_place, *found.unsure]))
        if written:
            self._others.refuse(f"launches write {', '.join(map(repr, written))}")
        elif found.skipped:
            self._others.refuse(f"whether launches write their arguments is not known: {found.skipped}")

    def _watched(self, executable: Executable) -> Mutations:
        """Launch the first candidate to see what it writes. What is found to be written in place is put back from now
        on as if it had been declared."""
        run = self.run_of(executable)

        def launch() -> None:
            if run.before is not None:
                run.before()
            run()

        declared = {*self._restore, *self._zero, *self._check.outputs}
        found = find_mutations(launch, self._snapshot.put_back, self._arguments, declared)
        if found.skipped:
            self._mutation_notes.append(f"whether arguments are written was not looked at: {found.skipped}")
        for name in found.in_place:
            self._snapshot.protect(name)
            self._mutation_notes.append(
                f"argument {name!r} is written in place: it is put back in this search; declare "
                f"restore_value=[{name!r}]"
            )
        for name in found.unsure:
            self._mutation_notes.append(
                f"argument {name!r} is written, and differs after each launch; it is too large to be copied and is not "
                f"put back: declare what is written of it, restore_value={{{name!r}: function that returns the view}}"
            )
        return found

    def _protect_more(self, config: Config) -> None:
        """Put back from now on what this candidate writes, the first one does not, and nobody has declared."""
        assert self._checker is not None
        assert self._mutations is not None
        known = {*self._protected, *self._mutations.written, *self._mutations.in_place}
        for name in self._checker.changed:
            if name not in known:
                self._protected.add(name)
                self._snapshot.protect(name)
                self._others.refuse(f"{config!r} writes {name!r}")
                self._mutation_notes.append(
                    f"argument {name!r} is written by {config!r}, and not by others: it is put back in this search; "
                    f"declare restore_value=[{name!r}], or outputs=[…] with it"
                )

    def tell(self, config: Config, error: BaseException) -> None:
        if self._around is not None:
            self._around.after()
            self._around.before(config, self._args)
            self._around.failed(error)

    def run_of(self, executable: Executable, checked: bool = False) -> Run:
        """A candidate with all that is done ahead of its launches."""
        made = self._run_of(executable, checked)
        self._runs.append(ref(made))
        return made

    def _run_of(self, executable: Executable, checked: bool) -> Run:
        prepare, config, around = self._snapshot.before_launch, executable.config, self._around
        if prepare is not None or (around is not None and around.acts):
            self._others.refuse("something is done ahead of each launch")
        if around is None:
            return Run(executable, self._args, prepare, self._hot, checked, self._others)
        launch = told_of_failures(around.launch_of(executable), around)
        candidate = _Candidate(config, launch, executable.resources)
        if not around.acts:
            return Run(candidate, self._args, prepare, self._hot, checked, self._others)

        def before() -> None:
            around.after()
            if prepare is not None:
                prepare()
            around.before(config, self._args)

        return Run(candidate, self._args, before, self._hot, checked, self._others)


@dataclass(frozen=True)
class _Candidate:
    """An Executable whose launch is another one."""

    config: Config
    launch: Callable[..., Any]
    resources: Resources
