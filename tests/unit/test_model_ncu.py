"""Nsight Compute's CSV, as its versions write it, and what it says beside the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith import Config, Space, Tiles, autotune, known_device
from tunesmith.core.model import Prediction, predict
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.ncu import Counted, compare, counters_of, read_counters

H200 = known_device("NVIDIA H200")
#: `ncu --csv`: the profiler's lines, the program's, then a line for each metric of each launch
A_METRIC_A_LINE = """\
==PROF== Connected to process 2583 (/usr/bin/python3.11)
==PROF== Profiling "gemm" - 0: 0%....50%....100% - 3 passes
tuned in 3 s, ID: 5
==PROF== Disconnected from process 2583
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","2583","python3.11","127.0.0.1","fill_kernel(int, float)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","byte","2,816"
"0","2583","python3.11","127.0.0.1","fill_kernel(int, float)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_write.sum","Kbyte","1.184"
"1","2583","python3.11","127.0.0.1","gemm","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes.sum","Mbyte","1,234.50"
"1","2583","python3.11","127.0.0.1","gemm","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0",\
"Command line profiler metrics","gpu__time_duration.sum","usecond","191.42"
"""
#: `ncu --page raw --csv`: a line for each launch, the units in the second line
A_LAUNCH_A_LINE = """\
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","Mbyte","Mbyte","ns"
"0","7","gemm","90.5","0.5","180,000"
"1","7","gemm","100.25","33.5","190,500"
"""


def test_both_tables_are_read_with_their_units() -> None:
    assert read_counters(A_METRIC_A_LINE, "gemm") == [Counted("gemm", 1234.5e6, pytest.approx(191.42e-6))]
    assert read_counters(A_METRIC_A_LINE, "fill") == [Counted("fill_kernel(int, float)", 4000.0)]
    assert read_counters(A_LAUNCH_A_LINE, "gemm") == [
        Counted("gemm", 91e6, pytest.approx(180e-6)),
        Counted("gemm", 133.75e6, pytest.approx(190.5e-6)),
    ]


def test_the_last_launch_counts_and_a_file_of_one_function_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "raw.csv"
    file.write_text(A_LAUNCH_A_LINE, encoding="utf-8-sig")
    assert counters_of(file, "renamed").memory_bytes == 133.75e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==PROF== No kernels were profiled.\n", r"no table of Nsight Compute's in 1 lines"),
        (A_METRIC_A_LINE, r"no launch of softmax was profiled; launches of: fill_kernel\(int, float\), gemm"),
        ('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n', r"launches of: \(none\)"),
        ('"ID","Kernel Name","lts__t_bytes.sum"\n"","","byte"\n"0","k","1"\n', r"ncu --metrics dram__bytes\.sum"),
        ('"ID","Kernel Name","dram__bytes.sum"\n"","","furlong"\n"0","k","1"\n', r"is in 'furlong'; known units: byte"),
        ('"ID","Kernel Name","dram__bytes.sum"\n"","","byte"\n"0","k","n/a"\n', r"is 'n/a': not a number"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_collects_it(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "counted.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=said) as error:
        counters_of(file, "softmax")
    assert str(file) in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere\.csv can't be read: No such file"):
        counters_of(tmp_path / "nowhere.csv", "gemm")


def of_square() -> Prediction:
    config = Config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3)
    found = predict(Tiles()(Problem({"M": 4096, "N": 4096, "K": 4096}), config), H200)
    assert found is not None
    return found  # 1,644 MB of tiled bytes


@pytest.mark.parametrize(
    ("megabytes", "said"),
    [
        (110, "7% of the tiled bytes. far fewer: the L2 helps"),
        (1100, "67% of the tiled bytes. fewer: the L2 helps a little"),
        (1600, "97% of the tiled bytes. close: the L2 serves next to nothing, so the grouped ordering"),
    ],
)
def test_counted_bytes_say_whether_the_l2_helps(megabytes: float, said: str) -> None:
    assert said in dict(compare(Counted("gemm", megabytes * 1e6), of_square()))["counted"]


def test_a_kernel_that_uses_every_byte_once_is_not_told_to_regroup() -> None:
    config = Config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64)
    once = predict(Tiles()(Problem({"M": 128, "N": 256, "K": 4096}), config), H200)
    assert once is not None
    assert "nothing that the L2 could serve" in dict(compare(Counted("gemm", once.tiled_bytes), once))["counted"]


class TestExplain:
    @staticmethod
    def tuned(model: Any) -> Any:
        @autotune(
            space=Space(BLOCK_M=[128], BLOCK_N=[256], BLOCK_K=[64], num_warps=[8], num_stages=[3, 4]),
            key=["M", "N", "K"], policy="default", model=model, version="1",
        )  # fmt: skip
        def gemm(M: int, N: int, K: int, **knobs: Any) -> None:
            pass

        return gemm

    def test_a_model_is_explained_and_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        kernel = self.tuned(Tiles(dtype="float16"))
        monkeypatch.setattr(type(kernel.kernel), "device", lambda *_: H200)
        file = tmp_path / "counted.csv"
        file.write_text(A_METRIC_A_LINE)
        kernel.explain(4096, 4096, 4096, ncu=file)
        out = " ".join(capsys.readouterr().out.split())
        for part in ("by the performance model", "512 blocks", "tiled bytes 1.6 GB", "counted 1,234.5 MB", "75% of"):
            assert part in out
        kernel.explain(4096, 4096, 4096)
        assert "counted" not in capsys.readouterr().out

    def test_without_a_model_there_is_nothing_to_compare(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(BadInput, match=r"gemm: nothing to compare .* its autotune has no model="):
            self.tuned(None).explain(4096, 4096, 4096, ncu=tmp_path / "counted.csv")
        with pytest.raises(BadInput, match=r"too little is known of"):
            self.tuned(Tiles()).explain(4096, 4096, 4096, ncu=tmp_path / "counted.csv")
        self.tuned(Tiles()).explain(4096, 4096, 4096)  # on a CPU the model has nothing to say
        assert "performance model" not in capsys.readouterr().out
