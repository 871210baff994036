"""`transfer`: a new Problem's search starts from what neighbouring Problems taught, and ends when that is confirmed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.core.problem import Problem
from tunesmith.core.space import ENUMERATED, Space
from tunesmith.core.stats import median
from tunesmith.core.stopping import MARGIN
from tunesmith.search.auto import auto
from tunesmith.search.forecast import Prior, Solved, forecast, nearest
from tunesmith.search.setting import Setting, Strategy, seconds_of

#: Configs of the first batch, of each later one, and in all, as far as nothing else is said.
FIRST, LATER, MOST = 12, 8, 64
#: More of the first batch at most, for knobs that have one value in all others of it.
BESIDE = 4
#: Winners of the nearest Problems that are tried whatever is expected of them.
WINNERS = 3
#: A Config is worth trying while it would be the fastest if the forecast were wrong by so many of its errors, ...
ERRORS = 1.5
#: ... which are never believed to spread less than this (log seconds), nor more before any is known.
LEAST_ERROR, USUAL_ERROR = 0.01, 0.1
#: What comes from other devices is not believed further where its errors spread by more than this (log seconds).
REFUTED = 0.1
#: ... but so many of what did best there are tried, and so many Configs in all.
REFUTED_FIRST, REFUTED_MOST = 48, 128
#: Nothing is left to find where the last so many were no faster, whatever the forecast promises.
STALE = 16
#: A Space too large to enumerate is known by so many random Configs, and by the neighbours' with what is near them.
KNOWN = 4000


@dataclass(frozen=True)
class Plan:
    """What to try for a new Problem, and when it is enough.

    Attributes:
        space: what may be tried.
        expected: the logarithm of each Config's expected time, the fastest first.
        near: the neighbours, the nearest first.
        thin: of most Configs neither a neighbour nor a model says anything.
        margin: how much faster than the best another must promise to be, to be worth trying.
    """

    space: Space
    expected: Mapping[Config, float]
    near: tuple[Solved, ...]
    thin: bool = False
    margin: float = MARGIN

    @property
    def winners(self) -> list[Config]:
        """What the nearest Problems chose, as far as the Space has it."""
        found = dict.fromkeys(solved.winner for solved in self.near)
        return [config for config in found if config in self.expected][:WINNERS]

    @property
    def first(self) -> tuple[Config, ...]:
        """The first candidates, the most promising first; then, of each knob that is the same in all of them, what is
        beside the most promising: where a knob is not varied, nobody would see that its best value has moved."""
        if not self.near:
            return ()
        first = list(dict.fromkeys([*self.winners[:1], *self.expected, *self.winners]))[:FIRST]
        same = [knob for knob in first[0] if len({Config({knob: one.get(knob)}) for one in first}) == 1]
        beside = [config for config in self.space.neighbours(first[0]) if _changed(first[0], config) <= {*same}]
        return tuple(dict.fromkeys([*first, *beside[:BESIDE]]))

    def refuted(self, trials: Iterable[Trial], device: str) -> bool:
        """Whether nothing is known from this device, and what is known from others does not hold on it."""
        wrong = self._wrong({trial.config: seconds_of(trial) for trial in trials})
        return all(one.device != device for one in self.near) and level_of(list(wrong.values()))[1] > REFUTED

    def _wrong(self, tried: Mapping[Config, float | None]) -> dict[Config, float]:
        """Of what ran, the logarithm of its time less what was expected."""
        return {c: math.log(s) - self.expected[c] for c, s in tried.items() if s is not None and c in self.expected}

    def after(self, trials: Iterable[Trial]) -> list[Config]:
        """The next candidates, given what became of those before; none where it is enough.

        It is enough when no Config that is left would be faster than the best by more than the margin, even if the
        forecast were wrong by half as much again as where that could be seen; where the best was not expected to be, or
        little is told, those beside it in the Space have a turn too. And it is enough when the last `STALE` were no
        faster.
        """
        tried = {trial.config: seconds_of(trial) for trial in trials}
        wrong = self._wrong(tried)
        left = [config for config in self.expected if config not in tried]
        if not wrong:  # nothing ran: what is expected next, until something does
            return left[:LATER]
        if _since_the_best(list(tried.values())) >= STALE:
            return []
        level, error = level_of(list(wrong.values()))
        best = min((s, i, config) for i, (config, s) in enumerate(tried.items()) if s is not None)
        to_beat = math.log(best[0]) - math.log1p(self.margin) - level + ERRORS * error
        promising = [config for config in left if self.expected[config] < to_beat]
        surprise = best[2] not in wrong or wrong[best[2]] - level < -ERRORS * error - math.log1p(self.margin)
        beside = self.space.neighbours(best[2]) if surprise or self.thin else []
        beside = [config for config in beside if config not in tried]
        return list(dict.fromkeys([*promising[: LATER // 2], *beside, *promising]))[:LATER]


def _changed(one: Config, other: Config) -> set[str]:
    """The knobs in which two Configs differ."""
    return {knob for knob in {*one, *other} if Config({knob: one.get(knob)}) != Config({knob: other.get(knob)})}


def _since_the_best(seconds: Sequence[float | None]) -> int:
    """How many were tried after the fastest."""
    fastest = min(s for s in seconds if s is not None)
    return len(seconds) - 1 - seconds.index(fastest)


def level_of(errors: Sequence[float]) -> tuple[float, float]:
    """(what a forecast's errors share, how much they spread about it): medians, so that one odd Config is no matter."""
    level = median(errors) if errors else 0.0
    spread = 1.4826 * median([abs(error - level) for error in errors]) if len(errors) > 2 else USUAL_ERROR
    return level, max(spread, LEAST_ERROR)


def plan(
    problem: Problem, space: Space, device: str, near: Iterable[Solved], prior: Prior | None = None, *,
    margin: float = MARGIN, seed: int = 0,
) -> Plan:  # fmt: skip
    """What to try for a new Problem, by what is known of others.

    Args:
        device: `Device.identity`.
        near: Problems that were tuned before, in any order, on this device or others.
        prior: what a model says of a Config for this Problem on this device.
    """
    known = nearest(problem, device, near)
    configs = _configs(space, known, seed)
    expected = forecast(problem, device, configs, known, prior)
    told = {config for solved in known for config in solved.seconds}
    thin = prior is None and 2 * sum(config in told for config in configs) < len(configs)
    return Plan(space, dict(sorted(expected.items(), key=lambda one: one[1])), tuple(known), thin, margin)


def _configs(space: Space, near: Sequence[Solved], seed: int) -> list[Config]:
    """The Space's legal Configs; those of a large one that are known from elsewhere or near the winners, and others."""
    if space.cardinality <= ENUMERATED:
        return list(space)
    known = [config for solved in near for config in solved.seconds if config in space]
    winners = [solved.winner for solved in near if solved.winner in space]
    around = [config for winner in winners for config in space.neighbours(winner)]
    return list(dict.fromkeys([*known, *around, *space.sample(KNOWN, seed)]))


def transfer(setting: Setting) -> Strategy:
    """The starts with the Plan's first candidates, then batches for as long as one of them may be the fastest.

    Where no neighbour is known it is `auto`, and so is the rest of the search where all that is known comes from other
    devices and turns out wrong here.
    """
    if setting.problem is None or not setting.near:
        yield from auto(setting)
        return
    planned = plan(
        setting.problem, setting.space, setting.device, setting.near, setting.prior, margin=setting.margin,
        seed=setting.seed,
    )  # fmt: skip
    most = setting.most or max(MOST, len(setting.starts))
    batch, trials = list(dict.fromkeys([*setting.starts, *planned.first]))[:most], dict[Config, Trial]()
    while batch:
        answers = yield batch
        trials.update(zip(batch, answers, strict=True))
        batch = planned.after(trials.values())[: most - len(trials)]
    if planned.refuted(trials.values(), setting.device):
        starts = [*trials, *[config for config in planned.expected if config not in trials]][:REFUTED_FIRST]
        rest = replace(setting, starts=tuple(starts), most=setting.most or max(REFUTED_MOST, len(trials)))
        yield from _new_alone(auto(rest), trials)


def _new_alone(steps: Strategy, known: dict[Config, Trial]) -> Strategy:
    """A strategy that is told what is known, and asks for the rest."""
    try:
        batch = next(steps)
        while True:
            new = [config for config in batch if config not in known]
            if new:
                answers = yield new
                known.update(zip(new, answers, strict=True))
            batch = steps.send([known[config] for config in batch])
    except StopIteration:
        return
    finally:
        steps.close()
