"""`TakenAutotuner`: a kernel that its author decorated with `triton.autotune`, tuned here all the same.

It is never in the way: what ours refuses and stock takes is left to stock, with a warning that says why.
Imports Triton: only whoever has one of its kernels imports this.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias, cast

from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import KernelInterface

from tunesmith.backends.triton_autotune.autotuner import TunedAutotuner
from tunesmith.backends.triton_autotune.configs import python_function
from tunesmith.backends.triton_autotune.wiring import Asked, Engine, Wiring
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.dispatch import REFUSALS
from tunesmith.errors import BadInput, TunesmithError, TunesmithWarning

#: what stock's constructor is given, by name: everything it has taken from Triton 3.0 to 3.9
STOCK_ARGUMENTS = (
    "fn", "arg_names", "configs", "key", "reset_to_zero", "restore_value", "pre_hook", "post_hook",
    "prune_configs_by", "warmup", "rep", "use_cuda_graph", "do_bench", "cache_results",
)  # fmt: skip


def _settable(told: property) -> Any:
    """A property of ours that stock's own `run`, where a kernel is left to it, may set."""
    assert told.fget is not None
    get, name = told.fget, told.fget.__name__

    def stocks_or_ours(self: TakenAutotuner) -> Any:
        return self._stocks[name] if name in self._stocks else get(self)  # pyright: ignore[reportPrivateUsage]

    def set_by_stock(self: TakenAutotuner, value: Any) -> None:
        self._stocks[name] = value  # pyright: ignore[reportPrivateUsage]

    return property(stocks_or_ours, set_by_stock, doc=told.__doc__)


#: what stock's own methods call of its object, and ours do not
_STOCKS_OWN = {str(name) for name in {**Autotuner.__dict__} if not str(name).startswith("__")} - {"run", "warmup"}

#: makes a tuned kernel of a Wiring and the names in restore_value and reset_to_zero
MakeTaken: TypeAlias = "Callable[[Wiring, tuple[str, ...], tuple[str, ...]], Engine]"


def full_name(fn: Any) -> str:
    """A kernel's module and name, for messages and to tell whose it is."""
    python = python_function(fn)
    return f"{getattr(python, '__module__', '')}.{getattr(python, '__qualname__', type(fn).__name__)}"


class TakenAutotuner(TunedAutotuner):
    """An object of stock's that has become ours: it is made of what stock's constructor was given.

    Args:
        given: `STOCK_ARGUMENTS` by name. make_engine: makes the tuned kernel behind it, of the Wiring and the names
            in restore_value and reset_to_zero that are arguments. left: told why, if a call shows that this has to
            be left to stock.
    """

    def __init__(self, given: Mapping[str, Any], make_engine: MakeTaken, left: Callable[[str], None]) -> None:
        self._stocks: dict[str, Any] = {}  # what stock's own methods set, where it was left to them
        self._left, self._is_left = left, False
        fn = given["fn"]
        knobs = {name for config in given["configs"] or () for name in config.all_kwargs()}
        key = _known(fn, "key", given["key"], knobs)
        zero = _known(fn, "reset_to_zero", given["reset_to_zero"], knobs)
        # Named in both, an argument is zeroed before each launch of stock's too.
        restore = tuple(n for n in _known(fn, "restore_value", given["restore_value"], knobs) if n not in zero)
        asked = Asked(
            configs=given["configs"], key=key, prune_configs_by=given["prune_configs_by"], reset_to_zero=zero,
            restore_value=restore, pre_hook=given["pre_hook"] or None, post_hook=given["post_hook"] or None,
            warmup=given["warmup"], rep=given["rep"], use_cuda_graph=bool(given["use_cuda_graph"]),
            do_bench=given["do_bench"], cache_results=bool(given["cache_results"]),
        )  # fmt: skip
        super().__init__(fn, asked, lambda wiring: make_engine(wiring, restore, zero))

    # --- where ours can't serve ------------------------------------------------------------------

    def _refused_with(self, options: Config) -> Callable[[TunesmithError, tuple[Any, ...]], Any]:
        return partial(self._refused, options)

    def _refused(self, options: Mapping[str, Any], error: TunesmithError, args: tuple[Any, ...]) -> Any:
        """Make a call through stock, and leave the kernel to it from then on if it takes the call."""
        grid, *values = args
        named = dict(zip(self._signature.parameters, values, strict=True))
        leading: list[Any] = []  # by position, as callers of Triton's kernels mostly pass them
        by_keyword = {n for n, p in self._signature.parameters.items() if p.kind is p.KEYWORD_ONLY}
        positional = [name for name in self.arg_names if name not in by_keyword]
        while len(leading) < len(positional) and positional[len(leading)] in named:
            leading.append(named.pop(positional[len(leading)]))
        result = self._stock(grid, *leading, **named, **options)
        if not self._is_left:
            self._is_left, self._call = True, self._stock
            self._left(str(error))
        return result

    def _extra(self, args: tuple[Any, ...], extra: dict[str, Any]) -> Any:
        try:
            return super()._extra(args, extra)
        except REFUSALS as error:
            return self._refused(extra, error, args)

    def _stock(self, grid: Any, *args: Any, **kwargs: Any) -> Any:
        return Autotuner.run(self, *args, grid=grid, warmup=False, **kwargs)

    def _chosen(self, key: Key, choice: Choice, arguments: Mapping[str, Any], summary: Any) -> None:
        self._stocks.clear()
        super()._chosen(key, choice, arguments, summary)

    def prune_configs(self, kwargs: Mapping[str, Any]) -> list[Any]:
        return super().prune_configs({**(self.nargs or {}), **kwargs})  # stock's run notes the positional ones there

    best_config: Any = _settable(TunedAutotuner.best_config)
    configs_timings: Any = _settable(TunedAutotuner.configs_timings)


class TakenSubclass(TakenAutotuner):
    """An object of somebody's subclass of stock's, below that class: whose `super().run(…)` is this one's.

    The class may have put a Config into `.cache` for a call, as stock's `run` looks there first; so does this.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._noted = 0  # entries of ours in the cache

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if len(self.cache) > self._noted and not warmup:
            config = self.cache.get(_stocks_key(self, args, kwargs))
            if config is not None:
                return self._run_with(config, grid, args, kwargs)
        return super().run(*args, grid=grid, warmup=warmup, **kwargs)

    def _run_with(self, config: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, grid=grid, warmup=False, **kwargs, **config.all_kwargs())

    def _chosen(self, key: Key, choice: Choice, arguments: Mapping[str, Any], summary: Any) -> None:
        before = len(self.cache)
        super()._chosen(key, choice, arguments, summary)
        self._noted += len(self.cache) - before


def become_taken(tuner: Any, given: Mapping[str, Any], make_engine: MakeTaken, left: Callable[[str], None]) -> None:
    """Make an object of stock's, or of a subclass of it, ours in place; whoever holds it holds ours then.

    Raises:
        BadInput: when ours refuses it, or can't stand below its class; the object is half made then.
    """
    cls = cast(type, tuner.__class__)
    reason = why_not(cls)
    unheard_of = [name for name, value in given.items() if name not in STOCK_ARGUMENTS and value]
    if unheard_of:
        reason = f"it is given {', '.join(unheard_of)}, of which tunesmith knows nothing"
    if reason:
        raise BadInput(reason)
    known: dict[str, Any] = {**tuner.__dict__}
    tuner.__class__ = taken_class(cls)
    initialise = TakenAutotuner if cls is Autotuner else TakenSubclass
    initialise.__init__(tuner, given, make_engine, left)
    tuner.cache.update(known.get("cache", {}))
    for name in ("best_config", "configs_timings"):
        if name in known:
            setattr(tuner, name, tuner.__dict__.pop(name))


def given_to(tuner: Any) -> dict[str, Any]:
    """What stock's constructor was given for an object that exists."""
    timing = tuner.num_warmups is not None or tuner.num_reps is not None or tuner.use_cuda_graph
    prune = {
        "early_config_prune": tuner.early_config_prune, "perf_model": tuner.perf_model, "top_k": tuner.configs_top_k
    }  # fmt: skip
    return {
        "fn": tuner.fn, "arg_names": tuner.arg_names, "configs": tuner.configs, "key": tuner.keys,
        "reset_to_zero": tuner.reset_to_zero, "restore_value": tuner.restore_value,
        "pre_hook": tuner.pre_hook if tuner.user_defined_pre_hook else None,
        "post_hook": tuner.post_hook if tuner.user_defined_post_hook else None,
        "prune_configs_by": prune, "warmup": tuner.num_warmups, "rep": tuner.num_reps,
        "use_cuda_graph": tuner.use_cuda_graph, "cache_results": tuner.cache_results,
        "do_bench": None if timing else tuner.__dict__.get("_do_bench"),
    }  # fmt: skip


@cache
def taken_class(cls: type) -> type:
    """The class that an object of stock's, or of a subclass of it, becomes."""
    if cls is Autotuner:
        return TakenAutotuner
    space: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    if "__getitem__" not in _own_names(cls):
        space["__getitem__"] = KernelInterface.__getitem__  # by way of the class's own `run`
    return type(cls.__name__, (cls, TakenSubclass), space)


def why_not(cls: type) -> str:
    """Why ours can't stand below a subclass of stock's; empty if it can."""
    for name, owner in _own_names(cls).items():
        if name in _STOCKS_OWN:
            return f"its class {owner.__qualname__} has a {name} of its own, which only stock calls"
        run = getattr(owner, "run", None) if name == "run" else None
        if run is not None and "super" not in getattr(getattr(run, "__code__", None), "co_names", ()):
            return f"its class {owner.__qualname__} has a run of its own, which does not call super().run(…)"
    return ""


def _own_names(cls: type) -> dict[str, type]:
    """What is defined in a class and its bases above stock's: name → where."""
    above = cls.__mro__[: cls.__mro__.index(Autotuner)]
    return {name: owner for owner in reversed(above) for name in vars(owner)}


def _known(fn: Any, what: str, names: Sequence[str] | None, knobs: set[str]) -> tuple[str, ...]:
    """Those names that are arguments: others are dropped with a warning, as stock does up to 3.6 without a word."""
    known = tuple(name for name in names or () if name in fn.arg_names and name not in knobs)
    dropped = [name for name in names or () if name not in known]
    if dropped:
        reasons = ", ".join(f"{name!r} is {'a knob' if name in knobs else 'no argument'}" for name in dropped)
        warnings.warn(
            f"kernel {full_name(fn)}, {what}: {reasons}; dropped, as triton.autotune does",
            TunesmithWarning,
            stacklevel=2,
        )
    return known


def _stocks_key(tuner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[object, ...] | None:
    """A call's key as stock's `run` spells it; `None` for one that has no hash."""
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    given = {name: value for name, value in named.items() if name in tuner.arg_names}
    dtypes = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    key = (*(given[name] for name in tuner.keys if name in given), *dtypes)
    try:
        hash(key)
    except TypeError:
        return None
    return key
