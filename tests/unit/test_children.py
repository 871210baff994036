"""Children that are kept for many calls: what they answer, how they end, and that none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import misbehaving

from tunesmith import Config, Failed, children
from tunesmith.kernel import Built
from tunesmith.workers import compile_all

BEHAVE = "tests.fakes:behave"


@pytest.fixture(autouse=True)
def no_child_of_another_test() -> Iterator[None]:
    children.end_spare()
    yield
    children.end_spare()


def running_children(pid: int) -> list[int]:
    """Of all its threads."""
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for child in " ".join(found).split()]


def test_every_way_to_fail_is_a_failure_of_that_config_alone(tmp_path: Path) -> None:
    ways = {"abort": 30.0, "exit": 30.0, "hang": 1.0, "raise": 30.0, "refuse": 30.0, "nothing": 30.0, "write": 30.0}
    jobs = [(Config(how=how), misbehaving(tmp_path, how, timeout_s)) for how, timeout_s in ways.items()]
    found = dict(compile_all(jobs, 1))
    assert isinstance(found.pop(Config(how="write")), Built)
    assert [(f.stage, f.reason) for f in found.values() if isinstance(f, Failed)] == [
        ("crash", "compiler process died (SIGABRT): LLVM ERROR: Cannot select: intrinsic %llvm.nonsense"),
        ("crash", "compiler process died (exit status 3)"),
        ("timeout", "compiler ran past 1 s and was killed"),
        ("compile", "ValueError: first line"),
        ("cut", "too large"),
        ("compile", "tests.fakes:behave succeeded without writing its output"),
    ]


def test_a_request_that_cant_be_made_is_a_failure(tmp_path: Path) -> None:
    job = misbehaving(tmp_path, "write")
    bad = type(job)(job.function, lambda: {"how": 1 / 0}, job.output)
    [(_, failed)] = compile_all([(Config(), bad)], 1)
    assert isinstance(failed, Failed)
    assert failed.reason == "ZeroDivisionError: division by zero"


def test_a_finished_job_is_not_done_again(tmp_path: Path) -> None:
    job = misbehaving(tmp_path, "write")
    [(_, first)], [(_, second)] = (list(compile_all([(Config(), job)], 1)) for _ in range(2))
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert first.seconds > second.seconds == 0
    assert first.log == "said meanwhile\n"


def test_one_child_serves_many_calls() -> None:
    pids = set()
    for _ in range(3):
        assert children.call(BEHAVE, {"how": ""}, 60).failed is None
        pids.update(running_children(os.getpid()))
    assert len(pids) == 1


def test_a_child_that_ended_when_idle_is_replaced() -> None:
    class Idle(children.Child):
        def call(self, *args: object, **kwargs: object) -> None:  # type: ignore[override]
            return None

    idle = Idle()
    idle.end()
    children._spare.append(idle)
    assert children.call(BEHAVE, {"how": ""}, 60).failed is None


def test_a_child_sees_the_variables_of_this_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("SAID", value)
        children.call("tests.fakes:write_variable", {"name": "SAID", "path": str(tmp_path / value)}, 60)
        assert (tmp_path / value).read_text() == value


def test_more_open_files_than_select_knows_are_no_obstacle() -> None:
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(900)]
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
        assert children.call(BEHAVE, {"how": ""}, 60).failed is None
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads children from /proc")
def test_ctrl_c_leaves_no_child(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from tests.fakes import misbehaving
        from tests.unit.test_children import running_children
        from tunesmith import Config, children
        from tunesmith.workers import compile_all

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
        children.call("tests.fakes:behave", {{"how": ""}}, 60)  # a spare one
        jobs = [(Config(n=i), misbehaving(Path({str(tmp_path)!r}) / str(i), "hang")) for i in range(3)]
        try:
            print("begun", flush=True)
            list(compile_all(jobs, 2))
        except KeyboardInterrupt:
            print("left", running_children(os.getpid()), flush=True)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "begun\n"
    end = time.monotonic() + 30
    while len(running := running_children(parent.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    parent.send_signal(signal.SIGINT)
    said, _ = parent.communicate(timeout=30)
    assert said == "left []\n"
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    script = 'import os\nfrom tunesmith import children\nchildren.call("tests.fakes:behave", {"how": ""}, 60)\n'
    script += "print(children._spare[0].pid, flush=True)\nos._exit(0)\n"
    pid = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
