"""The lists that shipped tables are tuned for, and their way through `tunesmith tune`: what is found serves calls."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from tests.fake_triton import H200, GpuTensor, fake_gpu
from torch._subclasses.fake_tensor import FakeTensorMode

from tunesmith import TunedKernel, evaluate, inputs, ops, subjects
from tunesmith.backends.call import CallExecutable
from tunesmith.cli import main
from tunesmith.cli.problems import wanted
from tunesmith.cli.target import find_target
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Sample
from tunesmith.core.problem import Problem
from tunesmith.declaration import Declaration
from tunesmith.kernel import Run
from tunesmith.kernels import shipped
from tunesmith.kernels.programs import ProgramsKernel
from tunesmith.kernels.rows.launch import RowKernel
from tunesmith.measure.bench import LocalBench
from tunesmith.options import options
from tunesmith.store import default_store
from tunesmith.subject import Subject
from tunesmith.tables import NativeTable, Near, packaged
from tunesmith.tables.native import Entry
from tunesmith.tables.packaged import file_name

#: what chooses between torch and a kernel, by that kernel
CHOOSERS = {
    "row_softmax": "tunesmith.row_ops:softmax_gpu", "rmsnorm": "tunesmith.row_ops:rms_norm_gpu",
    "layernorm": "tunesmith.row_ops:layer_norm_gpu", "add_rmsnorm": "tunesmith.row_ops:add_rms_norm_gpu",
    "silu_and_mul": "tunesmith.row_ops:silu_and_mul_gpu", "decode_attention": "tunesmith.ops_attention:gpu",
    "fused_moe": "tunesmith.ops_moe:gpu",
}  # fmt: skip
KERNELS = (*CHOOSERS, "rmsnorm_backward")
#: what an H200 has, and what a search has at once: inputs, in float64 too, what a reference makes of them, others
MEMORY_BYTES, COPIES = 141e9, 20


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("_model_shapes")


def listed(shapes: Any, kernel: TunedKernel, name: str, folder: Path, count: int | None = None) -> list[Problem]:
    file = folder / "listed.csv"
    file.write_text(shapes.csv(shapes.problems(name, count)))
    return list(wanted(kernel, [], [file]).problems)


def made_nowhere(declared: Declaration, problem: Problem) -> dict[str, Any]:
    """A kernel's own inputs for a Problem as they would be on a GPU, in no memory."""
    make: Callable[..., Mapping[str, Any]] | None = declared.make_inputs
    assert make is not None
    with FakeTensorMode():
        made = make(problem, device="cpu")
        assert all(x.is_contiguous() for x in made.values() if isinstance(x, torch.Tensor))
    return {name: GpuTensor(*x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x for name, x in made.items()}


# --- the lists -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_each_problem_of_a_list_can_be_made_and_is_what_a_call_has(shapes: Any, name: str, tmp_path: Path) -> None:
    kernel = shipped()[name]
    problems = listed(shapes, kernel, name, tmp_path)
    assert len(problems) == len(shapes.problems(name)) >= 24
    for problem in problems:
        made = made_nowhere(kernel.declared, problem)
        n_bytes = sum(x.shape.numel() * x.element_size() for x in made.values() if isinstance(x, GpuTensor))
        assert COPIES * n_bytes < MEMORY_BYTES, problem
        found = kernel.dispatcher.problem_of(**made).problem
        assert {field: found[field] for field in problem} == dict(problem)
    if name in CHOOSERS:
        assert listed(shapes, find_target(CHOOSERS[name]), name, tmp_path) == problems


def test_norms_have_a_row_near_every_number_of_rows(shapes: Any, tmp_path: Path) -> None:
    for name in ("rmsnorm", "add_rmsnorm", "rmsnorm_backward", "layernorm"):
        kernel = shipped()[name]
        problems = listed(shapes, kernel, name, tmp_path)
        table = Near(NativeTable(name, H200.identity, {p: Entry(Config(BLOCK=1)) for p in problems}), ["rows"])
        for n in {problem["n"] for problem in problems}:
            for rows in {size for e in range(17) for size in (2**e - 1, 2**e, 2**e + 1) if 1 <= size <= 65536}:
                asked = kernel.problem(f"rows={rows},n={n},dtype=bfloat16")
                assert table.lookup(Key(name, "", asked, H200.identity, ""), asked, H200) is not None, asked


def test_a_list_begins_with_whole_lengths_and_every_model(shapes: Any) -> None:
    first = shapes.problems("rmsnorm", 27)
    assert [{fields["n"] for fields in first[i : i + 9]} for i in (0, 9, 18)] == [{4096}, {8192}, {5120}]
    heads = {(f["HQ"], f["HKV"], f["D"], f["B"]) for f in shapes.problems("decode_attention", 24)}
    assert len(heads) == 6 * 4


# --- tuned, as far as that goes without a GPU --------------------------------------------------------------------


class Scripted:
    """Times nothing: torch's calls take 3 ms, of ours the more warps the less. Launches nothing."""

    protocol = "scripted/1"

    def sample(self, run: Run) -> Sample:
        config = run.config
        return Sample(3e-3 if config.get("by") == "torch" else 2e-3 / float(str(config["num_warps"])))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Config]]:
    """What a GPU was asked to run, on which nothing runs; tables ship in a folder of the test's."""

    def made(kernel: Any, declared: Any, dispatcher: Any, problem: str | Problem) -> dict[str, Any]:
        return made_nowhere(declared, inputs.problem_of(kernel, declared, problem))

    launched: list[Config] = []

    def noting(kernel: Any, config: Config, problem: Problem, built: Any) -> CallExecutable:
        return CallExecutable(config, lambda *args: launched.append(config))

    kernels = [*(shipped()[name] for name in KERNELS), *map(find_target, CHOOSERS.values())]
    for kernel in kernels:
        for table in kernel.tables:
            monkeypatch.setattr(table, "_found", {})
    for kind in (RowKernel, ProgramsKernel):  # that they compile is for their own tests
        monkeypatch.setattr(kind, "compile_job", lambda self, config, problem, device: None)
        monkeypatch.setattr(kind, "load", noting)
    monkeypatch.setattr(inputs, "make_inputs", made)
    monkeypatch.setattr(subjects, "clock_for", lambda device, clock: Scripted())
    monkeypatch.setattr(evaluate, "local_bench", unchecked)
    monkeypatch.setattr(packaged, "FOLDER", str(tmp_path / "shipped"))
    with fake_gpu(monkeypatch):
        yield launched
    for kernel in kernels:
        kernel.dispatcher.clear()


def unchecked(subject: Subject) -> LocalBench:
    return LocalBench(subject.kernel, subject.exact, subject.arguments)


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As on another machine of the same kind: with nothing in the store."""
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(folder))
    options.cache_clear()


def more(problem: Problem) -> Problem:
    """The same with twice as many of what a table's rows are near in."""
    size = next(name for name in ("rows", "B", "M") if name in problem)
    return Problem({**problem, size: 2 * problem.dims[size]})


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_tuned_serves_calls_from_a_table_that_guard_passes(
    gpu: list[Config], shapes: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "first.csv"
    file.write_text(shapes.csv(shapes.problems(name, 1)))
    for target in [name, *([CHOOSERS[name]] if name in CHOOSERS else [])]:
        kernel = find_target(target)
        [problem] = wanted(kernel, [], [file]).problems
        table = tmp_path / "shipped" / file_name(kernel.kernel.name, H200.name)
        asked = ["--problems", str(file), "--no-isolate", "--budget", "60", "--table", str(table), "--json"]
        assert main(["tune", target, *asked]) == 0
        assert list(json.loads(capsys.readouterr().out)["table"]["rows"].values()) == ["new"]
        assert main(["guard", "--static", target, str(table)]) == 0
        assert "checked against their kernel: 1 row" in capsys.readouterr().out
        elsewhere(monkeypatch, tmp_path / f"empty-{kernel.kernel.name}")
        kernel.dispatcher.clear()
        [row] = NativeTable.read(table).rows.values()
        inner = Config({knob: value for knob, value in row.config.items() if knob != "by"})
        assert row.config.get("by", name) == name  # torch's call takes longer
        for one, distance in ((problem, ""), (more(problem), "the nearest row")):
            args = kernel.inputs(one).values()
            choice = kernel.choice(*args)
            assert choice.config == row.config
            assert choice.source == f"table {table}"
            assert choice.distance.startswith(distance)
            kernel(*args)
            assert gpu[-1] == inner
        assert default_store().keys() == []


def test_tuned_layers_of_experts_are_exported_for_serving_engines(
    gpu: list[Config], shapes: Any, tmp_path: Path, capsys: Any
) -> None:
    file, table, out = tmp_path / "moe.csv", tmp_path / "moe.json", tmp_path / "out"
    file.write_text(shapes.csv(shapes.problems("fused_moe", 8)))
    assert main(["tune", "fused_moe", "--problems", str(file), "--no-isolate", "--table", str(table)]) == 0
    for layer in [*shapes.LAYERS.values(), *shapes.MORE_LAYERS.values()]:
        for engine in ("sglang", "vllm"):
            of = ["--to", f"{engine}-moe", "--layer", f"experts={layer.E},intermediate={layer.N}"]
            on = ["--device", "NVIDIA H200", "--triton", "3.6.0", "-o", str(out)]
            assert main(["table", "export", str(table), *of, *on]) == 0
    capsys.readouterr()
    assert main(["table", "check", str(out), "--device", "NVIDIA H200", "--upto", "64"]) == 0
    assert "8 tables, 16 rows: 0 errors" in capsys.readouterr().out


# --- on the CPU, in earnest -----------------------------------------------------------------------------------------


def test_an_operation_is_served_from_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    chosen = ops.rows.chooser("softmax", "cpu")
    x = torch.randn(16, 64)
    [table] = chosen.tables
    monkeypatch.setattr(table, "_found", {})
    monkeypatch.setattr(packaged, "FOLDER", str(tmp_path / "shipped"))
    path = tmp_path / "shipped" / file_name("softmax_cpu", chosen.kernel.device([x]).name)
    asked = ["--problem", "rows=16,n=64,dtype=float32", "--problem", "rows=16,n=64,dtype=float16"]
    assert (
        main(["tune", "tunesmith.row_ops:softmax_cpu", *asked, "--no-isolate", "--budget", "2", "--table", str(path)])
        == 0
    )
    assert "is all there is to choose from, and gets no row" in capsys.readouterr().err
    elsewhere(monkeypatch, tmp_path / "empty")
    chosen.dispatcher.clear()
    for rows in (16, 24):
        torch.testing.assert_close(ops.softmax(x[:1].expand(rows, 64)), torch.softmax(x[:1], -1).expand(rows, 64))
        assert chosen.choice(x[:1].expand(rows, 64).contiguous(), rows, 64).source == f"table {path}"
    chosen.dispatcher.clear()
