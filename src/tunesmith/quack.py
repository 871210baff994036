"""quack's tuned kernels, tuned by us: its spaces and heuristics read, its `@autotune` replaced without editing it.

Light: quack is imported where it is used, and only to look at what is given.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias

from tunesmith.backends.quack import QuackKernel, config_of, configs_of
from tunesmith.backends.quack.kernel import module
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.declaration import Declaration, Frontend
from tunesmith.dispatch import KeySpec
from tunesmith.dispatch.arguments import is_array
from tunesmith.errors import BadInput, TunesmithError, TunesmithWarning
from tunesmith.subject import Effort
from tunesmith.tuned import TunedKernel

#: see `autotune`
Policy: TypeAlias = Literal["default", "lookup", "search"]

_lock = threading.RLock()
_in_force: list[TakeOver] = []


def space_of(tuner: Any) -> Space:
    """The Space of a tuned function of quack's, or of a list of its configurations (`get_all_configs()`).

    Raises:
        BadInput: for what has none.
    """
    many: Sequence[Any] | None = getattr(tuner, "configs", tuner)
    if not many:
        raise BadInput(
            f"{tuner!r} has no configurations; good ones: what quack's @autotune made, a list of its dataclasses"
        )
    return Space.of(configs_of(many))


def worth_trying(tuner: Any, given: Mapping[str, Any]) -> list[Config]:
    """The Configs that quack's own rules leave for a call with these arguments by name, tensors of any device."""
    many = tuner.configs
    return configs_of(many if tuner.early_config_prune is None else tuner.early_config_prune(many, dict(given)))


def default_of(tuner: Any) -> Callable[[Problem, Device], Config] | None:
    """quack's own heuristic for a tuned function, `None` where there is none for it.

    It is `from_analytical_heuristic` for its norms, and `default_config` for its matrix products.
    """
    made = type(next(iter(tuner.configs[0].kwargs.values())))
    return {
        "RmsNormFwdConfig": _rmsnorm_fwd(made), "RmsNormBwdConfig": _rmsnorm_bwd(made), "GemmConfig": _gemm,
    }.get(made.__name__)  # fmt: skip


def autotuned(tuner: Any, *, policy: Policy | None = None, effort: Effort | None = None) -> TunedKernel:
    """A tuned kernel of ours in the place of what quack's `@autotune` made: the same Configs, pruned by the same rules.

    Its Problem is what quack's key is: the shapes, stride classes and dtypes of all tensors, by name, and the scalars
    that quack names. Its default is quack's heuristic.

    Raises:
        BadInput: for something that can't be called by position, or whose configurations are no values of ours.
        MissingEngine: without quack.
    """
    kernel = QuackKernel(tuner)
    scalars = tuple(name for name in tuner.keys if name in kernel.signature.parameters)

    def key(**given: Any) -> Mapping[str, object]:
        fields: dict[str, object] = {name: given[name] for name in scalars}
        for name, value in given.items():
            if is_array(value):
                fields.update({f"{name}_{axis}": int(size) for axis, size in enumerate(value.shape)})
        return fields

    def narrow(configs: Sequence[Config], given: Mapping[str, Any]) -> Sequence[Config]:
        return worth_trying(tuner, given)

    spec = KeySpec(key, strides=kernel.tensors, specialised=kernel.specialised)
    declared = Declaration(
        space_of(tuner), spec, default_of(tuner), restore=tuple(tuner.restore_value), policy=policy,
        effort=effort or Effort(), isolate=False,
    )  # fmt: skip
    return TunedKernel(kernel, declared, frontend=Frontend(narrow=narrow))


class TakeOver:
    """What `take_over` has put in force; `undo()` ends it, and so does leaving its `with` block.

    Attributes:
        taken: the functions that were called and are ours by it → the tuned kernel.
        left: those that stay quack's → why.
    """

    def __init__(self, policy: Policy | None, effort: Effort | None) -> None:
        self.taken: dict[str, TunedKernel] = {}
        self.left: dict[str, str] = {}
        self._policy: Policy | None = policy
        self._effort = effort
        self._of: dict[int, tuple[Any, TunedKernel | None]] = {}

    def engine(self, tuner: Any) -> TunedKernel | None:
        """The tuned kernel in the place of one of quack's; `None` for one that is left to it."""
        known = self._of.get(id(tuner))
        if known is not None:
            return known[1]
        with _lock:
            if id(tuner) not in self._of:
                self._of[id(tuner)] = tuner, self._made(tuner)  # the tuner is kept: its number is its own
        return self._of[id(tuner)][1]

    def _made(self, tuner: Any) -> TunedKernel | None:
        name = f"{tuner.fn.__module__}.{tuner.fn.__name__}"
        try:
            if len(tuner.configs) < 2:
                raise BadInput("it has one configuration")
            made = autotuned(tuner, policy=self._policy, effort=self._effort)
        except TunesmithError as error:
            self.left[name] = str(error)
            warnings.warn(f"kernel {name} is left to quack's own tuner: {error}", TunesmithWarning, stacklevel=4)
            return None
        self.taken[name] = made
        return made

    def undo(self) -> None:
        """End it: quack's functions tune themselves again."""
        with _lock:
            if self in _in_force:
                _in_force.remove(self)
            if not _in_force:
                autotuner = module("autotuner").Autotuner
                autotuner.__call__ = getattr(autotuner.__call__, "tunesmith_stock", autotuner.__call__)

    def __enter__(self) -> TakeOver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self in _in_force else "undone"
        return f"<take-over of quack's autotune, {state}: {len(self.taken)} kernels ours, {len(self.left)} left to it>"


def take_over(*, policy: Policy | None = None, effort: Effort | None = None) -> TakeOver:
    """Make every function under quack's `@autotune` tunesmith's, reversibly: `rmsnorm_fwd_tuned`, `gemm_tuned`, …

    quack is imported and not edited: the one thing that is replaced is what a call of its Autotuner does. Results are
    in our store; quack's own files of timings are neither read nor written.

    Args:
        policy: of all of them, see `autotune`.
        effort: what a search may take.

    Raises:
        MissingEngine: without quack.
    """
    autotuner = module("autotuner").Autotuner
    begun = TakeOver(policy, effort)
    with _lock:
        _in_force.append(begun)
        stock = autotuner.__call__
        if not hasattr(stock, "tunesmith_stock"):

            def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
                latest = _in_force[-1] if _in_force else None
                engine = None if latest is None else latest.engine(self)
                return stock(self, *args, **kwargs) if engine is None else engine(*args, **kwargs)

            __call__.tunesmith_stock = stock  # pyright: ignore[reportFunctionMemberAccess]
            autotuner.__call__ = __call__
    return begun


# --- quack's heuristics ----------------------------------------------------------------------------------


def _bits(problem: Problem, name: str) -> int:
    """Of an element of an argument."""
    return int("".join(c for c in str(problem[f"{name}.dtype"]) if c.isdigit()))


def _last(problem: Problem, name: str) -> int:
    """The innermost size of an argument."""
    axis = max(axis for axis in range(8) if f"{name}_{axis}" in problem)
    return int(str(problem[f"{name}_{axis}"]))


def _major(device: Device) -> int:
    """A chip's generation: 9 of sm_90."""
    return int("".join(c for c in device.arch if c.isdigit())) // 10


def _rmsnorm_fwd(made: Any) -> Callable[[Problem, Device], Config]:
    def default(problem: Problem, device: Device) -> Config:
        layer = bool(problem.get("is_layernorm"))
        return config_of(
            made.from_analytical_heuristic(
                _last(problem, "x"), _bits(problem, "x"), arch_major=_major(device), is_layernorm=layer
            )
        )

    return default


def _rmsnorm_bwd(made: Any) -> Callable[[Problem, Device], Config]:
    def default(problem: Problem, device: Device) -> Config:
        sums = sum(f"{name}_0" in problem for name in ("dw_partial", "db_partial"))
        return config_of(
            made.from_analytical_heuristic(
                _last(problem, "x"), _bits(problem, "x"), _bits(problem, "dout"), arch_major=_major(device),
                num_acc=max(1, sums),
            )
        )  # fmt: skip

    return default


def _gemm(problem: Problem, device: Device) -> Config:
    return config_of(module("gemm_config")._default_config_for_cap(_major(device)))
