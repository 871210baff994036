"""tunesmith finds the fastest configuration of a compute kernel, remembers it, and gets out of the way."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunesmith.core.axis import Axis, booleans, choices, integers, permutations, powers_of_two
from tunesmith.core.config import Config
from tunesmith.core.device import Device, add_device, known_device, known_devices
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Measured, Resources, Sample, Trial, Untried
from tunesmith.core.problem import Problem
from tunesmith.core.shaped import Shaped
from tunesmith.core.space import Space
from tunesmith.options import policy, shared_asked, take_over_asked

if TYPE_CHECKING:
    from tunesmith import flydsl, plan, ranks
    from tunesmith.api import autotune
    from tunesmith.backends import cc, cuda, cute
    from tunesmith.backends.call import built
    from tunesmith.chooser import Candidate, choose, returning
    from tunesmith.core.hints import Hints, pointwise, rowwise
    from tunesmith.core.model import Model, Rows, Tiles, Work
    from tunesmith.measure.modelled import ModelClock
    from tunesmith.missed import Miss, misses
    from tunesmith.report.frame import to_pandas
    from tunesmith.report.html import Report
    from tunesmith.report.terminal import watch
    from tunesmith.takeover import TakeOver, take_over
    from tunesmith.tuned import TunedKernel

#: what takes a moment to import is imported when it is asked for: name → module and attribute
_LAZY = {
    "Candidate": ("tunesmith.chooser", "Candidate"),
    "Hints": ("tunesmith.core.hints", "Hints"),
    "Miss": ("tunesmith.missed", "Miss"),
    "TakeOver": ("tunesmith.takeover", "TakeOver"),
    "Model": ("tunesmith.core.model", "Model"),
    "ModelClock": ("tunesmith.measure.modelled", "ModelClock"),
    "Report": ("tunesmith.report.html", "Report"),
    "Rows": ("tunesmith.core.model", "Rows"),
    "Tiles": ("tunesmith.core.model", "Tiles"),
    "TunedKernel": ("tunesmith.tuned", "TunedKernel"),
    "Work": ("tunesmith.core.model", "Work"),
    "autotune": ("tunesmith.api", "autotune"),
    "built": ("tunesmith.backends.call", "built"),
    "cc": ("tunesmith.backends.cc", None),
    "choose": ("tunesmith.chooser", "choose"),
    "cuda": ("tunesmith.backends.cuda", None),
    "cute": ("tunesmith.backends.cute", None),
    "flydsl": ("tunesmith.flydsl", None),
    "misses": ("tunesmith.missed", "misses"),
    "plan": ("tunesmith.plan", None),
    "pointwise": ("tunesmith.core.hints", "pointwise"),
    "ranks": ("tunesmith.ranks", None),
    "returning": ("tunesmith.chooser", "returning"),
    "rowwise": ("tunesmith.core.hints", "rowwise"),
    "take_over": ("tunesmith.takeover", "take_over"),
    "to_pandas": ("tunesmith.report.frame", "to_pandas"),
    "watch": ("tunesmith.report.terminal", "watch"),
}

__all__ = [
    "Axis", "Candidate", "Choice", "Config", "Device", "Failed", "Hints", "Key", "Measured", "Miss", "Model",
    "ModelClock", "Problem", "Report", "Resources", "Rows", "Sample", "Shaped", "Space", "TakeOver", "Tiles", "Trial",
    "TunedKernel", "Untried", "Work", "add_device", "autotune", "booleans", "built", "cc", "choices", "choose", "cuda",
    "cute", "flydsl", "integers", "known_device", "known_devices", "misses", "permutations", "plan", "pointwise",
    "policy", "powers_of_two", "ranks", "returning", "rowwise", "take_over", "to_pandas", "watch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tunesmith")
        except PackageNotFoundError:  # run from its source tree
            return "source"
    if name not in _LAZY:
        raise AttributeError(f"module 'tunesmith' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = import_module(module)
    globals()[name] = getattr(found, attribute) if attribute else found
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _share_choices() -> None:
    """Write or replay a plan, or agree with other ranks, where the environment asks for it."""
    asked = shared_asked()
    if asked.plan is not None or asked.replay is not None:
        from tunesmith.plan import record_process, replay_process

        if asked.plan is not None:
            record_process(asked.plan)
        if asked.replay is not None:
            replay_process(asked.replay, asked.replay_miss)
    if asked.ranks:
        from tunesmith.ranks import agree_process

        agree_process(asked.ranks)


_share_choices()
if take_over_asked():
    from tunesmith.takeover import take_over

    take_over()
