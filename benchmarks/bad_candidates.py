"""What bad candidates cost a search that is isolated: nothing but themselves? Really, with kernels that crash and hang.

    python benchmarks/bad_candidates.py --device cpu     # 200 random mixes, some minutes
    python benchmarks/bad_candidates.py --device cuda    # on an NVIDIA GPU: torch, Triton, NVRTC; under 5 minutes

Each mix is one search over a few honest candidates and some bad ones, which do less work and would win if they were
not found out. After it are asked: was every honest candidate measured, was every bad one recorded with a stage at which
that way to be bad can be found, does an honest one win, are the caller's arrays untouched, do operations in the
caller's process on the same device come out right, is any process left.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _results import FOLDER, version, write

from tunesmith.core.outcome import Failed, Measured
from tunesmith.options import options
from tunesmith.processes import marked

#: of the mixes on a GPU, which start a CUDA context for each candidate that ruins one: no new one after so long
CUDA_S = 240.0


@dataclass
class Tally:
    """What became of all mixes so far."""

    mixes: int = 0
    honest: int = 0
    honest_lost: int = 0
    bad: int = 0
    bad_unseen: int = 0
    wrong_won: int = 0
    arrays_changed: int = 0
    contexts_poisoned: int = 0
    processes_left: int = 0
    stages: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    surprises: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """What is compared from run to run."""
        names = (
            "mixes", "honest", "honest_lost", "bad", "bad_unseen", "wrong_won", "arrays_changed", "contexts_poisoned",
            "processes_left",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Case:
    """A kernel and what is known of its candidates."""

    name: str
    kernel: Any
    problem: Callable[[int], str]
    bad: Mapping[str, tuple[str, ...]]
    how_of: Callable[[Any], str]
    still_works: Callable[[], bool]
    first: int = 0  # mixes after which each way to be bad has been seen


def run_mix(case: Case, mix: int, tally: Tally) -> None:
    """One search, and what it did to whom."""
    arguments = case.kernel.inputs(case.problem(mix))
    before = {name: _copy(value) for name, value in arguments.items() if hasattr(value, "dtype")}
    summary = case.kernel.tune(**arguments)
    tally.mixes += 1
    for trial in summary.trials:
        how, outcome = case.how_of(trial.config), trial.outcome
        is_bad = how in case.bad
        where = "measured" if isinstance(outcome, Measured) else getattr(outcome, "stage", "untried")
        tally.stages.setdefault(f"{case.name}/{how}", Counter())[where] += 1
        if isinstance(outcome, Failed):
            tally.reasons.setdefault(f"{case.name}/{how}", f"{outcome.stage}: {outcome.reason}")
        if is_bad:
            tally.bad += 1
            seen = where in case.bad[how]
            tally.bad_unseen += not seen
        else:
            tally.honest += 1
            seen = where == "measured"
            tally.honest_lost += not seen
        if not seen:
            said = getattr(outcome, "reason", "")
            tally.surprises.append(f"mix {mix} of {case.name}: {trial.config!r} is {where} {said}")
    tally.wrong_won += case.how_of(summary.choice.config) in case.bad
    tally.arrays_changed += not all(_equal(arguments[name], kept) for name, kept in before.items())
    tally.contexts_poisoned += not case.still_works()
    tally.processes_left += len(marked(f"{os.getpid()}."))


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _equal(array: Any, kept: Any) -> bool:
    return bool((array == kept).all())


# --- devices -----------------------------------------------------------------------------------------


def cpu_cases() -> list[Case]:
    """The C kernel."""
    import _bad_c as bad

    def still_works() -> bool:
        import numpy as np

        return float(np.ones(1 << 16, np.float32).sum()) == 1 << 16

    return [Case("cc", bad.twice, lambda mix: f"rows=63,n=251,mix={mix}", bad.BAD, bad.how_of, still_works)]


def cuda_cases() -> list[Case]:
    """The Triton kernel, one in Python, and the one in CUDA C++."""
    import _bad_cuda as bad_cuda
    import _bad_triton as bad
    import torch

    from tunesmith.backends.cuda.compile import nvrtc_version

    nvrtc_version()  # what is missing is said before anything is measured

    def still_works() -> bool:
        try:
            a = torch.full((512, 512), 2.0, device="cuda")
            torch.cuda.synchronize()
            return bool(((a @ a) == 2048.0).all().item())
        except RuntimeError as error:
            print(f"  the caller's context: {error}", file=sys.stderr)
            return False

    def problem(mix: int) -> str:
        return f"rows={bad.ROWS},n={bad.N},mix={mix}"

    return [
        Case("triton", bad.twice.tuned, problem, bad.BAD, bad.how_of, still_works, len(bad.BAD)),
        Case(
            "python",
            bad.twice_in_python,
            problem,
            bad.BAD_IN_PYTHON,
            bad.how_of,
            still_works,
            len(bad.BAD_IN_PYTHON),
        ),
        Case("cuda", bad_cuda.twice, problem, bad_cuda.BAD, bad_cuda.how_of, still_works, bad_cuda.FIRST),
    ]


def schedule(device: str, cases: list[Case], mixes: int) -> list[tuple[Case, int]]:
    """Which mixes of which case."""
    if device == "cpu":
        return [(cases[0], mix) for mix in range(mixes)]
    triton, _, cuda = cases
    return [
        *[(case, mix) for case in cases for mix in range(case.first)],
        *[(case, case.first + mix) for mix in range(mixes) for case in (triton, cuda)],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--mixes", type=int, help="random mixes: 200 on the CPU; on a GPU 8 a language, as far as time allows"
    )
    parser.add_argument("--deadline", type=float, help="seconds a candidate may take: 1 on the CPU, 5 on a GPU")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    asked = parser.parse_args()
    deadline = asked.deadline or (1.0 if asked.device == "cpu" else 5.0)
    mixes = asked.mixes if asked.mixes is not None else (200 if asked.device == "cpu" else 8)
    cache = tempfile.TemporaryDirectory(prefix="tunesmith-bad-")
    os.environ |= {
        "TUNESMITH_CACHE_DIR": cache.name, "TUNESMITH_RUN_TIMEOUT_S": f"{deadline:g}", "TUNESMITH_MEMORY_GB":
        "0.5" if asked.device == "cpu" else "24", "TRITON_DEBUG": "1", "TRITON_CACHE_DIR": f"{cache.name}/triton",
    }  # fmt: skip
    options.cache_clear()
    cases = cpu_cases() if asked.device == "cpu" else cuda_cases()
    tally, start = Tally(), time.monotonic()
    for i, (case, mix) in enumerate(schedule(asked.device, cases, mixes)):
        if asked.device == "cuda" and time.monotonic() - start > CUDA_S:
            print(f"{i} mixes in {CUDA_S:g} s: the rest is left out", file=sys.stderr)
            break
        run_mix(case, mix, tally)
        if i % 20 == 19 or asked.device == "cuda":
            print(f"  {i + 1} mixes, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    seconds = time.monotonic() - start
    _print(tally)
    _write(asked, cases, tally, deadline, seconds, mixes)
    cache.cleanup()
    failed = tally.honest_lost + tally.bad_unseen + tally.wrong_won + tally.arrays_changed
    return int(bool(failed + tally.contexts_poisoned + tally.processes_left))


def _print(tally: Tally) -> None:
    for name, stages in sorted(tally.stages.items()):
        shown = ", ".join(f"{count} {stage}" for stage, count in stages.most_common())
        print(f"{name:24} {shown:24} {tally.reasons.get(name, '')[:90]}")
    for line in tally.surprises:
        print(f"! {line}")
    print("  ".join(f"{name}={value}" for name, value in tally.summary().items()))


def _write(
    asked: argparse.Namespace, cases: list[Case], tally: Tally, deadline: float, seconds: float, mixes: int
) -> None:
    is_gpu, command = asked.device == "cuda", f"python benchmarks/bad_candidates.py --device {asked.device}"
    packages = ("torch", "triton", "cuda-bindings") if is_gpu else ("numpy",)
    device = "cpu"
    if is_gpu:
        import torch

        device = torch.cuda.get_device_name().lower().replace("nvidia", "").strip().replace(" ", "_").replace("-", "_")
    path = write(
        "bad_candidates", device,
        protocol={
            "what": __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), "deadline_s": deadline,
            "seconds": round(seconds, 1), "mixes_asked": mixes,
        },
        command=command,
        rows=[
            {"candidate": name, "outcomes": dict(stages), "reason": tally.reasons.get(name, "")}
            for name, stages in sorted(tally.stages.items())
        ],
        summary=tally.summary(), versions={name: version(name) for name in packages}, gpu=is_gpu, folder=asked.folder,
    )  # fmt: skip
    print(path)


if __name__ == "__main__":
    sys.exit(main())
