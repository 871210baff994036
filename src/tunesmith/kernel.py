"""What the tuner asks of a kernel, and what it gets: `Kernel`, `Executable`, `Command`, `Task`, `Clock`; no code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.outcome import Resources, Sample
from tunesmith.core.problem import Problem


@dataclass(frozen=True, slots=True)
class Command:
    """A compilation that is one process.

    Attributes:
        argv: the command; `{output}` stands for a temporary path, which becomes `output` when the command succeeds.
        output: where the artifact belongs. A job whose output exists is done already.
        timeout_s: when the process is killed.
        environ: environment variables it gets beside those of this process.
    """

    argv: tuple[str, ...]
    output: Path
    timeout_s: float = 120.0
    environ: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A compilation that is one call of a function in a child process, which serves many such calls.

    `Kernel.load` does the same in this process where no child has: without protection against a compiler that crashes.

    Attributes:
        function: `module:name`. It is given what `request` returned as keywords, and returns `None` or a `Failed`.
        request: makes these keywords, of JSON types; called in a thread of this process when a child is free.
            What it raises is why the Config can't be compiled.
        output: exists as soon as the function has done its work. A job whose output exists is done already.
        timeout_s: when the child is killed.
    """

    function: str
    request: Callable[[], Mapping[str, Any]]
    output: Path
    timeout_s: float = 120.0


#: what has to be compiled for a Config
Job: TypeAlias = "Command | Task"


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled Config on disk.

    Attributes:
        path: the artifact.
        seconds: what the compiler took; 0 when the artifact was there already.
        log: what the compiler printed (warnings).
    """

    path: Path
    seconds: float
    log: str = ""


class Executable(Protocol):
    """One compiled Config, ready to launch."""

    @property
    def config(self) -> Config: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def launch(self) -> Callable[..., Any]:
        """Takes the kernel's runtime arguments by position, in the order of its signature; returns what it returns."""
        ...


#: (args of a call, otherwise, turned) → a launch for calls like it; see `settling`
Settle: TypeAlias = "Callable[[Sequence[Any], Callable[..., Any], bool], Callable[..., Any] | None]"


def settling(launch: Callable[..., Any], settle: Settle) -> Callable[..., Any]:
    """Say of a launch how it is made shorter for calls that somebody else has found to be alike.

    Args:
        settle: makes, of the arguments of one such call, a launch that takes the arrays alone. They have the types,
            sizes, strides and devices of that one's, and any alignment; the other arguments are equal. It may hand the
            arrays to `otherwise`. Where `turned` is true, the second array comes as its transpose. `None`: there is
            none that is shorter.
    """
    cast(Any, launch).settled = settle
    return launch


def seeing_captures(launch: Callable[..., Any]) -> Callable[..., Any]:
    """Say of a settled launch that it hands arrays to `otherwise` while torch captures a CUDA graph."""
    cast(Any, launch).sees_captures = True
    return launch


def sees_captures(launch: Callable[..., Any]) -> bool:
    """Whether that was said of it."""
    return getattr(launch, "sees_captures", False)


def settled(
    launch: Callable[..., Any], args: Sequence[Any], otherwise: Callable[..., Any], turned: bool = False
) -> Callable[..., Any] | None:
    """The shorter launch for calls like one; `None` where there is none."""
    settle: Settle | None = getattr(launch, "settled", None)
    return None if settle is None else settle(args, otherwise, turned)


#: (args of a call) → the same launch on these arguments, again and again, checked once
Bind: TypeAlias = "Callable[[Sequence[Any]], Callable[[], Any]]"


def binding(launch: Callable[..., Any], bind: Bind) -> Callable[..., Any]:
    """Say of a launch how arguments are checked and converted once, for many launches on them."""
    cast(Any, launch).bound = bind
    return launch


def bound(launch: Callable[..., Any], args: Sequence[Any]) -> Callable[[], Any]:
    """The launch on these arguments; without their checks, where that was said of it."""
    bind: Bind | None = getattr(launch, "bound", None)
    return partial(launch, *args) if bind is None else bind(args)


@dataclass(frozen=True, slots=True)
class Specialised:
    """Which arguments decide the compiled binary of a Choice (and never the Choice): the specialisation key.

    What an argument is (its class, an array's dtype and device) always counts. A tuple or a tensor descriptor that
    stands in any of these lists is told from others by all its parts.

    Attributes:
        alignment: arrays by whether their address is divisible by 16.
        divisibility: integers by whether they are divisible by 16 and whether they are 1, and by their width.
        width: integers by whether they need 32 bits, 64, or 64 without a sign.
        values: arguments whose value is compiled in (Triton's constexprs that are no knobs).
        where: tells which device a call without an array is for; `None` where that is always the same.
        settings: of this process, that change what is computed: they are read on every call, and have to be in
            `Kernel.environment` too.
        layout: arrays by their number of dimensions, and which of their strides are 0, 1 or anything else.
    """

    alignment: tuple[str, ...] = ()
    divisibility: tuple[str, ...] = ()
    width: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    where: Callable[[], object] | None = None
    settings: Callable[[], object] | None = None
    layout: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """All arguments that decide it."""
        return frozenset((*self.alignment, *self.divisibility, *self.width, *self.values, *self.layout))


class Kernel(Protocol):
    """Something with knobs that a backend can build and launch.

    Threads: every method may be called from several threads at once. Nothing here keeps a call's arguments.
    """

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def signature(self) -> inspect.Signature:
        """The runtime parameters: knobs are not among them."""
        ...

    @property
    def knobs(self) -> frozenset[str] | None:
        """The knobs it knows, `None` if it takes any."""
        ...

    @property
    def specialised(self) -> Specialised: ...
    @property
    def per_problem(self) -> bool:
        """Whether an Executable serves only the Problem it was loaded for."""
        ...

    def fingerprint(self) -> str:
        """Names the kernel's source and all it reads: the hard part of the Key.

        Raises:
            FingerprintError: when something it reads can't be identified.
        """
        ...

    def environment(self) -> Mapping[str, str]:
        """Environment variables that change the code it is compiled to, with their values: part of the Key."""
        ...

    def versions(self) -> Mapping[str, str]:
        """Language, compiler and other versions: the soft part of the Key."""
        ...

    def device(self, args: Sequence[Any]) -> Device:
        """The device the arguments live on.

        Raises:
            MissingEngine: when there is none the kernel can run on.
            BadInput: when the arguments live on several.
        """
        ...

    def for_call(self, args: Sequence[Any]) -> Kernel:
        """This kernel as one call needs it compiled: `compile_job` and `load` are asked of what this returns.

        A language that compiles for the types of a call's arguments returns a Kernel that knows them (and keeps no
        argument alive); any other returns itself. Two that are equal share their binaries, so it can be a key.

        Args:
            args: by position, in the order of the signature, defaults filled in.
        """
        ...

    def dtypes(self) -> Mapping[str, Sequence[str]]:
        """For each array argument the dtypes it takes, the usual one first, none if it takes any. Empty if unknown."""
        ...

    def compile_job(self, config: Config, problem: Problem, device: Device) -> Job | None:
        """What has to be compiled for a Config, `None` for a backend that compiles nothing ahead."""
        ...

    def load(self, config: Config, problem: Problem, built: Built | None) -> Executable:
        """Make a Config ready to launch.

        Args:
            built: what came of its job; `None` where there was none, and for a Task that was left to this.
        """
        ...


class Around(Protocol):
    """What a kernel's author wants done around each launch of a search, beside restoring and zeroing.

    One object for one stretch of a search. What it does is never part of a timed stretch, so what belongs after a
    launch is done ahead of the next one, or at the end.

    Attributes:
        acts: whether anything is done ahead of launches or after them; where not, `before` and `after` are not called.
    """

    @property
    def acts(self) -> bool: ...

    def launch_of(self, executable: Executable) -> Callable[..., Any]:
        """What is launched for a candidate: its own launch, less what `before` does already."""
        ...

    def before(self, config: Config, args: Sequence[Any]) -> None:
        """Ahead of a launch of this Config, when the arguments are as they have to be."""
        ...

    def after(self) -> None:
        """What belongs after the latest launch, if that has not been done."""
        ...

    def failed(self, error: BaseException) -> None:
        """The latest launch raised this: what belongs after it, now."""
        ...


class Clock(Protocol):
    """Takes one honest duration.

    A Clock may have more: `rounds`, how often it wants to be asked for a candidate, where each sample is a median of
    its own; `screens` and `brief`, as of `tunesmith.core.stopping.Rule`, where its samples may be further off than a
    GPU's; `settle(run, seconds, over)`, which brings the device under the load of a launch that takes so long;
    `limits`, what held the device's clock back in the samples so far, in words; `paces`, how fast the CPU's core was
    around each sample so far (`tunesmith.measure.pace`); where a sample is the device's time
    alone, `back_to_back(launch, many, number)`, the seconds of one of so many calls by the host's clock, each with the
    next of `many` arguments; and `cold`, whether launches find their arguments in no cache.

    Attributes:
        protocol: part of the Key; two Clocks that measure differently have different ones.
    """

    @property
    def protocol(self) -> str: ...
    def sample(self, run: Run) -> Sample:
        """Time one launch (or the mean of a few), with everything that is not the kernel left out."""
        ...


class Others(Protocol):
    """The inputs of one search's candidates, several times: who launches on each in turn finds none in the cache.

    Attributes:
        pace_s: the Clock's own, for all candidates: what one launch takes, of those that count.
    """

    pace_s: float | None

    def sets(self, cache_bytes: int) -> Sequence[Sequence[Any]]:
        """Arguments by position, the call's own first; none where they can't be had, and then for no candidate.

        Args:
            cache_bytes: the size of the cache.
        """
        ...

    def again(self, cache_bytes: int) -> bool:
        """Whether the first may follow the last: they are so many that it is gone from the cache by then."""
        ...


@dataclass(frozen=True)
class Run:
    """An Executable with one call's arguments: what a Clock times.

    Attributes:
        before: run ahead of every launch, outside the timed stretch (restoring what the kernel writes in place).
        hot: arrays that are in the cache when a launch begins, where the Clock empties it of the others.
        checked: whether its results were compared with the reference's.
        others: what it may be launched on as well, where nothing has to be done ahead of a launch.
    """

    executable: Executable
    args: Sequence[Any]
    before: Callable[[], None] | None = None
    hot: Sequence[Any] = ()
    checked: bool = False
    others: Others | None = None
    #: the Clock's own, for this Run; `launches`, where a sample is the mean of several
    state: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def config(self) -> Config:
        return self.executable.config

    def __call__(self) -> Any:
        return self.executable.launch(*self.args)


#: `default=` of a kernel: a Config, or a function of the Problem and the Device.
Default: TypeAlias = "Config | Callable[[Problem, Device], Config]"


def missing(kernel: Kernel, config: Config) -> str:
    """What a Config takes and this machine has not got, which is why its Space refuses it; empty for nothing."""
    asked = getattr(kernel, "missing", None)
    return "" if asked is None else str(asked(config))
