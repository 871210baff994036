"""`@autotune`: makes a kernel find its own fastest Config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tunesmith.backends import kernel_of
from tunesmith.backends.cute import CuteKernel, is_host_function
from tunesmith.backends.triton_autotune.configs import config_of, is_triton_config, is_triton_kernel
from tunesmith.core.config import Config
from tunesmith.core.model import Model, WorkOf
from tunesmith.core.problem import Bucket
from tunesmith.core.space import Space, space_from
from tunesmith.core.stopping import CONFIDENCE, MARGIN
from tunesmith.declaration import Declaration, Frontend, MakeInputs, SpaceLike
from tunesmith.dispatch import KeyNames, KeySpec
from tunesmith.errors import BadInput
from tunesmith.invariant import Invariance
from tunesmith.kernel import Clock, Kernel
from tunesmith.measure.check import Check
from tunesmith.measure.inputs import WrittenSlice
from tunesmith.measure.pick import Pick
from tunesmith.measure.verify import Tolerance
from tunesmith.subject import Effort
from tunesmith.tuned import TunedKernel

__all__ = ["TunedKernel", "autotune"]


def autotune(
    configs: Iterable[Any] | None = None,
    key: Sequence[str] | Callable[..., Mapping[str, object]] | None = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | Mapping[str, WrittenSlice] | None = None,
    pre_hook: Callable[..., object] | None = None,
    post_hook: Callable[..., object] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    params_dict: Mapping[str, Sequence[Any]] | None = None,
    update_on_change: Sequence[str] | None = None,
    warmup_iterations: int | None = None,
    iterations: int | None = None,
    space: SpaceLike | None = None,
    default: Any = None,
    buckets: Mapping[str, Bucket] | None = None,
    strides: Sequence[str] = (),
    alignment: Sequence[str] = (),
    knobs: Sequence[str] | None = None,
    dims: Sequence[str] | None = None,
    flags: Mapping[str, object] | None = None,
    make_inputs: MakeInputs | None = None,
    reference: Callable[..., Any] | None = None,
    outputs: Sequence[str] = (),
    tolerance: Tolerance | None = None,
    deterministic: bool = False,
    model: Model | WorkOf | None = None,
    policy: Literal["default", "lookup", "search"] | None = None,
    strategy: str = "auto",
    budget_s: float | None = None,
    candidates: int | None = None,
    launches: int | None = None,
    pick: Pick = "cheapest",
    margin: float = MARGIN,
    confidence: float = CONFIDENCE,
    clock: Clock | Literal["wall", "events", "events-hot", "graph", "graph-hot"] | None = None,
    hot: Sequence[str] = (),
    isolate: bool | None = None,
    invariant_over: Sequence[str] = (),
    summation: Sequence[str] = (),
    version: str | None = None,
    depends: Sequence[str] = (),
    name: str | None = None,
) -> Callable[[Any], Any]:
    """Make a kernel find its own fastest Config.

    Takes what `triton.autotune` takes, by position too. What it takes beside has to be named.

    Args:
        configs: the Configs worth trying: ours, `triton.Config` objects for a Triton kernel, or plain mappings.
        key: names of the arguments that decide which Config is best (sizes and flags), or a function that is
            given the call's arguments by name and returns a mapping. The dtypes of all arrays and the device
            always count.
        prune_configs_by: of a Triton kernel, which Configs are worth trying for a call: `early_config_prune`,
            `perf_model`, `top_k`.
        reset_to_zero: arrays the kernel adds to: zeroed before every launch of a search, and as the caller left
            them when the winner runs. (triton.autotune leaves them zeroed on the call that tunes, and on no other.)
        restore_value: arrays the kernel writes in place: put back before every launch of a search, and after it. By
            name, `{"cache": lambda cache, page: cache[page]}`, a function of the arguments says which view of one is
            written: nothing else of it is copied. `None` in its place: all of it.
        pre_hook: of a Triton kernel, called with all arguments by name before every launch of a search, and with
            `reset_only=True` after it.
        post_hook: of a Triton kernel, called with these and `exception=` after every launch of a search.
        warmup, rep: of a Triton kernel, milliseconds for Triton's own `do_bench`.
        use_cuda_graph: of a Triton kernel, time it by Triton's `do_bench_cudagraph`.
        do_bench: of a Triton kernel, what takes the time: `do_bench(kernel_call, quantiles=…)`, in milliseconds.
        cache_results: of a Triton kernel, taken and not needed: results are always stored.
        params_dict: of a CuTe DSL kernel, knob → values, as its own `autotune_jit` takes them: a Space of all of them.
            The function's own values, where they are among these, are the default.
        update_on_change: of a CuTe DSL kernel, what `key` is.
        warmup_iterations, iterations: of a CuTe DSL kernel, taken and not needed: a search measures until it knows.
        space: instead of `configs`, a Space, or a function of (problem, device) that returns one.
        default: the Config (or a function of (problem, device)) used where nothing is known and nothing may
            be measured; the Space's first where not given.
        buckets: for names in `key`: `"pow2"`, a list of upper edges, or a function; sizes in one bucket share
            a Config, which was measured on the first of them that came.
        strides: arrays whose stride classes (0, 1, other) count too.
        alignment: arrays whose alignment to 16 bytes counts too.
        knobs: the knobs' names, where `space` is a function and the kernel cannot say.
        dims: what a Problem written by hand needs; the names in `key` where not given.
        flags: further fields of such a Problem, with their usual values.
        make_inputs: from a Problem to the kernel's arguments by name, real random values (same ones each time). One
            that takes a `seed` makes other values for each check of a result.
        reference: the same computation in plain code, given the arguments by name, floats in float64 where it takes
            them. Returns what the kernel returns or writes, or writes its arguments as the kernel does. A search
            compares each Config's results with it before its time counts; see docs/verification.md.
        outputs: arrays the kernel writes, in the order in which `reference` returns them; what it returns if not given.
        tolerance: instead of what the dtypes allow: how far results may be from the reference's, relative to the
            element and its row; or such numbers by output, where one for integers is the largest difference.
        deterministic: whether two launches on the same inputs have to give the same bytes.
        model: what a launch does, for the performance model that says in which order Configs are compiled:
            `Tiles(…)`, `Rows(…)`, a function of (problem, config) that returns a `Work`, or a `Model` of one of these.
        policy: this kernel's own policy; a scope or the environment overrides it.
        strategy: how a search goes through the Space.
        budget_s: seconds one search may take.
        candidates: how many Configs one search may try; of a kernel with a `model`, those that it ranks first, and a
            tenth from the others.
        launches: how many timed launches one search may make; on the CPU, where a sample is the mean of many, each
            counts.
        pick: which Config wins: `cheapest` of those as fast as the fastest (the least shared memory, then registers),
            the `fastest`, or `overlap`: of those whose [p20, p80] overlaps the fastest's the least shared memory.
        margin: candidates are timed until none can be faster than the best by more than this part, and a Config
            that is slower by no more is as good.
        confidence: how sure both have to be.
        clock: what takes the time: an object, or a way of timing by name: `events` (the usual one on a GPU) with a cold
            L2 cache, `graph` for kernels shorter than a launch, each with `-hot` for arguments in the cache; `wall`
            on the CPU.
        hot: arrays that are in the cache when the kernel is called (activations, where weights are not), for a clock
            that empties it of all others.
        isolate: whether candidates run in a worker process, where one that crashes, hangs or ruins the GPU's context
            costs nothing but itself. It needs `make_inputs` and a kernel that is a module's attribute. Where not given,
            on a GPU if that is so, with one warning where it is not. `True`: an error where it is not.
        invariant_over: names in `key`: Problems that differ in these alone share the knobs of `summation`, so that a
            row of a batch has the same bits whatever else is in the batch.
        summation: knobs that change the order of a sum. The first Problem of such a family that is tuned decides them.
        version: stands for the kernel's source in the Key, for a kernel whose source cannot be identified.
        depends: packages whose versions are compared when a stored Config is used.
        name: the kernel's name in the store and in tables; the function's own where not given.

    Returns:
        A decorator. What it returns is called like the kernel, without the knobs. Of a Triton kernel it is an
        instance of Triton's own Autotuner, launched by `kernel[grid](…)`.

    Raises:
        BadInput: for a name that is not an argument, a Space and a list at once, contradictory lists, options of
            Triton's for another kernel.
    """
    for what, given in (
        ("key", key), ("strides", strides), ("alignment", alignment), ("restore_value", restore_value),
        ("reset_to_zero", reset_to_zero), ("knobs", knobs), ("dims", dims), ("depends", depends), ("hot", hot),
        ("outputs", outputs), ("invariant_over", invariant_over), ("summation", summation),
    ):  # fmt: skip
        if isinstance(given, str):
            raise BadInput(f"{what}={given!r} is one string; give a list of names: {what}=[{given!r}]")
    if update_on_change is not None and key:
        raise BadInput("update_on_change= is key= by CuTe DSL's name: give one of them")
    names = key if callable(key) else tuple(update_on_change or key or ())
    restore, zero = tuple(restore_value or ()), tuple(reset_to_zero or ())
    slices = {name: part for name, part in restore_value.items() if part} if isinstance(restore_value, Mapping) else {}
    against = Check(reference, tuple(outputs), tolerance, deterministic)
    listed = None if configs is None else list(configs)
    shared = Invariance(tuple(invariant_over), tuple(summation)) if invariant_over or summation else None
    effort = Effort(
        strategy, budget_s, candidates, pick=pick, margin=margin, confidence=confidence, launches=launches
    )  # fmt: skip

    def declare(
        kernel: Kernel, spaces: SpaceLike, said: KeyNames, own_clock: Clock | str | None,
        opaque: tuple[str, ...] = (), options: Config | None = None,
    ) -> Declaration:  # fmt: skip
        spec = KeySpec(said, dict(buckets or {}), tuple(strides), tuple(alignment), kernel.specialised, opaque)
        return Declaration(
            spaces, spec, config_of(default) if is_triton_config(default) else default,
            restore=restore, zero=zero, slices=slices, against=against,
            dims=tuple(dims) if dims is not None else () if callable(said) else tuple(dict.fromkeys(said)),
            flags=dict(flags or {}), make_inputs=make_inputs,
            model=None if model is None else Model.of(model),
            policy=policy, effort=effort, clock=own_clock, hot=tuple(hot), isolate=isolate, fixed=options or Config(),
            invariance=shared,
        )  # fmt: skip

    def of_triton(fn: Any) -> Any:
        from tunesmith.backends.triton_autotune.autotuner import Asked, TunedAutotuner, Wiring

        def make_engine(wiring: Wiring) -> TunedKernel:
            declared = declare(wiring.kernel, wiring.space, wiring.key, wiring.clock, wiring.opaque, wiring.options)
            frontend = Frontend(
                wiring.narrow, wiring.around, wiring.chosen, wiring.extra, wiring.ranked, wiring.refused
            )
            return TunedKernel(wiring.kernel, declared, frontend=frontend)

        asked = Asked(
            listed, space, knobs, names, prune_configs_by, zero, restore, pre_hook, post_hook, warmup, rep,
            use_cuda_graph, do_bench, cache_results, clock, name, version, tuple(depends),
        )  # fmt: skip
        return TunedAutotuner(fn, asked, make_engine)

    tritons_own = {
        "prune_configs_by": prune_configs_by, "pre_hook": pre_hook, "post_hook": post_hook, "warmup": warmup,
        "rep": rep, "use_cuda_graph": use_cuda_graph or None, "do_bench": do_bench,
        "cache_results": cache_results or None,
    }  # fmt: skip

    cutes_own = {
        "params_dict": params_dict, "update_on_change": update_on_change, "warmup_iterations": warmup_iterations,
        "iterations": iterations,
    }  # fmt: skip

    def decorate(fn: Any) -> Any:
        _check_cute(fn, cutes_own)
        if is_triton_kernel(fn):
            return of_triton(fn)
        _check_no_triton(fn, tritons_own, listed)
        spaces = _space(space, listed)
        known = tuple(knobs) if knobs is not None else spaces.knobs if isinstance(spaces, Space) else None
        kernel = kernel_of(fn, known, version=version, depends=depends, name=name)
        declared = declare(kernel, spaces, names, clock)
        if params_dict is not None and default is None:
            declared = replace(declared, default=_signature_default(kernel, spaces))
        return TunedKernel(kernel, declared, fn)

    if params_dict is not None:
        if space is not None or listed is not None:
            raise BadInput("give one of params_dict={…}, space=Space(…) and configs=[Config(…), …]")
        space = Space(**{knob: list(values) for knob, values in params_dict.items()})
    if space is not None and listed is not None:
        raise BadInput("give either space=Space(…) or configs=[Config(…), …], not both")
    return decorate


def _space(space: SpaceLike | None, configs: Sequence[Config | Mapping[str, object]] | None) -> SpaceLike:
    return space if space is not None and not isinstance(space, Space) else space_from(space, configs)


def _signature_default(kernel: Kernel, space: SpaceLike) -> Config | None:
    """The knobs as the function's own signature has them, where the Space does."""
    usual = kernel.defaults() if isinstance(kernel, CuteKernel) else None
    return usual if isinstance(space, Space) and usual in space else None


def _check_cute(fn: Any, options: Mapping[str, object]) -> None:
    """Refuse what only makes sense for a CuTe DSL kernel.

    Raises:
        BadInput: naming the option and the kernel.
    """
    if getattr(fn, "backend", "") != "cute" and not is_host_function(fn):
        for option, value in options.items():
            if value is not None:
                name = getattr(fn, "__name__", None) or getattr(fn, "name", None) or repr(fn)
                raise BadInput(f"{option}= is for CuTe DSL kernels, and {name} is none")


def _check_no_triton(fn: Any, options: Mapping[str, object], configs: Sequence[object] | None) -> None:
    """Refuse what only makes sense for a Triton kernel.

    Raises:
        BadInput: naming the option and the kernel.
    """
    name = getattr(fn, "__name__", None) or getattr(fn, "name", None) or repr(fn)
    for option, value in options.items():
        if value is not None:
            raise BadInput(f"{option}= is for Triton kernels, and {name} is none")
    for config in configs or ():
        if is_triton_config(config):
            raise BadInput(f"{config} is a triton.Config, and {name} is no Triton kernel: write Config(…)")
