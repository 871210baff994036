"""`Offline`: work on a kernel's store beside its calls: to tune, to race again, to check, to decide anew."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tunesmith import tracks
from tunesmith.answering import is_guarded
from tunesmith.confirm import Confirmed, Visits, confirm
from tunesmith.core.key import Key
from tunesmith.decide import Decider
from tunesmith.declaration import Declaration
from tunesmith.errors import BadInput, Busy
from tunesmith.events import Summary
from tunesmith.invariant import settled
from tunesmith.kernel import Kernel
from tunesmith.options import options
from tunesmith.refresh import Refreshed, look_again, refresh
from tunesmith.store import Store, default_store
from tunesmith.subject import Effort, Subject
from tunesmith.subjects import Subjects
from tunesmith.tune import search
from tunesmith.verification import Verification, verify


class Offline:
    """Of one kernel: the methods of `TunedKernel` of the same names, which say what each does and raises."""

    def __init__(self, kernel: Kernel, declared: Declaration, subjects: Subjects, decider: Decider) -> None:
        self._kernel, self._declared, self._subjects, self._decider = kernel, declared, subjects, decider

    def tune(self, subject: Subject, effort: Effort) -> Summary:
        """Search now."""

        def busy() -> Summary:
            raise self._busy(subject.key)

        def searched(subject: Subject) -> Summary:
            with self._claimed(subject.key) as store:
                clock = self._subjects.clock(subject.device)
                return search(subject, self._subjects.default(subject), store, clock, effort)

        summary = settled(
            self._declared.invariance, subject, default_store(), effort.wait_s, searched,
            lambda found: found.choice, busy, (),
        )  # fmt: skip
        self._decider.found(subject.key)
        assert summary.choice is not None
        self._decider.tell(subject, summary.choice, summary)
        return summary

    def refresh(self, subject: Subject, best: int, anyway: bool) -> Refreshed | None:
        """Race what is stored against the next best of then."""
        subject, _ = self._subjects.pinned(subject, default_store(), ())
        clock, effort = self._subjects.clock(subject.device), self._subjects.effort()
        with self._claimed(subject.key) as store:
            found = refresh(subject, store, clock, effort, best, anyway)
        self._decider.found(subject.key)
        return found

    def look_again(self, subject: Subject, budget_s: float | None) -> Refreshed | None:
        """Race what is stored against the best of then, once more."""
        subject, _ = self._subjects.pinned(subject, default_store(), ())
        clock, effort = self._subjects.clock(subject.device), self._subjects.effort(budget_s)
        with self._claimed(subject.key) as store:
            found = look_again(subject, store, clock, effort)
        self._decider.found(subject.key)
        return found

    def confirm(self, subject: Subject, visits: Visits, budget_s: float | None) -> Confirmed | None:
        """Time those that may be the fastest in one more process."""
        subject, _ = self._subjects.pinned(subject, default_store(), ())
        clock, effort = self._subjects.clock(subject.device), self._subjects.effort(budget_s)
        with self._claimed(subject.key) as store:
            found = confirm(subject, store, clock, effort, visits)
        self._decider.found(subject.key)
        return found

    def verify(self, subject: Subject) -> Verification:
        """Check the results of what is known against the reference's."""
        store = default_store()
        subject, tables = self._subjects.pinned(subject, store, self._decider.tables)
        known = tracks.known_choice(subject, store, tables, "lookup") or tracks.default_choice(
            self._subjects.default(subject)(), subject.space, "lookup"
        )
        found = verify(subject, known, store, self._subjects.clock(subject.device), self._subjects.effort())
        self._decider.found(subject.key)
        return found

    def undecide(self, key: Key) -> None:
        """Let a family decide its shared knobs anew."""
        shared = self._declared.invariance
        if shared is None:
            raise BadInput(f"{self._kernel.name} has no families: its autotune has no invariant_over=")
        shared.undecide(key, default_store())
        self._decider.found(key)

    def refuse_to_measure(self, what: str) -> None:
        """Raise where nothing may be measured: under TUNESMITH_READ_ONLY, and as `refuse_without_times` does.

        Args:
            what: would have been done to the kernel.
        """
        self.refuse_without_times(what)
        if options().read_only:
            raise BadInput(f"{self._kernel.name} is not {what}: TUNESMITH_READ_ONLY is set, and nothing is measured")

    def refuse_without_times(self, what: str) -> None:
        """Raise where times would mean nothing: in a search's worker, and in Triton's interpreter."""
        if is_guarded():
            raise BadInput(
                f"{self._kernel.name} is not {what} in the worker of a search, beside which nothing else is measured; "
                "a worker imports the module, so what is tuned on import goes into a function or another program"
            )
        why = getattr(getattr(self._kernel, "inner", self._kernel), "why_no_times", "")
        if why:
            raise BadInput(f"{self._kernel.name} is not {what}: {why}")

    @contextmanager
    def _claimed(self, key: Key) -> Generator[Store]:
        """The store, while nobody else searches the key."""
        store, wait_s = default_store(), options().wait_s
        with store.claim(key, wait_s) as claimed:
            if not claimed:
                raise self._busy(key)
            yield store

    def _busy(self, key: Key) -> Busy:
        return Busy(
            f"{self._kernel.name}({key.problem}) has been searched by another process for more than "
            f"{options().wait_s:g} s; wait for it, or raise TUNESMITH_WAIT_S"
        )
