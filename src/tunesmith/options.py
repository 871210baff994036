"""Every environment variable, read once into a frozen `Options`; and `policy()`, the one switch, as a scope."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast
from weakref import WeakValueDictionary

from tunesmith.core.outcome import TRACKS, Track
from tunesmith.errors import BadInput, unknown

#: name → what it does, for `tunesmith doctor` and the documentation
VARIABLES: Mapping[str, str] = {
    "TUNESMITH_POLICY": "how far a call may go: default, lookup, strict-lookup (a miss is an error) or search",
    "TUNESMITH_CACHE_DIR": "the folder of the store and of compiled kernels",
    "TUNESMITH_STORE_LAYERS": f"folders of read-only stores, read after one's own, separated by {os.pathsep!r}",
    "TUNESMITH_CAPTURE": "a CSV file to which every problem is added that `lookup` does not know",
    "TUNESMITH_READ_ONLY": "1: nothing is written and nothing is measured",
    "TUNESMITH_WAIT_S": "seconds a call waits for whoever searches the same key, then it takes the default (600)",
    "TUNESMITH_BUDGET_S": "seconds one search may take (no limit)",
    "TUNESMITH_JOBS": "compilers run at once (the number of usable cores)",
    "TUNESMITH_RUN_TIMEOUT_S": "seconds a candidate in a worker may take for a step, then it is killed (30)",
    "TUNESMITH_MEMORY_GB": "GiB of RAM a worker may take, then its candidate is killed (half of what is free)",
    "TUNESMITH_TAKE_OVER": "1: every triton.autotune kernel of the process is tunesmith's (read on import)",
    "TUNESMITH_PLAN": "a file to which the Choices that the process makes are added at its end (read on import)",
    "TUNESMITH_REPLAY": "a plan whose Choices the process uses, and no others (read on import)",
    "TUNESMITH_REPLAY_MISS": "of a call that the plan does not know: error, or default (error)",
    "TUNESMITH_RANKS": "the group of ranks that agree on their Choices, through torch.distributed (read on import)",
    "TUNESMITH_CC": "the C compiler of the cc backend (cc, gcc or clang on PATH, else ziglang's)",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the environment asks for. See `VARIABLES`."""

    cache_dir: Path
    policy: Track | None = None
    strict: bool = False
    store_layers: tuple[Path, ...] = ()
    read_only: bool = False
    wait_s: float = 600.0
    budget_s: float | None = None
    jobs: int = 1
    run_timeout_s: float = 30.0
    memory_gb: float | None = None
    cc: str | None = None
    take_over: bool = False
    capture: Path | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Options:
        """Read the variables.

        Raises:
            BadInput: naming the variable, its bad value and the good ones, or a misspelt TUNESMITH_ variable.
        """
        for name in environ:
            if name.startswith("TUNESMITH_") and name not in VARIABLES and not name.startswith("TUNESMITH_CI_"):
                raise BadInput(unknown("environment variable", name, VARIABLES))
        asked = environ.get("TUNESMITH_POLICY", "").strip().lower()
        good = (*TRACKS, "strict-lookup")
        if asked and asked not in good:
            raise BadInput(f"TUNESMITH_POLICY={asked}: good values: {', '.join(good)}")
        track = "lookup" if asked == "strict-lookup" else asked
        return cls(
            cache_dir=_cache_dir(environ),
            policy=cast(Track, track) if track else None,
            strict=asked == "strict-lookup",
            store_layers=_layers(environ),
            read_only=_flag(environ, "TUNESMITH_READ_ONLY"),
            wait_s=_number(environ, "TUNESMITH_WAIT_S", 600.0),
            budget_s=_number(environ, "TUNESMITH_BUDGET_S", None, above=True),
            jobs=max(1, int(_number(environ, "TUNESMITH_JOBS", float(usable_cores())))),
            run_timeout_s=_number(environ, "TUNESMITH_RUN_TIMEOUT_S", 30.0, above=True),
            memory_gb=_number(environ, "TUNESMITH_MEMORY_GB", None, above=True),
            cc=environ.get("TUNESMITH_CC") or None,
            take_over=_flag(environ, "TUNESMITH_TAKE_OVER"),
            capture=_capture(environ),
        )


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_dir(environ: Mapping[str, str]) -> Path:
    asked = environ.get("TUNESMITH_CACHE_DIR")
    if asked:
        return _path("TUNESMITH_CACHE_DIR", asked)
    from platformdirs import user_cache_path  # not needed where the variable is set

    return user_cache_path("tunesmith", appauthor=False)


def _layers(environ: Mapping[str, str]) -> tuple[Path, ...]:
    name = "TUNESMITH_STORE_LAYERS"
    return tuple(_path(name, path) for path in environ.get(name, "").split(os.pathsep) if path)


def _capture(environ: Mapping[str, str]) -> Path | None:
    asked = environ.get("TUNESMITH_CAPTURE")
    if not asked:
        return None
    if not asked.endswith(".csv"):
        raise BadInput(f"TUNESMITH_CAPTURE={asked}: good values: a file that ends in .csv")
    return Path(os.path.abspath(_path("TUNESMITH_CAPTURE", asked)))  # the program may change its folder


def _path(name: str, text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~nosuchuser
        raise BadInput(f"{name}={text}: {error}; good values: folders") from None


def _flag(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip().lower()
    if value not in ("", "0", "1", "false", "true"):
        raise BadInput(f"{name}={value}: good values: 0, 1")
    return value in ("1", "true")


def _number(environ: Mapping[str, str], name: str, usual: float | None, *, above: bool = False) -> float:
    value = environ.get(name, "").strip()
    if not value:
        return cast(float, usual)
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf") or (above and number == 0):
        raise BadInput(f"{name}={value}: good values: a number {'above' if above else 'of at least'} 0")
    return number


def take_over_asked() -> bool:
    """Whether to take over `triton.autotune` on import: alone of all it is read then, and `options` reads it again.

    Raises:
        BadInput: for a value that is neither 0 nor 1.
    """
    return _flag(os.environ, "TUNESMITH_TAKE_OVER")


@dataclass(frozen=True, slots=True)
class Shared:
    """What the environment says of Choices that others share: asked for on import, before the other options."""

    plan: Path | None = None
    replay: Path | None = None
    replay_miss: str = "error"
    ranks: str = ""


def shared_asked() -> Shared:
    """Whether this process writes or replays a plan, or agrees with other ranks.

    Raises:
        BadInput: for a path with an unknown user. What else is wrong is found by who uses it.
    """

    def file(name: str) -> Path | None:
        asked = os.environ.get(name)
        return _path(name, asked).absolute() if asked else None  # the program may change its folder

    miss = os.environ.get("TUNESMITH_REPLAY_MISS", "").strip().lower() or "error"
    ranks = os.environ.get("TUNESMITH_RANKS", "").strip()
    return Shared(file("TUNESMITH_PLAN"), file("TUNESMITH_REPLAY"), miss, ranks)


@cache
def options() -> Options:
    """The environment's Options, read at the first call. `options.cache_clear()` makes the next call read again."""
    return Options.from_environment(os.environ)


# --- the one switch -------------------------------------------------------------------------------


class Authority:
    """Has a say in which Choice a call gets: a plan that is written or replayed, ranks that agree. Hashable.

    What is asked and decided are `tracks.Asked` and `tracks.Decided`; this one has no say at all.

    Attributes:
        measures: whether a call may still measure; where not, no track goes further than `lookup`.
    """

    measures = True

    def decide(self, asked: Any) -> Any:
        """The Choice for one call, and the Summary of the search it took."""
        return asked.decide()

    def foresee(self, asked: Any) -> Any:
        """The Choice if it is known without deciding anything (for `explain`), else `None`."""
        return None

    def witness(self, asked: Any, choice: Any) -> None:
        """What was decided in the end."""


Authorities: TypeAlias = "tuple[Authority, ...]"


@dataclass(frozen=True, eq=False)
class Policy:
    """How far a call may go. Compared by identity: there is one object for each (track, strict, by, said).

    Attributes:
        by: who has a say beside the track, the outermost first.
        said: whether the track was asked for; a scope that only brings an authority leaves it to the environment and
            the kernel.
    """

    track: Track
    strict: bool = False
    by: Authorities = ()
    said: bool = True

    @property
    def identifies(self) -> bool:
        """Whether a call needs to know its kernel's source."""
        return self.track != "default" or bool(self.by)

    @staticmethod
    def of(track: str, strict: bool = False, by: Authorities = (), *, said: bool = True) -> Policy:
        """The Policy of these words.

        Raises:
            BadInput: for a track that does not exist, or strict with another track than lookup.
        """
        if track not in TRACKS:
            raise BadInput(unknown("policy", track, TRACKS))
        if strict and track != "lookup":
            raise BadInput(f"policy({track!r}, strict=True): strict goes with 'lookup', where it makes a miss an error")
        if not by and said:
            return _POLICIES[track, strict]
        with _lock:
            found = _with_authorities.get((track, strict, by, said))
            if found is None:
                found = Policy(cast(Track, track), strict, by, said)
                _with_authorities[track, strict, by, said] = found
            return found


_POLICIES = {(track, strict): Policy(cast(Track, track), strict) for track in TRACKS for strict in (False, True)}
_with_authorities = WeakValueDictionary["tuple[str, bool, Authorities, bool]", Policy]()
_lock = threading.Lock()

#: the innermost open scope's Policy; read on every call of a tuned kernel
scoped_policy: ContextVar[Policy | None] = ContextVar("tunesmith_policy", default=None)
#: who has a say in the whole process, whatever the scope
_everywhere: Authorities = ()


@contextmanager
def within(scope: Policy | None) -> Generator[None]:
    """What is done as if the innermost open scope were this one; `None`: as if none were open."""
    token = scoped_policy.set(scope)
    try:
        yield
    finally:
        scoped_policy.reset(token)


@contextmanager
def policy(track: str, *, strict: bool = False) -> Generator[None]:
    """Within this scope, calls of tuned kernels go this far.

    `default`: the kernel's own heuristic. `lookup`: what the store and the tables know, else the heuristic.
    `search`: the same, and what nobody knows is measured. The scope holds for the thread (or async task) that
    opened it; `TUNESMITH_POLICY` holds for the process. A plan or an agreement of ranks around it stays in force.

    Args:
        track: `"default"`, `"lookup"` or `"search"`.
        strict: with `"lookup"`, a call of which nothing is known raises `LookupMiss`.
    """
    outer = scoped_policy.get()
    with within(Policy.of(track, strict, () if outer is None else outer.by)):
        yield


@contextmanager
def decided_by(authority: Authority) -> Generator[None]:
    """Within this scope, an authority has a say in every Choice of this thread. How far calls go stays as it is."""
    outer = scoped_policy.get() or Policy.of("search", said=False)
    with within(Policy.of(outer.track, outer.strict, (*outer.by, authority), said=outer.said)):
        yield


def decided_everywhere_by(authority: Authority) -> None:
    """From now on an authority has a say in the whole process. Before any kernel is called: warm calls don't ask."""
    global _everywhere
    _everywhere = (*_everywhere, authority)


def policy_in_force(kernels_own: str | None) -> Policy:
    """The scope's Policy, else the environment's, else the kernel's own, else `search`; and who has a say beside it."""
    scoped = scoped_policy.get()
    if scoped is not None and scoped.said:
        track, strict = scoped.track, scoped.strict
    else:
        asked = options()
        track, strict = (kernels_own or "search", False) if asked.policy is None else (asked.policy, asked.strict)
    by = _everywhere if scoped is None else _everywhere + scoped.by
    if track == "search" and not all(authority.measures for authority in by):
        track = "lookup"
    return Policy.of(track, strict, by)
