"""The smallest tuned kernel: a Python function and a block size. Needs numpy.

python examples/ten_lines.py                                        searches at the first call, then remembers
tunesmith tune examples/ten_lines.py:row_sums --problem n=4096      the same search, with its table
"""

import numpy as np

import tunesmith


def inputs(problem):
    n = problem["n"]
    return {"x": np.ones((n, 256), np.float32), "out": np.empty(n, np.float32), "n": n}


@tunesmith.autotune(space=tunesmith.Space(BLOCK=[16, 64, 256, 1024, 4096]), key=["n"], make_inputs=inputs)
def row_sums(x, out, n, *, BLOCK):
    for start in range(0, n, BLOCK):
        out[start : start + BLOCK] = x[start : start + BLOCK].sum(axis=1)


if __name__ == "__main__":
    row_sums(**inputs(tunesmith.Problem({"n": 4096})))
    row_sums.explain(**inputs(tunesmith.Problem({"n": 4096})))
