"""What the take-over of `triton.autotune` asks of the tuner above it, and is told by the decorator; no code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tunesmith.backends.triton_autotune.hooks import Hooks
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Trial
from tunesmith.core.space import Space
from tunesmith.errors import TunesmithError
from tunesmith.kernel import Clock, Kernel


class Engine(Protocol):
    """What a TunedAutotuner asks of the tuned kernel behind it (see TunedKernel). The grid is the first argument."""

    @property
    def call(self) -> Callable[..., Any]: ...
    @property
    def latest(self) -> Choice | None: ...
    def say(self, text: str) -> None: ...
    def forget_latest(self) -> None: ...
    def trials(self, key: Key) -> Sequence[Trial]: ...
    def lookup(self, *args: Any, **kwargs: Any) -> Choice | None: ...
    def choice(self, *args: Any, **kwargs: Any) -> Choice: ...
    def explain(self, *args: Any, **kwargs: Any) -> None: ...
    def explanation(self, *args: Any, **kwargs: Any) -> tuple[Key, Choice, Sequence[Trial]]: ...
    def tune(self, *args: Any, **kwargs: Any) -> Any: ...
    def verify(self, *args: Any, **kwargs: Any) -> Any: ...
    def prepare(self, problems: Iterable[Any], *, device: Any, fill: Any, **given: Any) -> list[Choice]: ...
    def use_table(self, table: Any) -> None: ...


@dataclass(frozen=True)
class Wiring:
    """What `MakeEngine` builds a tuned kernel of; the callables are those of its Frontend.

    Attributes:
        options: what every Config of the Space has the caller set: another kernel by its Key.
    """

    kernel: Kernel
    opaque: tuple[str, ...]
    space: Space | Callable[..., Space]
    key: tuple[str, ...] | Callable[..., Mapping[str, object]]
    clock: Clock | str | None
    narrow: Callable[[Sequence[Config], Mapping[str, Any]], Sequence[Config]] | None
    around: Callable[[Mapping[str, Any]], Hooks] | None
    chosen: Callable[[Key, Choice, Mapping[str, Any], Any], None]
    extra: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    options: Config = field(default_factory=Config)
    ranked: bool = False
    refused: Callable[[TunesmithError, tuple[Any, ...]], Any] | None = None


MakeEngine: TypeAlias = "Callable[[Wiring], Engine]"


@dataclass(frozen=True)
class Asked:
    """The arguments of `triton.autotune` that its object has to know, as the user gave them.

    Attributes:
        space: instead of `configs`.
    """

    configs: Sequence[Any] | None = None
    space: Space | Callable[..., Space] | None = None
    knobs: Sequence[str] | None = None
    key: Sequence[str] | Callable[..., Mapping[str, object]] = ()
    prune_configs_by: Mapping[str, Any] | None = None
    reset_to_zero: Sequence[str] | None = None
    restore_value: Sequence[str] | None = None
    pre_hook: Callable[..., object] | None = None
    post_hook: Callable[..., object] | None = None
    warmup: float | None = None
    rep: float | None = None
    use_cuda_graph: bool = False
    do_bench: Callable[..., Any] | None = None
    cache_results: bool = False
    clock: Clock | str | None = None
    name: str | None = None
    version: str | None = None
    depends: tuple[str, ...] = ()
