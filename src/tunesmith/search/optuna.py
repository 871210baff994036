"""`optuna:SAMPLER`: Optuna's samplers, for those who want to compare (`pip install optuna`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tunesmith.core.axis import Axis
from tunesmith.core.config import Config
from tunesmith.core.outcome import Trial
from tunesmith.errors import MissingEngine
from tunesmith.search.setting import Setting, Strategy, seconds_of

#: SAMPLER → Optuna's class.
SAMPLERS: Mapping[str, str] = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
    "nsgaii": "NSGAIISampler",
    "random": "RandomSampler",
}
#: Configs in all when nothing else is said.
MOST = 256
#: A sampler that keeps naming illegal or known Configs is given a random one instead after so many.
TRIES = 50


def optuna(sampler: str) -> Callable[[Setting], Strategy]:
    """The strategy of one sampler. Failures are told as failed trials; illegal points are too, and cost nothing."""

    def strategy(setting: Setting) -> Strategy:
        try:
            import optuna as engine
        except ImportError as error:
            raise MissingEngine(
                f"strategy 'optuna:{sampler}' needs Optuna, which is not installed; pip install 'tunesmith[optuna]'"
            ) from error
        engine.logging.set_verbosity(engine.logging.WARNING)
        study = engine.create_study(sampler=getattr(engine.samplers, SAMPLERS[sampler])(seed=setting.seed))
        return _follow(setting, study, engine.trial.TrialState.FAIL)

    return strategy


def _follow(setting: Setting, study: Any, failed: Any) -> Strategy:
    axes = {knob: setting.space.axis(knob) for knob in setting.space.knobs}
    most = setting.most or max(MOST, len(setting.starts))
    known: dict[Config, Trial] = {}
    for start in setting.starts[:most]:
        study.enqueue_trial({knob: axes[knob].index(value) for knob, value in start.items()})
    spare = iter(setting.space.sample(most + 1, setting.seed))
    while len(known) < most:
        asked = _ask(setting, study, axes, known, failed)
        if asked is None:
            config = next((c for c in spare if c not in known), None)
            if config is None:
                return
            known[config] = (yield [config])[0]
        else:
            trial, config = asked
            known[config] = (yield [config])[0]
            _tell(study, trial, known[config], failed)


def _ask(
    setting: Setting, study: Any, axes: Mapping[str, Axis], known: Mapping[Config, Trial], failed: Any
) -> tuple[Any, Config] | None:
    """(Optuna's trial, a new legal Config), or `None` when the sampler names none."""
    for _ in range(TRIES):
        trial = study.ask()
        config = Config({knob: axis.values[_suggest(trial, knob, axis)] for knob, axis in axes.items()})
        if config in known:
            _tell(study, trial, known[config], failed)
        elif config in setting.space:
            return trial, config
        else:
            study.tell(trial, state=failed)
    return None


def _suggest(trial: Any, knob: str, axis: Axis) -> int:
    last = len(axis.values) - 1
    if axis.ordered or last > 64:  # an order of many items is too long a list of names
        return trial.suggest_int(knob, 0, last)
    return trial.suggest_categorical(knob, list(range(last + 1)))


def _tell(study: Any, trial: Any, answer: Trial, failed: Any) -> None:
    seconds = seconds_of(answer)
    if seconds is None:
        study.tell(trial, state=failed)
    else:
        study.tell(trial, math.log(seconds))
