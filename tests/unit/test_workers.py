"""Child processes end when they should and leave nothing; slices cover the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunesmith import Config, Failed, claims
from tunesmith.errors import CompileFailed
from tunesmith.kernel import Built, Command
from tunesmith.workers import Stopped, compile_all, compile_one, run_command, run_slices


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def job(folder: Path, name: str, script: str = "echo made > {output}", timeout_s: float = 30) -> tuple[Config, Command]:
    return Config(name=name), Command(tuple(shell(script)), folder / f"{name}.so", timeout_s)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # ended, and nobody has asked how


def wait_until(true: object) -> bool:
    assert callable(true)
    end = time.monotonic() + 10
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(true())


# --- one command ---


def test_output_and_code_come_back() -> None:
    ended = run_command(shell("echo out; echo err >&2; exit 3"), 10)
    assert (ended.code, ended.output, ended.timed_out) == (3, "out\nerr\n", False)


def test_a_deadline_kills_the_whole_group(tmp_path: Path) -> None:
    start = time.monotonic()
    ended = run_command(shell(f"sleep 60 & echo $! > {tmp_path}/pid; echo begun; wait"), 0.3)
    assert time.monotonic() - start < 5
    assert ended.timed_out
    assert (ended.code, ended.output) == (-signal.SIGKILL, "begun\n")
    grandchild = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: not is_running(grandchild))


def test_what_a_child_leaves_running_does_not_hold_us_up() -> None:
    ended = run_command(shell("sleep 60 & echo $!"), 20)
    assert (ended.code, ended.seconds < 10) == (0, True)
    assert wait_until(lambda: not is_running(int(ended.output)))


def test_a_child_that_closes_its_output_still_has_a_deadline() -> None:
    ended = run_command(shell("exec >&- 2>&-; sleep 60"), 0.3)
    assert ended.timed_out
    assert ended.seconds < 10


def test_output_is_bounded() -> None:
    ended = run_command(shell("head -c 1000000 /dev/zero | tr '\\0' x"), 10, limit_bytes=1000)
    assert ended.output.startswith("x" * 1000)
    assert ended.output.endswith("… 999000 more bytes")
    assert ended.code == 0


def test_a_stop_kills() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        run_command(shell("sleep 60"), 60, stop=stop)
    assert time.monotonic() - start < 10


# --- many compilations ---


def test_each_job_comes_back_once(tmp_path: Path) -> None:
    jobs = [job(tmp_path, str(i)) for i in range(5)]
    found = dict(compile_all(jobs, 2))
    assert sorted(c.text for c in found) == sorted(c.text for c, _ in jobs)
    for config, command in jobs:
        result = found[config]
        assert isinstance(result, Built)
        assert result.path == command.output
        assert result.seconds > 0
        assert result.path.read_text() == "made\n"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".so"] * 5


def test_jobs_start_in_the_order_given_and_no_more_at_once_than_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo + $0 >> {log}; sleep 0.1; echo - >> {log}; echo > {{output}}"
    jobs = [(Config(i=i), Command(("/bin/sh", "-c", script, str(i)), tmp_path / f"{i}.so")) for i in range(5)]
    list(compile_all(jobs, 2))
    lines = log.read_text().splitlines()
    running = [lines[: i + 1].count("-") for i in range(len(lines))]
    assert max(i + 1 - 2 * ended for i, ended in enumerate(running)) <= 2
    started = [int(line[2:]) for line in lines if line.startswith("+")]
    assert all(abs(place - i) <= 1 for place, i in enumerate(started))


def test_jobs_are_taken_only_as_needed_and_a_job_of_none_comes_back_at_once(tmp_path: Path) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[tuple[Config, Command | None]]:
        for i in range(1000):
            taken.append(i)
            yield Config(i=i), (job(tmp_path, str(i))[1] if i > 0 else None)

    results = compile_all(jobs(), 2)
    assert next(results) == (Config(i=0), None)
    assert len(taken) == 1
    next(results)
    assert len(taken) <= 6
    results.close()


def test_one_output_is_compiled_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = Command(tuple(shell(f"echo >> {log}; sleep 0.1; echo > {{output}}")), tmp_path / "same.so")
    results = dict(compile_all([(Config(i=i), command) for i in range(10)], 2))
    assert len(log.read_text()) == 1
    built = [r for r in results.values() if isinstance(r, Built)]
    assert len(built) == 10
    assert sum(r.seconds > 0 for r in built) == 1
    [(_, again)] = compile_all([(Config(), command)], 2)
    assert again == Built(command.output, 0.0)
    assert len(log.read_text()) == 1


def test_a_failure_says_why_in_one_line_and_keeps_the_rest(tmp_path: Path) -> None:
    said = "In file included from a.c:1:\na.c:7:3: error: unknown type name 'flot'\na.c:9:1: error: more\n"
    jobs = [
        job(tmp_path, "error", f'printf "%s" "{said}" >&2; exit 1'),
        job(
            tmp_path,
            "linker",
            "echo 'a.o: undefined reference to `f'\\'; echo 'collect2: error: ld returned 1'; exit 1",
        ),
        job(tmp_path, "silent", "exit 9"),
        job(tmp_path, "killed", "kill -9 $$"),
        job(tmp_path, "nothing", "true"),
        job(tmp_path, "slow", "echo begun; sleep 60", timeout_s=0.3),
        (Config(name="absent"), Command(("/no/such/cc",), tmp_path / "absent.so")),
    ]
    found = {str(config["name"]): result for config, result in compile_all(jobs, 3)}
    reasons = {name: (r.stage, r.reason) for name, r in found.items() if isinstance(r, Failed)}
    assert reasons == {
        "error": ("compile", "error: unknown type name 'flot'"),
        "linker": ("compile", "undefined reference to `f'"),
        "silent": ("compile", "compiler ended with exit status 9 and said nothing"),
        "killed": ("compile", "compiler killed by SIGKILL"),
        "nothing": ("compile", "/bin/sh succeeded without writing its output"),
        "slow": ("timeout", "compiler ran past 0.3 s and was killed"),
        "absent": ("compile", "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/cc'"),
    }
    detail = {name: r.detail for name, r in found.items() if isinstance(r, Failed)}
    assert (detail["error"], detail["slow"]) == (said, "begun\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CompileFailed, match="unknown type name") as caught:
        compile_one(jobs[0][1])
    assert caught.value.output == said


def test_closing_kills_the_children_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "quick"),
        *(job(tmp_path, str(i), "echo half > {output}; echo > $TMPDIR/x; sleep 60") for i in range(6)),
    ]
    start = time.monotonic()
    results = compile_all(jobs, 3)
    assert next(results)[0] == Config(name="quick")
    results.close()
    assert time.monotonic() - start < 10
    assert [path.name for path in tmp_path.iterdir()] == ["quick.so"]


def test_a_stop_ends_the_iteration(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    jobs = [job(tmp_path, "quick"), *(job(tmp_path, str(i), "sleep 60") for i in range(6))]
    assert [config["name"] for config, _ in compile_all(jobs, 2, stop=stop)] == ["quick"]
    assert [path.name for path in tmp_path.iterdir()] == ["quick.so"]


def test_an_error_in_the_jobs_reaches_the_caller(tmp_path: Path) -> None:
    def jobs() -> Iterator[tuple[Config, Command | None]]:
        yield job(tmp_path, "slow", "sleep 60")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(compile_all(jobs(), 1))
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_kills_the_children_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    script = f"""
import signal
from pathlib import Path
from tunesmith import Config
from tunesmith.kernel import Command
from tunesmith.workers import compile_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
argv = ("/bin/sh", "-c", "echo $$ > {tmp_path}/pid$0; sleep 60")
list(compile_all([(Config(i=i), Command((*argv, str(i)), Path("{folder}") / str(i))) for i in range(2)], 2))
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", script], env=environ, stderr=subprocess.PIPE, text=True)
    pids = [tmp_path / "pid0", tmp_path / "pid1"]
    assert wait_until(lambda: all(path.exists() and path.read_text() for path in pids))
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not any(is_running(int(path.read_text())) for path in pids)
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    old, new = tmp_path / ".building-old", tmp_path / ".building-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "x").write_text("half")
    os.utime(old, (0, 0))
    list(compile_all([job(tmp_path, "a")], 1))
    assert (old.exists(), new.exists()) == (False, True)


# --- slices ---


def test_slices_cover_the_work_once() -> None:
    for work in (0, 1, 2, 5, 100):
        for n in (1, 2, 3, 7):
            seen: list[int] = []
            run_slices(lambda begin, end, seen=seen: seen.extend(range(begin, end)), work, n)
            assert sorted(seen) == list(range(work))


def test_slices_run_at_once_on_threads_of_their_own() -> None:
    together = threading.Barrier(3)
    names: set[str] = set()

    def call(begin: int, end: int) -> None:
        together.wait(10)
        names.add(threading.current_thread().name)

    run_slices(call, 3, 3)
    assert len(names) == 3
    assert threading.current_thread().name in names


@pytest.mark.parametrize("faulty", [0, 2])
def test_an_exception_in_a_slice_comes_out_after_all_have_ended(faulty: int) -> None:
    ended: list[int] = []

    def call(begin: int, end: int) -> None:
        if begin == faulty:
            raise ValueError(begin)
        time.sleep(0.1)
        ended.append(begin)

    with pytest.raises(ValueError, match=str(faulty)):
        run_slices(call, 3, 3)
    assert sorted(ended) == sorted({0, 1, 2} - {faulty})


# --- several processes that want the same ---------------------------------------------------------------

SHARED = """
import json, sys, time
from pathlib import Path
from tunesmith import Config
from tunesmith.kernel import Command
from tunesmith.workers import compile_all

folder, ready, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
code = "import sys, time; time.sleep(0.1); open(sys.argv[2], 'a').write('x'); open(sys.argv[1], 'w')"
def job(i):
    argv = (sys.executable, "-S", "-c", code, "{output}", str(folder / f"made-{i}"))
    return Config(i=i), Command(argv, folder / f"out-{i}")
jobs = [job(i) for i in range(count)]
ready.touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.01)
found = dict(compile_all(jobs, 2))
print(json.dumps([found[Config(i=i)].path.exists() for i in range(count)]))
"""


def test_processes_that_want_the_same_compile_each_of_it_once(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, str(tmp_path), str(tmp_path / f"ready-{n}"), "8"],
            env=environ, stdout=subprocess.PIPE, text=True,
        )
        for n in range(2)
    ]  # fmt: skip
    assert [json.loads(one.communicate(timeout=60)[0]) for one in both] == [[True] * 8] * 2
    assert [(tmp_path / f"made-{i}").read_text() for i in range(8)] == ["x"] * 8


def test_what_another_process_died_of_is_compiled_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "host_folder", lambda: tmp_path)
    monkeypatch.setattr(claims, "_open", [])
    output = tmp_path / "out"
    job = Command((sys.executable, "-S", "-c", "open(__import__('sys').argv[1], 'w')", "{output}"), output)
    holds = f"""
import pathlib, sys, time
from tunesmith import claims
claims.host_folder = lambda: pathlib.Path({str(tmp_path)!r})
print(claims.claim(pathlib.Path({str(output)!r})), flush=True)
time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    elsewhere = claims.Elsewhere()
    assert elsewhere.takes(job)
    assert elsewhere.ended() == []
    stop = threading.Event()
    stop.set()
    assert list(compile_all([(Config(), job)], 1, stop=stop)) == []  # nobody waits who is told to stop
    timer = threading.Timer(0.3, other.kill)
    timer.start()
    [(_, built)] = compile_all([(Config(), job)], 1)
    other.communicate()
    assert isinstance(built, Built)
    assert elsewhere.ended() == [job]
