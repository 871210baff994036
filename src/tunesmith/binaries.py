"""`Binaries`: the compiled Configs of one kernel that are loaded."""

from __future__ import annotations

import threading
from collections import OrderedDict

from tunesmith.core.config import Config
from tunesmith.core.outcome import Choice, Failed
from tunesmith.dispatch import Call
from tunesmith.errors import NoWorkingConfig
from tunesmith.kernel import Executable, Job, Task
from tunesmith.measure.failure import attempt
from tunesmith.tune import Subject
from tunesmith.workers import compile_all


class Binaries:
    """Compiles and loads Configs, each once for all calls that it serves.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._loaded: OrderedDict[tuple[object, ...], Executable] = OrderedDict()
        self._lock = threading.Lock()

    def loaded(self, choice: Choice, subject: Subject, call: Call) -> Executable | None:
        """The compiled Config for a call's specialisation, where some call has loaded it."""
        with self._lock:
            return self._loaded.get(_name(choice, subject, call))

    def get(self, choice: Choice, subject: Subject, call: Call) -> tuple[Executable, bool]:
        """The compiled Config for a call's specialisation, and whether it was made just now.

        Raises:
            NoWorkingConfig: when it does not compile or load.
        """
        name = _name(choice, subject, call)
        with self._lock:
            if name in self._loaded:
                self._loaded.move_to_end(name)
                return self._loaded[name], False
        executable = _compiled(choice, subject)
        with self._lock:
            self._loaded[name] = executable
            while len(self._loaded) > self._most:
                self._loaded.popitem(last=False)
        return executable, True


def _name(choice: Choice, subject: Subject, call: Call) -> tuple[object, ...]:
    return (
        subject.kernel,  # as this call needs it compiled
        choice.config,
        call.exact if subject.kernel.per_problem else None,
        call.specialisation,
        call.kinds,
        subject.device.identity,
        call.places,
    )


def job_for(config: Config, subject: Subject) -> Job | None:
    """What has to be compiled of a Config for a call."""
    return subject.kernel.compile_job(config, subject.exact, subject.device)


def _compiled(choice: Choice, subject: Subject) -> Executable:
    kernel, config = subject.kernel, choice.config
    job = job_for(config, subject)
    # A Task's child is there to keep a search alive through a compiler that crashes. This Config is launched whatever
    # happens, so `load` compiles it here, as its language itself would: a matrix product in Triton in 1.0 s, where a
    # new child takes 1.3 s.
    built = None if isinstance(job, Task) else next(iter(compile_all([(config, job)], 1)))[1]
    if isinstance(built, Failed):
        raise NoWorkingConfig(
            f"{kernel.name}({subject.exact}): the {choice.source} Config {config!r} does not compile: "
            f"{built.reason}\n{built.detail}"
        )
    executable, failure, error = attempt("load", lambda: kernel.load(config, subject.exact, built))
    if executable is None or failure is not None:
        assert failure is not None
        raise NoWorkingConfig(
            f"{kernel.name}({subject.exact}): the {choice.source} Config {config!r} does not load: {failure.reason}"
        ) from error
    return executable
