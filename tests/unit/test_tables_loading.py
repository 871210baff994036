"""Tables that a kernel asks while it runs: rules, devices, versions, bad rows, several files of one table."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_files import BF16, FMOE, H100, KNOBS, bf16, csv, fmoe, ladder, put

import tunesmith
from tunesmith import known_device
from tunesmith.core.config import Config
from tunesmith.core.device import Device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.tables import NativeTable, Row, Tables, edit, load
from tunesmith.tables.native import Entry

H200, L40S = known_device("NVIDIA H200"), known_device("NVIDIA L40S")
MI300 = known_device("AMD Instinct MI300X")


def ask(table: Tables, problem: str, device: Device = H200, kernel: str = "moe") -> Row | None:
    exact = Problem.parse(problem)
    return table.lookup(Key(kernel, "f", exact, device.identity, "p"), exact, device)


def block_m(row: Row | None) -> object:
    return None if row is None else row.config["BLOCK_SIZE_M"]


def ladder_of(*sizes: int, **head: str) -> bytes:
    """Rows whose BLOCK_SIZE_M is their size."""
    return ladder({size: {**KNOBS, "BLOCK_SIZE_M": size} for size in sizes}, **head)


# --- sizes --------------------------------------------------------------------------------------------


def test_a_row_serves_sizes_near_it_and_others_get_the_default(tmp_path: Path):
    path = put(tmp_path, "E=96,N=640,device_name=NVIDIA_H200.json", ladder_of(1, 2, 4, 8, triton_version="3.5.1"))
    table = load(path)
    found = {m: block_m(ask(table, f"E=96,N=640,M={m}")) for m in (0, 1, 3, 6, 8, 12, 16, 17, 2048)}
    assert found == {0: None, 1: 1, 3: 2, 6: 4, 8: 8, 12: 8, 16: 8, 17: None, 2048: None}
    said = table.explain(Problem.parse("E=96,N=640,M=2048"), H200)  # type: ignore[attr-defined]
    assert "further than a factor of 2, above the largest key (1…8)" in said
    sparse = load(put(tmp_path / "b", path.name, ladder_of(16, 512)))
    assert ask(sparse, "E=96,N=640,M=1") is None


def test_the_stock_rule_has_to_be_asked_for_by_name(tmp_path: Path):
    path = put(tmp_path, "E=96,N=640,device_name=NVIDIA_H200.json", ladder_of(8, 2, 4, 1, triton_version="3.5.1"))
    table = load(path, rule="nearest-stock")
    found = [block_m(ask(table, f"E=96,N=640,M={m}")) for m in (0, 1, 3, 6, 12, 2048)]
    assert found == [1, 1, 2, 8, 8, 8]
    with pytest.raises(BadInput, match="unknown look-up rule 'nearst'"):
        load(path, rule="nearst")


def test_a_row_says_where_it_is_from_and_how_far(tmp_path: Path):
    path = put(tmp_path, "E=96,N=640,device_name=NVIDIA_H200.json", ladder_of(64, 128))
    near, exact = ask(load(path), "E=96,N=640,M=100"), ask(load(path), "E=96,N=640,M=64")
    assert near is not None
    assert exact is not None
    assert (near.source, near.distance) == (f"table {path}:10", "M=100: nearest: key 128, distance 28")
    assert (exact.source, exact.distance) == (f"table {path}:2", "")


def test_sizes_of_the_files_name_must_be_the_calls(tmp_path: Path):
    path = put(tmp_path, "E=96,N=640,device_name=NVIDIA_H200,dtype=fp8_w8a8.json", ladder_of(64))
    assert ask(load(path), "E=96,N=641,M=64") is None
    assert ask(load(path), "M=64") is None
    assert block_m(ask(load(path, given={"E": 96, "N": 640}), "M=64")) == 64
    assert ask(load(path, given={"E": 96, "N": 640, "dtype": "int8_w8a8"}), "M=64") is None
    assert block_m(ask(load(path, given={"E": 96, "N": 640}, size="tokens"), "tokens=64")) == 64
    assert ask(load(path, kernel="other"), "E=96,N=640,M=64") is None
    renamed = ask(load(path, rename={"BLOCK_SIZE_M": "BM"}), "E=96,N=640,M=64")
    assert renamed is not None
    assert renamed.config["BM"] == 64


def test_odd_keys_and_null(tmp_path: Path):
    odd = put(
        tmp_path,
        "E=8,N=8,device_name=NVIDIA_H200.json",
        b'{"triton_version": "3.5.1", "0064": {"BLOCK_SIZE_M": 1}, "auto": {}}',
    )
    with pytest.warns(TunesmithWarning, match="'auto' is no size") as caught:
        table = load(odd)
    assert len(caught) == 1
    assert block_m(ask(table, "E=8,N=8,M=64")) == 1
    assert ask(table, "E=8,N=8,M=3") is None
    nulls = ladder({1: KNOBS, 64: None})
    path = put(tmp_path, "sglang/N=8,K=8,device_name=NVIDIA_H200,dtype=fp8_w8a8_channelwise.json", nulls)
    assert ask(load(path), "N=8,K=8,M=1") is not None
    assert ask(load(path), "N=8,K=8,M=64") is None


# --- devices and versions ---------------------------------------------------------------------------


def test_the_device_must_be_the_chip(tmp_path: Path):
    for chip in ("NVIDIA_H200", "NVIDIA_H20", H100):
        put(tmp_path, f"E=8,N=8,device_name={chip}.json", ladder_of(len(chip)))
    table = load(tmp_path)

    def of(name: str) -> Row | None:
        return ask(table, "E=8,N=8,M=11", Device("cuda", name, "sm_90", 132))

    assert block_m(of("NVIDIA H200")) == 11
    assert block_m(of("NVIDIA H20")) == 10
    nvl = of("NVIDIA H200 NVL")
    assert nvl is not None
    assert "that of NVIDIA_H200 serves it" in nvl.note
    assert [of(name) for name in ("NVIDIA H2000", "NVIDIA H100", "NVIDIA H200 MIG 1g.18gb", "Tesla T4")] == [None] * 4
    said = table.explain(Problem.parse("E=8,N=8,M=11"), Device("cuda", "NVIDIA H100", "sm_90", 132))  # type: ignore[attr-defined]
    assert "could be NVIDIA_H100_80GB_HBM3: not guessed" in said


def test_folders_of_versions_fall_back_to_the_highest_lower_one_with_one_note(tmp_path: Path):
    names = ["E=8,N=8,device_name=NVIDIA_H200.json", "E=9,N=8,device_name=NVIDIA_H200.json"]
    for i, folder in enumerate(("triton_3_2_0", "triton_3_10_0", "triton_3_5_1")):
        for name in names:
            put(tmp_path, f"{folder}/{name}", ladder_of(8 + i))
    put(tmp_path, f"triton_3_6_0/{names[0]}", ladder_of(16))
    with pytest.warns(
        TunesmithWarning, match=r"1 tables are made for another Triton than 3\.6\.0: 3\.5\.1 \(1\)"
    ) as caught:
        table = load(tmp_path, triton="3.6.0")
    assert len(caught) == 1
    assert (block_m(ask(table, "E=8,N=8,M=16")), block_m(ask(table, "E=9,N=8,M=10"))) == (16, 10)
    with pytest.warns(TunesmithWarning, match=r"3\.10\.0 \(1\)"):
        assert block_m(ask(load(tmp_path, triton="3.6.0", fallback="newest"), "E=9,N=8,M=9")) == 9
    strict = load(tmp_path, triton="3.6.0", fallback="strict")
    assert ask(strict, "E=9,N=8,M=10") is None
    with pytest.raises(BadInput, match="say which one runs"):
        load(tmp_path)


def test_a_folder_with_noise_is_loaded_with_one_warning(tmp_path: Path):
    put(tmp_path, "E=8,N=8,device_name=NVIDIA_H200.json", ladder_of(8))
    put(tmp_path, "broken.json", b"{")
    with pytest.warns(TunesmithWarning, match=r"1 files are left out: .*broken\.json"):
        load(tmp_path)
    (tmp_path / "E=8,N=8,device_name=NVIDIA_H200.json").unlink()
    with pytest.raises(BadInput, match=r"has no table: .*broken\.json"):
        load(tmp_path)
    with pytest.raises(BadInput, match="there is no"):
        load(tmp_path / "nowhere")


# --- CSV --------------------------------------------------------------------------------------------

SHAPE = "N=896,K=4096,bias=false,dtype=torch.bfloat16,outdtype=torch.bfloat16,scaleAB=false,bpreshuffle=false"


def kernel_of(row: Row | None) -> object:
    return None if row is None else row.config["kernelName"]


def loaded(path: Path, **options) -> tuple[Tables, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = load(path, **options)
    return table, [str(warning.message) for warning in caught]


def test_several_files_of_one_table_do_not_depend_on_their_order_and_stay_as_they_are(tmp_path: Path):
    a = csv(
        BF16, bf16(16, 7.9, kernel="a"), bf16(16, 21.3, units=80, kernel="few"), bf16(16, 7.4, lib="ck", kernel="b")
    )
    rows = [bf16(16, 7.9, kernel="a"), bf16(16, 0, kernel="zero"), bf16(16, "nan", kernel="nan"),
            bf16(16, 1.0, error=0.6, kernel="wrong"),
            bf16(32, 9.0, kernel='"quoted, with a comma"'), bf16(48, 9.0).replace(",k1,", ",")]  # fmt: skip
    b = csv(BF16, *rows, newline="\r\n")
    answers = set()
    for first, second in itertools.permutations((a, b)):
        folder = tmp_path / str(len(answers))
        folder.mkdir()
        put(folder, "1_bf16_tuned_gemm.csv", first).chmod(0o400)
        put(folder, "2_bf16_tuned_gemm.csv", second).chmod(0o400)
        folder.chmod(0o500)
        table, said = loaded(folder)
        folder.chmod(0o700)
        assert [p.read_bytes() for p in sorted(folder.iterdir())] == [first, second]
        answers.add(tuple(
            kernel_of(ask(table, f"M={m},{SHAPE}", device))
            for m in (16, 32, 48) for device in (MI300, Device("hip", "AMD Instinct MI308X", "gfx942", 80))
        ))  # fmt: skip
        assert sum("rows are not used" in text for text in said) == 1
        rejected = next(text for text in said if "rows are not used" in text)
        assert all(f"line {n} " in rejected for n in (3, 4, 5))
        rivals = [text for text in said if "several rows" in text]
        assert len(rivals) == 1
        assert "7.4 us) is used, not " in rivals[0]
        assert any(":7: 17 cells of 18" in text for text in said)
    assert answers == {("b", "few", "quoted, with a comma", None, None, None)}


def test_of_rivals_the_one_with_precedence_is_used(tmp_path: Path):
    put(tmp_path, "a_bf16_tuned_gemm.csv", csv(BF16, bf16(16, 12.0, kernel="ours")))
    put(tmp_path, "b_bf16_tuned_gemm.csv", csv(BF16, bf16(16, 10.0, kernel="theirs")))
    before = [path.read_bytes() for path in sorted(tmp_path.glob("*.csv"))]
    for prefer, wanted in (("first", "ours"), ("fastest", "theirs")):
        table, said = loaded(tmp_path, prefer=prefer)
        assert kernel_of(ask(table, f"M=16,{SHAPE}", MI300)) == wanted
        assert len(said) == 1
        assert "a_bf16_tuned_gemm.csv:2" in said[0]
        assert "b_bf16_tuned_gemm.csv:2" in said[0]
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.csv"))] == before


def test_rivals_are_an_error_where_asked(tmp_path: Path):
    path = put(tmp_path, "bf16_tuned_gemm.csv", csv(BF16, bf16(16, 7.9, kernel="a"), bf16(16, 7.4, kernel="b")))
    with pytest.raises(BadInput, match=r"bf16_tuned_gemm\.csv:3 \(7\.4 us\) is used, not bf16_tuned_gemm\.csv:2"):
        load(path, strict=True)
    same = put(tmp_path / "same", path.name, csv(BF16, bf16(16, 7.9), bf16(16, 7.9)))
    assert loaded(same, strict=True)[1] == []


def test_a_placeholder_never_hides_a_measured_row(tmp_path: Path):
    rows = [
        bf16(16, 10.0, gfx="gfx950", units=256, kernel="real"),
        bf16(16, 0, gfx="gfx950", units=256, lib="triton", kernel="auto"),
    ]
    table, said = loaded(put(tmp_path, "bf16_tuned_gemm.csv", csv(BF16, *rows)))
    assert kernel_of(ask(table, f"M=16,{SHAPE}", Device("hip", "AMD Instinct MI355X", "gfx950", 256))) == "real"
    assert "line 3 (us=0: a time is finite and above 0)" in said[0]


def test_a_table_without_gfx_is_used_where_units_mean_one_chip(tmp_path: Path):
    header = BF16.removeprefix("gfx,")
    rows = [bf16(16, 7.9).removeprefix("gfx942,"), bf16(16, 9.0, units=256).removeprefix("gfx942,")]
    table, said = loaded(put(tmp_path, "bf16_tuned_gemm.csv", csv(header, *rows)))
    assert kernel_of(ask(table, f"M=16,{SHAPE}", MI300)) == "k1"
    assert "units are those of more than one chip" in said[0]
    assert ":3:" in said[0]


def test_padded_sizes_find_their_rows(tmp_path: Path):
    table = load(put(tmp_path, "tuned_fmoe.csv", csv(FMOE, fmoe(32), fmoe(128))), size="token")
    shape = {name: value for name, value in table.sheets[0].rows[0].key.items() if name != "token"}  # type: ignore[attr-defined]
    device = Device("hip", "AMD Instinct MI355X", "gfx950", 256)

    def at(token: int) -> Row | None:
        exact = Problem({**shape, "token": token})
        return table.lookup(Key("moe", "f", exact, device.identity, "p"), exact, device)

    assert [at(token) is not None for token in (16, 17, 32, 33, 65, 128, 129)] == [
        False,
        True,
        True,
        False,
        True,
        True,
        False,
    ]
    row = at(100)
    assert row is not None
    assert "100 is padded to 128" in row.distance


# --- whatever a file holds ---------------------------------------------------------------------------

words = st.none() | st.booleans() | st.integers(-5, 200) | st.floats() | st.text(max_size=4)
trees = st.recursive(
    words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
knobs = st.dictionaries(st.sampled_from(["a", "BLOCK_SIZE_M", ""]), trees, max_size=3)
sizes = st.integers(-2, 300).map(str) | st.sampled_from(["0064", "auto", "1.0", "triton_version", "", "9" * 40])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.dictionaries(sizes, knobs | trees, max_size=5), cut=st.integers(0, 60))
def test_nothing_in_a_file_raises_out_of_a_look_up(tmp_path: Path, rows: dict[str, Any], cut: int):
    data = json.dumps(rows).encode()
    for content in (data, data[: max(len(data) - cut, 0)]):
        path = put(tmp_path, "E=8,N=8,device_name=NVIDIA_H200.json", content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                tables = [load(path, rule=rule) for rule in (None, "nearest-stock")]
            except BadInput:
                continue  # refused as a whole, before any call
            for table, m in itertools.product(tables, (-1, 0, 1, 64, 10**6)):
                row = ask(table, f"E=8,N=8,M={m}")
                assert row is None or isinstance(row.config, Config)


# --- with a kernel, in many processes, many times --------------------------------------------------------


def test_a_kernel_uses_a_table_of_an_engine(tmp_path: Path):
    seen = []

    @tunesmith.autotune(configs=[{"a": 1}, {"a": 2}, {"a": 4}], key=["M"], policy="lookup")
    def scale(M, *, a):
        seen.append((M, a))

    path = put(
        tmp_path,
        "E=8,N=8,device_name=NVIDIA_H200.json",
        ladder({16: {"a": 2}, 64: {"a": 3}, 1024: {"a": "x", "b": [1, {}]}}),
    )
    scale.use_table(load(path, given={"E": 8, "N": 8}))
    scale(16)
    assert seen == [(16, 1)], "made for a GPU: a CPU does not get it"
    scale.use_table(_AnyDevice(load(path, given={"E": 8, "N": 8})))
    scale(20)
    with pytest.warns(TunesmithWarning, match="refuses"):
        scale(64)
    with pytest.warns(TunesmithWarning, match=r"json:8: knob 'b' .* the row is not used"):
        scale(1024)
    scale(5000)
    assert seen[1:] == [(20, 2), (64, 1), (1024, 1), (5000, 1)]


class _AnyDevice:
    """A table that takes every device for an H200."""

    def __init__(self, table: Tables) -> None:
        self.table = table

    def lookup(self, key: Key, exact: Problem, device: Device) -> Row | None:
        return self.table.lookup(key, exact, H200)


READER = """
import sys
from tunesmith.tables import load
print(sorted({len(load(sys.argv[1]).sheets[0].rows) for _ in range(200)}))
"""


def test_t25_many_processes_start_while_another_writes_and_see_a_whole_table(tmp_path: Path):
    few, many = (csv(BF16, *[bf16(m, 9.0) for m in range(16, end, 16)]) for end in (64, 800))
    path = put(tmp_path / "t", "bf16_tuned_gemm.csv", few)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", READER, str(path)]
    running = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    turns = 0
    while any(process.poll() is None for process in running):
        edit.write(path, few if turns % 2 else many)
        turns += 1
        time.sleep(0.002)
    said = [json.loads(process.communicate(timeout=100)[0]) for process in running]
    assert all(set(seen) <= {3, 49} for seen in said)
    assert any(len(seen) == 2 for seen in said)  # they read while it was written


def test_reading_writes_nothing(tmp_path: Path):
    path = put(tmp_path / "t", "bf16_tuned_gemm.csv", csv(BF16, *[bf16(m, 9.0) for m in range(16, 2000, 16)]))
    before = {p: p.stat().st_mtime_ns for p in path.parent.iterdir()}
    for _ in range(3):
        load(path)
    assert {p: p.stat().st_mtime_ns for p in path.parent.iterdir()} == before


def test_many_look_ups_take_no_memory_and_little_time(tmp_path: Path):
    table = load(put(tmp_path, "E=8,N=8,device_name=NVIDIA_H200.json", ladder_of(*(2**i for i in range(14)))))
    keys = [Key("moe", "f", Problem({"E": 8, "N": 8, "M": m}), H200.identity, "p") for m in range(1, 1001)]
    for key in keys:
        table.lookup(key, key.problem, H200)
    tracemalloc.start()
    start = time.process_time()
    for _ in range(100):
        for key in keys:
            table.lookup(key, key.problem, H200)
    each = (time.process_time() - start) / 100_000
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 100_000
    assert each < 10e-6, "under tracemalloc; benchmarks/tables.py has the figure"


def test_a_large_table_is_read_whole_once_and_then_by_lines(tmp_path: Path):
    rows = {Problem({"M": m, "N": 4096}): Entry(Config({**KNOBS, "BLOCK_SIZE_M": m}), 1e-5) for m in range(1, 1501)}
    path = tmp_path / "gemm.json"
    NativeTable("gemm", H200.identity, rows, "f", "p").write(path)
    first, second = load(path), load(path)
    assert isinstance(first, NativeTable)
    assert isinstance(second, NativeTable)
    assert type(first.rows) is dict
    assert type(second.rows) is not dict
    assert second.rows == rows
    assert block_m(ask(second, "M=700,N=4096", kernel="gemm")) == 700
    assert ask(second, "M=1501,N=4096", kernel="gemm") is None
    path.write_bytes(path.read_bytes().replace(b'"M=700,N=4096"', b'"N=4096,M=700"'))
    by_hand = [load(path), load(path)]
    assert [block_m(ask(table, "M=700,N=4096", kernel="gemm")) for table in by_hand] == [700, 700]
    path.write_bytes(path.read_bytes().replace(b'"median_s": 1e-05', b'"median_s": 0', 1))
    for _ in range(2):
        with pytest.warns(TunesmithWarning, match="1 of 1500 rows are left out"):
            load(path)


def test_a_table_of_ours_can_be_looked_up_by_a_rule(tmp_path: Path):
    rows = {Problem({"M": m, "N": n}): Entry(Config(BLOCK_SIZE_M=m + n), 1e-5) for m in (16, 64, 256) for n in (1, 2)}
    path = tmp_path / "gemm.json"
    NativeTable("gemm", H200.identity, rows, "f", "p").write(path)
    table = load(path, rule="nearest")
    found = [block_m(ask(table, f"M={m},N=2", kernel="gemm")) for m in (7, 8, 40, 41, 128, 160, 161, 512, 513)]
    assert found == [None, 18, 66, 66, 66, 258, 258, 258, None]
    assert ask(table, "M=16,N=3", kernel="gemm") is None
    assert ask(table, "M=16,N=2", kernel="softmax") is None
    assert ask(table, "M=16,N=2", L40S, kernel="gemm") is None
    assert ask(load(path), "M=17,N=2", kernel="gemm") is None


def test_no_driver_is_needed_to_read_and_check(tmp_path: Path):
    path = put(tmp_path, f"vllm/E=8,N=8,device_name={H100}.json", ladder([1, 2048]))
    script = f"""
import sys
from pathlib import Path
from tunesmith.tables import load
from tunesmith.tables.check import check
load({str(path)!r}); assert not check([Path({str(path)!r})]).errors
print({{"torch", "triton", "numpy"}} & set(sys.modules))
"""
    environ = {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
