"""Record the whole space of a matrix product for four problems that the model has not seen. Needs a GPU.

    python benchmarks/record_gemm.py FOLDER

Writes one recording for each, with the kernel of `examples/`: 30 samples of each of 480 configurations, interleaved.
`benchmarks/model.py --new` judges the shipped constants by them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tune import subjects

PROBLEMS = ("M=1024,N=4096,K=8192", "M=3072,N=1536,K=2304", "M=32,N=14336,K=4096", "M=512,N=512,K=16384")


def main() -> None:
    from tunesmith import Problem
    from tunesmith.recording import save

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    subject = subjects()["gemm"]
    for problem in PROBLEMS:
        made = subject.inputs(Problem.parse(problem))
        grid = made.pop("grid")
        recording = subject.tuned(name="gemm").tuned.record(grid, **made)
        path = folder / f"gemm_{problem.replace('=', '').replace(',', '_')}_h200.json.gz"
        save(recording, path)
        print(path, len(recording.trials), flush=True)


if __name__ == "__main__":
    main()
