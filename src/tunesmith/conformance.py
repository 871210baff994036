"""What every kernel language must do: one class of tests that each backend's tests, and a third party's, inherit.

It needs pytest. Each hook without a body has to be given; `docs/add-a-language.md` has a complete example.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tunesmith import Config, Problem
from tunesmith.backends.cpu import cpu
from tunesmith.core.device import Device
from tunesmith.errors import CompileFailed, SpaceError
from tunesmith.kernel import Built, Executable, Kernel
from tunesmith.workers import compile_all


def ready(kernel: Kernel, config: Config, args: Sequence[Any], problem: Problem | None = None) -> Executable:
    """Compile a Config as a search does, and load it."""
    problem, kernel = problem or Problem({}), kernel.for_call(args) if args else kernel
    job = kernel.compile_job(config, problem, kernel.device(args))
    [(same, built)] = compile_all([(config, job)], 1)
    assert same == config
    if built is not None and not isinstance(built, Built):
        raise CompileFailed(built.reason, built.detail)
    return kernel.load(config, problem, built)


class KernelConformance:
    """Inherit, and say what your kernel is. All hooks can be called any number of times, in any process."""

    def kernel(self) -> Kernel:
        """A kernel with at least two knobs."""
        raise NotImplementedError

    def changed(self) -> Kernel:
        """The same kernel with one constant of its source changed."""
        raise NotImplementedError

    def commented(self) -> Kernel:
        """The same kernel with nothing but comments and blank lines changed."""
        raise NotImplementedError

    def configs(self) -> list[Config]:
        """A small space, whole."""
        raise NotImplementedError

    def bad_configs(self) -> list[tuple[Config, str]]:
        """Configs it can't take, each with what the message must say."""
        raise NotImplementedError

    def failing(self) -> tuple[Kernel, Config, str]:
        """A Kernel, a Config that can't be built, and words of the message that says why."""
        raise NotImplementedError

    def args(self) -> list[Any]:
        """Fresh arguments of one call."""
        raise NotImplementedError

    def check(self, args: list[Any], result: Any) -> None:
        """Assert that a launch did what it should."""
        raise NotImplementedError

    def device(self) -> Device:
        """Where `args()` are."""
        return cpu()

    # --- the tests ---

    def test_every_config_of_a_small_space_is_right(self) -> None:
        kernel = self.kernel()
        for config in self.configs():
            args = self.args()
            executable = ready(kernel, config, args)
            assert executable.config == config
            self.check(args, executable.launch(*args))
            self.check(args, executable.launch(*args))

    def test_an_unknown_knob_is_refused(self) -> None:
        kernel = self.kernel()
        if kernel.knobs is None:  # it takes any knob
            assert ready(kernel, self.configs()[0].replace(num_stages=3), self.args()).config["num_stages"] == 3
            return
        name = min(kernel.knobs)
        with pytest.raises(SpaceError, match=rf"unknown knob '{name}_'.* did you mean '{name}'"):
            ready(kernel, self.configs()[0].replace(**{f"{name}_": 1}), self.args())

    def test_a_bad_value_is_refused_with_the_good_ones(self) -> None:
        for config, message in self.bad_configs():
            with pytest.raises(SpaceError) as caught:
                ready(self.kernel(), config, self.args())
            assert message in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_a_failure_says_what_was_wrong(self) -> None:
        kernel, config, words = self.failing()
        with pytest.raises(Exception) as caught:
            ready(kernel, config, self.args())
        assert words in str(caught.value) + getattr(caught.value, "output", "")

    def test_four_threads_launch_at_once(self) -> None:
        kernel, configs = self.kernel(), self.configs()
        executables = [ready(kernel, config, self.args()) for config in configs]

        def work(seed: int) -> None:
            for i in range(50):
                args = self.args()
                self.check(args, executables[(seed + i) % len(executables)].launch(*args))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))

    def test_the_signature_has_no_knobs(self) -> None:
        kernel = self.kernel()
        assert len(kernel.signature.parameters) == len(self.args())
        assert not set(kernel.signature.parameters) & {name for config in self.configs() for name in config}

    def test_the_fingerprint_is_the_same_in_another_process(self) -> None:
        here = Path(sys.modules[type(self).__module__].__file__ or "").parent
        name = type(self).__name__
        script = f"from {type(self).__module__} import {name}; print({name}().kernel().fingerprint())"
        found = {
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for seed in ("1", "2")
        }
        assert found == {self.kernel().fingerprint()}

    def test_the_fingerprint_follows_the_source_and_not_its_comments(self) -> None:
        fingerprint = self.kernel().fingerprint()
        assert self.changed().fingerprint() != fingerprint
        assert self.commented().fingerprint() == fingerprint

    def test_the_device_is_the_arguments(self) -> None:
        expected, device = self.device(), self.kernel().device(self.args())
        assert device == expected
        assert device.kind == expected.kind
        assert device.units == (len(os.sched_getaffinity(0)) if device.kind == "cpu" else expected.units)
        assert device.identity.startswith(f"{device.kind}:{device.name}:")

    def test_calls_of_the_same_kinds_share_their_binaries(self) -> None:
        kernel = self.kernel()
        once, again = kernel.for_call(self.args()), kernel.for_call(self.args())
        assert once == again
        assert hash(once) == hash(again)

    def test_what_is_compiled_is_not_compiled_again(self) -> None:
        args, config = self.args(), self.configs()[0]
        kernel = self.kernel().for_call(args)
        jobs = [kernel.compile_job(config, Problem({}), kernel.device(args)) for _ in range(2)]
        if jobs[0] is None or jobs[1] is None:  # nothing is compiled ahead
            assert jobs == [None, None]
            return
        assert jobs[0].output == jobs[1].output
        built = [built for job in jobs for _, built in compile_all([(config, job)], 1)]
        assert [isinstance(one, Built) for one in built] == [True, True]
        assert built[1] == Built(jobs[0].output, 0.0)

    def test_what_it_reads_of_the_environment_is_named(self) -> None:
        assert all(isinstance(value, str) for value in self.kernel().environment().values())

    def test_versions_are_texts(self) -> None:
        versions = self.kernel().versions()
        assert versions
        assert all(versions.values())
