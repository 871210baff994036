"""`Queue`: which worker does which task next, and what becomes of a task whose worker died of it. Pure but for a lock.

Each kind of device has a lane with all tasks: two chips never share a result. Workers on devices of one kind share
its lane. A worker keeps to a run of neighbours; when all runs are begun, it takes from the end of the longest. What a
device's worker died of goes to another device as long as there is one: whose fault it was shows there. What is to be
looked at again comes when no run is waiting any more, to the worker that had it before: its store knows it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tunesmith.measure.pace import is_shared
from tunesmith.sweep.order import runs
from tunesmith.sweep.task import Result, Task

#: A task whose worker died so often is left: the first may have been killed by somebody else, and the second too.
TRIES = 3


@dataclass
class _Lane:
    """What one kind of device has still to do.

    Attributes:
        kind: `cuda`, `hip`, `cpu`.
        waiting: runs of which something is left. own: the run that each worker keeps to.
        serving: workers that may still take something. deaths: by task, the workers that died of it.
        again: of what is finished, what may be looked at again, with what came of it, and the worker that had it;
            `None` where that is not known.
        least_pace_s: of all workers, and of what an earlier run has done: what was disturbed is known when all is
            searched.
    """

    kind: str
    waiting: list[list[Task]]
    own: dict[int, list[Task]] = field(default_factory=dict[int, "list[Task]"])
    running: dict[int, Task] = field(default_factory=dict[int, Task])
    serving: set[int] = field(default_factory=set[int])
    deaths: dict[Task, list[int]] = field(default_factory=dict[Task, list[int]])
    finished: set[Task] = field(default_factory=set[Task])
    again: list[tuple[Task, Result, int | None]] = field(default_factory=list["tuple[Task, Result, int | None]"])
    least_pace_s: float = math.inf

    def is_disturbed(self, result: Result) -> bool:
        """Whether others were at work on the core, and another Config may be the fastest without them."""
        return result.again and is_shared(result.pace_s, self.least_pace_s)

    def is_doubtful(self, result: Result) -> bool:
        """Whether another look at it may name another Config."""
        return result.open or self.is_disturbed(result)

    def heard(self, least_pace_s: float | None) -> None:
        if least_pace_s is not None:
            self.least_pace_s = min(self.least_pace_s, least_pace_s)


class Queue:
    """The tasks of a sweep.

    Threads: one for each worker; those that find nothing wait, as a task may come back from one that dies.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(dict.fromkeys(tasks))
        self._lanes: dict[str, _Lane] = {}
        self._changed = threading.Condition()
        self._stopped = False

    def join(
        self, identity: str, kind: str, done: Mapping[Task, Result], least_pace_s: float | None = None
    ) -> list[tuple[Task, Result]]:
        """A worker is ready on a device of this identity.

        Args:
            done: of this identity, what needs not be looked at. Only the first worker of a lane is asked.
            least_pace_s: the least that the worker has read: that alone may say that what is done was disturbed.

        Returns:
            What of `done` has been taken.
        """
        with self._changed:
            if identity in self._lanes:
                self._lanes[identity].heard(least_pace_s)
                self._changed.notify_all()
                return []
            mine = set(self.tasks)
            taken = {task: result for task, result in done.items() if task in mine}
            todo = [task for task in self.tasks if task not in taken]
            lane = self._lanes[identity] = _Lane(kind, runs(todo), finished=set(taken))
            lane.heard(least_pace_s)
            for task, result in taken.items():
                lane.heard(result.least_pace_s)
                if result.again or result.open:
                    lane.again.append((task, result, None))
            return list(taken.items())

    def take(self, worker: int, identity: str) -> Task | None:
        """The next task; `None` when there will be none any more."""
        with self._changed:
            lane = self._lanes[identity]
            lane.serving.add(worker)
            while not self._stopped:
                task = _next(lane, worker)
                if task is not None:
                    lane.running[worker] = task
                    return task
                if not lane.running and not lane.waiting and not any(lane.is_doubtful(one) for _, one, _ in lane.again):
                    break
                self._changed.wait()
            lane.serving.discard(worker)
            return None

    def leave(self, worker: int) -> None:
        """A worker's device takes nothing any more."""
        with self._changed:
            for lane in self._lanes.values():
                lane.serving.discard(worker)
            self._changed.notify_all()

    def done(self, worker: int, identity: str, result: Result) -> None:
        """A worker's task has come to an end. One that is for another kind of device takes its kernel along."""
        with self._changed:
            lane = self._lanes[identity]
            task = lane.running.pop(worker)
            if result.fate == "elsewhere":
                lane.waiting = [run for run in lane.waiting if run[0].target != task.target]
            else:
                lane.finished.add(task)
                lane.heard(result.least_pace_s)
                if result.again or result.open:
                    lane.again.append((task, result, worker))
            self._changed.notify_all()

    def lost(self, worker: int, identity: str) -> Task | None:
        """A worker died of its task, which another one tries; the task if it was one time too many. Of another look the
        one before stands."""
        with self._changed:
            lane = self._lanes[identity]
            task = lane.running.pop(worker)
            lane.own.pop(worker, None)
            if task in lane.finished:
                self._changed.notify_all()
                return None
            deaths = lane.deaths.setdefault(task, [])
            deaths.append(worker)
            given_up = len(deaths) >= TRIES
            if given_up:
                lane.finished.add(task)
            else:
                lane.waiting.append([task])
            self._changed.notify_all()
            return task if given_up else None

    def is_doubtful(self, result: Result) -> bool:
        """Whether another look at what came to an end on a device may name another Config, as far as is known now."""
        with self._changed:
            return self._lanes[result.device].is_doubtful(result)

    def is_disturbed(self, result: Result) -> bool:
        """Whether others were at work on the core when it was measured, as far as is known now."""
        with self._changed:
            return self._lanes[result.device].is_disturbed(result)

    def least_pace_s(self, identity: str) -> float | None:
        """The least that any worker on devices of a kind has read; `None` where none has."""
        with self._changed:
            least_s = self._lanes[identity].least_pace_s
            return least_s if least_s < math.inf else None

    def to_look(self, identity: str) -> int:
        """How much of what has come to an end is to be looked at again, as far as is known now."""
        with self._changed:
            lane = self._lanes[identity]
            return sum(lane.is_doubtful(result) for _, result, _ in lane.again)

    def stop(self) -> None:
        """Nothing more is given out."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def unfinished(self) -> list[Task]:
        """Tasks that came to no end: on one of the kinds of devices they still wait, or they are for none of them."""
        with self._changed:
            finished = {task for lane in self._lanes.values() for task in lane.finished}
            waiting = {
                task
                for lane in self._lanes.values()
                for run in (*lane.waiting, list(lane.running.values()))
                for task in run
                if task not in lane.finished
            }
            return [task for task in self.tasks if task not in finished or task in waiting]

    @property
    def kinds(self) -> set[str]:
        """Of the devices that there are."""
        with self._changed:
            return {lane.kind for lane in self._lanes.values()}


def _next(lane: _Lane, worker: int) -> Task | None:
    run, waiting = lane.own.get(worker), [each for each in lane.waiting if not _for_another(lane, each[0], worker)]
    if run is None or not any(run is each for each in waiting):
        taken = [own for other, own in lane.own.items() if other != worker]
        free = [each for each in waiting if not any(each is own for own in taken)]
        if free:
            lane.own[worker] = run = free[0]
        elif waiting:
            longest = max(waiting, key=len)
            return _taken(lane, longest, -1)
        else:
            return _look(lane, worker)
    return _taken(lane, run, 0)


def _look(lane: _Lane, worker: int) -> Task | None:
    """What this worker is to look at again; or one that has left."""
    for number, (task, result, whose) in enumerate(lane.again):
        if lane.is_doubtful(result) and (whose is None or whose == worker or whose not in lane.serving):
            del lane.again[number]
            return task
    return None


def _for_another(lane: _Lane, task: Task, worker: int) -> bool:
    """Whether a worker died of a task here, and there is somebody who did not."""
    deaths = lane.deaths.get(task, ())
    return worker in deaths and bool(lane.serving.difference(deaths))


def _taken(lane: _Lane, run: list[Task], at: int) -> Task:
    task = run.pop(at)
    if not run:
        lane.waiting = [each for each in lane.waiting if each is not run]
    return task
