"""A fused add + RMSNorm, in place on two arrays, tuned over 400 candidates; and candidates of it that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

import tunesmith
from tunesmith import Config, Failed, Space, TunedKernel
from tunesmith.backends import cc
from tunesmith.errors import NoWorkingConfig, TunesmithWarning

np = pytest.importorskip("numpy")

# residual += x, then x = residual / rms(residual) * w; CHUNK changes the order of additions, so the last bits
SOURCE = """
#include <math.h>
#include <stdint.h>
#ifndef CHUNK
#define CHUNK 8
#endif
#ifndef FAULT
#define FAULT 0
#endif

void add_rms_norm(float *x, float *residual, const float *w, int64_t rows, int64_t n, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
        float parts[CHUNK] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++) {
            residual[r * n + i] += x[r * n + i];
            parts[i % CHUNK] += residual[r * n + i] * residual[r * n + i];
        }
        for (int i = 0; i < CHUNK; i++) sum += parts[i];
        float scale = 1 / sqrtf(sum / n + 1e-6f);
        if (FAULT == 1 && r == 17) scale *= 1.01f;
        if (FAULT == 2 && r == rows - 1) scale = NAN;
        int64_t last = FAULT == 3 ? n / 2 : n;
        for (int64_t i = 0; i < last; i++) x[r * n + i] = residual[r * n + i] * scale * w[i];
    }
}
"""
ROWS, N = 24, 96


def reference(x: Any, residual: Any, w: Any, **_: Any) -> Any:  # x, residual: (rows, n), w: (n,)
    total = residual + x
    return total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-6) * w, total


def arguments(seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    x, residual = (draw.standard_normal((ROWS, N), dtype=np.float32) for _ in range(2))
    w = draw.standard_normal(N, dtype=np.float32)
    return {"x": x, "residual": residual, "w": w, "rows": ROWS, "n": N}


def kernel(space: Space, **options: Any) -> TunedKernel:
    shapes: Any = {"x": ("rows", "n"), "residual": ("rows", "n"), "w": ("n",)}
    fused = cc.kernel(SOURCE, work="rows", shapes=shapes)
    return tunesmith.autotune(space=space, key=["rows", "n"], **options)(fused)


def once(config: Config, given: dict[str, Any]) -> dict[str, Any]:
    """What one launch of a Config makes of its arguments."""
    fused = kernel(Space(CHUNK=[1])).kernel
    problem = tunesmith.Problem({})
    job = fused.compile_job(config, problem, fused.device(list(given.values())))
    assert job is None or job.output.exists()  # the search has compiled it
    made = {name: value.copy() if hasattr(value, "copy") else value for name, value in given.items()}
    fused.load(config, problem, None).launch(*made.values())
    return made


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in ("x", "residual", "w"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["declared", "found", "checked"])
def test_400_candidates_leave_what_one_launch_of_the_winner_leaves_to_the_bit(how: str) -> None:
    space = Space(CHUNK=list(range(1, 26)), threads=list(range(1, 17)))
    assert space.cardinality == 400
    options: dict[str, Any] = {"restore_value": ["x", "residual"]} if how != "found" else {}
    if how == "checked":
        options |= {"reference": reference, "deterministic": True}
    tuned = kernel(space, strategy="exhaustive", **options)

    first = arguments()
    if how == "found":
        with pytest.warns(
            TunesmithWarning, match=r"'x' is written in place.*declare restore_value=\['x'\].*'residual'"
        ):
            tuned(*first.values())
    else:
        tuned(*first.values())
    choice = tuned.choice(*first.values())
    assert choice.candidates["measured"] == 400
    assert bool(choice.checked) == (how == "checked")
    expected = once(choice.config, arguments())
    assert same(first, expected)
    assert not same(first, arguments())
    for _ in range(9):
        tenth = arguments()
        tuned(*tenth.values())
    assert same(tenth, expected)


def test_candidates_wrong_in_one_row_nan_or_half_written_are_wrong_and_never_chosen() -> None:
    space = Space(CHUNK=[4], FAULT=[1, 2, 3, 0])
    tuned = kernel(space, restore_value=["x", "residual"], reference=reference)
    given = arguments()
    summary = tuned.tune(*given.values())

    assert summary.choice is not None
    assert summary.choice.config["FAULT"] == 0
    assert summary.choice.checked
    said = {config["FAULT"]: failed for config, failed in summary.failures}
    assert {failed.stage for failed in said.values()} == {"wrong"}
    assert "row 17" in said[1].reason
    assert "error" in said[1].reason
    assert "float32 allows" in said[1].reason
    assert f"row {ROWS - 1}" in said[2].reason
    assert "nan where" in said[2].reason
    assert f"({ROWS * N // 2:,} of {ROWS * N:,} elements are off" in said[3].reason
    assert same(given, arguments())

    with pytest.raises(NoWorkingConfig, match="3 Configs"):
        kernel(Space(CHUNK=[4], FAULT=[1, 2, 3]), restore_value=["x", "residual"], reference=reference).tune(
            *given.values()
        )
    assert same(given, arguments())


def test_a_shipped_kernel_is_checked_against_its_reference() -> None:
    from tunesmith.kernels.softmax import kernel as softmax

    given = softmax.inputs("rows=4,n=64")
    summary = softmax.fix(threads=1, UNROLL=1, PREFETCH=0, march="generic").tune(**given)
    assert summary.choice is not None
    assert summary.choice.checked
    assert not [f for _, f in summary.failures if isinstance(f, Failed) and f.stage == "wrong"]
