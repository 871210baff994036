"""`Subject`: what a search is about; `Effort`: how far it may go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.model import Model, Prediction
from tunesmith.core.outcome import Resources, Trial
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.core.stopping import CONFIDENCE, MARGIN
from tunesmith.kernel import Around, Kernel
from tunesmith.measure.bench import LocalBench
from tunesmith.measure.calls import Through
from tunesmith.measure.check import Check
from tunesmith.measure.inputs import WrittenSlice
from tunesmith.measure.pick import Pick, Verdict, pick
from tunesmith.remote import Recipe
from tunesmith.search import Solved

#: A Config, and what its compiler reported if that is known → what a model says of it, `None` if it can't.
Predict: TypeAlias = "Callable[[Config, Resources | None], Prediction | None]"


@dataclass(frozen=True)
class Subject:
    """What a search is about.

    Attributes:
        exact: the Problem that is measured, where the Key's is a bucket.
        args: the call's arguments by position; they are as before when the search ends.
        restore: arguments put back before each launch. zero: arguments zeroed before each launch.
        slices: of these, functions that say which part is written.
        around: makes, of arguments by name, what else is done around each launch.
        check: what results are compared with. fresh: makes other inputs to do so with, by number.
        hot: arguments that are in the cache when a launch begins.
        ranked: whether the Space lists its Configs best first.
        predict: what the kernel's model says of a Config, from its knobs or from what its compiler reported.
        model: what `predict` is of, for other Problems and devices.
        recipe: makes what another process needs to run the candidates, `None` where they run in this one.
    """

    kernel: Kernel
    key: Key
    exact: Problem
    space: Space
    device: Device
    args: Sequence[Any]
    restore: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    around: Callable[[Mapping[str, Any]], Around] | None = None
    ranked: bool = False
    predict: Predict | None = None
    model: Model | None = None
    hot: tuple[str, ...] = ()
    slices: Mapping[str, WrittenSlice] = field(default_factory=dict[str, WrittenSlice])
    check: Check = field(default_factory=Check)
    fresh: Callable[[int], Mapping[str, Any]] | None = None
    recipe: Callable[[], Recipe | None] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The call's arguments by name."""
        return dict(zip(self.kernel.signature.parameters, self.args, strict=True))


def local_bench(subject: Subject) -> LocalBench:
    """What candidates are launched on in this process."""
    return LocalBench(
        subject.kernel, subject.exact, subject.arguments, restore=subject.restore, zero=subject.zero,
        slices=subject.slices, hot=subject.hot, around=subject.around, check=subject.check, fresh=subject.fresh,
    )  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How a search goes about it.

    Attributes:
        strategy: its name.
        budget_s: seconds at most, `None` for no limit. Waiting for another search on the device does not count; it may
            take `wait_s` in all.
        candidates: Configs at most, `None` for as many as the strategy wants. Of a kernel with a model they are those
            that the model ranks first, and a tenth from the others.
        launches: timed launches at most, `None` for no limit.
        first: Configs to begin with, ahead of the default and of what near Problems chose.
        jobs: compilers at once.
        pick: how the winner is picked of what was measured.
        margin, confidence: the race goes on until the best is known within this part, this sure.
        rounds: instead of a race, time everybody so often.
        near: of the strategy that starts from them, solved Problems beside those of the store.
        ties: whether launches are spent on proving who is as good as the fastest.
        eager: whether what a call takes back to back, the host's part counted, has a say too.
        through: of a launch that takes a call's arrays alone, and the arrays of some calls, makes what callers go
            through to it when these come again. A launch whose device is busy meanwhile can spare the time it takes.
        reluctant: who is not to serve calls one by one where another is as quick, as a call of it disturbs others.
    """

    strategy: str = "auto"
    budget_s: float | None = None
    candidates: int | None = None
    jobs: int = 1
    seed: int = 0
    wait_s: float = 600.0
    pick: Pick = "cheapest"
    margin: float = MARGIN
    confidence: float = CONFIDENCE
    rounds: int | None = None
    launches: int | None = None
    near: tuple[Solved, ...] = ()
    ties: bool = True
    first: tuple[Config, ...] = ()
    eager: bool = False
    through: Through | None = None
    reluctant: frozenset[Config] = frozenset()

    def verdict(self, trials: Sequence[Trial], incumbent: Config | None = None) -> Verdict | None:
        """What the Trials say; they are in the Space's order."""
        return pick(trials, self.margin, self.confidence, self.pick, incumbent, self.eager, self.reluctant)
