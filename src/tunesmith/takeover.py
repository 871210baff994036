"""`take_over()`: makes `triton.autotune`, in packages that are not one's own, ours; reversibly.

What is changed is one method, the constructor of Triton's Autotuner: whoever decorates a kernel, by whichever name the
decorator was imported, calls it. So no name in any module is replaced, and `isinstance` stays true. Objects that exist
already become ours in place.

Light: it imports no Triton. Where Triton is not imported yet, it waits for that.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from tunesmith.errors import BadInput, TunesmithError, TunesmithWarning

if TYPE_CHECKING:
    from tunesmith.backends.triton_autotune.wiring import Engine, Wiring

#: where Triton's Autotuner is
_MODULE = "triton.runtime.autotuner"
#: whose kernels stay as they are, and so does what these packages decorate of other people's
_NEVER = ("triton", "torch", "tunesmith")

_lock = threading.RLock()
_in_force: list[TakeOver] = []


class TakeOver:
    """What `take_over` has put in force; `undo()` ends it, and so does leaving its `with` block.

    Attributes:
        only, but: see `take_over`.
        taken: the kernels that are ours by it, module and name.
        left: those that stay stock's → why.
    """

    def __init__(self, only: tuple[str, ...], but: tuple[str, ...]) -> None:
        self.only, self.but = only, but
        self.taken: list[str] = []
        self.left: dict[str, str] = {}

    def wants(self, module: str) -> bool:
        """Whether the kernels of a module are to be ours."""
        return (not self.only or _within(module, self.only)) and not _within(module, (*self.but, *_NEVER))

    def undo(self) -> None:
        """End it: kernels decorated from now on are stock's again. What is ours stays so, and keeps working."""
        with _lock:
            if self in _in_force:
                _in_force.remove(self)
            if not _in_force:
                _restore()

    def __enter__(self) -> TakeOver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "in force" if self in _in_force else "undone"
        return (
            f"<take-over of triton.autotune, {state}: {len(self.taken)} kernels ours, {len(self.left)} left to stock>"
        )

    def _leave(self, kernel: str, reason: str) -> None:
        self.taken = [name for name in self.taken if name != kernel]
        self.left[kernel] = reason
        warnings.warn(f"kernel {kernel} is left to triton.autotune: {reason}", TunesmithWarning, stacklevel=3)


def take_over(*, only: Sequence[str] = (), but: Sequence[str] = ()) -> TakeOver:
    """Make every kernel under `triton.autotune` tunesmith's: those decorated from now on, and those there already.

    Kernels that Triton, torch and torch.compile decorate for themselves stay as they are. A kernel that can't be
    served is left to stock, with a warning that names it and says why.

    Args:
        only: packages or modules (`"fla"`, `"fla.ops.gla"`) whose kernels to take over; all, if empty.
        but: packages or modules whose kernels to leave.

    Returns:
        What undoes it: `.undo()`, or leaving a `with` block. It lists what was taken and what was not.

    Raises:
        BadInput: for one string in the place of a list.
    """
    for what, names in (("only", only), ("but", but)):
        if isinstance(names, str):
            raise BadInput(f"{what}={names!r} is one string; give a list of packages: {what}=[{names!r}]")
    begun = TakeOver(tuple(only), tuple(but))
    with _lock:
        _in_force.append(begun)
        module = sys.modules.get(_MODULE)
        if module is None:
            _wait()
        else:
            _change(module)
    return begun


# --- what is changed, and put back ---------------------------------------------------------------------


class _Awaited(MetaPathFinder):
    """Finds what the others find, and of Triton's module with the Autotuner is told when it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with _lock:
                if _in_force:
                    _change(module)
                _stop_waiting()

        loader.exec_module = exec_module  # a loader is made for each module
        return spec


_awaited = _Awaited()


def _wait() -> None:
    if _awaited not in sys.meta_path:
        sys.meta_path.insert(0, _awaited)


def _change(module: Any) -> None:
    """Have the constructor ask us, and take over the objects that exist."""
    autotuner, stock = module.Autotuner, module.Autotuner.__init__
    if not hasattr(stock, "tunesmith_stock"):

        @wraps(stock)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            _construct(stock, self, args, kwargs)

        cast(Any, __init__).tunesmith_stock = stock
        autotuner.__init__ = __init__
    for tuner in [one for one in gc.get_objects() if issubclass(type(one), autotuner)]:
        _take_existing(tuner)


def _stop_waiting() -> None:
    if _awaited in sys.meta_path:
        sys.meta_path.remove(_awaited)


def _restore() -> None:
    _stop_waiting()
    autotuner: Any = getattr(sys.modules.get(_MODULE), "Autotuner", None)
    stock = getattr(getattr(autotuner, "__init__", None), "tunesmith_stock", None)
    if stock is not None:  # else somebody has replaced it since; with nothing in force ours does as stock does
        autotuner.__init__ = stock


# --- one object ----------------------------------------------------------------------------------------


def _construct(stock: Callable[..., None], tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What Triton's constructor does while a take-over is in force."""
    begun = _who_wants(tuner, args[0] if args else kwargs.get("fn"), _caller())
    if begun is not None:
        bound = inspect.signature(stock).bind(tuner, *args, **kwargs)
        bound.apply_defaults()
        if _become_ours(begun, tuner, dict(list(bound.arguments.items())[1:])):
            return
    stock(tuner, *args, **kwargs)


def _who_wants(tuner: Any, fn: Any, caller: str) -> TakeOver | None:
    """The latest take-over that is to have an object of stock's; `None` if none is, or it is ours already."""
    if not _in_force or _within(caller, _NEVER):
        return None
    from tunesmith.backends.triton_autotune.autotuner import TunedAutotuner
    from tunesmith.backends.triton_autotune.configs import python_function

    if isinstance(tuner, TunedAutotuner):
        return None
    module = str(getattr(python_function(fn), "__module__", ""))
    return next((begun for begun in reversed(_in_force) if begun.wants(module)), None)


def _become_ours(begun: TakeOver, tuner: Any, given: Mapping[str, Any]) -> bool:
    """Make an object of stock's ours, in place. If ours refuses it, it is as it was, and it was said why."""
    from tunesmith.backends.triton_autotune.taken import become_taken, full_name

    before: dict[str, Any] = {**tuner.__dict__}
    cls = tuner.__class__
    name = full_name(given["fn"])

    def left(reason: str) -> None:
        begun._leave(name, reason)  # pyright: ignore[reportPrivateUsage]

    try:
        become_taken(tuner, given, _engine, left)
    except (TunesmithError, AttributeError, TypeError, ValueError) as error:  # nothing of ours may break an import
        tuner.__class__ = cls
        tuner.__dict__.clear()
        tuner.__dict__.update(before)
        left(str(error))
        return False
    begun.taken.append(name)
    return True


def _take_existing(tuner: Any) -> None:
    begun = _who_wants(tuner, getattr(tuner, "fn", None), "")
    if begun is not None:
        from tunesmith.backends.triton_autotune.taken import given_to

        _become_ours(begun, tuner, given_to(tuner))


def _engine(wiring: Wiring, restore: tuple[str, ...], zero: tuple[str, ...]) -> Engine:
    """The tuned kernel behind a taken object: declared by what `triton.autotune` knows of it, and nothing more."""
    from tunesmith.declaration import Declaration, Frontend
    from tunesmith.dispatch import KeySpec
    from tunesmith.tuned import TunedKernel

    spec = KeySpec(wiring.key, specialised=wiring.kernel.specialised, opaque=wiring.opaque)
    declared = Declaration(
        wiring.space, spec, restore=restore, zero=zero, dims=() if callable(wiring.key) else wiring.key,
        clock=wiring.clock, isolate=False, fixed=wiring.options,
    )  # fmt: skip
    frontend = Frontend(wiring.narrow, wiring.around, wiring.chosen, wiring.extra, wiring.ranked, wiring.refused)
    return TunedKernel(wiring.kernel, declared, frontend=frontend)


def _caller() -> str:
    """The module that decorates: that of the nearest frame which is neither ours nor Triton's."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _within(frame.f_globals.get("__name__", ""), ("triton", __name__)):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
