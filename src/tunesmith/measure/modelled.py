"""`ModelClock`: times that the performance model makes up, with seeded noise, for teaching and for tests."""

from __future__ import annotations

import random
from collections import Counter

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model import Model, WorkOf
from tunesmith.core.outcome import Sample
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.kernel import Run


class ModelClock:
    """A Clock for a chip that is not there: a kernel's predicted time, with noise.

    The n-th sample of a Config depends on the seed alone, not on what was timed in between: two strategies that look
    at the same Config see the same times.

    Args:
        model: as of `autotune(model=…)`.
        problem: what is measured. A Clock serves one Problem.
        device: which chip to pretend.
        noise: the standard deviation of a sample's logarithm: 0.02 is about 2 %.
        seed: of the noise.
        launches: launch what is timed, too; not for a kernel that only the pretended chip could run.
    """

    def __init__(
        self, model: Model | WorkOf, problem: Problem, device: Device,
        *, noise: float = 0.02, seed: int = 0, launches: bool = False,
    ) -> None:  # fmt: skip
        if noise < 0:
            raise BadInput(f"noise={noise}: a standard deviation is at least 0")
        self._model, self._problem, self._device = Model.of(model), problem, device
        self._noise, self._seed, self._launches = noise, seed, launches
        self._taken: Counter[Config] = Counter()

    @property
    def protocol(self) -> str:
        """Names the pretended chip: what is made up is never taken for what was measured."""
        return f"model({self._device.name},{self._problem},noise={self._noise:g},seed={self._seed})/1"

    def sample(self, run: Run) -> Sample:
        """The predicted time of a Run's Config, with the noise of its next sample.

        Raises:
            BadInput: for a chip that the model knows too little of, and for a Config that can't run on it.
        """
        if self._launches:
            if run.before is not None:
                run.before()
            run()
        config = run.config
        found = self._model.predict(self._problem, config, self._device, run.executable.resources)
        if found is None:
            raise BadInput(f"too little is known of {self._device.name}: its units, bandwidth and peak are needed")
        if found.cut:
            raise BadInput(f"{config!r} can't run on {self._device.name}: {found.cut}")
        self._taken[config] += 1
        luck = random.Random(f"{self._seed}|{config.text}|{self._taken[config]}")
        return Sample(found.seconds * luck.lognormvariate(0.0, self._noise))
