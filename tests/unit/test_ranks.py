"""Ranks of a job agree: R29 with two and four gloo processes, mixed stores, and a rank that dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import PREAMBLE

pytest.importorskip("torch", reason="ranks are those of torch.distributed")

#: What the acceptance asks for: agreement or a clear error within so many seconds of a death.
SOON_S = 30.0

#: what each rank begins with
RANK = """
import datetime, json, os, signal, time, warnings
from pathlib import Path
import torch.distributed as dist
from tunesmith import ranks
from tunesmith.options import options
from tunesmith.store import default_store

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
RANK, WORLD = dist.get_rank(), dist.get_world_size()

def times(config):  # A=10.00 and B=10.02, seen the other way round by odd ranks; C=15
    a, b = (10.0, 10.02) if RANK % 2 == 0 else (10.02, 10.0)
    return {"A": a, "B": b, "C": 15.0}[config["c"]]

CLOCK = ScriptedClock(times)
PAUSE, FAILS, DIES = [0.0], set(), set()

@autotune(configs=[Config(c="C"), Config(c="A"), Config(c="B")], key=["n"], clock=CLOCK, pick="fastest", margin=1e-3,
          version="1")  # it reads the rank, which is not to make it another kernel on each
def f(x, n, *, c):
    time.sleep(PAUSE[0])
    if (n, c) in FAILS:
        raise RuntimeError(f"{c} does not work on rank {RANK}")
    if (n, c) in DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    return c

def stored(n):
    known = f.lookup([1.0], n)
    return known and known.config["c"]

def say(**what):
    print(json.dumps(what), flush=True)

def leave():  # without gloo's own shutdown, which complains of the dead; rank 0, which serves the store, is the last
    own = options().cache_dir
    (own.parent / f"done{RANK}").touch()
    end = time.monotonic() + 30
    while RANK == 0 and len(list(own.parent.glob("done*"))) < SURVIVORS and time.monotonic() < end:
        time.sleep(0.05)
    os._exit(0)

SURVIVORS = WORLD - 1
"""


class Job:
    """The processes of one job, each with a store folder of its own; killed when the test ends."""

    def __init__(self, folder: Path, world: int, script: str, env: Mapping[str, str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = folder / "rank.py"
        file.write_text(PREAMBLE + RANK + textwrap.dedent(script))
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        # Locks of devices are the host's, in its folder for temporary files: other tests on it must not hold these up.
        (folder / "tmp").mkdir(exist_ok=True)
        shared = {
            **os.environ, "PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), **env,
        }  # fmt: skip
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(file)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**shared, "RANK": str(rank), "TUNESMITH_CACHE_DIR": str(folder / f"store{rank}")},
            )
            for rank in range(world)
        ]  # fmt: skip

    def said(self) -> list[list[Any]]:
        """The lines of every rank that ended well."""
        done = [rank.communicate(timeout=100) for rank in self.ranks]
        assert [r.returncode for r in self.ranks] == [0] * len(done), "\n".join(err[-1500:] for _, err in done)
        return [[json.loads(line) for line in out.splitlines()] for out, _ in done]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def start(world: int, script: str, **env: str) -> Job:
        jobs.append(Job(tmp_path, world, script, env))
        return jobs[-1]

    yield start
    for one in jobs:
        for rank in one.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()


AGREE = """
with tunesmith.policy("search"):
    if RANK == 1:  # warm: it knows C for n=2, which nobody would find
        CLOCK.seconds = lambda config: 1.0 if config["c"] == "C" else 2.0
        f([1.0], 2)
        CLOCK.seconds = times
if RANK == WORLD - 1:  # one store can't be written: a file lies where its folder should be
    folder = options().cache_dir
    if RANK == 1:
        keep = f.lookup([1.0], 2)
    else:
        folder.write_text("in the way")
warnings.simplefilter("ignore")  # of that store
dist.barrier()
order = [1, 2, 3] if RANK % 2 == 0 else [3, 2, 1]
with ranks.agree("tp"):
    if RANK == 0:
        time.sleep(0.5)  # a warm rank comes first to n=2, or finds a search under way
    used = {n: f([1.0], n) for n in order}
    if RANK != 0:
        used[4] = f([1.0], 4)  # one rank leaves the call out
    asked = len(CLOCK.asked)
    again = [f([1.0], n) for n in order]
    say(used=used, again=dict(zip(order, again)), more=len(CLOCK.asked) - asked)
dist.barrier()
say(stored={n: stored(n) for n in order}, own=f([1.0], 9))
"""


@pytest.mark.parametrize("world", [2, 4])
def test_r29_all_ranks_use_one_config_for_a_key_in_memory_and_in_every_store(job: Any, world: int) -> None:
    first, second = zip(*job(world, AGREE).said(), strict=True)

    one = first[0]["used"]
    assert set(one.values()) <= {"A", "B", "C"}
    for said in first:
        assert {n: c for n, c in said["used"].items() if n != "4"} == one
        assert said["again"] == one
        assert said["more"] == 0
    assert len({said["used"]["4"] for said in first[1:]}) == 1
    for said in second:
        assert said["stored"] == one
    # without agreement each finds its own
    assert [said["own"] for said in second] == ["A", "B"] * (world // 2)


WARM = """
if RANK == 0:
    os.environ["TUNESMITH_READ_ONLY"] = "1"
    options.cache_clear()
else:
    CLOCK.seconds = lambda config: 1.0 if config["c"] == "C" else 2.0
    f.tune([1.0], 2)
dist.barrier()
if RANK == 1:
    time.sleep(1)  # the cold rank asks first, and waits
asked = len(CLOCK.asked)
used = f([1.0], 2)  # TUNESMITH_RANKS
say(used=used, stored=stored(2), searched=len(CLOCK.asked) - asked, why=f.choice([1.0], 2).source)
dist.barrier()
"""


def test_a_rank_that_knows_proposes_and_a_cold_one_that_may_not_measure_takes_it(job: Any) -> None:
    cold, warm = (said[0] for said in job(2, WARM, TUNESMITH_RANKS="tp").said())
    assert (cold["used"], warm["used"]) == ("C", "C")
    assert (cold["searched"], warm["searched"]) == (0, 0)
    assert cold["why"] == "rank 1 of group tp"


FAILS_ON_ONE = """
if RANK == 1:
    FAILS.add((1, "A"))
    FAILS.add((1, "C"))
CLOCK.seconds = lambda config: {"A": 1.0, "B": 2.0, "C": 1.5}[config["c"]]
PAUSE[0] = 0.05
dist.barrier()
with ranks.agree():
    if RANK == 1:
        time.sleep(0.2)  # rank 0 searches
    say(used=f([1.0], 1), note=f.choice([1.0], 1).note)
dist.barrier()
say(stored=stored(1))
"""


def test_r29_what_fails_on_one_rank_that_waits_is_used_by_none(job: Any) -> None:
    said = job(2, FAILS_ON_ONE).said()
    assert [rank[0]["used"] for rank in said] == ["B", "B"]
    assert [rank[1]["stored"] for rank in said] == ["B", "B"]
    assert "A does not work on rank 1" in said[0][0]["note"]


LATE = """
def call(n, **how):
    gave_up = options().cache_dir.parent / f"gave up {n}"

    def search_on(config):
        while not gave_up.exists():
            time.sleep(0.01)
        return times(config)

    CLOCK.seconds = search_on
    dist.barrier()
    if RANK == 1:
        time.sleep(0.5)  # rank 0 searches
    with ranks.agree(**how if RANK == 1 else {}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            used, note = f([1.0], n), f.choice([1.0], n).note
        except tunesmith.errors.NoAgreement as error:
            used, note = str(error), ""
        gave_up.touch()
        say(used=used, warned=[str(w.message) for w in caught], note=note)

call(1, timeout_s=0.2)
call(2, timeout_s=0.2, strict=True)
dist.barrier()
"""


def test_after_the_limit_the_default_serves_all_ranks_or_a_strict_one_gets_an_error(job: Any) -> None:
    searcher, waiter = job(2, LATE).said()
    assert (searcher[0]["used"], waiter[0]["used"]) == ("C", "C")  # the default is the first Config
    assert len(waiter[0]["warned"]) == 1
    assert "f(n=1): no rank has found a Config within 0.2 s; the default Config(c='C')" in waiter[0]["warned"][0]
    assert "rank 1: no rank has found a Config within 0.2 s" in searcher[0]["note"]

    assert searcher[1]["used"] == "A"
    assert (
        "f(n=2): no rank has found a Config within 0.2 s in group 'world', for the key n=2 on cpu" in waiter[1]["used"]
    )


DIES_IN_THE_MIDDLE = """
dist.barrier()
if RANK == VICTIM:
    CLOCK.seconds = lambda config: os.kill(os.getpid(), signal.SIGKILL)
else:
    time.sleep(1)  # the victim searches
with ranks.agree():
    start = time.monotonic()
    say(begun=True)
    try:
        used = f([1.0], 1)
    except tunesmith.errors.NoAgreement as error:
        used = str(error)
    say(used=used, took=time.monotonic() - start)
leave()
"""


@pytest.mark.parametrize("world", [2, 4])
def test_when_the_searching_rank_is_killed_another_takes_over(job: Any, world: int) -> None:
    started = job(world, DIES_IN_THE_MIDDLE.replace("VICTIM", str(world - 1)))
    said = [rank.communicate(timeout=100)[0].splitlines() for rank in started.ranks]
    assert started.ranks[-1].returncode == -signal.SIGKILL
    ends = [json.loads(lines[-1]) for lines in said[:-1]]
    assert len({end["used"] for end in ends}) == 1
    assert ends[0]["used"] in ("A", "B")
    assert max(end["took"] for end in ends) < SOON_S


def test_when_the_rank_that_serves_the_store_is_killed_the_others_get_a_clear_error(job: Any) -> None:
    started = job(2, DIES_IN_THE_MIDDLE.replace("VICTIM", "0"))
    out, err = started.ranks[1].communicate(timeout=100)
    end = json.loads(out.splitlines()[-1])
    assert "the job's key-value store does not answer" in end["used"], err
    assert end["took"] < SOON_S


SHARD = """
many = ScriptedClock(lambda config: 1.0 + abs(config["c"] - 40) * 0.1 + 0.001 * RANK)

@autotune(space=Space(c=list(range(64))), key=["n"], clock=many, version="1")
def g(x, n, *, c):
    time.sleep(0.002)
    if KILLED == RANK and len(many.asked) > 30:
        os.kill(os.getpid(), signal.SIGKILL)
    if c == 41:
        raise RuntimeError("41 works nowhere")
    return c

if KILLED is None:
    SURVIVORS = WORLD
dist.barrier()
with ranks.agree("tp", shard=True):
    used = g([1.0], 1)
    choice = g.choice([1.0], 1)
trials = g.explanation([1.0], 1)[2]
say(used=used, measured=sorted({config["c"] for config in many.asked}), note=choice.note, stored=len(trials),
    counts=dict(choice.candidates))
again = len(many.asked)
say(own=g([1.0], 1), more=len(many.asked) - again)
leave()
"""


def test_a_sharded_search_is_measured_in_parts_and_decided_on_one_rank(job: Any) -> None:
    said = job(4, SHARD.replace("KILLED", "None")).said()
    assert [rank[0]["used"] for rank in said] == [40] * 4
    assert [(rank[1]["own"], rank[1]["more"]) for rank in said] == [(40, 0)] * 4  # stored, and not searched again
    parts = [set(rank[0]["measured"]) for rank in said]
    assert set.union(*parts) == set(range(64)) - {41}
    assert sum(1 for part in parts if len(part) > 4) >= 2
    (searcher,) = [rank[0] for rank in said if rank[0]["stored"] == 64]
    assert searcher["counts"] == {"measured": 63, "failed": 1, "cut": 0, "untried": 0}
    assert "side by side by rank" in searcher["note"]


def test_a_part_whose_rank_is_killed_is_measured_by_another(job: Any) -> None:
    started = job(2, SHARD.replace("KILLED", "1"))
    start = time.monotonic()
    out, err = started.ranks[0].communicate(timeout=100)
    said = json.loads(out.splitlines()[0]) if out else err
    assert started.ranks[1].wait() == -signal.SIGKILL
    assert (said["used"], said["stored"]) == (40, 64), said
    assert time.monotonic() - start < 60
