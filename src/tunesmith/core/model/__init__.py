"""What a kernel's resources and work mean on a chip: occupancy, waves, roofline, predicted time, order."""

from tunesmith.core.model.constants import FITTED, Constants
from tunesmith.core.model.declared import Model
from tunesmith.core.model.exercise import predict_exercise
from tunesmith.core.model.occupancy import fault, occupancy, residency
from tunesmith.core.model.predict import predict
from tunesmith.core.model.prediction import Bound, Prediction
from tunesmith.core.model.queue import Queue, queue, rank
from tunesmith.core.model.roofline import Ceiling, ceiling
from tunesmith.core.model.words import explain
from tunesmith.core.model.work import Rows, Tiles, Work, WorkOf

__all__ = [
    "FITTED", "Bound", "Ceiling", "Constants", "Model", "Prediction", "Queue", "Rows", "Tiles", "Work", "WorkOf",
    "ceiling", "explain", "fault", "occupancy", "predict", "predict_exercise", "queue", "rank", "residency",
]  # fmt: skip
