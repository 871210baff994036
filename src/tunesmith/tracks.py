"""The three tracks: from a Key to a Choice, going as far as the Policy allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice, Track
from tunesmith.core.space import Space
from tunesmith.errors import BudgetEnded, Busy, LookupMiss, TunesmithWarning, WorkerLost
from tunesmith.events import LAUNCHES, Summary
from tunesmith.kernel import Clock, missing
from tunesmith.options import Authority, Options, Policy
from tunesmith.store import Store, StoredChoice
from tunesmith.subject import Effort, Subject
from tunesmith.tables import Tables
from tunesmith.tune import BOUND, ONLY, is_searching, search

#: A Choice of the default track and a miss of the lookup track have this source.
DEFAULT = "default"
#: the default, for a call that may not wait for the search under way: the next call asks again
MEANWHILE = "default meanwhile"

#: a Choice, and the Summary of the search that found it, if this call searched
Decided: TypeAlias = "tuple[Choice, Summary | None]"


@dataclass(frozen=True)
class Asked:
    """One call's Choice that has to be decided: what an `Authority` is given.

    Attributes:
        decide: what would be decided without the authority.
        known: what needs no search, in the `search` track.
    """

    subject: Subject
    policy: Policy
    default: Callable[[], Config]
    store: Store
    clock: Callable[[], Clock]
    effort: Effort
    known: Callable[[], Choice | None]
    decide: Callable[[], Decided]


def decided(asked: Asked) -> Decided:
    """What the authorities of a call's Policy make of what its track decides, the outermost with the last word."""
    final = asked
    for authority in reversed(asked.policy.by):
        final = replace(asked, decide=_said_by(authority, final))
    choice, summary = final.decide()
    for authority in asked.policy.by:
        authority.witness(asked, choice)
    return choice, summary


def _said_by(authority: Authority, asked: Asked) -> Callable[[], Decided]:
    return lambda: authority.decide(asked)


def default_choice(config: Config, space: Space, track: Track, note: str = "") -> Choice:
    """The kernel's own heuristic; of a Space of one Config, that one."""
    return Choice(config, track, ONLY if space.only is not None else DEFAULT, note=note)


def known_choice(subject: Subject, store: Store, tables: Sequence[Tables], track: Track) -> Choice | None:
    """What the store knows, else what the tables know; `None` when both are silent.

    A Config that the kernel's own constraints refuse is never used: that is one warning and a miss.
    """
    stored = store.choice(subject.key)
    if stored is not None and legal(subject, stored.choice.config, "the store"):
        stale = subject.key.stale(stored.soft)
        note = f"found under other versions ({'; '.join(stale)})" if stale else stored.choice.note
        known = replace(stored.choice, track=track, source="store", note=note)
        return as_checked(called_legally(known, subject, "the store"), subject)
    for table in tables:
        row = table.lookup(subject.key, subject.exact, subject.device)
        if row is not None and row.distance and subject.space.fault(row.config) is not None:
            continue  # a neighbour's may well not fit
        if row is not None and legal(subject, row.config, row.source):
            made = Choice(
                row.config, track, row.source, median_s=row.median_s, distance=row.distance, note=row.note,
                called=row.called,
            )  # fmt: skip
            return called_legally(made, subject, row.source)
    return None


def called_legally(choice: Choice, subject: Subject, source: str) -> Choice:
    """Without what calls one by one are launched with, where the Space refuses that: then one Config serves all."""
    called = choice.called
    neighbours = bool(choice.distance) and called is not None and subject.space.fault(called) is not None
    if called is None or (not neighbours and legal(subject, called, source)):
        return choice
    return replace(choice, called=None)


def as_checked(choice: Choice, subject: Subject) -> Choice:
    """A Choice that was checked against another reference, or by another tolerance, has not been checked."""
    wanted = subject.check.identity
    if not wanted or choice.checked == wanted:
        return choice
    why = "was checked against another reference or tolerance" if choice.checked else "was not checked"
    note = "; ".join(filter(None, [choice.note, f"{why}: tunesmith verify checks it"]))
    return replace(choice, checked="", note=note)


def legal(subject: Subject, config: Config, source: str) -> bool:
    """Whether the kernel's own constraints accept a Config; one warning that names its source where not."""
    fault = subject.space.fault(config)
    if fault is not None:
        lacking = missing(subject.kernel, config)
        why = f"is not used: {lacking}" if lacking else f"the kernel's Space refuses ({fault}); it is not used"
        warnings.warn(
            f"{subject.kernel.name}({subject.key.problem}): {source} has {config!r}, which {why}",
            TunesmithWarning, stacklevel=2,
        )  # fmt: skip
    return fault is None


def miss(subject: Subject, store: Store) -> str:
    """Why nothing is known: the nearest known Key and the fields in which it differs."""
    nearest = store.nearest(subject.key)
    if nearest is None:
        return f"nothing is known of {subject.kernel.name}"
    hard = ", a hard reason: it is never used" if nearest.problem == subject.key.problem else ""
    return f"the nearest known key differs in {'; '.join(subject.key.differences(nearest))}{hard}"


def lookup(
    subject: Subject, default: Callable[[], Config], store: Store, tables: Sequence[Tables], policy: Policy
) -> Choice:
    """The `lookup` track: nothing is ever measured.

    Raises:
        LookupMiss: under `strict`, naming the fields that differ from the nearest known Key.
    """
    if subject.space.only is not None:
        return Choice(subject.space.only, "lookup", ONLY)
    known = known_choice(subject, store, tables, "lookup")
    if known is not None:
        return known
    if policy.strict:
        why = miss(subject, store)
        raise LookupMiss(
            f"{subject.kernel.name}({subject.key.problem}) on {subject.key.device} is not known, "
            f"and the policy is strict lookup: {why}"
        )
    return default_choice(default(), subject.space, "lookup", note="nothing exact is known")


def find(
    subject: Subject, default: Callable[[], Config], store: Store, tables: Sequence[Tables],
    clock: Callable[[], Clock], effort: Effort, options: Options,
) -> Decided:  # fmt: skip
    """The `search` track: what is known, and what nobody knows is measured once, by one process at a time.

    Returns:
        The Choice, and the search's Summary when this call searched.

    Raises:
        NoWorkingConfig: when every Config failed.
    """
    if subject.space.only is not None:
        return Choice(subject.space.only, "search", ONLY), None
    known = fresh_choice(subject, store, tables, effort)
    if known is not None:
        return known, None
    if options.read_only:
        return default_choice(
            default(), subject.space, "search", "TUNESMITH_READ_ONLY is set: nothing is measured"
        ), None
    # Whoever is being measured holds the device's lock, and must not wait for someone who waits for that lock.
    wait_s = 0.0 if is_searching() else effort.wait_s
    with store.claim(subject.key, wait_s) as claimed:
        known = fresh_choice(subject, store, tables, effort)
        if known is not None:
            return known, None
        if not claimed:
            return meanwhile(default(), "this key is being searched by another process or thread"), None
        try:
            summary = search(subject, default, store, clock(), effort)
        except Busy as busy:
            return meanwhile(default(), str(busy)), None
        except (BudgetEnded, WorkerLost) as ended:
            warnings.warn(f"{ended}: the default serves this call", TunesmithWarning, stacklevel=2)
            return meanwhile(default(), str(ended)), None
    assert summary.choice is not None
    return summary.choice, summary


def meanwhile(config: Config, why: str) -> Choice:
    """The default, for this one call: the next asks again."""
    return Choice(config, "search", MEANWHILE, note=f"{why}: the default serves meanwhile")


def fresh_choice(subject: Subject, store: Store, tables: Sequence[Tables], effort: Effort) -> Choice | None:
    """What is known and needs no search: the store's Choice for just this Space and these versions, or a table's row
    for just this Problem."""
    stored = store.choice(subject.key)
    if stored is not None:
        return known_choice(subject, store, (), "search") if _current(subject, stored, effort) else None
    known = known_choice(subject, store, tables, "search") if tables else None
    return known if known is None or not known.distance else None


def _current(subject: Subject, stored: StoredChoice, effort: Effort) -> bool:
    """Whether a search would end with the same: the same Space and versions, no more than it had to spend."""
    choice = stored.choice
    asked, had = {
        BOUND: (effort.candidates, choice.most),
        LAUNCHES: (effort.launches, choice.launches),
    }.get(choice.partial, (effort.budget_s, choice.budget_s))
    cut_short = bool(choice.partial) and (asked is None or asked > (had or 0))
    return not cut_short and of_today(subject, stored)


def of_today(subject: Subject, stored: StoredChoice) -> bool:
    """Whether what is stored was chosen from the same Space, checked against the same reference, under the same
    versions."""
    checked = stored.choice.checked == subject.check.identity or not subject.check.identity
    return stored.choice.space == subject.space.digest and not subject.key.stale(stored.soft) and checked
