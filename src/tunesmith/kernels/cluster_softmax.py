"""`cluster_softmax`: softmax along long rows in CUDA C++, for NVIDIA GPUs from sm_90 on: each element is read once.

Clusters of blocks share a row, which they hold in shared memory and registers. Imports neither torch nor what compiles
CUDA until it is called.
"""

from __future__ import annotations

from itertools import product
from typing import cast

from tunesmith.api import autotune
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.model.work import ITEM_BYTES
from tunesmith.core.problem import Problem
from tunesmith.core.space import Space
from tunesmith.errors import BadInput
from tunesmith.kernels import row_softmax
from tunesmith.kernels.nvidia import has_clusters
from tunesmith.kernels.rows.cluster import KNOBS, ClusterKernel, Layout
from tunesmith.tables import Packaged

#: Pieces of a row that a thread holds: with fewer it waits more than it computes, with more it is long code.
LEAST_SLOTS, USUAL_SLOTS, MOST_SLOTS = 4, 10, 24
#: Shorter rows a program of `row_softmax` reads once, too, and what it pads them by to a power of two costs little.
LEAST_N = 4096


def space(problem: Problem, device: Device) -> Space:
    """Clusters whose blocks fit a multiprocessor; none on a chip without clusters. So few that a search tries all."""
    n, item = problem.dims["n"], ITEM_BYTES[str(problem["x.dtype"])]

    def layout(config: Config) -> Layout:
        return Layout.of(n, item, config, device)

    def fits(config: Config) -> bool:
        slots = layout(config).slots
        wanted = slots <= MOST_SLOTS and (slots >= LEAST_SLOTS or config["THREADS"] == 128)
        return has_clusters(device) and layout(config).resident > 0 and wanted

    def more(config: Config) -> bool:
        return not config["REGISTERS"] or layout(config).resident > layout(config.replace(REGISTERS=0)).resident

    axes = Space(CLUSTER=[1, 2, 4, 8], THREADS=[128, 256, 512, 1024], REGISTERS=[0, 4])
    held = axes.where(fits, "a row's part, in shared memory and registers of a multiprocessor")
    return held.where(more, "registers: where more blocks are resident so")


def default(problem: Problem, device: Device) -> Config:
    """Small blocks, several of a multiprocessor, so that some load while others compute and write; as few of them for a
    row as hold it by about 8 pieces of a thread, unless rows are few. On an H200 that was within 2 % of the fastest.

    Raises:
        BadInput: where there is none: for a chip without clusters, and rows that no cluster holds.
    """
    rows, n, item = problem.dims["rows"], problem.dims["n"], ITEM_BYTES[str(problem["x.dtype"])]
    legal = space(problem, device)
    for threads, cluster in product((128, 256, 512, 1024), (1, 2, 4, 8)):
        config = Config(CLUSTER=cluster, THREADS=threads, REGISTERS=0)
        spread = cluster == 8 or rows * cluster >= 2 * device.units
        if spread and Layout.of(n, item, config, device).slots <= USUAL_SLOTS and config in legal:
            return config
    found = next(iter(legal), None)
    if found is None:
        raise BadInput(
            f"cluster_softmax({problem}): no cluster of {device.name} holds a row; good ones: chips from sm_90 on, and "
            "rows that 8 blocks' shared memory holds. row_softmax takes any"
        )
    return found


def applies(problem: Problem, device: Device) -> bool:
    """Whether it may be the fastest."""
    if cast(int, problem["n"]) < LEAST_N or not has_clusters(device):
        return False
    return next(iter(space(problem, device)), None) is not None


kernel = autotune(
    space=space, knobs=KNOBS, default=default, key=["rows", "n"], make_inputs=row_softmax.make_inputs,
    reference=row_softmax.reference, policy="lookup", clock="graph",
)(ClusterKernel())  # fmt: skip

kernel.use_table(Packaged("tunesmith.kernels", "cluster_softmax", near=("rows",)))
