"""One search for a key on a machine: 16 threads, 16 processes, several cold keys at once, forks and the dead. R06."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes import PREAMBLE, ScriptedClock, fresh_process

from tunesmith import Config, Space, TunedKernel, autotune, built
from tunesmith.events import Started, watched

KEYS = (3, 5, 7, 11)


def best(n: int) -> int:
    """What is fastest for a key: each has its own winner, so that a mixed-up argument shows."""
    return n % 3


def kernel() -> TunedKernel:
    """Adds n to what it is given."""
    now = threading.local()

    def times(config: Config) -> float:
        return 1.0 if config["c"] == best(now.n) else 2.0

    @autotune(space=Space(c=[0, 1, 2]), key=["n"], clock=ScriptedClock(times), version="1", restore_value=["x"])
    def f(x, n, *, c):
        now.n = n
        time.sleep(0.001)
        x += n
        return c

    return f


def in_threads(count: int, work: Any) -> list[Any]:
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001 - compared by the test
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    return results


def test_sixteen_threads_search_each_of_four_cold_keys_once_and_mix_nothing_up() -> None:
    begun: list[int] = []
    f = kernel()

    def work(i: int) -> list[tuple[int, float]]:
        found = []
        with watched(lambda event: begun.append(event.problem["n"]) if isinstance(event, Started) else None):  # type: ignore[arg-type]
            for k in range(len(KEYS)):
                n = KEYS[(i + k) % len(KEYS)]  # threads come to the keys in different orders
                x = np.full(4, float(i), np.float32)
                found.append((n, f(x, n), float(x[0])))
        return found

    results = in_threads(16, work)
    assert [sorted(r) for r in results] == [[(n, best(n), float(i + n)) for n in KEYS] for i in range(16)]
    assert sorted(begun) == sorted(KEYS)


def test_two_threads_whose_candidates_want_each_others_key_end() -> None:
    """Each search launches, as a candidate, a call for the key that the other thread is searching."""
    both, nested = threading.Barrier(2), threading.local()
    met: list[int] = []

    def make(problem, *, c):
        n = problem["n"]
        if n not in met:  # the first candidate of each search is made: now both keys are claimed
            met.append(n)
            both.wait(20)

        def launch(x, n):
            if getattr(nested, "deep", False):
                return n, c
            nested.deep = True
            try:
                return f(x, 1 - n), n, c
            finally:
                nested.deep = False

        return launch

    clock = ScriptedClock(lambda config: float(config["c"]))  # type: ignore[arg-type]
    kernel = built(make, signature_from=["x", "n"], version="1")
    f = autotune(space=Space(c=[1, 2]), key=["n"], clock=clock)(kernel)
    assert in_threads(2, lambda i: f([1.0], i)) == [((1, 1), 0, 1), ((0, 1), 1, 1)]
    assert sorted(met) == [0, 1]


MANY = """
from tunesmith.events import Started, watched
import json, time

def times(config):
    return 1.0 if config["c"] == NOW % 3 else 2.0

@autotune(space=Space(c=[0, 1, 2]), key=["n"], clock=ScriptedClock(times), version="1")
def f(x, n, *, c):
    global NOW
    NOW = n
    time.sleep(0.005)
    return c

number, begun = int(sys.argv[1]), []
print("ready", flush=True)
sys.stdin.readline()
with watched(lambda event: begun.append(event.problem["n"]) if isinstance(event, Started) else None):
    used = {n: f([1.0], n) for n in (3, 5, 7, 11)[number % 4:] + (3, 5, 7, 11)[:number % 4]}
print(json.dumps({"used": used, "begun": begun}))
"""


def test_sixteen_processes_search_each_of_four_cold_keys_once(tmp_path: Path) -> None:
    file = tmp_path / "many.py"
    file.write_text(PREAMBLE + MANY)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    processes = [
        subprocess.Popen(
            [sys.executable, str(file), str(i)], env={**os.environ, "PYTHONPATH": path}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for i in range(16)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:  # all at once
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        outs = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0] * 16, [err for _, err in outs]
        said = [json.loads(out) for out, _ in outs]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [s["used"] for s in said] == [{str(n): best(n) for n in KEYS}] * 16
    assert sorted(n for s in said for n in s["begun"]) == sorted(KEYS)


FORK = """
import os, threading, time
begun = threading.Event()

def times(config):
    begun.set()
    time.sleep(0.1)
    return 1.0 + config["c"]

clock = ScriptedClock(times)

@autotune(space=Space(c=[2, 1]), key=["n"], clock=clock, version="1")
def f(x, n, *, c):
    return c

search = threading.Thread(target=lambda: f([1.0], 1))
search.start()
begun.wait()
pid = os.fork()
if pid == 0:  # the parent searches on; the child waits for it as any other process would
    before = len(clock.asked)
    clock._busy = threading.RLock()
    os._exit(0 if f([1.0], 1) == 1 and len(clock.asked) == before else 1)
search.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), f([1.0], 1))
"""


def test_a_child_forked_in_the_middle_of_a_search_waits_for_its_parent(tmp_path: Path) -> None:
    done = fresh_process(FORK, tmp_path, timeout=60)
    assert done.stdout == "0 1\n", done.stderr


KILLED = """
import os, signal
clock = ScriptedClock(lambda config: os.kill(os.getpid(), signal.SIGKILL) if sys.argv else 1.0)
f = autotune(space=Space(c=[2, 1]), key=["n"], clock=clock, version="1")(lambda x, n, *, c: c)
f([1.0], 1)
"""


def test_a_searcher_that_is_killed_leaves_the_key_to_the_next(tmp_path: Path) -> None:
    assert fresh_process(KILLED, tmp_path).returncode == -9
    clock = ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]
    f = autotune(space=Space(c=[2, 1]), key=["n"], clock=clock, version="1")(lambda x, n, *, c: c)
    start = time.monotonic()
    assert f([1.0], 1) == 1
    assert time.monotonic() - start < 10
