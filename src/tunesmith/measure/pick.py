"""Which Config a search ends with: the cheapest of those that cannot be told from the fastest."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Resources, Trial
from tunesmith.core.stats import median, paired_ratio, timer_step
from tunesmith.core.stopping import APART, CONFIDENCE, MARGIN, Rule
from tunesmith.measure.calls import quickest_to_call

#: How a winner is picked: the cheapest of those as fast as the fastest, the fastest, the one with the least shared
#: memory of those whose spread overlaps the fastest's.
Pick: TypeAlias = Literal["cheapest", "fastest", "overlap"]
PICKS: tuple[str, ...] = get_args(Pick)
#: Who has fewer samples than this was far behind, or the race was cut short: its median is no rival to one of more.
ENOUGH = 3
#: Who may turn out as good as the fastest: within so many margins of its median, and so many at most.
NEAR, FINALISTS = 2, 8
#: Of those that took up to so many times as long as the fastest, another may be the fastest when nobody else is at
#: work on the core: what others take away differs that much between Configs.
REACH = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the Trials say.

    Attributes:
        winner: the Config to use.
        ranking: all measured Trials, fastest first; those that left the race before it ended come after the others.
        ties: Configs as good as the fastest, the winner left out.
        margin, confidence: how much slower one may be to be as good, and how sure that is.
        within: with that confidence, no Config that was in the race to its end is faster than the winner by more than
            this part; `None` where the samples are too few to say.
        why: what decided between the winner and the fastest, in words; empty where it is the fastest.
        step_s: the timer's step where it shows in the winner's samples, as of `timer_step`.
        called: who serves calls one by one, where their time is known: the winner, or who makes the host wait less.
    """

    winner: Trial
    ranking: tuple[Trial, ...]
    ties: tuple[Config, ...]
    margin: float = MARGIN
    confidence: float = CONFIDENCE
    within: float | None = None
    why: str = ""
    step_s: float = 0.0
    called: Trial | None = None

    @property
    def checked(self) -> str:
        """What those that serve were compared with; empty where one was not, or with something else."""
        return self.winner.checked if self.called is None or self.called.checked == self.winner.checked else ""

    @property
    def pace_s(self) -> float | None:
        """How fast the core was, as of `slowest_pace_s`."""
        return slowest_pace_s(self.winner, self.ranking)

    @property
    def doubt(self) -> str:
        """Why the best is not known within the margin, in words; empty where it is."""
        assert isinstance(self.winner.outcome, Measured)
        if self.step_s > self.margin * self.winner.outcome.median_s:
            return (
                f"{self._coarseness(self.winner.outcome.median_s)}: the timer is too coarse for this kernel, and one "
                "that times many launches at once tells more (on a GPU clock='graph')"
            )
        if self.within is not None and self.within <= self.margin:
            return ""
        samples = len(self.winner.outcome.samples)
        after = f"after {samples} sample{'s' if samples != 1 else ''}"
        if self.within is None:
            return f"{after}: too few to say how much faster another may be"
        return f"{after} another may still be faster by {self.within:.1%}, more than the margin of {self.margin:.2%}"

    def _coarseness(self, median_s: float) -> str:
        if self.step_s == math.inf:
            return "no time could be seen"
        return f"its samples are {self.step_s * 1e6:.3g} µs apart or equal, {self.step_s / median_s:.1%} of its time"


def pick(
    trials: Sequence[Trial], margin: float = MARGIN, confidence: float = CONFIDENCE, how: Pick = "cheapest",
    incumbent: Config | None = None, calls: bool = True, reluctant: Collection[Config] = (),
) -> Verdict | None:  # fmt: skip
    """The verdict, `None` when nothing was measured.

    Args:
        trials: in the Space's order, which decides between Configs that take the same resources.
        margin: how much slower a Config may be and still tie, by the upper bound of its paired ratio
            to the fastest: too few samples never make a tie.
        how: `cheapest` takes of the ties the one with the fewest resources. `fastest` takes the smallest median,
            `overlap` of those whose [p20, p80] overlaps the fastest's the fewest shared bytes, then the smaller median.
        incumbent: in use today: it stays, unless `how` is another, as long as nothing is faster beyond doubt and by
            more than the margin.
        calls: whether to say who serves calls one by one, where it is known what those of the incumbent take.
        reluctant: last of the cheapest, and to serve calls one by one only where no other is as quick.
    """
    timed = [_Timed.of(trial) for trial in trials if isinstance(trial.outcome, Measured)]
    ranking = _ranked(timed)
    if not ranking:
        return None
    in_use = next((t for t in ranking if t.trial.config == incumbent and how == "cheapest"), None)
    fastest = _first_beside(in_use, ranking)
    each = _each_of(fastest, ranking, confidence)
    level = [t for t in ranking if t is fastest or t.ratio_to(fastest, each)[2] <= 1 + margin]
    place = {trial.config: i for i, trial in enumerate(trials)}
    first = "number 1" if fastest is ranking[0] else "the fastest of those timed beside what was in use"
    winner, why = fastest, ""
    if how == "overlap":
        winner = min(_overlapping(ranking), key=lambda t: (t.trial.resources.shared_bytes or 0, t.level_s))
        why = "its spread overlaps that of number 1, and it takes less shared memory"
    elif how == "cheapest":
        if in_use is not None and not _beaten(in_use, fastest, margin, confidence):
            winner = in_use
            why = f"it was in use before, and {first} is not faster by more than {margin:.2%}"
        else:
            last = {t.trial.config: t.trial.config in reluctant for t in level}
            winner = min(level, key=lambda t: (last[t.trial.config], _cost(t.trial.resources), place[t.trial.config]))
            why = (
                f"it is as fast as {first} within {margin:.2%}, and takes less "
                "(shared memory, then registers, then threads; else it stands first in the space)"
            )
        if winner is fastest and winner is not in_use:
            why = "it is faster beyond doubt than what was in use, and number 1 was not timed beside that"
    ranked, called = tuple(t.trial for t in ranking), None
    if calls and in_use is not None and in_use.trial.calls is not None:
        called = quickest_to_call(winner.trial, in_use.trial, ranked, margin, confidence, reluctant)
    return Verdict(
        winner.trial, ranked, tuple(t.trial.config for t in level if t is not winner), margin, confidence,
        _within(winner, ranking, confidence), "" if winner is ranking[0] else why, winner.step_s, called,
    )  # fmt: skip


def _first_beside(in_use: _Timed | None, ranking: Sequence[_Timed]) -> _Timed:
    """The fastest; of those who were timed beside what is in use, where there are any: faster than that in another
    race, at another clock perhaps, is no proof."""
    beside = [t for t in ranking if in_use is not None and t is not in_use and len(t.shared_with(in_use)) >= 2]
    return next((t for t in ranking if t is in_use or t in beside), ranking[0]) if beside else ranking[0]


def apart(trials: Sequence[Trial], margin: float = MARGIN, incumbent: Config | None = None) -> list[Config]:
    """Who decides the verdict and has not been timed with the fastest: with it, the incumbent and who is near it; empty
    where all have met."""
    ranking = _ranked([_Timed.of(trial) for trial in trials if isinstance(trial.outcome, Measured)])
    if not ranking:
        return []
    fastest = ranking[0]
    near = [t for t in ranking if t.level_s <= fastest.level_s * (1 + NEAR * margin)][:FINALISTS]
    deciding = [*near, *[t for t in ranking if t.trial.config == incumbent and t not in near]]
    met = all(t is fastest or len(t.shared_with(fastest)) >= 2 for t in deciding)
    return [] if met else [t.trial.config for t in deciding]


def slowest_pace_s(winner: Trial, trials: Iterable[Trial]) -> float | None:
    """How fast the core was in the most disturbed of the races that have left a Trial of somebody who may be the
    fastest, earlier searches' too: its `Trial.pace_s`, or `None` where none says it.

    Other versions of Python run the loop that is timed for it at other speeds: their Trials do not count.
    """
    near = (winner, *(trial for trial in within_reach(trials) if trial.soft.get("python") == winner.soft.get("python")))
    return max((trial.pace_s for trial in near if trial.pace_s is not None), default=None)


def within_reach(trials: Iterable[Trial], reach: float = REACH) -> list[Trial]:
    """Those that took up to so many times as long as the fastest, in order, whichever of them left their race early."""
    levels = [
        (level, trial) for trial in trials
        if (level := trial.level_s) is not None
        and isinstance(trial.outcome, Measured) and len(trial.outcome.samples) >= ENOUGH
    ]  # fmt: skip
    limit = reach * min((level for level, _ in levels), default=0.0)
    return [trial for level, trial in sorted(levels, key=lambda one: one[0]) if level <= limit]


def ratio_between(one: Trial, other: Trial, confidence: float = CONFIDENCE) -> tuple[float, float, float] | None:
    """How many times as long one measured Config takes as another, with bounds, by the rounds both were in.

    Returns:
        (ratio, low, high); `None` where they were in too few rounds together to say how sure a ratio is.
    """
    a, b = _Timed.of(one), _Timed.of(other)
    return a.ratio_to(b, confidence) if len(a.shared_with(b)) >= ENOUGH else None


@dataclass(frozen=True, slots=True)
class Compared:
    """A Trial beside the fastest one.

    Attributes:
        ratio: how many times longer it takes; low, high: its bounds, as sure as all comparisons of a pick are.
            0 and infinity where the two were not timed side by side.
        rounds: in which both were timed.
    """

    trial: Trial
    ratio: float
    low: float
    high: float
    rounds: int


def compared(verdict: Verdict, most: int) -> list[Compared]:
    """The first of a ranking, each beside the fastest: what `pick` goes by."""
    timed = [_Timed.of(trial) for trial in verdict.ranking]
    fastest = timed[0]
    each = _each_of(fastest, timed, verdict.confidence)
    return [
        Compared(one.trial, *one.ratio_to(fastest, each), len(one.shared_with(fastest)))
        for one in timed[:most]
    ]  # fmt: skip


def unfinished(trials: Sequence[Trial], rule: Rule) -> list[Trial]:
    """Of Trials of searches that never came to an end, those that had not left their race: it may have been stopped.

    Args:
        rule: of their races.
    """
    timed = [_Timed.of(trial) for trial in trials if isinstance(trial.outcome, Measured)]
    least: dict[str, float] = {}
    for one in timed:
        least[one.trial.at] = min(least.get(one.trial.at, one.least_s), one.least_s)
    to_the_end = _in_to_the_end(timed)

    def had_left(one: _Timed) -> bool:
        fastest_s = least[one.trial.at]
        screen = {0: APART, **rule.screens_at(fastest_s)}.get(len(one.rounds))
        return one not in to_the_end if screen is None else one.least_s > screen * fastest_s

    return [one.trial for one in timed if not had_left(one)]


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """A Trial's figures, worked out once.

    Attributes:
        level_s: its median as those of all races can be compared.
        rounds: seconds by round; the median where a round has several samples.
    """

    trial: Trial
    level_s: float
    count: int
    rounds: Mapping[int, float]

    @classmethod
    def of(cls, trial: Trial) -> _Timed:
        assert isinstance(trial.outcome, Measured)
        by_round: dict[int, list[float]] = {}
        for sample in trial.outcome.samples:
            if sample.round >= 0:
                by_round.setdefault(sample.round, []).append(sample.seconds)
        rounds = {number: mine[0] if len(mine) == 1 else median(mine) for number, mine in by_round.items()}
        return cls(trial, trial.outcome.median_s / trial.drift, len(trial.outcome.samples), rounds)

    @property
    def least_s(self) -> float:
        assert isinstance(self.trial.outcome, Measured)
        return min(self.trial.outcome.samples_s) / self.trial.drift

    @property
    def step_s(self) -> float:
        assert isinstance(self.trial.outcome, Measured)
        return timer_step(self.trial.outcome.samples_s)

    @property
    def spread_s(self) -> tuple[float, float]:
        assert isinstance(self.trial.outcome, Measured)
        low, high = self.trial.outcome.spread_s
        return low / self.trial.drift, high / self.trial.drift

    def shared_with(self, other: _Timed) -> list[int]:
        """The rounds that both were in; none where they were timed by different searches."""
        return sorted(self.rounds.keys() & other.rounds.keys()) if self.trial.at == other.trial.at else []

    def ratio_to(self, other: _Timed, confidence: float) -> tuple[float, float, float]:
        """How much longer it takes, with bounds, by the rounds both were in.

        By the levels, and nothing is sure, where they were not timed side by side.
        """
        if self is other:
            return 1.0, 1.0, 1.0
        shared = self.shared_with(other)
        if len(shared) < 2:
            return self.level_s / other.level_s, 0.0, float("inf")
        return paired_ratio([self.rounds[r] for r in shared], [other.rounds[r] for r in shared], confidence)


def _ranked(timed: Sequence[_Timed]) -> list[_Timed]:
    """Fastest first. Who left a race before it ended comes after those who did not: it may have run at another clock,
    and was compared with the others then."""
    most = max((t.count for t in timed), default=0)
    to_the_end = _in_to_the_end(timed)
    return sorted(timed, key=lambda t: (t not in to_the_end or t.count < min(ENOUGH, most), t.level_s))


def _in_to_the_end(timed: Iterable[_Timed]) -> set[_Timed]:
    """Who was in its race's last round, or in the last but one (an interrupted round has not all of them)."""
    races: dict[tuple[str, int], list[tuple[_Timed, int]]] = {}
    found: set[_Timed] = set()
    for one in timed:
        if one.rounds:
            races.setdefault((one.trial.at, min(one.rounds)), []).append((one, max(one.rounds)))
        else:
            found.add(one)  # samples of no round: nothing says that it left
    for entrants in races.values():
        last = max(number for _, number in entrants)
        found.update(one for one, number in entrants if number >= last - 1)
    return found


def _overlapping(ranking: Sequence[_Timed]) -> list[_Timed]:
    low, high = ranking[0].spread_s
    return [t for t in ranking if t.spread_s[0] <= high and t.spread_s[1] >= low]


def _beaten(one: _Timed, fastest: _Timed, margin: float, confidence: float) -> bool:
    """Whether the fastest is faster beyond doubt, and by more than the margin."""
    ratio, low, _ = one.ratio_to(fastest, confidence)
    return ratio > 1 + margin and low > 1


def _rivals(one: _Timed, ranking: Sequence[_Timed]) -> list[_Timed]:
    """Who was in the race with it to its end."""
    to_the_end = _in_to_the_end(ranking)
    return [t for t in ranking if t is not one and t in to_the_end and t.shared_with(one)]


def _each_of(one: _Timed, ranking: Sequence[_Timed], confidence: float) -> float:
    """How sure each comparison with its rivals has to be, so that all hold at once: the best of many is looked for."""
    return 1 - (1 - confidence) / max(1, len(_rivals(one, ranking)))


def _within(winner: _Timed, ranking: Sequence[_Timed], confidence: float) -> float | None:
    """By how much somebody may be faster than the winner, of those who were in the race with it to its end."""
    if winner not in _in_to_the_end(ranking) or not winner.rounds:
        return None
    each = _each_of(winner, ranking, confidence)
    worst = max((winner.ratio_to(rival, each)[2] - 1 for rival in _rivals(winner, ranking)), default=0.0)
    return max(0.0, worst) if worst < float("inf") else None


def _cost(resources: Resources) -> tuple[int, int, int]:
    """What a Config takes from its neighbours; unknown counts as nothing."""
    return resources.shared_bytes or 0, resources.registers or 0, resources.threads or 0
