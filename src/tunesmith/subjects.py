"""`Subjects`: from a kernel's call to what a search of it would be about; `ManyValues`: a key that never settles."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.declaration import Declaration, Frontend
from tunesmith.dispatch import Call
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.events import Summary
from tunesmith.kernel import Clock, Kernel
from tunesmith.measure.clock import clock_for, protocol_for
from tunesmith.options import options
from tunesmith.search import Solved
from tunesmith.store import Store
from tunesmith.subject import Effort, Subject
from tunesmith.tables import Tables
from tunesmith.tracks import of_today
from tunesmith.tune import TRANSFER

#: Spaces that a function of the author's made, kept in memory: more than a model's shapes, a bound all the same.
KEPT = 4096
#: A field of the key that has had this many values, each searched, is likely a length that wants buckets.
MANY_VALUES = 24


class Subjects:
    """What is known of a kernel's calls before anything is looked up: Key, Space, clock, default, effort."""

    def __init__(self, kernel: Kernel, declared: Declaration, frontend: Frontend) -> None:
        self._kernel, self._declared, self._frontend = kernel, declared, frontend
        self._spaces: dict[tuple[Problem, str], Space] = {}
        self._lock = threading.Lock()

    def of(self, call: Call, *, identify: bool = True) -> Subject:
        """What a call is about. Without `identify` the Key names no source: enough for the default track."""
        kernel, declared = self._kernel, self._declared
        device = kernel.device(call.args)
        fingerprint = kernel.fingerprint() + declared.spec_fingerprint if identify else ""
        soft = dict(kernel.versions()) if identify else {}
        key = Key(
            declared.name_for(kernel.name), fingerprint, call.problem, device.identity, self._protocol(device),
            environment=tuple(sorted(kernel.environment().items())), soft=soft,
        )  # fmt: skip
        space = self._space_for(call.exact, device)
        compiled = kernel.for_call(call.args)
        subject = Subject(
            compiled, key, call.exact, space, device, call.args, declared.restore, declared.zero, hot=declared.hot,
            slices=declared.slices, check=declared.against, fresh=declared.fresh(call.exact),
            predict=None if declared.model is None else declared.model.predictor(call.exact, device),
            model=declared.model,
        )  # fmt: skip
        return subject if self._frontend.around is None else replace(subject, around=self._frontend.around)

    def narrowed(self, subject: Subject) -> Subject:
        """The same with the Configs that the frontend leaves of its Space for these arguments."""
        if self._frontend.narrow is None or subject.space.only is not None:
            return subject
        kept = self._frontend.narrow(list(subject.space), subject.arguments)
        return replace(subject, space=Space.of(kept), ranked=self._frontend.ranked)

    def pinned(self, subject: Subject, store: Store, tables: Sequence[Tables]) -> tuple[Subject, Sequence[Tables]]:
        """The same within its family's values, and the tables that may be asked: none before there are any."""
        shared = self._declared.invariance
        if shared is None or subject.space.only is not None:
            return subject, tables
        values = shared.decided(subject.key, store)
        return (subject, ()) if values is None else (shared.within(subject, values), tables)

    def of_today(self, key: Key, device: Device, store: Store) -> bool:
        """Whether the store has of a Key what a search would choose from today: the same source, Space, reference,
        environment and versions. As far as that can be told without a call's arguments: what a frontend leaves of a
        Space for these is never of today.
        """
        kernel, declared = self._kernel, self._declared
        now = Key(
            declared.name_for(kernel.name), kernel.fingerprint() + declared.spec_fingerprint, key.problem,
            device.identity, self._protocol(device), tuple(sorted(kernel.environment().items())),
            dict(kernel.versions()),
        )  # fmt: skip
        stored = store.choice(now)
        if now != key or stored is None or self._frontend.narrow is not None:
            return False
        exact = stored.choice.measured_at or key.problem
        subject = Subject(kernel, now, exact, self._space_for(exact, device), device, (), check=declared.against)
        return of_today(self.pinned(subject, store, ())[0], stored)

    def _space_for(self, problem: Problem, device: Device) -> Space:
        """The Space, which a function of the author's makes once for each Problem and device."""
        if isinstance(self._declared.space, Space):
            return self._declared.space
        name = (problem, device.identity)
        with self._lock:
            if name not in self._spaces:
                if len(self._spaces) >= KEPT:
                    self._spaces.clear()
                self._spaces[name] = self._declared.space_for(problem, device)
            return self._spaces[name]

    def _protocol(self, device: Device) -> str:
        """How it is measured, with what is done around each launch: both change what a sample means."""
        declared = self._declared
        named = declared.clock if isinstance(declared.clock, str) else None
        own = None if isinstance(declared.clock, str) else declared.clock
        clock = own.protocol if own is not None else protocol_for(device, named)
        restore = f"+restore({','.join(sorted(declared.restore))})" if declared.restore else ""
        zero = f"+zero({','.join(sorted(declared.zero))})" if declared.zero else ""
        hot = f"+hot({','.join(sorted(declared.hot))})" if declared.hot else ""
        return clock + restore + zero + hot

    def clock(self, device: Device) -> Clock:
        """What times the kernel on a device."""
        clock = self._declared.clock
        return clock_for(device, clock) if clock is None or isinstance(clock, str) else clock

    def effort(
        self, budget_s: float | None = None, strategy: str | None = None, launches: int | None = None,
        near: Sequence[Solved] = (),
    ) -> Effort:  # fmt: skip
        """How a search goes about it: what the call, the environment and the author say, in this order.

        Args:
            near: solved Problems to start from, beside the store's: the strategy is then `transfer`.

        Raises:
            BadInput: for solved Problems and another strategy.
        """
        if near and strategy not in (None, TRANSFER):
            raise BadInput(f"strategy {strategy!r} starts from no solved problems; good ones: {TRANSFER}, or none")
        strategy = TRANSFER if near else strategy
        budgets = [b for b in (budget_s, options().budget_s, self._declared.effort.budget_s) if b is not None]
        usual = self._declared.effort
        return replace(
            usual, strategy=strategy or usual.strategy, budget_s=budgets[0] if budgets else None,
            launches=launches or usual.launches, jobs=options().jobs, wait_s=options().wait_s, near=tuple(near),
        )  # fmt: skip

    def default(self, subject: Subject) -> Callable[[], Config]:
        """Makes the Config that serves where nothing is known."""

        def default() -> Config:
            shared = self._declared.invariance
            narrowed = self._frontend.narrow is not None
            if narrowed and self._declared.default is None:
                return next(iter(subject.space))
            config = self._declared.default_for(self._kernel.name, subject.exact, subject.device)
            if config in subject.space or not (narrowed or shared):
                return config
            first = next(iter(subject.space))
            held = config if shared is None else config.replace(**{n: first[n] for n in shared.summation})
            return held if held in subject.space else first

        return default


class ManyValues:
    """Notices a field of a kernel's key that keeps changing and costs a search each time."""

    def __init__(self, kernel: str, declared: Declaration) -> None:
        self._kernel, self._spec = kernel, declared.spec
        self._searched: dict[str, set[object]] = {}
        self._searching_s = 0.0

    def note(self, problem: Problem, summary: Summary) -> None:
        """A search has ended: say once if it was one too many."""
        if callable(self._spec.names):
            return
        self._searching_s += summary.compile_s + summary.measure_s
        for field in self._spec.names:
            values = self._searched.setdefault(field, set())
            if len(values) > MANY_VALUES:
                continue
            values.add(problem.get(field))
            if len(values) == MANY_VALUES and field not in self._spec.buckets:
                warnings.warn(
                    f"{self._kernel}: key field {field!r} has had {len(values)} different values, each searched "
                    f"({self._searching_s:.1f} s in all); sizes that may share a Config want "
                    f"buckets={{{field!r}: 'pow2'}}",
                    TunesmithWarning, stacklevel=2,
                )  # fmt: skip
                values.add(object())  # said once
