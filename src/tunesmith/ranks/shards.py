"""One search shared by the ranks that would wait for it: each measures a part, one re-times the best.

Samples of two devices are not compared to pick a winner: they only say who is among the finalists, which the searching
rank times side by side. That assumes that the ranks' devices are of one kind, which their Key says, and not so unlike
in speed that the best Config does not make it into the best `FINALISTS`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from time import monotonic, sleep

from tunesmith.core.config import Config
from tunesmith.core.outcome import Failed, Measured, Trial, Untried, trial_from_data, trial_to_data
from tunesmith.core.space import Space
from tunesmith.errors import BudgetEnded, Busy
from tunesmith.events import BUDGET, Summary
from tunesmith.measure.failure import all_failed
from tunesmith.ranks.board import Board, Lease, Watch, who
from tunesmith.ranks.trying import outcomes
from tunesmith.tracks import Asked, Decided, meanwhile
from tunesmith.tune import search as search_alone

#: Configs in a part: enough for the compilers of one rank, few enough that ranks end together.
PART = 8
#: How often each Config of a part is timed: enough to tell the best few.
ROUNDS = 5
#: How many of the best are timed side by side in the end.
FINALISTS = 8
#: Larger Spaces are not gone through one by one, whatever the number of ranks.
MOST = 4096
#: Strategies that go through the whole Space; the others decide step by step, in one place.
WHOLE = ("auto", "exhaustive")
#: Of a budget, what the parts may take; the rest is for the finalists.
SHARE = 0.6
#: Between two looks for parts that others measure.
POLL_S = 0.05


class Parts:
    """One rank's share of a search that was put on the board."""

    def __init__(self, asked: Asked, board: Board) -> None:
        self._asked, self._board = asked, board
        self._configs: list[Config] = []
        self._deadline = inf
        self._all_taken = False

    def offer(self, configs: Sequence[Config]) -> list[Config]:
        """Put a search on the board, for all who wait to take part; what is there if somebody did so before."""
        mine = json.dumps({"configs": [config.text for config in configs], "budget_s": self._asked.effort.budget_s})
        self._read(self._board.first("parts", mine))
        return self._configs

    def _read(self, text: str) -> None:
        data = json.loads(text)
        self._configs = [Config.parse(config) for config in data["configs"]]
        if data["budget_s"] is not None:
            self._deadline = monotonic() + SHARE * float(data["budget_s"])

    def measure_next(self) -> bool:
        """Measure the next part that nobody has taken; whether there was one."""
        if not self._configs:
            text = self._board.read("parts")
            if text is None:
                return False
            self._read(text)
        if self._all_taken or monotonic() > self._deadline:
            return False
        number = self._board.count("next") - 1
        self._all_taken = number >= self._count
        if not self._all_taken:
            self._measure(number, None)
        return not self._all_taken

    def gather(self) -> dict[Config, Trial]:
        """All that was measured. Parts of ranks that died are measured here; what time does not allow is missing."""
        while self.measure_next():
            pass
        watches = [Watch() for _ in range(self._count)]
        done: dict[Config, Trial] = {}
        missing = list(range(self._count))
        while missing and monotonic() < self._deadline:
            for number in list(missing):
                text = self._board.read(f"part/{number}")
                if text is not None:
                    trials = [trial_from_data(trial) for trial in json.loads(text)]
                    done |= {trial.config: trial for trial in trials}
                    missing.remove(number)
                    continue
                holder = self._board.read(f"part/{number}/lease")
                if watches[number].may_be_taken(holder):
                    self._measure(number, holder)
            sleep(POLL_S)
        return done

    @property
    def _count(self) -> int:
        return ceil(len(self._configs) / PART)

    def _measure(self, number: int, holder: str | None) -> None:
        lease = Lease(self._board, f"part/{number}/lease")
        if not lease.take(holder):
            return
        part = [c for c in self._configs[number * PART : (number + 1) * PART] if c in self._asked.subject.space]
        left_s = None if self._deadline == inf else max(0.0, self._deadline - monotonic())
        with lease.held():
            found = outcomes(self._asked, part, replace(self._asked.effort, rounds=ROUNDS, budget_s=left_s))
            self._board.first(f"part/{number}", json.dumps([trial_to_data(trial) for trial in found.values()]))


def can_share(asked: Asked) -> bool:
    """Whether a search goes through its whole Space, which is what can be divided."""
    space, effort = asked.subject.space, asked.effort
    return effort.strategy in WHOLE and effort.candidates is None and PART < space.cardinality <= MOST


def search(asked: Asked, parts: Parts) -> Decided:
    """Search with all ranks that wait: their parts, then the finalists on this one. Stores all Trials and the Choice.

    Raises:
        NoWorkingConfig: when every Config failed, or the constraints cut them all.
    """
    subject, store, effort = asked.subject, asked.store, asked.effort
    cut: dict[str, int] = {}
    legal = list(subject.space.points(lambda reason, n: cut.update({reason: cut.get(reason, 0) + n})))
    if len(legal) <= PART:
        return asked.decide()
    parts.offer(legal)
    theirs = {config: trial for config, trial in parts.gather().items() if config in subject.space}
    times = {c: t.outcome.median_s for c, t in theirs.items() if isinstance(t.outcome, Measured)}
    finalists = sorted(times, key=lambda config: times[config])[:FINALISTS]
    if not finalists:
        failed = [(c, t.outcome) for c, t in theirs.items() if isinstance(t.outcome, Failed)]
        if len(failed) == len(legal):  # else the budget ended before those that may work
            raise all_failed(subject.kernel.name, subject.exact.text, failed, None)
        return meanwhile(asked.default(), BUDGET), None
    left = replace(effort, budget_s=None if effort.budget_s is None else (1 - SHARE) * effort.budget_s)
    final = replace(asked, subject=replace(subject, space=Space.of(finalists)), effort=left)
    with store.claim(subject.key, effort.wait_s) as claimed:
        if not claimed:
            return meanwhile(asked.default(), "this key is being searched by another process or thread"), None
        try:
            finals = search_alone(final.subject, lambda: finalists[0], store, asked.clock(), left)
        except (Busy, BudgetEnded) as error:
            return meanwhile(asked.default(), str(error)), None
        summary = _whole(asked, legal, cut, theirs, finals)
        assert summary.choice is not None
        store.add_trials(subject.key, [trial for config, trial in theirs.items() if config not in finalists])
        store.put_choice(subject.key, summary.choice, dict(subject.key.soft))
    return summary.choice, summary


def _whole(
    asked: Asked, legal: Sequence[Config], cut: dict[str, int], theirs: dict[Config, Trial], finals: Summary
) -> Summary:
    """The finals' Summary, as one of the whole Space."""
    done = {**theirs, **{trial.config: trial for trial in finals.trials}}
    trials = tuple(done.get(config, Trial(config, Untried(BUDGET))) for config in legal)
    size = asked.subject.space.cardinality
    summary = replace(finals, trials=trials, cut=cut, cardinality=size, why_untried=BUDGET)
    assert finals.choice is not None
    choice = replace(
        finals.choice, space=asked.subject.space.digest, candidates=summary.counts, budget_s=asked.effort.budget_s,
        partial=BUDGET if summary.counts["untried"] else finals.choice.partial,
        note=f"measured in parts by ranks; the best {len(finals.trials)} were timed side by side by {who()}",
    )  # fmt: skip
    return replace(summary, choice=choice)
