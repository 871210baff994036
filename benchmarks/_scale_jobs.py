"""What `scale.py` runs in processes of their own: a rank of a job, two stores compared, what machine this is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from _same_choices import choices, differing, ratio

import tunesmith
from tunesmith.backends.cpu import gpus
from tunesmith.cli.target import find_target
from tunesmith.events import Event, Summary, watched
from tunesmith.tuned import TunedKernel

#: how long ranks wait for each other: as long as all problems may be searched
RANKS_S = 500.0
GROUP = "scale"


def machine() -> dict[str, Any]:
    """How many GPUs there are, and what their kind is called in a result's name."""
    found = gpus()
    return {"gpus": len(found), "name": found[0].name.split()[-1].lower() if found else "cpu"}


def compared(target: str, ours: str, theirs: str) -> dict[str, Any]:
    """The problems of which two stores chose differently, each with how much slower one of them is, side by side."""
    kernel, one, other = find_target(target), choices(Path(ours)), choices(Path(theirs))
    ratios = {
        problem: ratio(kernel, problem, [one[name, problem]["config"], other[name, problem]["config"]])
        for name, problem in differing(one, other)
    }
    both = one.keys() & other.keys()
    return {
        "problems": len(both), "same": sum(one[name]["config"] == other[name]["config"] for name in both),
        "tied": len(both) - len(ratios), "ratios": ratios,
    }  # fmt: skip


def rank(target: str, problems: Sequence[str], cpu: bool) -> dict[str, Any]:
    """One rank of a job: calls each problem, and says what it used and whether all ranks did the same."""
    import torch
    import torch.distributed as dist

    number, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not cpu:
        torch.cuda.set_device(number)
    where = {} if cpu else {"device_id": torch.device("cuda", number)}
    dist.init_process_group("gloo" if cpu else "nccl", timeout=timedelta(seconds=RANKS_S), **where)
    searched: list[str] = []

    def heard(event: Event) -> None:
        if isinstance(event, Summary) and (event.compile_s or event.measure_s):
            searched.append(event.key.problem.text)

    kernel, start, used = find_target(target), time.perf_counter(), dict[str, Any]()
    with watched(heard), tunesmith.policy("search"), tunesmith.ranks.agree(GROUP):
        for at in range(len(problems)):
            problem = problems[(at + number) % len(problems)]  # each rank in another order
            used[problem] = _called(kernel, problem)
    took_s = time.perf_counter() - start
    everybodys: list[Mapping[str, Any]] = [{} for _ in range(world)]
    dist.all_gather_object(everybodys, used)
    dist.barrier()
    dist.destroy_process_group()
    differ = [problem for problem in problems if any(each[problem] != used[problem] for each in everybodys)]
    return {"rank": number, "world": len(everybodys), "used": used, "searched": searched, "differ": differ,
            "took_s": took_s}  # fmt: skip


def _called(kernel: TunedKernel, problem: str) -> dict[str, Any]:
    """Call a kernel as a program would; the Config that it ran with."""
    made = kernel.inputs(problem)
    kernel(**made)
    return dict(kernel.choice(**made).config)
