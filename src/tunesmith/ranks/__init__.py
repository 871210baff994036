"""Ranks of a job use the same Config for the same call: through the job's key-value store, the first Choice counts.

torch.distributed.init_process_group(…)
with tunesmith.ranks.agree("tp"):     # or TUNESMITH_RANKS=tp, for all threads of the process
    train()
"""

from tunesmith.ranks.agreement import Agreement, agree, agree_process

__all__ = ["Agreement", "agree", "agree_process"]
