"""A core that takes a moment until it runs a candidate at full speed: what was timed before must not matter."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tunesmith import Config, Device, Resources
from tunesmith.kernel import Run
from tunesmith.measure.clock import LEAD_IN_S, WallClock, clock_for, protocol_for

NARROW, WIDE = Config(VEC=8), Config(VEC=16)
#: wide vectors are a fifth slower for so long after others
SLOW_S = 0.8e-3


@dataclass
class Core:
    """Launches of two kernels on one core, in its own time."""

    now_s: float = 0.0
    wide_s: float = 0.0  # of wide vectors since the last others

    def timer(self) -> float:
        self.now_s += 50e-9
        return self.now_s

    def launch(self, config: Config, kernel_s: float) -> None:
        if config == WIDE:
            kernel_s *= 1.2 if self.wide_s < SLOW_S else 1.0
            self.wide_s += kernel_s
        else:
            self.wide_s = 0.0
        self.now_s += kernel_s


@dataclass
class Kernel:
    core: Core
    config: Config
    kernel_s: float
    resources: Resources = field(default_factory=Resources)

    def launch(self, *_: Any) -> None:
        self.core.launch(self.config, self.kernel_s)


def timed(clock: WallClock, core: Core, narrow_s: float, wide_s: float) -> tuple[list[float], list[float]]:
    """Samples of both in turn."""
    narrow, wide = (Run(Kernel(core, c, s), ()) for c, s in ((NARROW, narrow_s), (WIDE, wide_s)))
    pairs = [(clock.sample(narrow).seconds, clock.sample(wide).seconds) for _ in range(5)]
    return [one for one, _ in pairs], [other for _, other in pairs]


@pytest.mark.parametrize("kernel_s", [100e-9, 300e-9, 5e-6, 400e-6, 3e-3])
def test_with_a_lead_in_each_is_timed_as_if_it_were_alone(kernel_s: float) -> None:
    core = Core()
    narrow, wide = timed(WallClock(core.timer, LEAD_IN_S), core, kernel_s, 0.95 * kernel_s)
    assert wide == pytest.approx([0.95 * kernel_s] * 5, rel=1e-3)
    assert narrow == pytest.approx([kernel_s] * 5, rel=1e-3)


def test_without_one_the_faster_of_the_two_would_seem_the_slower() -> None:
    core = Core()
    narrow, wide = timed(WallClock(core.timer), core, 5e-6, 0.95 * 5e-6)
    assert min(wide) > max(narrow)


def test_launches_that_each_follow_on_something_else_are_not_led_in() -> None:
    core = Core()
    put_back = [0]

    def before() -> None:
        put_back[0] += 1
        core.launch(NARROW, 400e-6)

    clock, run = WallClock(core.timer, LEAD_IN_S), Run(Kernel(core, WIDE, 5e-6), (), before)
    clock.sample(run)
    put_back[0] = 0
    clock.sample(run)
    assert put_back[0] == run.state["launches"] < 250


def test_an_interruption_of_the_first_launch_does_not_make_it_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    kernel = Kernel(core, WIDE, 5e-6)
    clock, run = WallClock(core.timer, LEAD_IN_S), Run(kernel, ())
    launch, launched = kernel.launch, [0]

    def interrupted(*args: Any) -> None:
        launched[0] += 1
        core.now_s += 12e-3 if launched[0] == 2 else 0.0
        launch(*args)

    monkeypatch.setattr(kernel, "launch", interrupted)
    assert clock.sample(run).seconds > 10e-3
    assert [clock.sample(run).seconds for _ in range(3)] == pytest.approx([5e-6] * 3, rel=1e-3)


def test_long_launches_are_not_launched_twice_for_it() -> None:
    core = Core()
    clock, run = WallClock(core.timer, LEAD_IN_S), Run(Kernel(core, WIDE, 12e-3), ())
    clock.sample(run)
    before_s = core.now_s
    clock.sample(run)
    assert core.now_s - before_s < 13e-3


@pytest.mark.parametrize(
    ("name", "arch", "led"),
    [
        ("Intel(R) Xeon(R) Processor", "x86_64 avx512f avx2 fma", True),
        ("INTEL(R) XEON(R) PLATINUM 8592+", "x86_64 amx_tile avx512f avx2", True),
        ("Intel(R) Core(TM) i7", "x86_64 avx2 fma", False),
        ("AMD EPYC", "x86_64 avx512f avx2 fma", False),
        ("aarch64 implementer 0x41 part 0xd40", "aarch64 sve asimd", False),
    ],
)
def test_intels_vectors_of_512_bits_are_led_in_and_what_was_timed_otherwise_has_another_key(
    name: str, arch: str, led: bool
) -> None:
    device = Device("cpu", name, arch, 4)
    assert protocol_for(device) == clock_for(device).protocol
    assert ("led" in protocol_for(device)) is led
