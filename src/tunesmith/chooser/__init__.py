"""`choose`: several ways of doing one operation, library calls among them, and the fastest for each Problem."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from tunesmith.api import autotune
from tunesmith.chooser.candidates import (
    BY,
    Alternatives,
    Candidate,
    LibraryCall,
    Mixed,
    Returning,
    returning,
)
from tunesmith.chooser.captured import ByCapture
from tunesmith.chooser.numerics import Checked, WrongResult
from tunesmith.chooser.scores import scores
from tunesmith.chooser.settings import torch_settings
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Measured, Trial
from tunesmith.core.problem import Bucket, Problem
from tunesmith.core.stopping import CONFIDENCE, MARGIN
from tunesmith.declaration import Declaration, Frontend, MakeInputs
from tunesmith.dispatch import Call
from tunesmith.errors import BadInput, NoWorkingConfig, TunesmithWarning, unknown
from tunesmith.kernel import Clock, Executable
from tunesmith.measure.calls import Through
from tunesmith.subject import Subject
from tunesmith.tuned import TunedKernel

__all__ = [
    "BY", "Alternatives", "Candidate", "Chooser", "LibraryCall", "Returning", "WrongResult", "choose", "returning",
    "torch_settings",
]  # fmt: skip


#: Of a result's row and element: what a search's own check on other inputs, which sees what was never written, allows.
#: How far a candidate may really be off is for `Checked` to say: as far as the library, about.
COARSE = 0.25


def choose(
    name: str,
    candidates: Mapping[str, Any],
    *,
    args: Callable[..., Any] | Sequence[str] | None = None,
    library: str | None = None,
    default: Callable[[Problem, Device], Config] | None = None,
    key: Sequence[str] | Callable[..., Mapping[str, object]] = (),
    strides: Sequence[str] = (),
    buckets: Mapping[str, Bucket] | None = None,
    reference: Callable[..., Any] | None = None,
    dims: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
    make_inputs: MakeInputs | None = None,
    settings: Callable[[], Mapping[str, str]] | Literal["torch"] | None = "torch",
    policy: Literal["default", "lookup", "search"] | None = None,
    budget_s: float | None = None,
    most: int | None = None,
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
    clock: Clock | Literal["wall", "events", "events-hot", "graph", "graph-hot"] | None = None,
    hot: Sequence[str] = (),
    depends: Sequence[str] | None = None,
    writes: Sequence[str] = (),
    isolate: bool | None = None,
    eager: bool | Through = False,
) -> Chooser:
    """Make one function of several ways of doing an operation: for each Problem the fastest of them is called.

    Every candidate takes the operation's arguments by position and returns its result, which it allocates. All are in
    one race. The library's call stays in it to the end, and in use unless another is faster by more than the margin,
    beyond doubt. With a reference, a candidate whose numbers are not the library's is out.

    Args:
        name: the operation's, in the store, in tables and in reports.
        candidates: name → a callable, a tuned kernel with its Space, a Candidate, what `built` or `returning` made.
        args: the operation's arguments: a function that takes them, or their names; the reference's if not given.
        library: which candidate is the library's call; the first if not given.
        default: which Config, with its candidate as `by`, is used where nothing is known and nothing may be measured;
            the library's call if not given.
        key, strides, buckets, dims, flags, make_inputs, policy, budget_s, margin, confidence, clock, hot, isolate: see
            autotune.
        reference: the operation in float64, given the arguments by name.
        settings: of this process, that change what a library computes: their names and values are part of the key, and
            are read on every call. `torch`: those of `torch_settings`, where torch is imported; `None` for none.
        most: how many Configs one search may try; those of kernels with a model that it ranks first.
        depends: packages whose versions are compared when a stored Choice is used; torch, where it is imported, if not
            given.
        writes: arrays that every candidate writes in place, and returns in this order; so does the reference. They are
            put back before each launch of a search.
        eager: whether the operation is called from Python one by one, and not only in a CUDA graph: on a GPU what calls
            take back to back is then measured too, where the library takes less than 100 µs. Where they wait for the
            host, two serve: in a graph who is fastest on the GPU, calls outside of one who is quickest to call. A
            function says what callers go through to a launch (`Effort.through`), and is timed with it.

    Raises:
        BadInput: for no candidates, a library that is none of them, a candidate with other arguments.
    """
    source = args if args is not None else reference
    if source is None:
        raise BadInput(f'{name}: say which arguments the operation takes: args=["a", "b"], or a function of them')
    signature = _signature(source)
    if not candidates:
        raise BadInput(f"{name}: no candidates; give some by name: {{'torch.mm': torch.mm, …}}")
    made = {one: Candidate.of(one, given, signature) for one, given in candidates.items()}
    stays = next(iter(made)) if library is None else library
    if stays not in made or not isinstance(made[stays].kernel, LibraryCall):
        plain = [one for one, candidate in made.items() if isinstance(candidate.kernel, LibraryCall)]
        raise BadInput(f"{name}: the library has to be a plain call: {unknown('candidate', stays, plain)}")
    torch_here = "torch" in sys.modules
    read = (torch_settings if torch_here else None) if settings == "torch" else settings
    alternatives = Alternatives(
        name, made, stays, signature, (["torch"] if torch_here else []) if depends is None else depends, read
    )
    models = {one: candidate.model for one, candidate in made.items() if candidate.model is not None}
    usual = autotune(
        space=alternatives.space, default=alternatives.default_by(default), key=key, strides=strides, buckets=buckets,
        dims=dims, flags=flags, make_inputs=make_inputs, reference=reference,
        tolerance=COARSE if reference else None, policy=policy, budget_s=budget_s, candidates=most,
        margin=margin, confidence=confidence, clock=clock, hot=hot, restore_value=writes, outputs=writes,
        isolate=isolate,
        model=Mixed(_no_work, split=alternatives.of, models=models) if models else None,
    )(alternatives)  # fmt: skip
    reluctant = frozenset(Config({BY: one}) for one, candidate in made.items() if candidate.reluctant)
    through = None if isinstance(eager, bool) else eager
    effort = replace(usual.declared.effort, eager=bool(eager), through=through, reluctant=reluctant)
    declared = replace(usual.declared, effort=effort)
    return Chooser(alternatives, declared, reference)


def _no_work(*_: Any) -> Any:
    raise BadInput("a choice has the models of its candidates, and no work of its own")


def _signature(source: Callable[..., Any] | Sequence[str]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if not callable(source):
        return inspect.Signature([inspect.Parameter(name, kind) for name in source])
    found = [p for p in inspect.signature(source).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return inspect.Signature([p.replace(annotation=p.empty) for p in found])


class Chooser(TunedKernel):
    """What `choose` returns: called like the operation; `tune`, `lookup` and the rest are a tuned kernel's."""

    def __init__(self, alternatives: Alternatives, declared: Declaration, reference: Callable[..., Any] | None) -> None:
        self.alternatives = alternatives
        function = alternatives.candidates[str(alternatives.stays[BY])].kernel
        assert isinstance(function, LibraryCall)
        library = function.function
        checks = None if reference is None else partial(Checked, reference, library, writes=declared.restore)
        self._launched = set[object]()
        super().__init__(alternatives, declared, frontend=Frontend(around=checks))

    def explain(self, *args: Any, **kwargs: Any) -> None:
        """Print which candidate a call would use and why, and the score table. Measures nothing."""
        super().explain(*args, **kwargs)
        self.say(self.scores(*args, **kwargs))

    def scores(self, *args: Any, top: int = 10, **kwargs: Any) -> str:
        """What is known of every candidate for a call, as a table. Measures nothing.

        Args:
            top: how many of the fastest have a line; the library's call and what is chosen always have one.
        """
        _, choice, trials = self.explanation(*args, **kwargs)
        bound = self.alternatives.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        verdict = self.declared.effort.verdict(trials, self.alternatives.stays) if trials else None
        ways = self.alternatives
        return scores(self.kernel.name, bound.arguments, verdict, trials, choice, ways.of, ways.stays, top)

    def choice(self, *args: Any, **kwargs: Any) -> Choice:
        """The Choice that a call would use under the policy in force; under `search` that may mean measuring."""
        return self._of_mine(super().choice(*args, **kwargs))

    def lookup(self, *args: Any, **kwargs: Any) -> Choice | None:
        """The Choice that is known for a call, `None` if there is none. Launches and measures nothing."""
        known = super().lookup(*args, **kwargs)
        return None if known is None else self._of_mine(known)

    def explanation(self, *args: Any, **kwargs: Any) -> tuple[Key, Choice, Sequence[Trial]]:
        """What `explain` prints: the call's Key, the Choice as far as it is known, and the stored Trials."""
        key, choice, trials = super().explanation(*args, **kwargs)
        return key, self._of_mine(choice), trials

    def _of_mine(self, choice: Choice) -> Choice:
        """Where it was not asked what calls take, one Config serves all, whatever a store or a table has for calls."""
        return choice if self.declared.effort.eager else replace(choice, called=None, calls="")

    def timed(self, *args: Any, **kwargs: Any) -> Mapping[Config, float]:
        """Median seconds of every Config that was measured for a call."""
        _, _, trials = self.explanation(*args, **kwargs)
        return {t.config: t.outcome.median_s for t in trials if isinstance(t.outcome, Measured)}

    def _loaded(self, choice: Choice, subject: Subject, call: Call) -> tuple[Choice, Executable, bool]:
        """What is known for graphs and for calls outside of them; where it can't be compiled or loaded here (a table is
        of another machine, a library of another version), the library's call, with a warning: it works without us."""
        choice = self._of_mine(choice)
        used, executable, fresh = self._usable(choice, subject, call)
        if used is not choice or choice.called in (None, choice.config):
            return used, executable, fresh
        beside = replace(choice, config=choice.called, called=None)
        try:
            quick = super()._loaded(beside, subject, call)[1]
        except NoWorkingConfig as error:
            said = f"{error}; {choice.config!r}, which serves CUDA graphs, serves all calls: tune this call here"
            warnings.warn(said, TunesmithWarning, stacklevel=2)
            return replace(choice, called=None, calls=""), executable, fresh
        both = ByCapture.of(executable, quick, call, not self.declared.restore, self._launched)
        return choice, both, fresh

    def _usable(self, choice: Choice, subject: Subject, call: Call) -> tuple[Choice, Executable, bool]:
        stays = self.alternatives.stays
        try:
            return super()._loaded(choice, subject, call)
        except NoWorkingConfig as error:
            if choice.config == stays:
                raise
            said = f"{error}; {stays[BY]} serves instead: tune this call here, or take the row out of the table"
            warnings.warn(said, TunesmithWarning, stacklevel=2)
            return super()._loaded(replace(choice, config=stays, called=None, note=str(error)), subject, call)
