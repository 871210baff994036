"""What a warm call costs the host: through tunesmith, and through `triton.autotune`. Needs no GPU.

    python benchmarks/dispatch.py

Both tune the same stand-in, a function of twelve runtime arguments (three of them tensors) and five knobs that
does nothing. Reported is the time each adds over calling the stand-in directly with its knobs. Calls rotate
through four keys with tensors that no contender has seen; they are made, and collected, outside the timed stretch.
Each round times all contenders in random order over the same calls.

`ours` is a kernel whose tensors had one dtype and one device so far; `ours_mixed` one that was called before with
other dtypes, classes and None, which the check that they are told apart has done. (Devices are told apart by the
dispatch alone: a machine without a GPU has but one to run on.) Both keep the stride classes of one tensor in the
key; `ours_no_strides` keeps none, as Triton's tuner.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from _results import version, write
from triton.runtime.autotuner import Autotuner

from tunesmith import Config, Device, Problem, autotune
from tunesmith.core.stats import median, median_interval, quantile
from tunesmith.dispatch import Call, Dispatcher, KeySpec

KEY = ("M", "N", "K")
#: the sizes of four problems, as the layers of a model have them
SIZES = ((1, 4096, 4096), (16, 4096, 11008), (1, 11008, 4096), (64, 4096, 4096))
KNOBS = {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3, "num_ctas": 1}
ROUNDS = 201
#: A round: a tenth of a millisecond and more for each contender, in which reading the clock is lost; and few enough
#: that the tensors still lie in the core's cache, as those of a running program do, whoever comes first.
CALLS = 200

Contender = Callable[..., Any]


def stand_in(
    a, b, c, M, N, K, stride_a, stride_b, stride_c, alpha, beta, accumulate,
    *, BLOCK_M, BLOCK_N, num_warps, num_stages, num_ctas,
):  # fmt: skip
    """The parameters of a matrix product. Launches nothing."""


RUNTIME = inspect.Signature(list(inspect.signature(stand_in).parameters.values())[:12])


class Jitted:
    """What Triton's autotuner takes for a jitted kernel."""

    fn = staticmethod(stand_in)
    run = staticmethod(stand_in)


def direct(a, b, c, M, N, K, stride_a, stride_b, stride_c, alpha, beta, accumulate):
    """A call as one writes it by hand: cheaper than with `**knobs`."""
    return stand_in(
        a, b, c, M, N, K, stride_a, stride_b, stride_c, alpha, beta, accumulate,
        BLOCK_M=64, BLOCK_N=128, num_warps=4, num_stages=3, num_ctas=1,
    )  # fmt: skip


def tuned_by_triton() -> Contender:
    """Triton's autotuner over the stand-in, with a bench function that needs no GPU."""

    def bench(launch: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
        launch()
        return [1.0 for _ in quantiles]

    blocks = {"BLOCK_M": KNOBS["BLOCK_M"], "BLOCK_N": KNOBS["BLOCK_N"]}
    configs = [triton.Config(blocks, num_warps=KNOBS["num_warps"], num_stages=stages) for stages in (3, 4)]
    arg_names = list(inspect.signature(stand_in).parameters)
    return Autotuner(Jitted(), arg_names, configs, list(KEY), None, None, do_bench=bench).run


def tuned_by_us(resolved: list[Problem], strides: tuple[str, ...] = ("a",)) -> Contender:
    """`@autotune` over the stand-in; `resolved` is told of each Problem that was not known."""

    def default(problem: Problem, device: Device) -> Config:
        resolved.append(problem)
        return Config(KNOBS)

    configs = [Config(KNOBS), Config(KNOBS).replace(num_stages=4)]
    return autotune(configs=configs, key=KEY, strides=strides, default=default, policy="default")(stand_in)


def dispatched_by_us(resolved: list[Call]) -> Contender:
    """The dispatch alone under the same key; `resolved` is told of each call that was not warm."""

    def resolve(call: Call) -> tuple[Contender, bool]:
        resolved.append(call)
        return direct, True

    return Dispatcher(RUNTIME, KeySpec(KEY, strides=("a",)), resolve).call


def fresh_calls(count: int) -> list[tuple[Any, ...]]:
    """The arguments of `count` calls: four keys in turn, tensors of their own (small: nothing reads them)."""
    calls: list[tuple[Any, ...]] = []
    for i in range(count):
        M, N, K = SIZES[i % len(SIZES)]
        a, b, c = torch.empty(2, 3), torch.empty(3, 4), torch.empty(2, 4)
        calls.append((a, b, c, M, N, K, K, N, N, 1.0, 0.0, False))
    return calls


def seconds_a_call(contender: Contender, calls: Sequence[tuple[Any, ...]]) -> float:
    start = time.perf_counter()
    for args in calls:
        contender(*args)
    return (time.perf_counter() - start) / len(calls)


def check_keys(contender: Contender, resolved: list[Any], *, device: bool) -> None:
    """Calls that differ in what must tell them apart are told apart; calls that were seen are warm.

    Args:
        device: whether the contender runs on more than one device.

    Raises:
        AssertionError: naming the difference that was not seen, or was seen where there is none.
    """
    a, b, c = torch.empty(4, 4), torch.empty(4, 4), torch.empty(4, 4)
    M, N, K = SIZES[0]
    rest = (K, N, N, 1.0, 0.0, False)
    differing = {
        "nothing yet": (a, b, c, M, N, K, *rest),
        "dtype": (a.half(), b, c, M, N, K, *rest),
        "dtype of another": (a, b.half(), c, M, N, K, *rest),
        "None": (a, None, c, M, N, K, *rest),
        "None elsewhere": (a, b, None, M, N, K, *rest),
        "stride class": (a.t(), b, c, M, N, K, *rest),
        "a size": (a, b, c, M + 1, N, K, *rest),
        "the class of a size": (a, b, c, True, N, K, *rest),
    }
    if device:
        differing["device"] = (a, b, c.to("meta"), M, N, K, *rest)
    for what, args in differing.items():
        before = len(resolved)
        contender(*args)
        assert len(resolved) == before + 1, f"{what}: taken for a call that was seen"
    for args in differing.values():  # what was warm is dropped when something new is seen: once more
        contender(*args)
    before = len(resolved)
    for what, args in differing.items():
        contender(*args)
        assert len(resolved) == before, f"{what}: seen twice and not warm"


def measure(contenders: dict[str, Contender], rounds: int, calls_a_round: int, seed: int) -> list[dict[str, Any]]:
    """One row a round: seconds a call of each contender, in the order they ran."""
    rng = random.Random(seed)
    for contender in contenders.values():
        seconds_a_call(contender, fresh_calls(calls_a_round))
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        gc.collect()  # before the tensors are made: it goes through all memory
        gc.disable()
        try:
            calls = fresh_calls(calls_a_round)
            order = rng.sample(list(contenders), len(contenders))
            seconds = {name: seconds_a_call(contenders[name], calls) for name in order}
        finally:
            gc.enable()
        rows.append({"round": number, "order": order, **{f"{name}_s": seconds[name] for name in sorted(seconds)}})
    return rows


def summarise(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """What each contender adds to a direct call, in microseconds, and ours over Triton's."""
    added = {name: [row[f"{name}_s"] - row["direct_s"] for row in rows] for name in names}
    summary: dict[str, float] = {}
    for name in names:
        if name != "triton":
            ratios = [ours / theirs for ours, theirs in zip(added[name], added["triton"], strict=True)]
            key = f"added_over_autotune{name.removeprefix('ours')}"
            low, high = median_interval(ratios)
            summary |= {key: round(median(ratios), 4), f"{key}_low": round(low, 4), f"{key}_high": round(high, 4)}
    summary["direct_us"] = round(1e6 * median([row["direct_s"] for row in rows]), 4)
    for name, values in added.items():
        for what, at in (("added_us", 0.5), ("added_p20_us", 0.2), ("added_p80_us", 0.8)):
            summary[f"{name}_{what}"] = round(1e6 * quantile(values, at), 4)
    return summary


def show(summary: dict[str, float], names: Sequence[str]) -> None:
    print(f"{'':16} {'added µs':>9} {'p20':>7} {'p80':>7} {'of Triton':>10} {'95 %':>15}")
    for name in names:
        figures = [summary[f"{name}_{what}"] for what in ("added_us", "added_p20_us", "added_p80_us")]
        line = f"{name:16} {figures[0]:9.2f} {figures[1]:7.2f} {figures[2]:7.2f}"
        if name != "triton":
            key = f"added_over_autotune{name.removeprefix('ours')}"
            line += f" {summary[key]:10.3f} {summary[f'{key}_low']:7.3f}–{summary[f'{key}_high']:.3f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=CALLS, help="a round")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()

    calls: list[Call] = []
    check_keys(dispatched_by_us(calls), calls, device=True)
    resolved: dict[str, list[Problem]] = {"ours": [], "ours_mixed": [], "ours_no_strides": []}
    contenders: dict[str, Contender] = {
        "direct": direct,
        "ours": tuned_by_us(resolved["ours"]),
        "ours_mixed": tuned_by_us(resolved["ours_mixed"]),
        "ours_no_strides": tuned_by_us(resolved["ours_no_strides"], strides=()),
        "triton": tuned_by_triton(),
    }
    check_keys(contenders["ours_mixed"], resolved["ours_mixed"], device=False)
    rows = measure(contenders, asked.rounds, asked.calls, asked.seed)
    for name in ("ours", "ours_no_strides"):
        assert len(resolved[name]) == len(SIZES), f"{name}: {len(resolved[name])} Problems, not {len(SIZES)}"

    names = [name for name in contenders if name != "direct"]
    summary = summarise(rows, names)
    show(summary, names)
    path = write(
        "dispatch",
        "cpu",
        protocol=(
            f"{asked.rounds} rounds; in each, every contender, in random order, makes the same {asked.calls} calls: "
            f"{len(SIZES)} keys in turn, new tensors; time.perf_counter around all calls, collector off; added: a "
            "round's time a call less the direct call's of that round; median, 20th and 80th percentile over rounds; "
            "added_over_autotune: median of the rounds' ratios, low and high its 95 % interval"
        ),
        command="python benchmarks/dispatch.py",
        rows=rows,
        summary=summary,
        versions={"torch": torch.__version__, "triton": version("triton")},
    )
    print(path)


if __name__ == "__main__":
    main()
