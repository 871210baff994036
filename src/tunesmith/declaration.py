"""`Declaration`: what a kernel's author says about it, checked once, when the kernel is decorated."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from types import FunctionType
from typing import Any, TypeAlias, cast

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.model import Model, Rows, Tiles
from tunesmith.core.outcome import Choice
from tunesmith.core.problem import Bucket, Problem
from tunesmith.core.space import Space
from tunesmith.dispatch import KeySpec, check_key_spec, check_names, names_taken
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithError, unknown
from tunesmith.fingerprint import of_function
from tunesmith.invariant import Invariance
from tunesmith.kernel import Around, Clock, Default, Kernel
from tunesmith.measure.check import Check
from tunesmith.measure.clock import CLOCK_NAMES
from tunesmith.measure.inputs import WrittenSlice
from tunesmith.measure.pick import PICKS
from tunesmith.measure.verify import check_tolerance
from tunesmith.options import Policy
from tunesmith.search import STRATEGIES
from tunesmith.subject import Effort

SpaceLike: TypeAlias = "Space | Callable[[Problem, Device], Space]"
MakeInputs: TypeAlias = "Callable[[Problem], Mapping[str, Any]]"


@dataclass(frozen=True)
class Frontend:
    """What an object that stands before a TunedKernel adds to its calls (the one that looks like Triton's autotuner).

    Attributes:
        narrow: the Configs of a call's Space that are worth trying with these arguments by name.
        ranked: whether it puts the best first.
        around: makes, of a call's arguments by name, what is done around each launch of a search.
        chosen: hears of the Choice made for a Key: with the arguments by name, and the Summary if it was searched.
        extra: what becomes of a call with keywords beside the kernel's parameters.
        refused: what becomes of a call that can't be tuned: given the error and the arguments.
    """

    narrow: Callable[[Sequence[Config], Mapping[str, Any]], Sequence[Config]] | None = None
    around: Callable[[Mapping[str, Any]], Around] | None = None
    chosen: Callable[[Key, Choice, Mapping[str, Any], Any], None] | None = None
    extra: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
    ranked: bool = False
    refused: Callable[[TunesmithError, tuple[Any, ...]], Any] | None = None


@dataclass(frozen=True)
class Declaration:
    """See `autotune` for what each means.

    Attributes:
        slices: of arguments in `restore`, functions that say which part is written.
        against: what results are compared with.
        fixed: knobs held at one value by `TunedKernel.fix`.
    """

    space: SpaceLike
    spec: KeySpec
    default: Default | None = None
    restore: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    make_inputs: MakeInputs | None = None
    slices: Mapping[str, WrittenSlice] = field(default_factory=dict[str, WrittenSlice])
    against: Check = field(default_factory=Check)
    model: Model | None = None
    policy: str | None = None
    effort: Effort = field(default_factory=Effort)
    clock: Clock | str | None = None
    hot: tuple[str, ...] = ()
    isolate: bool | None = None
    fixed: Config = field(default_factory=Config)
    invariance: Invariance | None = None

    def name_for(self, kernel: str) -> str:
        """The kernel's name in a Key: with some knobs held it is another one, `matmul[threads=1]`, and so it is where
        Problems share some, `matmul[same BLOCK_K for all M]`."""
        held = [f"{name}={value}" for name, value in self.fixed.items()]
        if self.invariance is not None:
            held.append(f"same {', '.join(self.invariance.summation)} for all {', '.join(self.invariance.over)}")
        return f"{kernel}[{','.join(held)}]" if held else kernel

    def check(self, kernel: Kernel) -> None:
        """Refuse what does not fit the kernel.

        Raises:
            BadInput: naming the kernel, the list and the bad name.
        """
        parameters = [name for name in kernel.signature.parameters if name not in self.spec.opaque]
        knobs = self.space.knobs if isinstance(self.space, Space) else ()
        check_key_spec(kernel.name, parameters, self.spec, knobs)
        check_names(kernel.name, "restore_value", self.restore, parameters, knobs)
        check_names(kernel.name, "reset_to_zero", self.zero, parameters, knobs)
        check_names(kernel.name, "hot", self.hot, parameters, knobs)
        check_names(kernel.name, "outputs", self.against.outputs, parameters, knobs)
        check_tolerance(kernel.name, self.against.tolerance, self.against.outputs or parameters)
        for name, part in self.slices.items():
            if not callable(part):
                raise BadInput(
                    f"{kernel.name}: restore_value[{name!r}] is {part!r}; good values: a function of the arguments "
                    "that returns the view which is written, or None for all of it"
                )
            names_taken(kernel.name, part, parameters, knobs, what=f"function in restore_value[{name!r}]")
        if self.invariance is not None:
            self._check_invariance(kernel.name, self.invariance)
        if self.model is not None and isinstance(self.model.work, (Tiles, Rows)) and knobs:
            _check_model(kernel.name, self.model.work, knobs)
        if isinstance(self.clock, str) and self.clock not in CLOCK_NAMES:
            raise BadInput(f"{kernel.name}: {unknown('clock', self.clock, CLOCK_NAMES)}")
        both = sorted({*self.restore} & {*self.zero})
        if both:
            raise BadInput(
                f"{kernel.name}: {both[0]!r} is in restore_value and in reset_to_zero: put back or zeroed, not both"
            )
        if self.policy is not None:
            Policy.of(self.policy)
        self._check_effort(kernel.name)
        if not isinstance(self.space, Space) and not callable(self.space):
            raise BadInput(f"{kernel.name}: space={self.space!r} is no Space; write Space(BLOCK=[64, 128], …)")
        if self.default is not None and not isinstance(self.default, Config) and not callable(self.default):
            raise BadInput(f"{kernel.name}: default={self.default!r} is no Config; write Config(BLOCK=64, …)")
        if isinstance(self.space, Space) and isinstance(self.default, Config):
            self.space.check(self.default)

    def _check_invariance(self, kernel: str, invariance: Invariance) -> None:
        if not invariance.over or not invariance.summation:
            raise BadInput(
                f"{kernel}: invariant_over= names dimensions and summation= the knobs that change the order of a sum; "
                "give both: invariant_over=['M'], summation=['BLOCK_K', 'SPLIT_K']"
            )
        names = invariance.over if callable(self.spec.names) else self.spec.names
        knobs = self.space.knobs if isinstance(self.space, Space) else invariance.summation
        for option, kind, given, good in (
            ("invariant_over", "name of key", invariance.over, names),
            ("summation", "knob", invariance.summation, knobs),
        ):
            for name in given:
                if name not in good:
                    raise BadInput(f"{kernel}, {option}: {unknown(kind, name, good)}")

    def _check_effort(self, kernel: str) -> None:
        if self.effort.strategy not in STRATEGIES:
            raise BadInput(f"{kernel}: {unknown('strategy', self.effort.strategy, STRATEGIES)}")
        budget_s = self.effort.budget_s
        if budget_s is not None and not 0 < budget_s < math.inf:
            raise BadInput(f"{kernel}: budget_s={budget_s}; good values: seconds above 0, or None for no limit")
        for name, most, what in (
            ("candidates", self.effort.candidates, "Configs"), ("launches", self.effort.launches, "timed launches"),
        ):  # fmt: skip
            if most is not None and (type(most) is not int or most < 1):
                raise BadInput(
                    f"{kernel}: {name}={most!r}; good values: a number of {what} from 1, or None for no limit"
                )
        if self.effort.pick not in PICKS:
            raise BadInput(f"{kernel}: {unknown('pick', self.effort.pick, PICKS)}")
        if not 0 < self.effort.margin < 1:
            raise BadInput(f"{kernel}: margin={self.effort.margin}; good values: a part above 0 and below 1, as 0.01")
        if not 0.5 <= self.effort.confidence < 1:
            raise BadInput(f"{kernel}: confidence={self.effort.confidence}; good values: from 0.5 to below 1, as 0.95")

    def fresh(self, problem: Problem) -> Callable[[int], Mapping[str, Any]] | None:
        """Makes other inputs for a Problem, by number, where the author's `make_inputs` takes a `seed`."""
        make: Callable[..., Mapping[str, Any]] | None = self.make_inputs
        if make is None or "seed" not in signature(make).parameters:
            return None
        return lambda number: make(problem, seed=number)

    @cached_property
    def spec_fingerprint(self) -> str:
        """Names what decides how a Problem is spelled beside the names themselves: buckets, and a key function."""
        spec = self.spec
        parts = [f"{name}:{_identified(how)}" for name, how in sorted(spec.buckets.items())]
        if callable(spec.names):
            parts.append(of_function(cast("FunctionType", spec.names)))
        return "-" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:8] if parts else ""

    def space_for(self, problem: Problem, device: Device) -> Space:
        """The Configs worth trying for a Problem on a device."""
        if isinstance(self.space, Space):
            return self.space
        made = self.space(problem, device)
        if not isinstance(made, Space):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"the space function made {made!r} for {problem}; expected a Space")
        return made

    def default_for(self, kernel: str, problem: Problem, device: Device) -> Config:
        """The heuristic's Config; the Space's first where there is no heuristic.

        Raises:
            BadInput: when the heuristic names a Config that is not of the Space.
            NoWorkingConfig: when constraints cut the whole Space.
        """
        space = self.space_for(problem, device)
        if self.default is None:
            first = next(iter(space), None)
            if first is None:
                raise NoWorkingConfig(f"{kernel}({problem}): the constraints cut every Config of the Space")
            return first
        config = self.default if isinstance(self.default, Config) else self.default(problem, device)
        if not isinstance(config, Config):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"{kernel}: its default function made {config!r} for {problem}; expected a Config")
        fault = space.fault(config)
        if fault is not None:
            raise BadInput(f"{kernel}: its default {config!r} is not of its own Space: {fault}")
        return config

    def fix(self, kernel: str, knobs: Config) -> Declaration:
        """The same with some knobs held at one value.

        Raises:
            SpaceError: for an unknown knob or a value that is not of its axis.
        """
        space = self.space

        def held(problem: Problem, device: Device) -> Space:
            return self.space_for(problem, device).fix(**knobs)

        def held_default(problem: Problem, device: Device) -> Config:
            usual = self.default_for(kernel, problem, device).replace(**knobs)
            legal = held(problem, device)
            return usual if usual in legal else next(iter(legal))

        return replace(
            self,
            space=space.fix(**knobs) if isinstance(space, Space) else held,
            default=None if self.default is None else held_default,
            fixed=Config({**self.fixed, **knobs}),
        )


def _check_model(kernel: str, work: Tiles | Rows, knobs: Sequence[str]) -> None:
    """Refuse a model that reads knobs which no Config has: on the machine with the GPU it would be too late."""
    for argument, knob in work.knobs().items():
        if isinstance(knob, str) and knob not in knobs:
            made = type(work).__name__
            raise BadInput(
                f"{kernel}: {made} reads a knob {knob!r}, and the space has {', '.join(knobs)}: name the one that is "
                f"meant, {made}({argument}={knobs[0]!r}), or give the value that all Configs have, {made}({argument}=1)"
            )


def _identified(how: Bucket) -> str:
    """A way of bucketing, spelled so that another way is spelled otherwise."""
    return of_function(cast("FunctionType", how)) if callable(how) else repr(how if isinstance(how, str) else list(how))
