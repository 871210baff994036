"""`Model`: what `model=` of a kernel makes of its declared work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model.constants import FITTED, Constants
from tunesmith.core.model.exercise import predict_exercise
from tunesmith.core.model.predict import predict
from tunesmith.core.model.prediction import Prediction
from tunesmith.core.model.roofline import Ceiling, ceiling
from tunesmith.core.model.work import Work, WorkOf
from tunesmith.core.outcome import Resources
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, unknown

RULES = ("fitted", "exercise")


@dataclass(frozen=True, slots=True)
class Model:
    """Predicts a kernel's Configs from what its author says a launch does.

    Attributes:
        work: `Tiles(…)`, `Rows(…)`, or a function of (problem, config) that returns a `Work`.
        rules: `fitted`: cuts what compiled facts speak against, nothing else. `exercise`: the reference exercise's
            rougher rules, which cut by estimates.
        constants: of the fitted rules.
    """

    work: WorkOf
    rules: Literal["fitted", "exercise"] = "fitted"
    constants: Constants = FITTED

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise BadInput(unknown("rules", self.rules, RULES))
        if not callable(self.work):
            raise BadInput(f"model={self.work!r} says nothing of a launch: give Tiles(…), Rows(…) or a function")

    @classmethod
    def of(cls, model: Model | WorkOf) -> Model:
        """The Model itself, or one of the work alone."""
        return model if isinstance(model, Model) else cls(model)

    def predict(
        self, problem: Problem, config: Config, device: Device, resources: Resources | None = None
    ) -> Prediction | None:
        """What a Config should take: before compiling, or with the compiled kernel's `resources`.

        Returns:
            `None` for a chip of which too little is known; always for a CPU.

        Raises:
            BadInput: when the Config or the Problem lacks what the work is made of.
        """
        work = self._work_of(problem, config)
        if self.rules == "exercise":
            return predict_exercise(work, device)
        return predict(work, device, resources, self.constants)

    def ceiling(self, problem: Problem, config: Config, device: Device) -> Ceiling | None:
        """The least time that the chip's peak and bandwidth allow; `None` and errors as of `predict`."""
        return ceiling(self._work_of(problem, config), device)

    def _work_of(self, problem: Problem, config: Config) -> Work:
        work = self.work(problem, config)
        if not isinstance(work, Work):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"the model's function made {work!r} for {problem}; expected a Work")
        return work

    def predictor(self, problem: Problem, device: Device) -> Callable[[Config, Resources | None], Prediction | None]:
        """The same for one Problem on one device."""
        return lambda config, resources=None: self.predict(problem, config, device, resources)
