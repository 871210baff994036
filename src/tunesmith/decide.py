"""`Decider`: the Choice for a call that is not warm, remembered; asked of the track that the Policy in force names."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from tunesmith import tracks
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.declaration import Declaration, Frontend
from tunesmith.dispatch import Call
from tunesmith.errors import TunesmithWarning
from tunesmith.events import Decided, Summary, say
from tunesmith.invariant import settled
from tunesmith.isolate import Isolation
from tunesmith.kernel import Clock, Kernel
from tunesmith.measure.allowed import why_not_to_measure
from tunesmith.options import Policy, options, policy_in_force
from tunesmith.store import Store, default_store
from tunesmith.subject import Effort, Subject
from tunesmith.subjects import ManyValues, Subjects
from tunesmith.tables import Tables

#: Choices and loaded binaries kept in memory for a kernel: far more than a model's shapes, a bound all the same.
REMEMBERED = 4096


class Decider:
    """Of one kernel: which Config a call uses, as far as the policy in force goes to find out.

    Threads: calls may come from any thread.

    Args:
        forget_warm: has every call ask anew, once a search has found something.
    """

    def __init__(
        self, kernel: Kernel, declared: Declaration, frontend: Frontend, subjects: Subjects, isolation: Isolation,
        forget_warm: Callable[[], None],
    ) -> None:  # fmt: skip
        self._kernel, self._declared, self._frontend = kernel, declared, frontend
        self._subjects, self._isolation, self._forget_warm = subjects, isolation, forget_warm
        self.tables: tuple[Tables, ...] = ()
        self._choices: OrderedDict[tuple[Policy, Key], Choice] = OrderedDict()
        self._waited: set[Key] = set()  # Keys for which a call has waited in vain: the next does not wait again
        self._lock = threading.Lock()
        self._many_values = ManyValues(kernel.name, declared)
        self._warned: set[str] = set()

    # --- deciding --------------------------------------------------------------------------------

    def allowed(self, subject: Subject, policy: Policy) -> Policy:
        """The policy as far as this moment allows it: where nothing may be measured, a search is a look-up."""
        known = self.remembered(policy, subject.key) is not None
        why = "" if policy.track != "search" or known or subject.space.only is not None else why_not_to_measure()
        if not why:
            return policy
        if why not in self._warned and tracks.known_choice(subject, default_store(), self.tables, "lookup") is None:
            self._warned.add(why)
            warnings.warn(
                f"{self._kernel.name}({subject.key.problem}) was called {why}, where nothing can be measured, and "
                "nothing is known of it: its default Config serves. Call or tune it once before",
                TunesmithWarning, stacklevel=2,
            )  # fmt: skip
        return Policy.of("lookup", by=policy.by)

    def choose(self, subject: Subject, policy: Policy) -> Choice:
        """The Choice under a policy: what is in memory, else what its track and its authorities decide."""
        remembered = (policy, subject.key)
        with self._lock:
            if remembered in self._choices:
                self._choices.move_to_end(remembered)
                return self._choices[remembered]
        choice, summary = self._decide(self._isolation.of(self._subjects.narrowed(subject)), policy)
        self.tell(subject, choice, summary)
        with self._lock:
            if choice.source == tracks.MEANWHILE:
                if len(self._waited) >= REMEMBERED:
                    self._waited.clear()
                self._waited.add(subject.key)
                return choice
            self._remember(policy, subject.key, choice)
        return choice

    def choose_ahead(self, subject: Subject, policy: Policy) -> Choice:
        """A call's Choice, kept in memory for calls under `lookup` too: there it may not cost a read of the store."""
        choice = self.choose(subject, policy)
        if policy.track != "default" and not policy.by and choice.source not in (tracks.DEFAULT, tracks.MEANWHILE):
            lookup, strict = Policy.of("lookup"), Policy.of("lookup", strict=True)
            known = self._looked_up(self._subjects.narrowed(subject), lookup)
            if known.source != tracks.DEFAULT:
                with self._lock:
                    self._remember(lookup, subject.key, known)
                    self._remember(strict, subject.key, known)
        return choice

    def must_measure(self, call: Call) -> bool:
        """Whether a call would search under the policy in force."""
        policy = policy_in_force(self._declared.policy)
        if policy.track != "search" or options().read_only:
            return False
        subject = self._subjects.of(call)
        if self.remembered(policy, subject.key) is not None:
            return False
        subject, tables = self._subjects.pinned(self._subjects.narrowed(subject), default_store(), self.tables)
        effort = self._subjects.effort()
        return subject.space.only is None and (tracks.fresh_choice(subject, default_store(), tables, effort) is None)

    def known(self, subject: Subject) -> Choice | None:
        """What the store or a table knows, `None` if nothing."""
        store = default_store()
        subject, tables = self._subjects.pinned(subject, store, self.tables)
        return tracks.known_choice(subject, store, tables, "lookup")

    def foreseen(self, subject: Subject, policy: Policy) -> Choice:
        """The Choice that a call would use as far as that can be said without measuring; its note says the rest."""
        remembered = self.remembered(policy, subject.key)
        if remembered is not None:
            return remembered
        subject, store = self._subjects.narrowed(subject), default_store()
        asked = self._asked(subject, policy)
        foreseen = [choice for authority in policy.by if (choice := authority.foresee(asked)) is not None]
        if foreseen:
            return foreseen[0]
        if policy.track == "default" or subject.space.only is not None:
            return tracks.default_choice(self._subjects.default(subject)(), subject.space, policy.track)
        subject, tables = self._subjects.pinned(subject, store, self.tables)
        default = self._subjects.default(subject)
        if policy.track == "search":
            fresh = tracks.fresh_choice(subject, store, tables, self._subjects.effort())
            if fresh is not None:
                return fresh
        known = tracks.known_choice(subject, store, tables, policy.track)
        if known is None:
            would = "; a call would search" if policy.track == "search" else ""
            note = tracks.miss(subject, store) + would
            return tracks.default_choice(default(), subject.space, policy.track, note=note)
        if policy.track == "search":
            stale = known.note or "the Space is another, or the search had less time"
            return replace(known, note=f"{stale}; a call would search")
        return known

    def _decide(self, subject: Subject, policy: Policy) -> tracks.Decided:
        choice, summary = tracks.decided(self._asked(subject, policy))
        if summary is not None:
            self.found(subject.key)
            self._many_values.note(subject.key.problem, summary)
        return choice, summary

    def _asked(self, subject: Subject, policy: Policy) -> tracks.Asked:
        """What has to be decided, and how far this Policy's track would go for it."""
        default, effort, store = self._subjects.default(subject), self._subjects.effort(), default_store()
        if subject.key in self._waited:
            effort = replace(effort, wait_s=0.0)

        def clock() -> Clock:
            return self._subjects.clock(subject.device)

        def known() -> Choice | None:
            pinned, tables = self._subjects.pinned(subject, store, self.tables)
            return tracks.fresh_choice(pinned, store, tables, effort)

        def decide() -> tracks.Decided:
            if policy.track == "default":
                return tracks.default_choice(default(), subject.space, "default"), None
            if policy.track == "lookup":
                return self._looked_up(subject, policy), None
            return self._searched(subject, store, effort)

        return tracks.Asked(subject, policy, default, store, clock, effort, known, decide)

    def _searched(self, subject: Subject, store: Store, effort: Effort) -> tracks.Decided:
        """What is known, or a search finds; a family's shared knobs are decided first."""

        def find(subject: Subject) -> tracks.Decided:
            return tracks.find(
                subject, self._subjects.default(subject), store, self.tables,
                lambda: self._subjects.clock(subject.device), effort, options(),
            )  # fmt: skip

        def busy() -> tracks.Decided:
            why = "another process decides the knobs that its family shares"
            return tracks.meanwhile(self._subjects.default(subject)(), why), None

        return settled(
            self._declared.invariance, subject, store, effort.wait_s, find, lambda found: found[0], busy,
            (tracks.DEFAULT, tracks.MEANWHILE),
        )  # fmt: skip

    def _looked_up(self, subject: Subject, policy: Policy) -> Choice:
        subject, tables = self._subjects.pinned(subject, default_store(), self.tables)
        return tracks.lookup(subject, self._subjects.default(subject), default_store(), tables, policy)

    def tell(self, subject: Subject, choice: Choice, summary: Summary | None) -> None:
        """Let the frontend hear of a Choice, and whoever listens."""
        say(Decided(self._kernel.name, subject.key.problem, choice))
        if self._frontend.chosen is not None:
            self._frontend.chosen(subject.key, choice, subject.arguments, summary)

    # --- what is in memory -----------------------------------------------------------------------

    def remembered(self, policy: Policy, key: Key) -> Choice | None:
        """The Choice that is in memory."""
        with self._lock:
            return self._choices.get((policy, key))

    def _remember(self, policy: Policy, key: Key, choice: Choice) -> None:
        """Keep a Choice in memory; under the lock."""
        self._choices[policy, key] = choice
        while len(self._choices) > REMEMBERED:
            self._choices.popitem(last=False)

    def found(self, key: Key) -> None:
        """A search has ended: every call asks again, those of its Key the store, the others what is in memory."""
        with self._lock:
            self._waited.discard(key)
            family = self._declared.invariance is not None  # what the others have may not be of its values
            for remembered in [(policy, known) for policy, known in self._choices if family or known == key]:
                del self._choices[remembered]
        self._forget_warm()

    def use_table(self, table: Tables) -> None:
        """Ask this table before the others; what was decided without it is forgotten."""
        self.tables = (table, *self.tables)
        with self._lock:
            self._choices.clear()
        self._forget_warm()
