"""The store among processes and threads: single flight, one measurement at a time, and writers that are killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from test_store import CHOICE, key, measured, search_path

from tunesmith.errors import TunesmithWarning
from tunesmith.store import Store

#: what each child begins with
PRELUDE = """
import os, sys, time
from pathlib import Path
from test_store import CHOICE, Store, key, measured
folder, number = Path(sys.argv[1]), int(sys.argv[2])
store = Store.open(folder)
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


class Child:
    """A Python process that runs a script on a store; killed at the end of the test."""

    def __init__(self, folder: Path, script: str, number: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PRELUDE + script, str(folder), str(number)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, bufsize=1,
            env={**os.environ, "PYTHONPATH": search_path()},
        )  # fmt: skip

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self) -> str:
        return self.out.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> str:
        """SIGKILL; what it had said and was not read yet."""
        self.process.send_signal(signal.SIGKILL)
        return self.process.communicate(timeout=30)[0]

    def finish(self) -> str:
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def child(folder: Path) -> Iterator[type[Child]]:
    born: list[Child] = []

    class Recorded(Child):
        def __init__(self, script: str, number: int = 0) -> None:
            super().__init__(folder, script, number)
            born.append(self)

    yield Recorded
    for one in born:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


# --- writers ------------------------------------------------------------------------------------------

ADD = """
sys.stdin.readline()
for i in range(25):
    store.add_trials(key(number), [measured(a=i)])
    store.add_trials(key(1000), [measured(a=f"{number}-{i}")])
say("done")
"""


def test_eight_processes_begin_one_store_and_lose_nothing(folder: Path, child: type[Child]):
    children = [child(ADD, number) for number in range(8)]
    for one in children:  # all at once, so that they also make the file at once
        one.go()
    assert [one.finish() for one in children] == ["done\n"] * 8
    store = Store.open(folder)
    assert [len(store.trials(key(number))) for number in range(8)] == [25] * 8
    assert len(store.trials(key(1000))) == 200
    assert list(folder.glob("*corrupt*")) == []


WRITE_FOR_EVER = """
for i in range(10**9):
    store.add_trials(key(number), [measured(a=f"{number}-{i}-{j}") for j in range(20)])
    store.put_choice(key(number), CHOICE, {})
    say(number, i)  # after the commit
"""


def test_nothing_committed_is_lost_when_writers_are_killed_in_40_rounds(folder: Path, child: type[Child]):
    """Two writers at a time, the older of which is killed at a random moment: mostly in the middle of a write."""
    random.seed(40)
    committed: dict[int, int] = {}

    def note(lines: str) -> None:
        for line in lines.splitlines():
            writer, batch = map(int, line.split())
            committed[writer] = batch

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the store is never anything but whole
        running = child(WRITE_FOR_EVER, 0)
        for round in range(1, 41):
            successor = child(WRITE_FOR_EVER, round)
            note(running.line())
            time.sleep(random.uniform(0, 0.03))
            note(running.kill())
            running = successor
            store = Store.open(folder)
            assert store.choice(key(round - 1)) is not None
            store.close()
        note(running.line())
        note(running.kill())
        store = Store.open(folder)
        assert len(committed) == 41
        for writer, batch in committed.items():
            found = {trial.config["a"] for trial in store.trials(key(writer))}
            assert {f"{writer}-{i}-{j}" for i in range(batch + 1) for j in range(20)} <= found
            assert len(found) % 20 == 0  # a batch is there whole, or not at all
    assert list(folder.glob("*corrupt*")) == []


def test_a_forked_child_and_its_parent_both_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Each has its own connection: SQLite's do not survive a fork."""
    store = Store.open(folder)
    store.add_trials(key(), [measured(a=0)])
    opened: list[object] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: opened.append(args) or connect(*args, **named))
    with store.claim(key(7), 0):
        pid = os.fork()
        if pid == 0:  # nothing but os._exit may leave this block: pytest lives on in the parent
            try:
                with store.claim(key(7), 0) as claimed:
                    store.add_trials(key(), [measured(a=1)])
                    os._exit(0 if len(store.trials(key())) == 2 and not claimed and opened else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        store.add_trials(key(), [measured(a=2)])
    assert len(store.trials(key())) == 3
    assert opened == []


def test_a_file_broken_under_eight_processes_is_moved_aside_once(folder: Path, child: type[Child]):
    folder.mkdir()
    (folder / "store.sqlite").write_bytes(b"garbage" * 1000)
    script = "import warnings; warnings.simplefilter('ignore')\n" + ADD
    children = [child(script, number) for number in range(8)]
    for one in children:
        one.go()
    assert [one.finish() for one in children] == ["done\n"] * 8
    store = Store.open(folder)
    assert [len(store.trials(key(number))) for number in range(8)] == [25] * 8
    assert [p.name for p in folder.glob("*corrupt-*")] == ["store.sqlite.corrupt-1"]


# --- claims -------------------------------------------------------------------------------------------

SEARCH_ONCE = """
sys.stdin.readline()
with store.claim(key(), 30.0) as claimed:
    if store.choice(key()) is not None:
        say("found")
    else:
        assert claimed
        time.sleep(0.3)
        store.put_choice(key(), CHOICE, {})
        say("searched")
"""


def test_of_eight_processes_one_searches_and_all_agree(folder: Path, child: type[Child]):
    children = [child(SEARCH_ONCE) for _ in range(8)]
    for one in children:
        one.go()
    assert sorted(one.finish() for one in children) == ["found\n"] * 7 + ["searched\n"]


HOLD = """
with store.claim(key(), 0) as claimed, store.device_lock("cuda:NVIDIA H200:sm_90:132", 0) as alone:
    say(claimed, alone)
    time.sleep(600)
"""


def test_a_claim_and_a_device_are_free_when_their_holder_is_killed(folder: Path, child: type[Child]):
    holder = child(HOLD)
    assert holder.line() == "True True"
    store = Store.open(folder)
    start = time.monotonic()
    with store.claim(key(), 0.2) as claimed:
        assert not claimed
        assert time.monotonic() - start >= 0.2
    with store.claim(key(2), 0) as claimed:
        assert claimed  # another key is another claim
    with store.device_lock("cuda:NVIDIA H200:sm_90:132", 0.1) as alone:
        assert not alone
    with store.device_lock("cpu:x86:avx2:8", 0) as alone:
        assert alone
    holder.kill()
    with store.claim(key(), 5.0) as claimed, store.device_lock("cuda:NVIDIA H200:sm_90:132", 5.0) as alone:
        assert (claimed, alone) == (True, True)


# --- threads ------------------------------------------------------------------------------------------


def in_thread(work: object) -> object:
    """What `work` returns when another thread calls it."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"
    return answers[0]


def entered(manager: object) -> object:
    with manager as answer:
        return answer


def test_threads_exclude_each_other_and_one_thread_does_not_exclude_itself(folder: Path):
    store, same = Store.open(folder), Store.open(folder)
    with store.device_lock("cpu", None) as first, same.device_lock("cpu", None) as again:
        assert (first, again) == (True, True)
        assert in_thread(lambda: entered(store.device_lock("cpu", 0.1))) is False
        assert in_thread(lambda: entered(same.device_lock("cpu", 0.1))) is False
    assert in_thread(lambda: entered(store.device_lock("cpu", 0))) is True
    with store.claim(key(), 0):
        assert in_thread(lambda: entered(same.claim(key(), 0.1))) is False
    assert in_thread(lambda: entered(same.claim(key(), 0))) is True


def test_measurements_of_threads_do_not_overlap(folder: Path):
    store, inside, most = Store.open(folder), [0], [0]

    def measure() -> None:
        with store.device_lock("cpu", None):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=measure) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == [1]


def test_a_thread_that_searches_a_key_is_told_no_when_it_comes_to_it_again(folder: Path):
    store = Store.open(folder)
    with store.claim(key(), 60) as outer, store.claim(key(), 60) as inner:
        assert (outer, inner) == (True, False)
    with store.claim(key(), 0) as after:
        assert after


def test_two_searches_that_want_each_others_key_do_not_wait_in_a_circle(folder: Path):
    store, both = Store.open(folder), threading.Barrier(2)

    def search(mine: int, other: int) -> tuple[bool, bool]:
        with store.claim(key(mine), 60) as claimed:
            both.wait(10)
            with store.claim(key(other), 60) as nested:
                both.wait(10)
                return claimed, nested

    answers: list[object] = []
    threads = [threading.Thread(target=lambda m=m: answers.append(search(m, 1 - m))) for m in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == [(True, False)] * 2


def test_two_measurements_that_want_each_others_device_do_not_wait_in_a_circle(folder: Path):
    store, both = Store.open(folder), threading.Barrier(2)

    def measure(mine: str, other: str) -> tuple[bool, bool]:
        with store.device_lock(mine, None) as held:
            both.wait(10)
            with store.device_lock(other, None) as nested:
                both.wait(10)
                return held, nested

    answers: list[object] = []
    threads = [threading.Thread(target=lambda a=a, b=b: answers.append(measure(a, b))) for a, b in ("xy", "yx")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == [(True, False)] * 2


def test_an_error_inside_frees_what_was_held(folder: Path):
    store = Store.open(folder)

    def interrupted() -> None:
        with store.claim(key(), 0), store.device_lock("cpu", 0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert in_thread(lambda: entered(store.claim(key(), 0))) is True
    assert in_thread(lambda: entered(store.device_lock("cpu", 0))) is True


def test_where_no_lock_file_can_be_made_threads_still_exclude_each_other(folder: Path):
    folder.mkdir()
    (folder / "locks").write_text("a file where the folder should be")
    store = Store.open(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with store.claim(key(), 0) as claimed, store.device_lock("cpu", 0) as alone:
            assert (claimed, alone) == (True, True)
            assert in_thread(lambda: entered(store.claim(key(), 0.05))) is False
    assert [(w.category, "lock files cannot be used" in str(w.message)) for w in caught] == [(TunesmithWarning, True)]
    store.put_choice(key(), CHOICE, {})
    assert Store.open(folder).choice(key()) is not None
