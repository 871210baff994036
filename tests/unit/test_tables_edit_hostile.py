"""Comparing, setting, merging and converting tables that are odd: no value is lost, mixed up or made up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from table_files import BF16, KNOBS, bf16, csv, ladder, put

from tunesmith import known_device
from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.tables import NativeTable, check, convert, edit, formats, names
from tunesmith.tables.native import Entry
from tunesmith.tables.sheet import Sheet

H200 = known_device("NVIDIA H200")
MOE = "vllm/E=8,N=8,device_name=NVIDIA_H200.json"
SHORT = "gfx,cu_num,M,N,K,us,kernelName"


def sheet(data: bytes, name: str = MOE) -> Sheet:
    return formats.parse(Path(name), data)


def test_true_is_not_one_and_nan_is_itself():
    changed = edit.diff(sheet(b'{"1": {"a": 1}}'), sheet(b'{"1": {"a": true}}'))
    assert [str(change) for change in changed] == ["~ M=1: a 1 → true"]
    assert len(edit.diff(sheet(b'{"1": {"a": 1}}'), sheet(b'{"1": {"a": 1.0}}'))) == 1
    assert edit.diff(sheet(b'{"1": {"a": NaN, "b": 1}}'), sheet(b'{"1": {"b": 1, "a": NaN}}')) == []
    nan = csv(BF16, bf16(16, "nan"))
    assert edit.diff(sheet(nan, "a.csv"), sheet(nan, "a.csv")) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"a,b",%b\nz,gfx942,304,1,2,3,1,k\n', b'"a,b",%b\nz,gfx942,304,1,2,3,1,NEW\n'),
        (b"%b\ngfx942,304,1,2,3,1\n", b"%b\ngfx942,304,1,2,3,1,NEW\n"),
        (b'\xef\xbb\xbf%b\r\ngfx942 ,304,1,2,3,1,"k"', b"\xef\xbb\xbf%b\r\ngfx942 ,304,1,2,3,1,NEW"),
    ],
)
def test_a_cell_is_set_in_its_own_column(before: bytes, after: bytes):
    table = sheet(before % SHORT.encode(), "a.csv")
    assert edit.set_value(table, table.rows[0], "kernelName", "NEW").document.data() == after % SHORT.encode()


def test_a_merge_of_csv_files_keeps_what_tells_rows_apart():
    base = sheet(csv(BF16, bf16(16, 7)), "a.csv")
    legacy = sheet(csv(BF16.removeprefix("gfx,"), bf16(32, 5).removeprefix("gfx942,")), "b.csv")
    assert edit.merge([base, legacy]).document.data() == csv(BF16, bf16(16, 7), bf16(32, 5))
    plain = sheet(csv(SHORT, "gfx942,304,1,2,3,1,k"), "a.csv")
    with pytest.raises(BadInput, match=r"b\.csv:2: B=7: the first table has no such column"):
        edit.merge([plain, sheet(csv(SHORT + ",B", "gfx942,304,1,2,3,1,k,7"), "b.csv")])
    with pytest.raises(BadInput, match=r"b\.csv has no column 'bias'"):
        edit.merge([base, sheet(csv(SHORT, "gfx942,304,1,2,3,1,k"), "b.csv")])


def test_a_merge_of_nested_rows_needs_their_place():
    name = "NVIDIA_H200_SHRINK.json"
    tables = [json.dumps({n: {"1": {"64": {"8": {"8": {"1": KNOBS}}}}}}).encode() for n in ("1", "2")]
    with pytest.raises(BadInput, match="to add rows to"):
        edit.merge([sheet(table, name) for table in tables])


def test_a_merge_keeps_order_and_heads():
    base = sheet(ladder({1: KNOBS, 16: KNOBS}, triton_version="3.6.0"))
    merged = edit.merge([base, sheet(ladder({32: KNOBS, 8: KNOBS, 1: {"a": 1}}))])
    assert merged.document.data() == ladder({1: KNOBS, 8: KNOBS, 16: KNOBS, 32: KNOBS}, triton_version="3.6.0")
    assert merged.added == 2
    odd = edit.merge([sheet(ladder({16: KNOBS, 1: KNOBS})), sheet(ladder({8: KNOBS}))])
    assert odd.document.data() == ladder({16: KNOBS, 1: KNOBS, 8: KNOBS})


def test_a_merge_of_thousands_of_rows_takes_seconds():
    shapes = [csv(BF16, *(bf16(16 * m, 7) for m in range(first, 4000, 2))) for first in (1, 2)]
    begin = time.process_time()
    assert edit.merge([sheet(data, f"{i}.csv") for i, data in enumerate(shapes)]).added == 1999
    assert time.process_time() - begin < 10


def test_rows_that_cannot_be_read_are_kept_when_a_table_is_added_to(tmp_path: Path):
    path = tmp_path / "a.json"
    rows = {Problem({"M": m}): Entry(Config(a=1), 1e-6) for m in (1, 2)}
    NativeTable("k", H200.identity, rows).write(path)
    path.write_bytes(path.read_bytes().replace(b"1e-06", b"0", 1))
    by_hand = path.read_bytes()
    report = check.check([path])
    assert [finding.message for finding in report.findings if "'median_s' is 0" in finding.message]
    with pytest.warns(UserWarning, match="1 of 2 rows are left out"):
        edit.add(path, NativeTable("k", H200.identity, {Problem({"M": 3}): Entry(Config(a=3))}))
    assert (tmp_path / "a.json.kept-1").read_bytes() == by_hand


def test_nothing_is_made_up_between_engines():
    name = "sglang/N=8,K=8,device_name=NVIDIA_L40S,dtype=fp8_w8a8_channelwise.json"
    with pytest.raises(BadInput, match="null rows"):
        convert.convert(sheet(ladder({1: KNOBS, 64: None}), name), "vllm-gemm", triton="3.6.0")
    with pytest.raises(BadInput, match="names no block_shape"):
        convert.convert(sheet(ladder({1: KNOBS}), name), "vllm-gemm", triton="3.6.0")
    blocks = "vllm/E=8,N=8,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json"
    for tile in (0, "x", None, True, -128):
        odd = sheet(ladder({1: {**KNOBS, "BLOCK_SIZE_K": tile}}), blocks)
        with pytest.raises(BadInput, match="does not divide the quantisation's 128"):
            convert.convert(odd, "sglang-moe", triton="3.6.0")


@pytest.mark.parametrize(
    "shape",
    [
        {"experts": -1}, {"experts": True}, {"experts": 8.5}, {"intermediate": 0}, {"tp": 0}, {"per_channel": "no"},
        {"block": (128.0, 128)}, {"block": (-1, 0)},
    ],
)  # fmt: skip
def test_a_layer_is_whole_numbers(shape: dict[str, object]):
    with pytest.raises(BadInput, match="a layer's"):
        names.Layer(**{"experts": 8, "intermediate": 8, **shape})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["", " ", "../../x", "NVIDIA H200\n", "a\x00b"])
def test_a_device_that_no_file_can_be_named_after(device: str):
    with pytest.raises(BadInput, match="device"):
        names.of_layer("sglang", names.Layer(8, 8), device)
    with pytest.raises(BadInput, match="device"):
        names.of_gemm("sglang", 8, 8, device, "fp8_w8a8", (128, 128))


def test_no_key_is_exported_that_ends_a_reader():
    rows = {Problem({"M": m}): Entry(Config(a=1)) for m in (True, 64, 0)}
    table = NativeTable("k", H200.identity, rows)
    assert list(convert.rows_by_size(table, "M", {}, {})) == [64, 0]
    with pytest.raises(BadInput, match="a row is for 0 tokens"):
        convert.export_moe("sglang", names.Layer(8, 8), "NVIDIA H200", {64: {}, 0: {}}, triton="3.6.0")


def test_a_value_that_no_call_can_use_is_found(tmp_path: Path):
    path = put(tmp_path, MOE, ladder({1: {**KNOBS, "x": float("nan")}, 512: {**KNOBS, "y": {"z": 1}}, 1024: KNOBS}))
    found = [finding for finding in check.check([path]).findings if finding.code == "value"]
    assert [(finding.line, "no call can use it" in finding.message) for finding in found] == [(2, True), (11, True)]


def test_a_truth_value_is_no_size():
    table = sheet(ladder({1: KNOBS}))
    assert table.find({"M": 1}) is not None
    assert table.find({"M": True}) is None
