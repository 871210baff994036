"""`TunedAutotuner`: what stands in for `triton.autotune`'s object, and is one for everybody who asks.

torch.compile, Proton and others recognise instances of Triton's own class and read its attributes, so ours is a
subclass with the same attributes. Nothing of its behaviour is inherited: a launch goes to a tuned kernel (`Engine`).
Imports Triton: only whoever has one of its kernels imports this.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, update_wrapper
from itertools import islice
from typing import Any, NoReturn

from triton import knobs
from triton.runtime.autotuner import Autotuner
from triton.runtime.autotuner import Config as TritonConfig

from tunesmith.backends.triton.written import GRID
from tunesmith.backends.triton_autotune.bench import BenchClock, clock_asked_for
from tunesmith.backends.triton_autotune.configs import (
    LAUNCH_OPTIONS,
    computed_names,
    config_of,
    is_interpreted,
    is_jit,
    is_triton_config,
    layers,
    python_function,
    triton_options,
)
from tunesmith.backends.triton_autotune.hooks import Hooks, taking
from tunesmith.backends.triton_autotune.pruning import Pruning
from tunesmith.backends.triton_autotune.run import HookedKernel, PreHook, WrappedKernel
from tunesmith.backends.triton_autotune.wiring import Asked, Engine, MakeEngine, Wiring
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Measured, Trial
from tunesmith.core.space import ENUMERATED, Space
from tunesmith.errors import BadInput, TunesmithError, TunesmithWarning, unknown
from tunesmith.kernel import Kernel
from tunesmith.options import policy

#: Configs of a Space that `.configs` lists; torch.compile compiles each of them
_LISTED = 4096


class TunedAutotuner(Autotuner):
    """A Triton kernel that finds its own fastest Config: `kernel[grid](*args)`.

    Has what `triton.runtime.Autotuner` has, and a tuned kernel's `lookup`, `choice`, `explain`, `tune`, `use_table`:
    these take the kernel's arguments, and `grid=` where it matters.

    Args:
        fn: what was decorated. asked: what the user asked for. make_engine: makes the tuned kernel behind it.

    Raises:
        BadInput: for a name that is no argument, Configs that can't be told apart, contradictory options.
    """

    def __init__(self, fn: Any, asked: Asked, make_engine: MakeEngine) -> None:
        before, after = taking(asked.pre_hook, "reset_only"), taking(asked.post_hook, "exception")
        asked = replace(asked, pre_hook=before, post_hook=after)
        self._asked, self._make_engine = asked, make_engine
        self._label = asked.name or str(getattr(python_function(fn), "__name__", type(fn).__name__))
        self._computed = computed_names(fn)
        self._prune = Pruning.of(asked.prune_configs_by, self._label)
        self._of: dict[Config, Any] = {}
        space, listed = self._space(asked)
        self._space_asked = space
        self._knobs = frozenset(asked.knobs if asked.knobs is not None else getattr(space, "knobs", ()))
        self._clock = clock_asked_for(asked, self._label)
        self._latest_key: tuple[Key, Sequence[Trial] | None, Mapping[Config, list[float]]] | None = None
        self._variants: dict[Config, Engine] = {}
        self._variant: Engine | None = None
        self.fn = fn
        key = asked.key if callable(asked.key) else self._known_key(asked.key)
        self._key = key
        self._signature: inspect.Signature = _without_grid(self._kernel(Config()).signature)
        self._engine = self._wire(space, Config())
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            fn, list(fn.arg_names), listed, [] if callable(key) else list(key), asked.reset_to_zero,
            asked.restore_value, pre_hook=asked.pre_hook, post_hook=asked.post_hook,
            prune_configs_by=dict(asked.prune_configs_by or {}), do_bench=asked.do_bench,
            cache_results=asked.cache_results,
        )  # fmt: skip
        self.num_warmups, self.num_reps, self.use_cuda_graph = asked.warmup, asked.rep, asked.use_cuda_graph
        self.nargs = None  # no call keeps its arguments here: calls may come from several threads
        self._call = _interpreted(self._engine.call) if is_interpreted(fn) else self._engine.call
        update_wrapper(self, self.base_fn, updated=())
        del self.__wrapped__
        self.__signature__ = self._signature

    # --- launching -------------------------------------------------------------------------------

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._call, grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch; with `warmup`, compile every Config instead."""
        return self.warmup(*args, grid=grid, **kwargs) if warmup else self._call(grid, *args, **kwargs)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> list[Any]:
        """Compile every Config that pruning leaves, for arguments like these (dtypes may stand for tensors).

        Returns:
            Triton's compiled kernels. Nothing is launched or measured.
        """
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs, GRID: grid}
        kept = self._prune(self.configs, named, self._label)
        return [self.fn.warmup(*args, grid=grid, **kwargs, **config.all_kwargs()) for config in kept]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"a Triton kernel is launched on a grid: {self._label}[grid](…)")

    # --- a tuned kernel's ------------------------------------------------------------------------

    def lookup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Choice | None:
        """The Choice that is known for a call, `None` if there is none. Launches and measures nothing."""
        return self._engine.lookup(grid, *args, **kwargs)

    def choice(self, *args: Any, grid: Any = None, **kwargs: Any) -> Choice:
        """The Choice that a call would use under the policy in force; under `search` that may mean measuring."""
        return self._engine.choice(grid, *args, **kwargs)

    def explain(self, *args: Any, grid: Any = None, **kwargs: Any) -> None:
        """Print what a call would use and why. Measures nothing."""
        self._engine.explain(grid, *args, **kwargs)

    def explanation(self, *args: Any, grid: Any = None, **kwargs: Any) -> tuple[Key, Choice, Sequence[Trial]]:
        """What `explain` prints."""
        return self._engine.explanation(grid, *args, **kwargs)

    def tune(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Search for a call's arguments now, whatever the policy; see `TunedKernel.tune`."""
        return self._engine.tune(grid, *args, **kwargs)

    def verify(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Check the results of the Config that is known for a call; see `TunedKernel.verify`."""
        return self._engine.verify(grid, *args, **kwargs)

    def prepare(
        self, problems: Iterable[Any], *, grid: Any = None, device: Any = None, fill: Mapping[str, Any] | None = None
    ) -> list[Choice]:
        """Tune or load for calls that are still to come; see `TunedKernel.prepare`.

        Args:
            grid: as in a call, for problems that have no entry `grid`. Only a search needs it.
        """
        given = {} if grid is None else {GRID: grid}
        with policy("default") if is_interpreted(self.fn) else nullcontext():
            return self._engine.prepare(problems, device=device, fill=fill, **given)

    def use_table(self, table: Any) -> None:
        """Look Problems up in a table too; see `TunedKernel.use_table`."""
        self._engine.use_table(table)

    @property
    def tuned(self) -> Engine:
        """The TunedKernel behind this. Its arguments begin with the grid."""
        return self._engine

    # --- what stock tells of its tuning ----------------------------------------------------------

    @property
    def best_config(self) -> Any:
        """The `triton.Config` of the latest call."""
        choice = self._engine.latest or (self._variant.latest if self._variant is not None else None)
        if choice is None:
            raise AttributeError(f"{self._label} was not called yet, so it has no best_config")
        return self._triton(choice.config)

    @property
    def configs_timings(self) -> dict[Any, list[float]]:
        """Of the key that was chosen for last: `triton.Config` → milliseconds [median, 20th, 80th percentile].

        Infinity for a Config that failed; none for one that was not tried.
        """
        if self._latest_key is None:
            raise AttributeError(f"{self._label} was not tuned yet, so it has no configs_timings")
        key, trials, told = self._latest_key
        trials = self._engine.trials(key) if trials is None else trials
        found = [(trial, told.get(trial.config) or _timings(trial)) for trial in trials]
        return {self._triton(trial.config): timings for trial, timings in found if timings}

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Any]:
        """The Configs that pruning leaves for arguments by name."""
        return self._prune(self.configs, kwargs, self._label)

    # --- wiring ----------------------------------------------------------------------------------

    def _space(self, asked: Asked) -> tuple[Space | Callable[..., Space], list[Any]]:
        """Where to search, and the `triton.Config` objects that `.configs` lists."""
        if asked.space is not None:
            if asked.configs:
                raise BadInput(f"{self._label}: give either space= or configs=, not both")
            if not isinstance(asked.space, Space):
                return asked.space, [TritonConfig({})]
            return asked.space, [self._triton(config) for config in islice(asked.space, _LISTED)]
        named = [
            (config_of(one), one) if is_triton_config(one) else (Config(one), self._triton(Config(one)))
            for one in asked.configs or [TritonConfig({})]
        ]
        for config, one in named:
            if self._of.setdefault(config, one).pre_hook is not one.pre_hook:
                raise BadInput(f"{self._label}: two Configs differ in their pre_hook alone: {one}")
        return Space.of(config for config, _ in named), [one for _, one in named]

    def _triton(self, config: Config) -> Any:
        """A Config as Triton's: the very object the user gave, else one that is made and kept."""
        known = self._of.get(config)
        if known is None:
            options = {name: config[name] for name in LAUNCH_OPTIONS if name in config}
            rest = {name: value for name, value in config.items() if name not in options}
            known = self._of.setdefault(config, TritonConfig(rest, **options))
        return known

    def _known_key(self, names: Sequence[str]) -> tuple[str, ...]:
        if isinstance(names, str):
            raise BadInput(f"kernel {self._label}, key: {names!r} is one string; write [{names!r}]")
        computed = [name for name in names if name in self._computed]
        if computed:
            warnings.warn(
                f"kernel {self._label}, key: {', '.join(computed)} is computed by @triton.heuristics from the other "
                "arguments, after the Config is chosen; it is left out of the key. Name these arguments",
                TunesmithWarning, stacklevel=2,
            )  # fmt: skip
        return tuple(name for name in names if name not in computed)

    def _wire(self, space: Space | Callable[..., Space], options: Config) -> Engine:
        """The tuned kernel for calls with these options beside their arguments."""
        asked, kernel = self._asked, self._kernel(options)
        hooks = {_with(c, options): t.pre_hook for c, t in self._of.items() if t.pre_hook is not None}
        hooked = bool(hooks) or self._prune.early is not None  # which may return Configs with hooks of their own
        if hooked:
            kernel = HookedKernel(kernel, self.fn, hooks)
        around = partial(Hooks, self._hook_of, asked.pre_hook, asked.post_hook)
        surrounds = hooked or asked.pre_hook is not None or asked.post_hook is not None
        narrow = partial(self._narrow, options, hooks) if self._prune.prunes else None
        wiring = Wiring(
            kernel, (GRID,), space, self._key, self._clock,
            narrow, around if surrounds else None, self._chosen, self._extra, options, self._prune.model is not None,
            self._refused_with(options),
        )  # fmt: skip
        return self._make_engine(wiring)

    def _refused_with(self, options: Config) -> Callable[[TunesmithError, tuple[Any, ...]], Any] | None:
        """What becomes of a call with these options that can't be tuned; without one the error is the caller's."""
        return None

    def _kernel(self, options: Config) -> Kernel:
        names = self._knobs | {*options}
        asked = self._asked
        if not is_jit(self.fn):
            return WrappedKernel(self.fn, names, name=asked.name, version=asked.version, depends=asked.depends)
        from tunesmith.backends.triton.kernel import TritonKernel

        return TritonKernel(self.fn, names, name=self._label, version=asked.version, depends=asked.depends)

    def _hook_of(self, config: Config) -> PreHook | None:
        known = self._of.get(config)
        return None if known is None else known.pre_hook

    def _narrow(
        self, options: Config, hooks: dict[Config, PreHook], configs: Sequence[Config], arguments: Mapping[str, Any]
    ) -> list[Config]:
        given = [self._triton(_without(config, options)) for config in configs]
        found: dict[Config, Any] = {}
        for one in self._prune(given, arguments, self._label):  # perhaps others than these, or these but changed
            config = config_of(one)
            known = self._of.setdefault(config, one)
            if one.pre_hook is not None and hooks.setdefault(_with(config, options), one.pre_hook) != one.pre_hook:
                raise BadInput(f"{self._label}: two Configs differ in their pre_hook alone: {known} and {one}")
            found[_with(config, options)] = one
        return list(found)

    # --- a call with keywords that are no arguments ----------------------------------------------

    def _extra(self, args: tuple[Any, ...], extra: dict[str, Any]) -> Any:
        """A call with more than the kernel's arguments: options of Triton's, what heuristics overwrite, or mistakes.

        Raises:
            BadInput: for what a Config sets already, and for what is neither an argument nor an option.
        """
        given = {name: value for name, value in extra.items() if name not in self._computed}
        knobs_set = [name for name in given if name in self._knobs]
        if knobs_set:
            in_call = ", ".join(f"{name}={given[name]!r}" for name in knobs_set)
            in_configs = "; ".join(f"{name}: {self._values(name)}" for name in knobs_set)
            raise BadInput(
                f"Conflicting meta-parameters: {', '.join(knobs_set)}. The call of {self._label} sets {in_call}, and "
                f"its Configs set {in_configs}. Leave it out of the one or the other"
            )
        good = {*self._signature.parameters, *triton_options()}
        for name in given:
            if name not in good:
                raise BadInput(f"{self._label}: {unknown('argument', name, self._signature.parameters)}")
        named = dict(zip([GRID, *self._signature.parameters], args, strict=True))
        if not given:
            return self._call(**named)
        self._variant = self._with_options(Config(given))
        call = self._variant.call
        result = (_interpreted(call) if is_interpreted(self.fn) else call)(**named)
        self._engine.forget_latest()
        return result

    def _values(self, knob: str) -> str:
        values = dict.fromkeys(repr(config[knob]) for config in self._of if knob in config)
        return ", ".join(islice(values, 6)) + (", …" if len(values) > 6 else "")

    def _with_options(self, options: Config) -> Engine:
        """The tuned kernel whose Configs all have these options: another binary, so it is tuned on its own."""
        known = self._variants.get(options)
        if known is None:
            space = self._space_asked
            if not isinstance(space, Space) or space.cardinality > ENUMERATED:
                raise BadInput(f"{self._label}: {options!r} in a call goes with a list of Configs; put it in the Space")
            wired = self._wire(Space.of(_with(config, options) for config in space), options)
            known = self._variants.setdefault(options, wired)
        return known

    # --- what became of a search -----------------------------------------------------------------

    def _chosen(self, key: Key, choice: Choice, arguments: Mapping[str, Any], summary: Any) -> None:
        """Note what stock's object tells of its tuning; once for each key."""
        best = self._triton(choice.config)
        self.cache[self._stock_key(key, arguments)] = best
        if summary is None:
            if choice.source == "store":
                self._latest_key = key, None, {}
            return
        told = dict(self._clock.told) if isinstance(self._clock, BenchClock) else {}
        self._latest_key = key, summary.trials, told
        self.bench_time = summary.compile_s + summary.measure_s
        if self._asked.pre_hook is not None:
            self._asked.pre_hook({**arguments, "warmup": False, **choice.config}, reset_only=True)
        if knobs.autotuning.print:
            self._print(key, arguments, summary, best)
        listener = getattr(knobs.autotuning, "listener", None)  # from 3.9 on
        if listener is not None:
            listener(
                fn=list(layers(self.fn))[-1], key=self._stock_key(key, arguments), best_config=best,
                configs_timings=self.configs_timings, duration=self.bench_time, cache_hit=False,
            )  # fmt: skip

    def _print(self, key: Key, arguments: Mapping[str, Any], summary: Any, best: Any) -> None:
        """What stock prints, in its words, when the search is over."""
        for trial in summary.trials:
            self._engine.say(f"Autotuning kernel {self._label} with config {self._triton(trial.config)}")
            if not isinstance(trial.outcome, Measured):
                self._engine.say(f"Autotuning failed with {trial.outcome.reason}")
        self._engine.say(
            f"Triton autotuning for function {self._label},\nwith key as {self._stock_key(key, arguments)},\n"
            f"finished after {self.bench_time:.2f}s,\nbest config selected: {best};"
        )

    def _stock_key(self, key: Key, arguments: Mapping[str, Any]) -> tuple[object, ...]:
        """As stock's: the values of `key`, the dtypes; and the device, which stock leaves out."""
        values = [key.problem.text] if callable(self._key) else [arguments[name] for name in self._key]
        dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
        return (*values, *dtypes, key.device)

    # --- as an object ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<tuned triton kernel {self._label}{self.__signature__}>"

    def __reduce__(self) -> str:
        """Pickled (and copied) by name, as functions are: what was measured is in the store."""
        return self.__qualname__

    def __copy__(self) -> TunedAutotuner:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TunedAutotuner:
        return self


def _interpreted(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call under TRITON_INTERPRET=1: nothing is worth measuring, and there is no driver."""

    def call_with_default(*args: Any, **kwargs: Any) -> Any:
        with policy("default"):
            return call(*args, **kwargs)

    return call_with_default


def _without_grid(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != GRID])


def _with(config: Config, options: Config) -> Config:
    return config.replace(**options) if options else config


def _without(config: Config, options: Config) -> Config:
    return Config({name: value for name, value in config.items() if name not in options}) if options else config


def _timings(trial: Trial) -> list[float] | None:
    """A Trial as stock's milliseconds; `None` for one that was not tried."""
    if isinstance(trial.outcome, Measured):
        return [seconds * 1e3 for seconds in (trial.outcome.median_s, *trial.outcome.spread_s)]
    return [math.inf] * 3 if hasattr(trial.outcome, "stage") else None
