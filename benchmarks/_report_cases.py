"""What a report has to bear: a recorded space, many problems, a huge space, odd spaces, names that are markup."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tunesmith import Choice, Config, Failed, Key, Measured, Model, Problem, Resources, Sample, Tiles, Trial, Untried
from tunesmith.core.outcome import Outcome, Recording
from tunesmith.recording import convert, load
from tunesmith.report.html import Report, Search, from_recording
from tunesmith.report.html.gather import with_model

ROOT = Path(__file__).parents[1]
SPACE = ROOT / "benchmarks" / "recordings" / "gemm_M1024_N4096_K8192_h200.json.gz"
SWEEP = ROOT / "tests" / "data" / "gemm_h200.json.gz"
#: markup, scripts, quotes, what ends a script element, signs that few fonts have, and a very long word
HOSTILE = (
    "</script><script>window.pwned=1</script>", "<img src=x onerror='window.pwned=1'>", "\"'`${window.pwned=1}&amp;",
    "<!--<script>", "]]>", "a\u2028b\u2029c", "\x00\x07\x1b[31m", "‮right to left", "x" * 400, "{{ 7*7 }}{% raw %}",
    "javascript:window.pwned=1", "__proto__", "constructor", "<b>bold</b> $x^2$",
)  # fmt: skip


def recorded() -> Report:
    """The space of 480 configurations by which acceptance is judged."""
    return Report((with_model(from_recording(load(SPACE), SPACE.name), Model(Tiles())),))


def sweep() -> Report:
    """Eight problems of the same 480."""
    return Report(tuple(with_model(from_recording(one), Model(Tiles())) for one in convert(SWEEP)))


def huge(count: int = 12_000) -> Report:
    """A space of which a part is drawn, raced as searches do: most leave early."""
    rng, trials = random.Random(0), list[Trial]()
    for number in range(count):
        knobs = {f"k{axis}": (number >> axis) % 4 for axis in range(12)} | {"id": number}
        seconds = 1e-4 * (1 + rng.expovariate(1))
        rounds = min(60, 1 + int(60 * rng.random() ** 12))
        samples = [Sample(seconds * rng.lognormvariate(0, 0.01), each, number, 1.5e9) for each in range(rounds)]
        trials.append(Trial(Config(knobs), Measured(tuple(samples)), at="2026-01-01T00:00:00+00:00"))
    return Report((_search("huge", trials),))


def hostile() -> Report:
    """Every text that is not ours is markup."""
    trials = list[Trial]()
    for number, text in enumerate(HOSTILE):
        knobs = {text[:60]: text for text in HOSTILE} | {"n": number, "text": text, "has": number % 2, "get": text}
        knobs |= {text[:50]: number} if number % 2 else {}
        outcome: Outcome = Measured((Sample(1e-5 * (number + 1), 0, number), Sample(1.1e-5 * (number + 1), 1, number)))
        if number % 3 == 2:
            outcome = Failed("launch", text, text)
        if number % 5 == 4:
            outcome = Untried(text)
        trials.append(Trial(Config(knobs), outcome, at=text, soft={text: text}, checked=text))
    first = trials[0].config
    choice = Choice(first, "search", HOSTILE[0], float("nan"), first, float("inf"), (first,), HOSTILE[1],
                    doubt=HOSTILE[2], conditions=HOSTILE[3], checked=HOSTILE[4], note=HOSTILE[5], partial=HOSTILE[0],
                    candidates={"measured": 1, "untried": 3, "cut": 2})  # fmt: skip
    fields = {f"f{number}": text for number, text in enumerate(HOSTILE)} | {"constructor": 1, "__proto__": 2}
    searches = [
        replace(_search(text, trials), choice=choice, exact=Problem({**fields, "M": number}), source=text,
                facts=dict(zip(HOSTILE, HOSTILE, strict=True)), cut={text: 3}, soft={text: text})
        for number, text in enumerate(HOSTILE[:3])
    ]  # fmt: skip
    return Report(tuple(searches), HOSTILE)


def odd() -> Iterator[tuple[str, Report]]:
    """Spaces at the edges of what there is."""
    one = Measured((Sample(1e-6),))
    yield "nothing", Report((_search("nothing", []),))
    failed = [Trial(Config(a=n), Failed("compile", f"no {n}")) for n in range(3)]
    yield "all failed", Report((_search("failed", failed),))
    yield "one", Report((_search("one", [Trial(Config(a=1), one)]),))
    yield "no knobs", Report((_search("bare", [Trial(Config(), one, Resources(spills=0))]),))
    values = [True, False, None, 1, 1.0, "1", (1, 2), (), "", -0.0, 2**70, 1e300, "é"]
    trials = [Trial(Config(a=value, b=[value]), Measured((Sample(10.0 ** (n - 9), n % 3, n),) * 2))
              for n, value in enumerate(values)]  # fmt: skip
    others = [Trial(Config(other=1), one), Trial(Config(a=5), Untried("late"))]
    yield "values", Report((_search("values", [*trials, *others]),))
    many = Report(tuple(_search("many", trials[: n % 4], M=n) for n in range(120)))
    yield "many problems", many


def _search(kernel: str, trials: Sequence[Trial], **fields: int) -> Search:
    key = Key(kernel, "", Problem(fields or {"n": 1}), "cpu:some:x86_64:2", "made up/1")
    recording = Recording(kernel, key.device, key.problem, tuple(trials), key.protocol)
    return from_recording(recording)
