"""What every test gets: a store of its own, a clean environment, in CI no silent skips; `--clock`: an untrue clock."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.untrue_clock import VARIABLE, WAYS, install
from tunesmith.measure import pace
from tunesmith.options import options
from tunesmith.store import store

# A busy machine stops a test for half a second now and then: pytest's own timeout is the limit. In CI the same commit
# gets the same examples, and so the same answer, every time.
settings.register_profile("tunesmith", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("tunesmith")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clock", choices=sorted(WAYS), help="what clocks answer: tests that are not about time pass")


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Iterator[None]:
    """Nothing a test stores outlives it, and no setting of the machine's reaches it."""
    for name in [name for name in os.environ if name.startswith("TUNESMITH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / "tunesmith-cache"))
    way = pytestconfig.getoption("clock")
    if way:
        monkeypatch.setenv(VARIABLE, way)
    options.cache_clear()
    monkeypatch.setattr(pace, "_least", [math.inf])
    yield
    options.cache_clear()
    for opened in store._default.values():
        opened.close()  # or thousands of tests hold more files open than one process may
    store._default.clear()


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within a test, what measures can be imported; no other test finds it."""
    folder, before = Path(__file__).parents[1] / "benchmarks", set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With an untrue clock, those that are about time are left out."""
    if config.getoption("clock"):
        left_out = [item for item in items if item.get_closest_marker("about_time")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


# --- CI has everything that a machine without a GPU can have, so a skip there is a hole ---------------


class NoSkips:
    """Fails a run in which anything outside tests/gpu was skipped, and says what."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        expected_failure = hasattr(report, "wasxfail")  # pytest reports it as skipped
        if report.skipped and not expected_failure and not report.nodeid.startswith("tests/gpu/"):
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped.append(f"{report.nodeid}: {why}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.look_at(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped outside tests/gpu: a failure in CI", red=True)
            for line in self.skipped:
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TUNESMITH_CI_NO_SKIPS") == "1":
        config.pluginmanager.register(NoSkips(), "tunesmith-no-skips")
    if config.getoption("clock"):
        install(config.getoption("clock"))
