"""Workers on a Ray cluster: one that the user has, or a local one for the time of a sweep. One actor a device."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from tunesmith.errors import BadInput, MissingEngine
from tunesmith.options import VARIABLES, options, usable_cores
from tunesmith.remote import OPEN_S
from tunesmith.sweep import work
from tunesmith.sweep.devices import VISIBLE, Place
from tunesmith.sweep.task import Result, Task
from tunesmith.sweep.workers import STOP_S, Lost, Orders, Refused

#: An actor that the cluster has no room for is waited for so long; its node may have to be started first.
PLACED_S = 600.0
#: how long Ray is waited for at a time: Ctrl-C is heard in between
_TICK_S = 0.5


class Actor:
    """What runs on the cluster: the steps of `work`, in a process of Ray's."""

    def begin(self, jobs: int | None, share: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """As of `work`, with `jobs` compilers at once; `None` for one of `share` parts of this node's."""
        import ray

        os.environ["TUNESMITH_JOBS"] = str(jobs or max(1, options().jobs // share))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it; it is how `tune` is stopped
        node = ray.get_runtime_context().get_node_id()
        return {**work.begin(**asked), "pid": os.getpid(), "node": node}

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        return work.still_known(entries)

    def tune(self, task: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
        """As of `work`; when it is interrupted, what has been stored of it (`interrupted`)."""
        try:
            return work.tune(task, before, tell=lambda said: None)
        except KeyboardInterrupt:
            return {"interrupted": work.in_hand()}


def interrupt(pid: int) -> None:
    """Ctrl-C for a process of this node."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)


class _ToldToStop(Lost):
    """It runs, and is to end."""


class Cluster:
    """A Ray cluster that this process is connected to.

    Attributes:
        ray: the module. gpus: how many the cluster has.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._actor: Any = ray.remote(Actor)

    @property
    def gpus(self) -> int:
        return int(self.ray.cluster_resources().get("GPU", 0))

    def worker(self, place: Place, orders: Orders, jobs: int | None) -> RayWorker:
        """One on a GPU of Ray's choice, or on named cores.

        Args:
            jobs: compilers at once; `None` for the share of its node's cores.
        """
        needs = {"num_gpus": 1} if place.gpu else {"num_cpus": len(place.cores)}
        return RayWorker(self.ray, self._actor.options(max_restarts=0, **needs), place, orders, jobs, self._share)

    @property
    def _share(self) -> int:
        """GPUs of the node that has the most of them."""
        return max([1, *[int(node.get("Resources", {}).get("GPU", 0)) for node in self.ray.nodes()]])


@contextmanager
def connected(address: str, places: Sequence[Place]) -> Generator[Cluster]:
    """Within this scope, a cluster: that of `address` or RAY_ADDRESS, else a local one with these devices.

    Raises:
        MissingEngine: without Ray.
        BadInput: when there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingEngine("--executor ray needs Ray, which is not installed; pip install 'tunesmith[ray]'") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what a user tunes is nobody's business
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: others on the host would be in what is measured
    address = address or os.environ.get("RAY_ADDRESS", "")
    passed = {name: os.environ[name] for name in (*VARIABLES, "TRITON_CACHE_DIR") if name in os.environ}
    environment = {"env_vars": {**passed, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
    how: dict[str, Any] = {"runtime_env": environment, "log_to_driver": False, "logging_level": "error"}
    if address:
        how["address"] = address
    gpus = [place.gpu for place in places if place.gpu and not address]
    if not address:
        cores = sum(len(place.cores) for place in places)
        # `local`: else Ray connects to whatever was started last on this machine, and it may be long gone
        how |= {"address": "local", "num_cpus": max(cores, len(gpus), usable_cores()), "include_dashboard": False}
        how |= {"num_gpus": len(gpus)} if gpus else {}
    try:
        with _visible(gpus):
            ray.init(**how)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise BadInput(f"no Ray cluster{f' at {address}' if address else ''}: {error}") from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


@contextmanager
def _visible(gpus: Sequence[str]) -> Generator[None]:
    """Within this scope, a node that starts has these GPUs, where any are named; else Ray would take the first ones."""
    before = os.environ.get(VISIBLE)
    if gpus:
        os.environ[VISIBLE] = ",".join(gpus)
    try:
        yield
    finally:
        if gpus and before is None:
            del os.environ[VISIBLE]
        elif gpus and before is not None:
            os.environ[VISIBLE] = before


class RayWorker:
    """An actor on a Ray cluster. See `Worker`."""

    def __init__(self, ray: Any, actor: Any, place: Place, orders: Orders, jobs: int | None, share: int) -> None:
        self._ray, self._options, self._place, self._orders = ray, actor, place, orders
        self._jobs, self._share = jobs, share
        self._actor: Any = None
        self._pid, self._node = 0, ""
        self._stopped = False

    def begin(self) -> Mapping[str, Any]:
        self._actor = self._options.remote()
        jobs = len(self._place.cores) or self._jobs
        asked = {"cores": list(self._place.cores), **asdict(self._orders)}
        hello = self._ask(self._actor.begin.remote(jobs, self._share, asked), PLACED_S + OPEN_S)
        self._pid, self._node = int(hello["pid"]), str(hello["node"])
        return hello

    def still_known(self, entries: Sequence[Mapping[str, Any]]) -> list[int]:
        return self._ask(self._actor.still_known.remote(list(entries)), OPEN_S)

    def tune(self, task: Task, before: Result | None, heard: Callable[[Any], object]) -> Mapping[str, Any]:
        # a search without a budget may take hours, and says nothing meanwhile; so may one that an adviser gives another
        known = task.budget_s is not None and not self._orders.adviser
        limit_s = (task.budget_s or 0.0) + OPEN_S + options().wait_s if known else None
        reference = self._actor.tune.remote(asdict(task), before and asdict(before))
        try:
            said = self._ask(reference, limit_s)
        except _ToldToStop:
            self._interrupt()
            ready = self._ray.wait([reference], timeout=STOP_S)[0]
            said = self._ask(reference, 0.0) if ready else {"interrupted": ""}
        if "interrupted" in said:
            raise Lost("it was told to stop", said["interrupted"])
        return said

    def _interrupt(self) -> None:
        """Let the actor put away what it has measured: Ray itself stops no call of an actor that runs."""
        ray = self._ray
        if self._node == ray.get_runtime_context().get_node_id():
            interrupt(self._pid)
            return
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._node, soft=False)
        ray.remote(interrupt).options(num_cpus=0, scheduling_strategy=there).remote(self._pid)

    def _ask(self, reference: Any, limit_s: float | None) -> Any:
        ray, waited_s = self._ray, 0.0
        while not ray.wait([reference], timeout=_TICK_S)[0]:
            waited_s += _TICK_S
            if self._stopped:
                raise _ToldToStop("it was told to stop")
            if limit_s is not None and waited_s > limit_s:
                raise Lost(f"it said nothing for more than {limit_s:g} s")
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise Refused(_last_line(error)) from error
        except ray.exceptions.RayError as error:
            raise Lost(_last_line(error)) from error

    def interrupt(self) -> None:
        self._stopped = True

    def end(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
