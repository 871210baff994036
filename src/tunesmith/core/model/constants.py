"""The model's constants: times, rates, and shares of what a data sheet says. None belongs to one problem."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """What data sheets do not say. `benchmarks/model.py` fits these to recordings and judges the fit.

    Attributes:
        launch_s: from the launch to the first block's work and from the last block's end to the event.
        block_s: what a block costs beside its steps: set-up, addresses, the last stores.
        load_s: a load that is waited for at once.
        stage_s: a load of a pipeline, from its issue to the barrier behind it; more stages share it.
        reduce_s: a reduction across one more warp of the block.
        bandwidth: the share of the data sheet's memory bandwidth that a kernel gets.
        matrix: the share of the data sheet's peak that the matrix units give.
        narrow: the part of that rate left to tiles too short for the widest matrix instruction.
        port_bytes_s: what one unit takes from or gives to the L2, bytes/s.
        vector: the share of the vector lanes' peak that other arithmetic gets.
        overlap: how well the blocks' work and the traffic of device memory run side by side: the exponent p of
            (aᵖ + bᵖ)^(1/p). 1 is one after the other, infinity a perfect overlap.
        step_overlap: the same for arithmetic, traffic and waiting within a step.
    """

    launch_s: float
    block_s: float
    load_s: float
    stage_s: float
    reduce_s: float
    bandwidth: float
    matrix: float
    narrow: float
    port_bytes_s: float
    vector: float
    overlap: float
    step_overlap: float


#: From an H200's recordings (8 matrix products, 16 softmax and add + RMSNorm problems): `benchmarks/model.py --all`.
FITTED = Constants(
    launch_s=3.61e-6, block_s=0.665e-6, load_s=0.429e-6, stage_s=0.9e-6, reduce_s=7.38e-9, bandwidth=0.85,
    matrix=0.951, narrow=0.272, port_bytes_s=116e9, vector=0.919, overlap=1.81, step_overlap=4.07,
)  # fmt: skip
