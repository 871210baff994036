"""The benchmarks page and the README's figures are what the results say."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Summary = dict[str, Any]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("page")
    for name in ("page", "_figures", "_wording", "_wording_cpu", "_wording_gpu"):
        sys.modules.pop(name, None)


def test_the_page_is_current(page: ModuleType) -> None:
    text = page.page(sorted(RESULTS.glob("*.json")))
    assert page.PAGE.read_text() == text, "python benchmarks/page.py writes it anew"


def test_an_unknown_result_gets_a_plain_table(page: ModuleType, tmp_path: Path) -> None:
    result = json.loads((RESULTS / "one_config-h200.json").read_text())
    result |= {"benchmark": "weather", "summary": {"sunny": 0.125}, "protocol": {"what": "Looked <up>.\n\nTwice."}}
    (path := tmp_path / "weather-mars.json").write_text(json.dumps(result))

    text = page.page([path])

    assert "## weather-mars" in text
    assert "| `sunny` | 0.125 |" in text
    assert "| 4096x4096x4096 | 251.7 | 185.9 | 1.353 |" in text  # its rows, as far as they are words and numbers
    assert "<p>Looked &lt;up&gt;.</p>\n<p>Twice.</p>" in text


def test_a_result_without_what_is_told_of_it_is_named(page: ModuleType, tmp_path: Path) -> None:
    result = json.loads((RESULTS / "one_config-h200.json").read_text())
    del result["summary"]["one_over_each"]
    (path := tmp_path / "one_config-h200.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match=r"one_config-h200\.json has no 'one_over_each'"):
        page.page([path])


def _contender(result: Summary, name: str) -> str:
    (us,) = (row["us"] for row in result["rows"] if row["contender"] == name)
    return f"{us:.1f}"


def _seconds(result: Summary, job: str) -> str:
    (seconds,) = (row["seconds"] for row in result["rows"] if row["job"] == job)
    return f"{seconds:.1f} s"


#: result → what the README says of it, each made of the result's own figures
FIGURES: dict[str, Callable[[Summary, Summary], list[str]]] = {
    "triton_dispatch-h200": lambda result, s: [
        f"| tunesmith | {_contender(result, 'ours')} | |",
        f"| `triton.autotune` | {_contender(result, 'autotune')} | {s['over_autotune']:.2f} |",
        f"| `triton.jit` | {_contender(result, 'jit')} | {s['over_jit']:.2f} |",
        f"grid, stream and arguments ready | {_contender(result, 'launcher')} | {s['over_launcher']:.2f} |",
        f"`cuLaunchKernel` | {_contender(result, 'driver')} | {s['over_driver']:.2f} |",
    ],
    "one_config-h200": lambda _, s: [
        f"costs {s['one_over_each']:.2f}× in the geometric mean and {s['one_over_each_worst']:.2f}× at worst"
    ],
    "triton_cold_search-h200": lambda result, s: [
        f"candidates=48`) | {_seconds(result, 'ours480')} | {1 + s['regret']:.3f} |",
        f"all 480 tried | {_seconds(result, 'ours480_all')} | {1 + s['regret_all']:.3f} |",
        f"64 of the 480 | {_seconds(result, 'stock')} ",
        f"the same 64 | {_seconds(result, 'ours')} | {1 + s['regret_ours_of_64']:.3f} |",
        f"The next shape took {s['next_shape_s']:.1f} s.",
        f"{100 * s['worst_of_the_winners']:.1f} % slower, within the margin",
    ],
    "tune-h200": lambda _, s: [
        f"is {100 * s['median_regret']:.2f} % slower in the median and {100 * s['worst_regret']:.1f} % at worst",
        f"to {s['longest_tune_s']:.0f} s (`python benchmarks/tune.py`)",
    ],
    "race-recorded": lambda _, s: [
        f"{s['seeds']} seeds",
        f"regret of {100 * s['p95_regret']:.1f} % at the 95th percentile",
        f"{100 * s['gpu_time_fraction']:.0f} % of the GPU time",
        f"and {100 * s['p95_regret_default_pick']:.1f} % where they come again",
    ],
    "bad_candidates-cpu": lambda _, s: [f"of {s['mixes']} random mixes of C kernels"],
    "bad_candidates-h200": lambda _, s: [f"in {s['mixes']} mixes of Triton kernels"],
    "tables-cpu": lambda _, s: [f"all {s['files']} tuned files", f"{s['lookups'] / 1e6:.1f} million look-ups"],
    "dispatch-cpu": lambda _, s: [
        f"| {s['ours_added_us']:.2f} µs | `triton.autotune` adds {s['triton_added_us']:.2f} µs",
        f"({s['added_over_autotune']:.2f}×)",
    ],
    "cpu_matmul-cpu": lambda _, s: [
        f"{s['tuned_over_numpy_1_threads']:.2f}× on one thread, {s['tuned_over_numpy_2_threads']:.2f}× on two",
        f"{s['tuned_over_naive']:.0f}×",
    ],
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_readmes_figures_are_the_results(name: str) -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    result = json.loads((RESULTS / f"{name}.json").read_text())
    assert [said for said in FIGURES[name](result, result["summary"]) if said not in readme] == []


def test_the_pages_figures_are_the_results() -> None:
    one = json.loads((RESULTS / "one_config-h200.json").read_text())["summary"]
    assert f"[{one['one_over_each']:.2f} times](benchmarks.md" in (ROOT / "docs" / "index.md").read_text()


def test_the_picture_of_launches_is_current() -> None:
    launches = json.loads((RESULTS / "triton_dispatch-h200.json").read_text())
    drawn = (ROOT / "docs" / "pictures" / "launches.svg").read_text()
    names = ("driver", "launcher", "ours", "jit", "autotune")
    missing = [name for name in names if f"{_contender(launches, name)} µs" not in drawn]
    assert missing == [], "python docs/scripts/pictures.py draws it anew; then change its text in docs/how-it-works.md"


def test_every_benchmark_that_the_readme_names_is_there() -> None:
    named = re.findall(r"python (benchmarks/\w+\.py)", (ROOT / "README.md").read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []
