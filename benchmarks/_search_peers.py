"""Kernel Tuner's strategies over recorded spaces, through its own simulation mode; one process a run.

A process of its own for each run is what resets the neighbour caches that Kernel Tuner keeps in its
`Searchspace`: a run that inherits them gets better with each seed before it.
"""

from __future__ import annotations

import os
import pickle
import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from _recorded_spaces import RecordedSpace

MODULES = {
    "adaptive_tabu_greywolf": "gen_adaptive_tabu_greywolf",
    "hybrid_vndx": "gen_hybrid_vndx",
    "genetic_algorithm": "genetic_algorithm",
    "diff_evo": "diff_evo",
    "dual_annealing": "dual_annealing",
    "random_sample": "random_sample",
}
#: Look-ups of known Configs in a row that end a run: some strategies circle for ever where nothing is new.
STALLED = 5000


def peer(space: RecordedSpace, name: str, budget: int) -> Callable[[int], list[float | None]]:
    """(seed) → the times of one run in the order of its evaluations, `None` for a failed Config."""
    from kernel_tuner import util
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.runners.simulation import SimulationRunner
    from kernel_tuner.searchspace import Searchspace

    failures = {"cut": util.InvalidConfig, "compile": util.CompilationFailedConfig, "launch": util.RuntimeFailedConfig}
    cache: dict[str, dict[str, Any]] = {}
    for point, time in space.times.items():
        entry = dict(zip(space.axes, point, strict=True))
        spent = {"compile_time": 0.0, "verification_time": 0.0, "benchmark_time": 0.0}
        cache[",".join(map(str, point))] = (
            {**entry, "time": failures[time](), "__error__": failures[time](), **spent}
            if isinstance(time, str)
            else {**entry, "time": time, "times": [time], **spent}
        )
    tune_params = {knob: list(values) for knob, values in space.axes.items()}
    searchspace = Searchspace(None, None, None, from_cache={"tune_params": tune_params, "cache": cache})
    strategy: Any = strategy_map[name]
    import_module(f"kernel_tuner.strategies.{MODULES[name]}")

    class Runner(SimulationRunner):
        """Notes each first evaluation, and ends a run that circles."""

        def __init__(self) -> None:
            quiet = Options({"quiet": True})
            super().__init__(None, Options({"kernel_name": space.name}), quiet, 1, [])
            self.seen: dict[str, float | None] = {}
            self.repeats = 0

        def run(self, parameter_space: Any, tuning_options: Any) -> list[Any]:
            elements = [tuple(element) for element in parameter_space]
            for element in elements:
                key = ",".join(map(str, element))
                if len(self.seen) >= budget:
                    break
                if key in self.seen or key not in cache:
                    self.repeats += 1
                else:
                    self.repeats = 0
                    self.seen[key] = None if "__error__" in cache[key] else cache[key]["time"]
            if self.repeats > STALLED:
                raise util.StopCriterionReached("nothing new")
            return super().run(elements, tuning_options)

    def options() -> Any:
        return Options(
            tune_params=tune_params, restrictions=None, restrictions_unmodified=None, metrics=None, verbose=False,
            objective=["time"], objective_higher_is_better=[False], max_fevals=budget, cache=cache,
            strategy_options=Options({"max_fevals": budget}), budget=util.TuningBudget(None, budget), seed=None,
            snap=True, strategy=name, simulation_mode=True,
        )  # fmt: skip

    def once(seed: int) -> list[float | None]:
        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
        runner = Runner()
        with suppress(util.StopCriterionReached):
            strategy.tune(searchspace, runner, options())
        return list(runner.seen.values())

    return lambda seed: _in_a_fork(lambda: once(seed))


def _in_a_fork(work: Callable[[], Any]) -> Any:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result: Any = work()
        except BaseException as error:  # noqa: BLE001 - told to the parent, which raises it
            result = error
        with open(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pickle.load(pipe)
    os.waitpid(child, 0)
    if isinstance(result, BaseException):
        raise RuntimeError(f"a peer failed: {type(result).__name__}: {result}") from result
    return result
