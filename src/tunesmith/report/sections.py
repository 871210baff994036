"""The Evidence beside a Choice in words: sections of named facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice, Failed, Trial
from tunesmith.report.evidence import Evidence, RunnerUp
from tunesmith.report.racing import Heat, median_s
from tunesmith.report.table import failure_reasons
from tunesmith.report.units import count, duration, first_line, ratio

Facts = list[tuple[str, str]]


def sections(key: Key, choice: Choice, trials: Sequence[Trial], evidence: Evidence) -> Iterator[tuple[str, Facts]]:
    """Each heading with its facts: what is stored nearest, what is stale, the races, the ceiling, the key."""
    if evidence.nearest is not None:
        differing = key.differing(evidence.nearest)
        yield (
            "not stored for this call; the nearest key that is differs in",
            [(name, f"{mine}, stored: {known}") for name, mine, known in differing],
        )
    stale = [("soft", f"{reason}; lookup uses it, search races it again") for reason in evidence.soft]
    for differing in evidence.hard:
        fields = ", ".join(f"{name}: {mine}, stored: {known}" for name, mine, known in differing)
        stale.append(("hard", f"{fields}; that Choice is never used here"))
    if stale:
        yield "stale", stale
    named = namer([trial.config for trial in trials])
    for number, race in enumerate(evidence.races, 1):
        which = f" {number} of {len(evidence.races)}" if len(evidence.races) > 1 else ""
        heading = f"the race{which}: {count(race.timed, 'Config')} timed, in up to {count(race.rounds, 'round')}"
        yield heading, list(race_lines(race, choice, named))
    failed = failure_reasons((t.config, t.outcome) for t in trials if isinstance(t.outcome, Failed))
    if failed:
        yield "what failed", [(f"{r.count:,} ×", f"{r.stage}: {first_line(r.reason)}") for r in failed]
    yield "the device's ceiling", ceiling_lines(evidence, choice)
    yield "the key", [
        ("source", key.fingerprint or "not looked at under this track"), ("timed by", key.protocol),
        *[(f"${name}", value) for name, value in key.environment], *sorted(key.soft.items()),
    ]  # fmt: skip


def namer(configs: Sequence[Config]) -> Callable[[Config], str]:
    """Spells a Config by the knobs in which some differ: `BLOCK_M=128 num_warps=4`."""
    known = dict.fromkeys(name for config in configs for name in config)
    varying = [name for name in known if len({repr(config.get(name)) for config in configs}) > 1]

    def named(config: Config) -> str:
        return " ".join(f"{name}={config[name]}" for name in varying if name in config) or repr(config)

    return named


def runner_up_line(second: RunnerUp) -> str:
    """`1.083× its time (1.071× to 1.096× at 0.95 confidence), slower beyond doubt: Config(…)`."""
    said = f"{ratio(second.ratio)} its time"
    verdict = "a tie" if second.tie else ""
    if second.low is not None and second.high is not None:
        said += f" ({ratio(second.low)} to {ratio(second.high)} at {second.confidence:.3g} confidence)"
        verdict = verdict or ("slower beyond doubt" if second.low > 1 else "which is faster is not known")
    return f"{', '.join(filter(None, [said, verdict]))}: {second.config!r}"


def race_lines(race: Heat, choice: Choice, named: Callable[[Config], str]) -> Iterator[tuple[str, str]]:
    """Who left a race when, each with the best of them, and who stayed; times as ratios to the fastest who did."""
    first, *others = race.stayed
    best_s = median_s(first)

    def best(trials: Sequence[Trial]) -> str:
        whose = "it took" if len(trials) == 1 else "the best of them took"
        return f"{whose} {ratio(median_s(trials[0]) / best_s)}: {named(trials[0].config)}"

    if race.hopeless:
        yield "first sample", f"{len(race.hopeless):,} far behind; {best(race.hopeless)}"
    for leaving in race.left:
        yield f"after {count(leaving.rounds, 'round')}", f"{len(leaving.trials):,} left; {best(leaving.trials)}"
    used = ", which is used" if first.config == choice.config else ""
    yield "to the end", f"{len(race.stayed):,}; the fastest{used}: {named(first.config)}"
    if others:
        yield "beside it", best(others)


def ceiling_lines(evidence: Evidence, choice: Choice) -> Facts:
    """How much of what the chip allows is reached, and which of its limits that is."""
    most = evidence.ceiling
    if most is None:
        return [("not known", evidence.no_ceiling)]
    lanes = f", and {most.operations / 1e9:,.4g} G operations of the lanes" if most.operations else ""
    lines = [
        ("at least", f"{duration(most.seconds)}, by {most.bound}"),
        ("compute", f"{duration(most.compute_s)} for {most.flops / 1e9:,.4g} GFLOP of whole tiles at the peak of "
                    f"{most.peak / 1e12:,.4g} TFLOP/s in {most.dtype}{lanes}"),
        ("memory", f"{duration(most.memory_s)} for {most.bytes / 1e6:,.4g} MB, each input and output moved once, at "
                   f"{most.bandwidth / 1e12:,.3g} TB/s"),
    ]  # fmt: skip
    if choice.median_s is not None:
        rates = f"{most.flops / choice.median_s / 1e12:,.4g} TFLOP/s, {most.bytes / choice.median_s / 1e12:,.3g} TB/s"
        lines.insert(0, ("reached", f"{most.reached(choice.median_s):.1%} of it: {rates}"))
    return lines
