"""When a race has seen enough: who is worse beyond doubt, and whether the best is known. A rule is fed numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tunesmith.core.stats import median, student_t, trimmed_mean

K = TypeVar("K")

#: How much slower than the fastest a Config may be and still be as good, and how sure that has to be.
MARGIN, CONFIDENCE = 0.01, 0.95
#: After one and two rounds, who is slower by more than this factor leaves, by the least of its samples: whatever else
#: runs on the machine makes a sample longer, never shorter, and rarely two of one candidate's.
SCREENS: Mapping[int, float] = {1: 3.0, 2: 1.4}
#: ... on a CPU: who is at work on the core's other thread makes both of one candidate's nearly twice as long
SCREENS_OF_CPU: Mapping[int, float] = {**SCREENS, 2: 2.0}
#: Timed apart, each when it was compiled, candidates are told apart by no less than this factor: the clock of a GPU
#: that had nothing to do may be a sixth of what it is at work.
APART = 10.0
#: After these rounds everybody is judged. Few, as each look is another chance to err.
LOOKS = (3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224)
#: From so many rounds on no more than so many go on: more are not told apart in the rounds that are left.
CAPS = {7: 16, 14: 8, 28: 4, 80: 2}
#: Where ties are to be proved, of no more than so many nobody leaves before this round: timing them costs little, and
#: of two that are alike luck throws one out in 1 of 100 races, by its first five samples most often.
SPARED, SPARED_ROUNDS = 4, 10
#: Rounds of a race at most, and of the finalists alone at its end.
ROUNDS, FINALS = 64, 5
#: ... and at most where ties are to be proved. With samples that spread by 2 %, so many say of two that differ by
#: 0.2 % that they are within 1 %, in 99 of 100 races; two are left by then.
ROUNDS_FOR_TIES = 320
#: A candidate is timed for so long in all, then no longer than for FEW rounds: what takes 0.1 s is not timed 64 times.
LONG_S, FEW = 1.0, 15
#: A pair's spread is estimated from few samples: the usual spread of all pairs counts as so many more.
POOLED = 4
#: Ratios are never believed to spread less than this: a timer's tick, and what a kernel's placement changes.
LEAST_SPREAD = 5e-4
#: In fewer rounds than this a few brief samples may agree by chance.
EARLY = 14
#: The chance to err is shared by the looks; as they share most of their samples, by half of them.
SHARES = 4


@dataclass(frozen=True, slots=True)
class Brief:
    """How samples are judged that are so short that what else runs on the machine meets some of them and not others.

    Attributes:
        below_s: the fastest takes less than this.
        screens: of the same rounds in place of the rule's.
        early_spread: in fewer rounds than EARLY, ratios are not believed to spread less.
    """

    below_s: float
    screens: Mapping[int, float]
    early_spread: float


#: Of a CPU, whose samples take a millisecond at least: who else gets the core for 5 ms makes one of them six times as
#: long; who is at work on its other thread, all of one candidate's nearly twice, while another was lucky.
BRIEF_ON_CPU = Brief(5e-3, {1: 10.0, 2: 3.0}, 0.03)


@dataclass(frozen=True, slots=True)
class Look(Generic[K]):
    """What a rule says after a round.

    Attributes:
        staying: who goes on, in the order they were given.
        leader: the fastest so far.
        within: no one who goes on is faster than the leader by more than this part, with the rule's confidence;
            infinite where it cannot be said.
        decided: nothing that more rounds could change: the best is known within the margin, and where ties are to be
            proved, of everybody who goes on that it is as good.
    """

    staying: tuple[K, ...]
    leader: K
    within: float
    decided: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Elimination by paired comparison: candidates are judged by the ratios of samples of the same round.

    Args:
        margin: how much faster than the leader another may be when the race ends.
        confidence: that nobody is faster by more.
        rounds: at most; as many as are usual if not given.
        everybody: nobody leaves, and all are in all rounds: to record a whole space.
        ties: whether it matters who is as good as the fastest: then nobody leaves who may be, and two that are alike
            are timed longer.
        screens: by round, who is slower by more than which factor leaves.
        brief: how samples are judged that are too short for that; none are if not given.
    """

    margin: float = MARGIN
    confidence: float = CONFIDENCE
    rounds: int = 0
    everybody: bool = False
    ties: bool = True
    screens: Mapping[int, float] = field(default_factory=lambda: SCREENS)
    brief: Brief | None = None

    def __post_init__(self) -> None:
        if not self.rounds:
            object.__setattr__(self, "rounds", ROUNDS_FOR_TIES if self.ties else ROUNDS)

    @property
    def finals(self) -> int:
        """Rounds of those who are left, when all is decided; none where each was to be timed so often and no more."""
        return 0 if self.everybody or self.rounds == 1 else FINALS

    def looks_after(self, rounds: int) -> bool:
        """Whether anything may be decided after so many rounds."""
        return not self.everybody and (rounds in self.screens_at(0.0) or rounds in LOOKS or rounds >= self.rounds)

    def screens_at(self, fastest_s: float) -> Mapping[int, float]:
        """By round, who is slower by more than which factor leaves, where the fastest takes so long."""
        if self.brief is None or fastest_s >= self.brief.below_s:
            return self.screens
        return {**self.screens, **self.brief.screens}

    def most_rounds(self, leader_s: float) -> int:
        """How many rounds a race is worth whose leader takes so long."""
        return self.rounds if self.everybody else min(self.rounds, max(FEW, math.floor(LONG_S / leader_s)))

    def look(self, seconds: Mapping[K, Sequence[float]], stays: Collection[K] = ()) -> Look[K]:
        """Judge candidates that have all been in the same rounds.

        Args:
            seconds: of each, a sample a round; at least one.
            stays: who goes on whatever they take.
        """
        leader = min(seconds, key=lambda k: median(seconds[k]))
        rounds = len(seconds[leader])
        least = {k: min(mine) for k, mine in seconds.items()}
        fastest_s = min(least.values())
        screens = self.screens_at(fastest_s)
        if rounds in screens:
            limit = fastest_s * screens[rounds]
            going = [k for k in seconds if least[k] <= limit or k in stays]
            return Look(tuple(going), leader, math.inf if len(going) > 1 else 0.0, len(going) == 1)
        gaps = self._gaps(seconds, leader)
        may_be_as_good = math.log1p(self.margin) if self.ties else 0.0
        spared = self.ties and len(seconds) <= SPARED and rounds < SPARED_ROUNDS
        going = [k for k, (gap, half) in gaps.items() if spared or gap - half <= may_be_as_good]
        cap = min((most for after, most in CAPS.items() if rounds >= after), default=len(seconds))
        best = set(sorted(going, key=lambda k: gaps[k][0])[: cap - 1])
        staying = tuple(k for k in seconds if k == leader or k in best or k in stays)
        open_ = [gaps[k] for k in staying if k in best]
        within = math.expm1(max([half - gap for gap, half in open_], default=0.0))
        as_good = not self.ties or all(gap + half <= math.log1p(self.margin) for gap, half in open_)
        return Look(staying, leader, within, within <= self.margin and as_good)

    def _gaps(self, seconds: Mapping[K, Sequence[float]], leader: K) -> dict[K, tuple[float, float]]:
        """Of everybody but the leader: (log of the ratio to it, half the width of its interval)."""
        base = [math.log(s) for s in seconds[leader]]
        found = {
            k: trimmed_mean([math.log(s) - b for s, b in zip(mine, base, strict=True)])
            for k, mine in seconds.items()
            if k != leader
        }
        if not found:
            return {}
        usual = median([deviation for _, deviation, _ in found.values()])
        degrees = next(iter(found.values()))[2]
        pooled = min(POOLED, (len(found) - 1) * degrees)
        tail = (1 - self.confidence) / (SHARES * len(found))
        t = student_t(pooled + degrees, 1 - 2 * tail)
        brief = self.brief if len(base) < EARLY else None
        least = brief.early_spread if brief is not None and min(seconds[leader]) < brief.below_s else LEAST_SPREAD
        gaps: dict[K, tuple[float, float]] = {}
        for k, (gap, deviation, _) in found.items():
            spread = math.sqrt((pooled * usual**2 + degrees * deviation**2) / (pooled + degrees))
            gaps[k] = gap, t * max(spread, least) / math.sqrt(len(base))
        return gaps
