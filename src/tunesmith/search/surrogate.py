"""`surrogate`: a model of log time learnt on the way says where an improvement is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunesmith.core.config import Config
from tunesmith.core.outcome import Measured, Trial, Untried
from tunesmith.core.space import ENUMERATED
from tunesmith.errors import MissingEngine
from tunesmith.search.columns import Encoder
from tunesmith.search.setting import Setting, Strategy

#: Configs in all when nothing else is said.
MOST = 256
#: Configs that are spread over the Space before a model is asked.
SPREAD = 6
#: Random Configs among which the farthest from all others is taken next.
FARTHEST_OF = 64
#: Models, each with length scales of its own: their mean judges better than the single most likely one.
MODELS = 8
#: Steps of each model's walk before it is used first, and each time it takes in everything anew.
FIRST_STEPS, STEPS = 40, 10
#: Everything is taken in anew when there are so many times more points than the last time.
GROWTH = 1.15
#: Slower than this quantile is just slow: how slow says nothing of where the fastest is.
SLOW = 0.8
#: A batch is at most this part of what is known: early answers are worth waiting for.
SHARE = 1 / 32
#: Candidates that the models judge; in a larger Space, half of them near the fastest and the rest random.
CANDIDATES = 2000
#: The fastest so many have their neighbours judged; the first two of them their neighbours' neighbours too.
NEAR, NEAR_TWICE = 6, 2
#: From so many on, each second choice is a neighbour of one of the fastest instead, the one of least predicted time
#: among a few random ones: a model may be wrong about a corner that is one step away.
LOCAL_FROM, LOCAL_EVERY, LOCAL_AMONG = 30, 2, 6
#: A Space too large to enumerate is known by so many random Configs and what is found near them.
KNOWN = 4000


def surrogate(setting: Setting) -> Strategy:
    """Bayesian optimisation with Gaussian processes and the expected improvement.

    Raises:
        MissingEngine: where numpy is not there.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingEngine(
            "strategy 'surrogate' needs numpy, which is not installed; pip install 'tunesmith[search]'"
        ) from error
    return _follow(setting, _Field(setting, np.random.default_rng(setting.seed)))


def _follow(setting: Setting, field: _Field) -> Strategy:
    most = setting.most or max(MOST, len(setting.starts))
    for start in range(0, min(len(setting.starts), most), setting.batch):
        batch = setting.starts[start : min(start + setting.batch, most)]
        field.learn((yield field.ask(batch)))
    spread = min(SPREAD, most) - len(field.asked)
    if spread > 0:
        field.learn((yield field.spread(spread)))
    while len(field.asked) < most:
        batch = max(1, min(setting.batch, int(len(field.asked) * SHARE), most - len(field.asked)))
        chosen = field.promising(batch) if len(field.values) > 1 else field.spread(batch)
        if not chosen:
            return
        field.learn((yield chosen))


class _Field:
    """The Configs one may ask for, those asked for, and what came back.

    Attributes:
        asked: in order, places in `configs`.
        values: place → log seconds, of those that were measured.
        failed: places of those that failed.
    """

    def __init__(self, setting: Setting, rng: Any) -> None:
        import numpy as np

        space = self._space = setting.space
        self._whole, self._rng, self._np = space.cardinality <= ENUMERATED, rng, np
        first = list(space) if self._whole else space.sample(KNOWN, setting.seed)
        self._encoder = Encoder(space, [*first, *setting.starts])
        self.configs: list[Config] = []
        self._place: dict[Config, int] = {}
        self._rows: Any = np.empty((0, self._encoder.width))
        self._coded: Any = np.empty((0, len(space.knobs)), np.int32)
        self._add([*first, *setting.starts])
        self.asked: list[int] = []
        self.values: dict[int, float] = {}
        self.failed: set[int] = set()
        self._models: list[Any] = []
        self._taken: list[int] = []  # what the models have taken in, in order
        self._renew_at, self._near = 0.0, np.empty(0, int)

    def _add(self, configs: Sequence[Config]) -> None:
        np = self._np
        new = [config for config in dict.fromkeys(configs) if config not in self._place]
        if not new:
            return
        for config in new:
            self._place[config] = len(self.configs)
            self.configs.append(config)
        rows, codes = zip(*map(self._encoder.row, new), strict=True)
        self._rows = np.vstack([self._rows, np.array(rows, float)])
        self._coded = np.vstack([self._coded, np.array(codes, np.int32)])

    # --- asking and learning ---

    def ask(self, configs: Sequence[Config]) -> list[Config]:
        self.asked.extend(self._place[config] for config in configs)
        return list(configs)

    def learn(self, trials: Sequence[Trial]) -> None:
        """Note what came back; of what was not tried nothing is known but that it is not to be asked for again."""
        from math import log

        for trial in trials:
            place = self._place[trial.config]
            match trial.outcome:
                case Measured():
                    self.values[place] = log(trial.outcome.median_s / trial.drift)
                case Untried():
                    pass
                case _:
                    self.failed.add(place)

    def spread(self, n: int) -> list[Config]:
        """Up to `n` Configs far from each other and from all that were asked for."""
        np, chosen = self._np, list[Config]()
        for _ in range(n):
            free = self._free()
            if not len(free):
                break
            some = self._rng.choice(free, min(FARTHEST_OF, len(free)), replace=False)
            if self.asked:
                apart = np.abs(self._rows[some][:, None] - self._rows[self.asked][None]).sum(2).min(1)
                some = some[[int(apart.argmax())]]
            chosen += self.ask([self.configs[int(some[0])]])
        return chosen

    def _free(self) -> Any:
        free = self._np.ones(len(self.configs), bool)
        free[self.asked] = False
        return self._np.flatnonzero(free)

    # --- the models' choice ---

    def promising(self, n: int) -> list[Config]:
        """Up to `n` Configs of the largest expected improvement, each chosen as if those before it had come true."""
        from tunesmith.search.gaussian import expected_improvement

        np = self._np
        points, values = self._known()
        self._update(points, values)
        chosen: list[Config] = []
        best = values.min()
        for _ in range(n):
            open_ = ~np.isin(self._near, self.asked)
            if not open_.any():
                break
            said = [model.predict(values) for model in self._models]
            gain = sum(expected_improvement(best, mean, deviation) for mean, deviation in said)
            at = int(np.where(open_, gain, -1.0).argmax())
            if len(self.asked) >= LOCAL_FROM and len(self.asked) % LOCAL_EVERY == 0:
                at = self._neighbour(open_, sum(mean for mean, _ in said), at)
            chosen += self.ask([self.configs[int(self._near[at])]])
            values = np.append(values, np.mean([mean[at] for mean, _ in said]))
            self._take(int(self._near[at]))
        if not chosen:  # all candidates are used up: next time there are others
            self._renew_at = 0.0
            return self.spread(n)
        return chosen

    def _neighbour(self, open_: Any, mean: Any, otherwise: int) -> int:
        """Among the candidates, one that differs in one knob from one of the fastest."""
        np = self._np
        coded, near = self._coded[self._near], np.zeros(len(open_), bool)
        for place in self._fastest()[: 1 + int(self._rng.integers(NEAR))]:
            near |= (coded != self._coded[place]).sum(1) == 1
        places = np.flatnonzero(near & open_)
        if not len(places):
            return otherwise
        some = self._rng.choice(places, min(LOCAL_AMONG, len(places)), replace=False)
        return int(some[mean[some].argmin()])

    def _fastest(self) -> list[int]:
        """Places of the few fastest."""
        return sorted(self.values, key=lambda place: (self.values[place], place))[:NEAR]

    def _known(self) -> tuple[list[int], Any]:
        """(places, standardised values) of what was measured or failed; a failure counts as slow."""
        np = self._np
        points = [place for place in self.asked if place in self.values or place in self.failed]
        measured = np.array([self.values.get(place, np.nan) for place in points])
        slow = np.nanquantile(measured, SLOW)
        values = np.where(np.isnan(measured), slow, np.minimum(measured, slow))
        return points, (values - values.mean()) / max(values.std(), 1e-6)

    def _update(self, points: list[int], values: Any) -> None:
        """Bring the models to what is known; new length scales and candidates when enough is new."""
        from tunesmith.search.gaussian import Process

        rows, renewed = self._rows[points], len(points) >= self._renew_at
        if renewed:
            steps = STEPS if self._models else FIRST_STEPS
            self._models = self._models or [Process(rows.shape[1]) for _ in range(MODELS)]
            for model in self._models:
                model.walk(rows, values, self._rng, steps)
            self._near, self._renew_at = self._candidates(), len(points) * GROWTH
        if renewed or self._taken != points:  # they differ where something asked for was not tried
            for model in self._models:
                model.condition(rows, self._rows[self._near])
            self._taken = points

    def _take(self, place: int) -> None:
        for model in self._models:
            model.add(self._rows[place])
        self._taken.append(place)

    def _candidates(self) -> Any:
        """Places of what the models are to judge."""
        np = self._np
        fastest = self._fastest()
        if not self._whole:
            self._add([near for place in fastest for near in self._space.neighbours(self.configs[place])])
        free = self._free()
        if len(free) <= CANDIDATES:
            return free
        apart = np.full(len(self.configs), 9)
        for rank, place in enumerate(fastest):
            differ = (self._coded != self._coded[place]).sum(1)
            apart = np.minimum(apart, np.where(differ <= (2 if rank < NEAR_TWICE else 1), differ, 9))
        near = free[apart[free] < 9]
        if len(near) > CANDIDATES // 2:
            near = self._rng.choice(near, CANDIDATES // 2, replace=False)
        return np.unique(np.concatenate([near, self._rng.choice(free, CANDIDATES - len(near), replace=False)]))
