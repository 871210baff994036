"""The softmax whose rows clusters of blocks share, without a GPU: compiled in earnest, launched on a driver that reads
what it is given, and offered where it can be used."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "cuda.bindings.nvrtc", reason="needs cuda-bindings: pip install 'tunesmith[cuda]'", exc_type=ImportError
)
pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("triton")

import ctypes

import numpy as np
import torch
from tests.fake_cuda import H200, FakeDriver, GpuArray, fake_gpu

from tunesmith import Config, Failed, Problem, ops
from tunesmith.backends import cpu
from tunesmith.chooser import candidates
from tunesmith.cli import main
from tunesmith.core.device import Device, known_device
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.kernels import cluster_softmax, nvidia
from tunesmith.kernels.rows.cluster import Layout
from tunesmith.store import default_store
from tunesmith.tables import NativeTable
from tunesmith.tables.native import Entry
from tunesmith.tracks import known_choice
from tunesmith.workers import compile_all

KERNEL = cluster_softmax.kernel
NO_CLUSTERS = (
    known_device("NVIDIA A100-SXM4-80GB"), Device("cuda", "some GPU", "sm_75", 40), Device("cuda", "odd", "sm_", 40),
    Device("hip", "some GPU", "gfx942", 300, warp=64),
)  # fmt: skip
SIZES = ((512, 128256), (256, 151936), (1024, 50257), (2048, 32000), (4096, 16384), (16, 151936), (8, 900000))


def problem(rows: int, n: int, dtype: str = "bfloat16") -> Problem:
    return KERNEL.problem(f"rows={rows},n={n},dtype={dtype}")


# --- where it is used ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_default_is_of_its_space_and_every_config_holds_a_row(dtype: str) -> None:
    item = 4 if dtype == "float32" else 2
    for rows, n in [*SIZES[: -1 if item == 4 else None], (1, 1), (3, 1000)]:
        space = cluster_softmax.space(problem(rows, n, dtype), H200)
        assert cluster_softmax.default(problem(rows, n, dtype), H200) in space
        assert 1 <= space.size <= 24, "a search tries all"
        for config in space:
            layout = Layout.of(n, item, config, H200)
            threads = config["THREADS"]
            assert layout.slots * threads * config["CLUSTER"] * 16 >= n * item // 16 * 16
            assert layout.shared_bytes < H200.shared_bytes_per_block
            assert layout.resident * (layout.shared_bytes + 1024) <= H200.shared_bytes_per_unit
            assert layout.resident * threads <= H200.threads_per_unit


def test_a_row_is_held_by_as_few_small_blocks_as_hold_it_unless_rows_are_few() -> None:
    for rows, n, blocks, threads in (
        (4096, 16384, 2, 128), (2048, 32000, 4, 128), (1024, 50257, 8, 128), (512, 128256, 8, 256),
        (256, 151936, 8, 256), (16, 32000, 8, 128), (100, 300000, 8, 512),
    ):  # fmt: skip
        expected = Config(CLUSTER=blocks, THREADS=threads, REGISTERS=0)
        assert cluster_softmax.default(problem(rows, n), H200) == expected


def test_chips_without_clusters_and_rows_that_no_cluster_holds_have_no_config() -> None:
    for device, asked in [*((one, problem(512, 128256)) for one in NO_CLUSTERS), (H200, problem(8, 10**6, "float32"))]:
        assert list(cluster_softmax.space(asked, device)) == []
        assert not cluster_softmax.applies(asked, device)
        with pytest.raises(BadInput, match="row_softmax takes any"):
            cluster_softmax.default(asked, device)


def ways(rows: int, n: int, device: Device) -> set[Any]:
    chooser = ops.rows.chooser("softmax", "cuda")
    return {config["by"] for config in chooser.declared.space_for(problem(rows, n), device)}


def test_softmax_chooses_it_where_rows_are_long_on_chips_with_clusters() -> None:
    both = {"torch", "row_softmax"}
    assert ways(512, 128256, H200) == {*both, "cluster_softmax"} == ways(1, 4096, known_device("NVIDIA B200"))
    assert ways(512, 4095, H200) == both
    assert ways(512, 128256, NO_CLUSTERS[0]) == ways(512, 128256, NO_CLUSTERS[-1]) == both
    chooser = ops.rows.chooser("softmax", "cuda")
    assert chooser.declared.default_for("softmax_gpu", problem(512, 128256), H200)["by"] == "torch"


def test_without_the_package_nothing_changes_but_that_it_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ops.rows.chooser("softmax", "cuda").kernel.fingerprint()
    monkeypatch.setattr(nvidia, "bindings", dict)
    nvidia.missing.cache_clear()
    assert ways(512, 128256, H200) == {"torch", "row_softmax"}
    chooser = ops.rows.chooser("softmax", "cuda")
    assert chooser.kernel.fingerprint() == before
    assert "cuda-bindings" not in chooser.kernel.versions()
    nvidia.missing.cache_clear()


def test_rows_of_a_table_that_need_the_package_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chooser = ops.rows.chooser("softmax", "cuda")
    config = Config(CLUSTER=8, THREADS=256, REGISTERS=0, by="cluster_softmax")
    fingerprint = chooser.kernel.fingerprint() + chooser.declared.spec_fingerprint
    entries = {problem(rows, 128256): Entry(config, 1e-4) for rows in (512, 64)}
    table = NativeTable("softmax_gpu", H200.identity, entries, fingerprint, "cuda-graph-cold/2")
    table.write(tmp_path / "softmax.json")
    monkeypatch.setattr(candidates, "device_of", lambda args: H200)

    def served(rows: int) -> Config | None:
        x = torch.empty(rows, 128256, dtype=torch.bfloat16, device="meta")
        found = known_choice(chooser.subject(x, *x.shape), default_store(), [table], "lookup")
        return found and found.config

    def guarded() -> str:
        assert main(["guard", "--static", "tunesmith.row_ops:softmax_gpu", str(tmp_path)]) == 0
        return capsys.readouterr().out

    assert served(512) == config
    assert "was not checked" not in guarded()
    monkeypatch.setattr(nvidia, "bindings", dict)
    nvidia.missing.cache_clear()
    with pytest.warns(TunesmithWarning, match=r"not used: .*: pip install 'tunesmith\[cuda\]'$"):
        assert served(64) is None
    assert re.search(r"was not checked: .* pip install 'tunesmith\[cuda\]'", guarded())
    nvidia.missing.cache_clear()


def test_what_compiles_it_is_not_imported_where_rows_are_short() -> None:
    script = """
import sys
from tunesmith import ops
from tunesmith.core.device import known_device
chooser = ops.rows.chooser("softmax", "cuda")
chooser.kernel.fingerprint(), chooser.kernel.versions()
chooser.declared.space_for(chooser.problem("rows=4096,n=4095,dtype=bfloat16"), known_device("NVIDIA H200"))
print([name for name in sys.modules if name.startswith("cuda.bindings.nvrtc")])
"""
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


# --- compiled ---


@pytest.mark.parametrize(
    ("dtype", "n", "config"),
    [
        ("bfloat16", 128256, Config(CLUSTER=8, THREADS=128, REGISTERS=0)),
        ("bfloat16", 151936, Config(CLUSTER=4, THREADS=256, REGISTERS=4)),
        ("float16", 50257, Config(CLUSTER=1, THREADS=512, REGISTERS=0)),
        ("float32", 128257, Config(CLUSTER=4, THREADS=1024, REGISTERS=0)),
    ],
)
def test_configs_compile_for_an_h200_and_spill_nothing(dtype: str, n: int, config: Config) -> None:
    asked = problem(512, n, dtype)
    made = KERNEL.kernel.for_target(lambda: KERNEL.declared.make_inputs(asked, device="meta"), H200)
    [(_, built)] = compile_all([(config, made.compile_job(config, asked, H200))], 1)
    assert built is not None
    assert not isinstance(built, Failed), built
    found, layout = made.resources_of(config, built, H200), Layout.of(n, 4 if dtype == "float32" else 2, config, H200)
    assert found.spills == 0
    assert found.registers * found.threads * layout.resident <= H200.registers_per_unit
    assert layout.shared_bytes < found.shared_bytes <= layout.shared_bytes + 6300


# --- launched ---


class Matrix(GpuArray):
    """A tensor that is said to be on a GPU, with rows that lie apart."""

    def __init__(self, rows: int, n: int, apart: int, dtype: torch.dtype) -> None:
        super().__init__(np.zeros((rows, apart), np.uint32))
        self.shape, self.dtype, self.device, self._strides = (rows, n), dtype, torch.device("cuda", 0), (apart, 1)

    def data_ptr(self) -> int:
        return int(self.host.ctypes.data)

    def stride(self, dim: int | None = None) -> Any:
        return self._strides if dim is None else self._strides[dim]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    monkeypatch.setattr(cpu, "gpu_at", lambda index: H200)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: Matrix(*shape, shape[1], dtype))
    with fake_gpu(monkeypatch) as fake:
        fake.takes("cluster_softmax", 4)
        yield fake


def test_a_launch_has_the_rows_the_distance_and_memory_for_what_a_block_holds(gpu: FakeDriver) -> None:
    rows = 300
    for config in (Config(CLUSTER=8, THREADS=128, REGISTERS=0), Config(CLUSTER=4, THREADS=256, REGISTERS=4)):
        x = Matrix(rows, 128256, 128300, torch.bfloat16)
        args = x, rows, 128256
        bound = KERNEL.kernel.for_call(args)
        assert bound == KERNEL.kernel.for_call(args)
        y = bound.load(config, Problem({}), None).launch(*args)
        launch = gpu.launches[-1]
        assert (launch.grid, launch.block) == ((config["CLUSTER"] * rows, 1, 1), (config["THREADS"], 1, 1))
        assert launch.shared_bytes == 16 * config["THREADS"] * (16 - config["REGISTERS"])
        assert ("MAX_DYNAMIC_SHARED_SIZE_BYTES", launch.shared_bytes) in gpu.attributes
        assert [launch.read(i, ctypes.c_uint64) for i in range(2)] == [x.data_ptr(), y.data_ptr()]
        assert launch.read(2, ctypes.c_int64) == 128300
        assert launch.read(3, ctypes.c_int32) == 128256


def test_nothing_is_launched_for_what_is_empty(gpu: FakeDriver) -> None:
    for rows, n in ((0, 128), (128, 0)):
        made = KERNEL(Matrix(rows, n, n, torch.float16), rows, n)
        assert made.shape == (rows, n)
    assert gpu.launches == []


def test_what_is_not_on_an_nvidia_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 5)
    with pytest.raises(BadInput, match="cluster_softmax is a CUDA kernel, and x is on"):
        KERNEL(x, 3, 5)
    with pytest.raises(BadInput, match=r"use kernel\.for_call"):
        KERNEL.kernel.compile_job(Config(), Problem({}), H200)
