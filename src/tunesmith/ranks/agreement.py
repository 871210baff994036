"""`Agreement`: the first committed Choice of a Key is every rank's, whoever made it.

What a rank does for a Key of which nothing is committed yet:

* it knows a Choice: it commits it;
* it knows none, and nobody is searching: it takes the lease and searches. Before it commits, those that wait try the
  winner once, each on its own device; where it does not work, the next best is tried;
* somebody is searching: it waits. If the searcher shows no sign of life for `LEASE_S`, another takes over; after the
  time limit, the default is committed like any other Choice.

Nobody waits for a rank that does not wait itself, so ranks may see different Keys, in any order, or none.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

from tunesmith import tracks
from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice, Failed, Measured, choice_from_data, choice_to_data
from tunesmith.errors import BadInput, NoAgreement, NoWorkingConfig, TunesmithWarning
from tunesmith.events import Summary
from tunesmith.options import Authority, decided_by, decided_everywhere_by, options
from tunesmith.ranks import shards
from tunesmith.ranks.board import Board, KeyValueStore, Lease, Watch, default_store, who
from tunesmith.ranks.trying import outcomes
from tunesmith.tune import is_searching

#: Between two looks at the store while waiting.
POLL_S = 0.05
#: How long the searcher waits for the others to try its winner; who has not answered by then is taken to agree.
TRY_S = 10.0
#: How many of the best are tried before it counts as hopeless.
TRIED = 8
#: A rank that may not measure waits so long for somebody who may to turn up.
NOBODY_S = 5.0


class _Settling(threading.local):
    """What this thread is settling."""

    def __init__(self) -> None:
        self.places: list[tuple[int, str]] = []


_settling = _Settling()


@dataclass(frozen=True)
class Agreement(Authority):
    """Ranks of one group that use the same Config for the same Key. See `agree`."""

    group: str
    store: KeyValueStore | None = None
    timeout_s: float | None = None
    strict: bool = False
    shard: bool = False

    def decide(self, asked: tracks.Asked) -> tracks.Decided:
        """What the group has committed, or commits now.

        Raises:
            NoAgreement: when the store does not answer, when the group's Choice is not of this rank's Space, and under
                `strict` after the time limit.
            NoWorkingConfig: when whoever searched found that nothing works.
        """
        if asked.policy.track == "default" or asked.subject.space.only is not None:
            return asked.decide()
        board = self._board(asked)
        if board.place in _settling.places:  # the same group by another scope: it would wait for itself
            return asked.decide()
        _settling.places.append(board.place)
        try:
            return _Talk(self, board, asked).decide()
        finally:
            _settling.places.remove(board.place)

    def foresee(self, asked: tracks.Asked) -> Choice | None:
        """What the group has committed so far."""
        if asked.policy.track == "default":
            return None
        return _Talk(self, self._board(asked), asked).committed()

    def _board(self, asked: tracks.Asked) -> Board:
        # A look-up's default, where nothing may be measured, is not to settle what a search is to find.
        prefix = f"tunesmith/1/{self.group}/{asked.policy.track}/{asked.subject.key.digest}/"
        return Board(default_store() if self.store is None else self.store, prefix)


class _Talk:
    """One rank's part in settling one Key."""

    def __init__(self, agreement: Agreement, board: Board, asked: tracks.Asked) -> None:
        self._agreement, self._board, self._asked = agreement, board, asked
        self._subject = asked.subject
        self._parts = shards.Parts(asked, board)
        self._call = f"{asked.subject.kernel.name}({asked.subject.key.problem})"
        self._limit_s = options().wait_s if agreement.timeout_s is None else agreement.timeout_s
        self._answered: set[int] = set()  # proposals that this rank has tried
        self._number = 0  # this rank's among those that wait, from 1

    def decide(self) -> tracks.Decided:
        committed = self.committed()
        if committed is not None:
            return committed, None
        # While this thread is being measured it waits for nobody: somebody might be waiting for it.
        if self._asked.policy.track == "lookup" or is_searching():
            return self._commit(*self._asked.decide())
        known = self._asked.known()
        return self._commit(known, None) if known is not None else self._search_or_wait()

    # --- what is committed -----------------------------------------------------------------------

    def committed(self) -> Choice | None:
        """The group's Choice, if there is one."""
        text = self._board.read("choice")
        return None if text is None else self._taken(text)

    def _commit(self, choice: Choice, summary: Summary | None) -> tracks.Decided:
        """Make a Choice the group's, or take the one that is."""
        if choice.source == tracks.MEANWHILE:
            return choice, summary
        mine = json.dumps({"by": who(), "choice": choice_to_data(choice)})
        there = self._board.first("choice", mine)
        return (choice if there == mine else self._taken(there)), summary

    def _taken(self, text: str) -> Choice:
        """A committed Choice, checked and kept for this rank's next run.

        Raises:
            NoAgreement: when it is none of this rank's Space.
            NoWorkingConfig: when the search found nothing.
        """
        by, choice = self._read(text)
        subject = self._subject
        for config in [choice.config] if choice.called is None else [choice.config, choice.called]:
            fault = subject.space.fault(config)
            if fault is not None:
                raise NoAgreement(
                    f"{self._call}: the ranks of {self._agreement.group!r} use {config!r}, committed by {by}, which "
                    f"this rank's Space refuses ({fault}); all ranks need the same kernel with the same Space"
                )
        found = choice.space == subject.space.digest
        stored = self._asked.store.choice(subject.key) if found else None
        here = None if stored is None else (stored.choice.config, stored.choice.called)
        if found and not options().read_only and here != (choice.config, choice.called):
            self._asked.store.put_choice(subject.key, choice, dict(subject.key.soft))
        if choice.source == tracks.DEFAULT:
            return replace(choice, track=self._asked.policy.track)
        source = f"{by} of group {self._agreement.group}"
        return replace(choice, track=self._asked.policy.track, source=source)

    def _read(self, text: str) -> tuple[str, Choice]:
        try:
            data: Any = json.loads(text)
            by, error = str(data["by"]), data.get("error")
            choice = None if error else choice_from_data(data["choice"])
        except (ValueError, TypeError, KeyError, AttributeError) as bad:
            raise NoAgreement(
                f"{self._call}: what is committed for group {self._agreement.group!r} is not a Choice ({bad}): all "
                "ranks need the same version of tunesmith"
            ) from None
        if choice is None:
            raise NoWorkingConfig(f"{self._call}: {by} searched for group {self._agreement.group!r}: {error}")
        return by, choice

    # --- searching and waiting -------------------------------------------------------------------

    def _search_or_wait(self) -> tracks.Decided:
        watch, start, measures = Watch(), monotonic(), not options().read_only
        while True:
            committed = self.committed()
            if committed is not None:
                return committed, None
            holder = self._board.read("lease")
            nobody = watch.may_be_taken(holder)
            if nobody and measures:
                lease = Lease(self._board, "lease")
                if lease.take(holder):
                    self._leave()
                    with lease.held():
                        return self._search()
                continue
            waited_s = monotonic() - start
            if waited_s > self._limit_s:
                return self._without(f"no rank has found a Config within {self._limit_s:g} s")
            if nobody and waited_s > NOBODY_S:
                return self._without("TUNESMITH_READ_ONLY is set here, and no other rank is searching")
            if measures:
                self._help()
            sleep(POLL_S)

    def _search(self) -> tracks.Decided:
        """Search for the group; this rank holds the lease."""
        committed = self.committed()  # by whoever had the lease before, or knew it all along
        if committed is not None:
            return committed, None
        try:
            choice, summary = self._found()
            choice = self._works_everywhere(choice, summary)
        except NoWorkingConfig as error:
            self._board.first("choice", json.dumps({"by": who(), "error": str(error)}))
            raise
        if choice.source == tracks.MEANWHILE:  # for one call it could differ from what the next call of others gets
            note = choice.note
            choice = tracks.default_choice(choice.config, self._subject.space, "search", note)
        return self._commit(choice, summary)

    def _found(self) -> tracks.Decided:
        shared = self._agreement.shard and shards.can_share(self._asked)
        return shards.search(self._asked, self._parts) if shared else self._asked.decide()

    def _without(self, why: str) -> tracks.Decided:
        """Nobody has found anything: the default, for all ranks.

        Raises:
            NoAgreement: under `strict`.
        """
        self._leave()
        group = self._agreement.group
        if self._agreement.strict:
            raise NoAgreement(
                f"{self._call}: {why} in group {group!r}, for the key {self._subject.key.problem} on "
                f"{self._subject.key.device}. Tune it before the job starts, or give agree(timeout_s=…) more time"
            )
        usual = tracks.default_choice(self._asked.default(), self._subject.space, "search", f"{who()}: {why}")
        choice, _ = self._commit(usual, None)
        if choice is usual:
            warnings.warn(
                f"{self._call}: {why}; the default {choice.config!r} serves all ranks of group {group!r} until the job "
                "ends", TunesmithWarning, stacklevel=2,
            )  # fmt: skip
        return choice, None

    # --- trying on every rank --------------------------------------------------------------------

    def _works_everywhere(self, choice: Choice, summary: Summary | None) -> Choice:
        """The best Config that works on all ranks that wait.

        Raises:
            NoWorkingConfig: when none of the best does.
        """
        refused: list[str] = []
        for number, config in enumerate(_best_first(choice, summary)[:TRIED]):
            why = self._put_to_others(number, config)
            if not why:
                if refused:
                    return self._instead(choice, config, summary, refused)
                return self._called_everywhere(choice, number + 1)
            refused.append(f"{config!r}: {why}")
        raise NoWorkingConfig(f"{self._call}: what works on {who()} fails on others: {'; '.join(refused)}")

    def _called_everywhere(self, choice: Choice, number: int) -> Choice:
        """The Choice, without what serves calls outside of CUDA graphs where that fails on another rank."""
        why = "" if choice.called is None else self._put_to_others(number, choice.called)
        if not why:
            return choice
        note = f"{choice.called!r} would serve calls outside of CUDA graphs, and fails on other ranks: {why}"
        both = replace(choice, called=None, calls="", note="; ".join(filter(None, [choice.note, note])))
        self._asked.store.put_choice(self._subject.key, both, dict(self._subject.key.soft))
        return both

    def _put_to_others(self, number: int, config: Config) -> str:
        """Why a Config does not work on a rank that waits; empty where it works on all."""
        waiting = range(1, self._board.count("waiting", 0) + 1)
        silent, end = [one for one in waiting if self._board.read(f"left/{one}") is None], monotonic() + TRY_S
        if silent:
            self._board.write(f"proposal/{number}", config.text)
        while silent and monotonic() < end and self._board.read("choice") is None:  # by who knew it from this store
            for one in list(silent):
                answer = self._board.read(f"answer/{number}/{one}")
                if answer:
                    return answer
                if answer is not None or self._board.read(f"left/{one}") is not None:
                    silent.remove(one)
            sleep(POLL_S)
        return ""

    def _instead(self, choice: Choice, config: Config, summary: Summary | None, refused: Sequence[str]) -> Choice:
        """The Choice of a Config that was not the fastest, stored in place of the one that does not work everywhere."""
        measured = {t.config: t.outcome for t in (summary.trials if summary else ()) if isinstance(t.outcome, Measured)}
        median_s = measured[config].median_s if config in measured else None
        note = f"faster ones fail on other ranks: {'; '.join(refused)}"
        instead = replace(
            choice, config=config, median_s=median_s, runner_up=None, ratio=None, ties=(), called=None, note=note
        )
        self._asked.store.put_choice(self._subject.key, instead, dict(self._subject.key.soft))
        return instead

    def _help(self) -> None:
        """While this rank waits: measure a part of a sharded search, and try what is about to be committed."""
        if not self._number:
            self._number = self._board.count("waiting")
        if self._agreement.shard:
            self._parts.measure_next()
        for number in range(TRIED + 1):  # and what serves calls outside of CUDA graphs
            text = self._board.read(f"proposal/{number}") if number not in self._answered else None
            if text is not None:
                self._answered.add(number)
                self._board.write(f"answer/{number}/{self._number}", self._try(text))
            elif number not in self._answered:
                return

    def _leave(self) -> None:
        """This rank waits no more."""
        if self._number:
            self._board.write(f"left/{self._number}", who())

    def _try(self, text: str) -> str:
        """Why a Config does not work here; empty where it does, and where that can't be told."""
        config = Config.parse(text)
        fault = self._subject.space.fault(config)
        if fault is not None:
            return f"{who()}: its Space refuses it: {fault}"
        once = replace(self._asked.effort, rounds=1, budget_s=None)
        outcome = outcomes(self._asked, [config], once).get(config)
        failed = outcome.outcome if outcome is not None else None
        return f"{who()}: {failed.stage}: {failed.reason}" if isinstance(failed, Failed) else ""


def _best_first(choice: Choice, summary: Summary | None) -> list[Config]:
    """The Choice, then what comes closest."""
    close = [*choice.ties, *([] if choice.runner_up is None else [choice.runner_up])]
    if summary is not None and summary.verdict is not None:
        close = [trial.config for trial in summary.verdict.ranking]
    return list(dict.fromkeys([choice.config, *close]))


# --- putting it in force ------------------------------------------------------------------------------


@contextmanager
def agree(
    group: str = "world", *, store: KeyValueStore | None = None, timeout_s: float | None = None, strict: bool = False,
    shard: bool = False,
) -> Generator[None]:  # fmt: skip
    """Within this scope, calls of this thread use the Config that the ranks of a group agree on.

    Autograd runs backward passes on a GPU in threads of its own: for these, `TUNESMITH_RANKS=GROUP` puts the same in
    force for the whole process.

    Args:
        group: a name; all ranks that use it agree with each other, Key by Key. How many there are need not be known.
        store: a `torch.distributed.Store` that they share; that of the default process group where not given.
        timeout_s: how long a rank waits for whoever searches; `TUNESMITH_WAIT_S` where not given.
        strict: after that an error, instead of the default for all ranks.
        shard: ranks that wait for a search measure a part of it.

    Raises:
        BadInput: for an empty group, a bad time, or a store that is none.
    """
    with decided_by(_agreement(group, store, timeout_s, strict, shard)):
        yield


def agree_process(group: str) -> None:
    """From now on, this process uses the Configs that the ranks of a group agree on (`TUNESMITH_RANKS`)."""
    decided_everywhere_by(_agreement(group, None, None, False, False))


def _agreement(
    group: str, store: KeyValueStore | None, timeout_s: float | None, strict: bool, shard: bool
) -> Agreement:
    if not group:
        raise BadInput("a group of ranks needs a name: agree('tp')")
    if timeout_s is not None and not 0 <= timeout_s < float("inf"):
        raise BadInput(f"timeout_s={timeout_s!r}; good values: seconds, from 0")
    needed = () if store is None else ("compare_set", "check", "get", "set", "add")
    lacks = [name for name in needed if not hasattr(store, name)]
    if lacks:
        raise BadInput(
            f"store={store!r} has no {lacks[0]}; good ones: torch.distributed.TCPStore, FileStore, HashStore"
        )
    return Agreement(group, store, timeout_s, strict, shard)
