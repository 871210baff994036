"""Tables compared, merged, converted and written; and the command line that does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_files import BF16, BLOCKSCALE, H100, KNOBS, bf16, blockscale, csv, ladder, put

from tunesmith.cli import main
from tunesmith.core.config import Config
from tunesmith.core.device import known_device
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.tables import NativeTable, convert, edit, formats
from tunesmith.tables.names import Layer
from tunesmith.tables.native import Entry

MOE = "E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8"


def moe(tmp_path: Path, folder: str, rows: Any, **options: Any):
    return formats.read(put(tmp_path, f"{folder}/{MOE}.json", ladder(rows, **options)))


# --- diff and merge -----------------------------------------------------------------------------------


def test_a_comparison_names_rows_and_knobs(tmp_path: Path):
    one = moe(tmp_path, "vllm/a", {1: KNOBS, 2: KNOBS, 4: None if False else KNOBS})
    other = moe(tmp_path, "vllm/b", {2: {**KNOBS, "num_warps": 8}, 4: KNOBS, 8: {"a": 1}})
    assert [str(change) for change in edit.diff(one, other)] == [
        f"- M=1: {json.dumps(KNOBS)}", "~ M=2: num_warps 4 → 8", '+ M=8: {"a": 1}'
    ]  # fmt: skip
    assert edit.diff(one, one) == []


@settings(max_examples=30)
@given(
    mine=st.lists(st.integers(1, 200), min_size=1, max_size=8, unique=True).map(sorted),
    theirs=st.lists(st.integers(1, 200), min_size=1, max_size=8, unique=True),
    indent=st.sampled_from([1, 2, 4]), newline=st.sampled_from(["\n", "\r\n"]), end=st.booleans(),
)  # fmt: skip
def test_a_merge_adds_rows_in_their_place_and_leaves_all_else(
    mine: list[int], theirs: list[int], indent: int, newline: str, end: bool
):
    path = Path("vllm") / f"{MOE}.json"
    style = {"indent": indent, "newline": newline, "end": end}
    base = formats.parse(path, ladder(mine, **style))
    other = formats.parse(path, ladder({size: {"a": size} for size in theirs}))
    merged = edit.merge([base, other])
    rows = {size: KNOBS if size in mine else {"a": size} for size in sorted({*mine, *theirs})}
    assert merged.document.data() == ladder(rows, **style)
    assert merged.added == len(rows) - len(mine)
    assert len(merged.notes) == len(set(mine) & set(theirs))


def test_of_two_rows_of_a_shape_the_first_or_the_faster_is_used(tmp_path: Path):
    a = put(
        tmp_path,
        "a_bf16_tuned_gemm.csv",
        csv(BF16, bf16(16, 10.0, kernel="a"), bf16(32, 9.0), newline="\r\n", end=False),
    )
    b = put(
        tmp_path,
        "b_bf16_tuned_gemm.csv",
        csv(BF16, bf16(16, 9.5, kernel="b"), bf16(48, 9.0), bf16(64, 0), bf16(32, 12.0)),
    )
    before = a.read_bytes(), b.read_bytes()
    sheets = [formats.read(a), formats.read(b)]
    first, fastest = edit.merge(sheets), edit.merge(sheets, "fastest")
    assert first.document.data() == before[0] + b"\r\n" + bf16(48, 9.0).encode() + b"\r\n"
    assert fastest.document.data() == first.document.data().replace(
        bf16(16, 10.0, kernel="a").encode(), bf16(16, 9.5, kernel="b").encode()
    )
    assert sum("us=0" in note for note in first.notes) == 1
    assert any("is faster: 9.5 us against 10" in note for note in fastest.notes)
    assert (a.read_bytes(), b.read_bytes()) == before


def test_tables_of_different_things_are_not_merged(tmp_path: Path):
    a, other = (
        moe(tmp_path, "vllm", [1]),
        formats.read(put(tmp_path, f"vllm/E=9,N=512,device_name={H100}.json", ladder([1]))),
    )
    gemm = formats.read(put(tmp_path, "a8w8_blockscale_tuned_gemm.csv", csv(BLOCKSCALE, blockscale(16))))
    with pytest.raises(BadInput, match="for something else"):
        edit.merge([a, other])
    with pytest.raises(BadInput, match="convert one first"):
        edit.merge([a, gemm])


def test_our_own_tables_merge_row_by_row(tmp_path: Path):
    device = known_device("NVIDIA H200").identity
    rows = [{Problem({"M": m}): Entry(Config(a=m), 1e-5, {"at": "x"}) for m in ms} for ms in ((1, 4), (2, 4))]
    tables = [NativeTable("k", device, r) for r in rows]
    sheets = [formats.read(put(tmp_path, f"{i}.json", table.data())) for i, table in enumerate(tables)]
    merged = edit.merge(sheets)
    assert merged.document.data() == NativeTable("k", device, {**rows[1], **rows[0]}).data()


# --- export and convert ---------------------------------------------------------------------------------

LAYER = Layer(8, 4096, 8, "fp8_w8a8", (128, 128))


def test_an_export_lies_where_the_engine_looks_and_reads_back(tmp_path: Path):
    rows = {64: dict(reversed(list(KNOBS.items()))), 1: {**KNOBS, "waves_per_eu": 2}}
    sglang = convert.export_moe("sglang", LAYER, "NVIDIA H200", rows, triton="3.6.0", provenance={"commit": "abc"})
    name = "E=8,N=512,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json"
    assert sglang.path == Path("configs/triton_3_6_0") / name
    assert set(sglang.files()) == {sglang.path, sglang.path.with_name(name + ".provenance")}
    assert json.loads(sglang.files()[sglang.path.with_name(name + ".provenance")]) == {
        "commit": "abc",
        "triton_version": "3.6.0",
    }
    assert sglang.document.data() == ladder({1: {**KNOBS, "waves_per_eu": 2}, 64: KNOBS})
    vllm = convert.export_moe("vllm", LAYER, "NVIDIA H200", rows, triton="3.6.0")
    assert vllm.path == Path(name.replace(", 128", ",128"))
    assert vllm.document.data() == ladder({1: {**KNOBS, "waves_per_eu": 2}, 64: KNOBS}, triton_version="3.6.0")
    gemm = convert.export_gemm("vllm", 512, 7168, "NVIDIA H200", rows, triton="3.6.0")
    assert gemm.beside == {"triton_version": "3.6.0"}
    assert b"triton_version" not in gemm.document.data()


@pytest.mark.parametrize(
    ("rows", "triton", "why"),
    [({}, "3.6.0", "without rows"), ({1: KNOBS}, "3.6.0+git1", "three numbers"),
     ({1: {**KNOBS, "BLOCK_SIZE_K": 256}}, "3.6.0", "would compute wrong results")],
)  # fmt: skip
def test_what_the_engine_could_not_bear_is_not_written(rows: Any, triton: str, why: str):
    with pytest.raises(BadInput, match=why):
        convert.export_moe("sglang", LAYER, "NVIDIA H200", rows, triton=triton)


def test_from_one_engine_to_the_other_and_back(tmp_path: Path):
    name = "E=384,N=128,device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    sheet = formats.read(put(tmp_path, f"triton_3_6_0/{name}", ladder([1, 64])))
    vllm = convert.convert(sheet, "vllm-moe")
    assert vllm.path == Path(name.replace("N=128", "N=256"))
    assert vllm.document.data() == ladder([1, 64], triton_version="3.6.0")
    back = convert.convert(formats.parse(Path("vllm") / vllm.path, vllm.document.data()), "sglang-moe")
    assert (back.path, back.document.data()) == (Path("configs/triton_3_6_0") / name, ladder([1, 64]))
    with pytest.raises(BadInput, match="unknown target"):
        convert.convert(sheet, "vllm")
    with pytest.raises(BadInput, match="cannot become"):
        convert.convert(sheet, "vllm-gemm")


def test_guards_make_the_engine_do_as_we_would():
    from tunesmith.tables.policy import RULES, Ladder

    tuned, default = {4: {"a": 4}, 256: {"a": 256}}, {"a": 0}
    rows = convert.with_guards(tuned, lambda size: default, 2.0, 8192)
    ladder_ = Ladder(RULES["nearest-stock"], rows)
    for size in range(1, 8193):
        hit = ladder_.find(size)
        assert hit is not None
        near = next((k for k in tuned if max(k, size) <= 2 * min(k, size)), None)
        assert rows[hit.key] == (default if near is None else tuned[near])


# --- writing --------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_kept_when_it_is_written_over(tmp_path: Path):
    path = put(tmp_path, f"vllm/{MOE}.json", b'{"1": {"BLOCK_SIZE_M": 16},')
    assert edit.write(path, ladder([1])) == path.with_name(f"{MOE}.json.kept-1")
    assert path.with_name(f"{MOE}.json.kept-1").read_bytes() == b'{"1": {"BLOCK_SIZE_M": 16},'
    assert edit.write(path, ladder([2])) is None
    assert path.read_bytes() == ladder([2])


def test_what_lies_beside_an_export_is_written_over_where_it_can_be_read(tmp_path: Path):
    path = put(tmp_path, f"vllm/{MOE}.json.provenance", b'{"triton": "3.5.0"}\n')
    assert edit.write(path, b'{"triton": "3.6.0"}\n') is None
    assert path.read_bytes() == b'{"triton": "3.6.0"}\n'
    for torn in (b'{"triton": ', b"[]", b"\xff"):
        path.write_bytes(torn)
        kept = edit.write(path, b"{}\n")
        assert kept is not None
        assert kept.read_bytes() == torn


def test_readers_never_see_a_part_of_a_file_that_is_written(tmp_path: Path):
    path = put(tmp_path, f"vllm/{MOE}.json", ladder([1]))
    stop, wrong = threading.Event(), list[bytes]()

    def read() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            if data not in (ladder([1]), ladder(range(1, 3000))):
                wrong.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(20):
        edit.write(path, ladder(range(1, 3000) if i % 2 else [1]))
    stop.set()
    reader.join()
    assert wrong == []


WRITER = """
import sys
from pathlib import Path
from tunesmith.core.config import Config
from tunesmith.core.problem import Problem
from tunesmith.tables import NativeTable, edit
from tunesmith.tables.native import Entry
for i in range(20):
    rows = {Problem({"M": int(sys.argv[2]) * 100 + i}): Entry(Config(a=1))}
    edit.add(Path(sys.argv[1]), NativeTable("k", "d", rows))
"""


def test_writers_at_once_lose_nothing(tmp_path: Path):
    path = tmp_path / "k.json"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(i)], env=environ) for i in range(4)]
    assert [process.wait(timeout=100) for process in running] == [0] * 4
    table = NativeTable.read(path)
    assert {problem["M"] for problem in table.rows} == {100 * i + j for i in range(4) for j in range(20)}
    with pytest.raises(BadInput, match="is for k on d"):
        edit.add(path, NativeTable("other", "d", {}))


# --- the command line -------------------------------------------------------------------------------------


def test_check_has_an_exit_code_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    put(tmp_path, f"vllm/E=16,N=3072,device_name={H100},dtype=float8.json", ladder([1, 16, 4096]))
    assert main(["table", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "error: never looked for: vllm has no dtype=float8" in out
    assert out.endswith("1 table, 3 rows: 1 error, 0 warnings\n")
    assert main(["table", "check", str(tmp_path), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["format"], data["files"], data["errors"]) == ("tunesmith-table-check/1", 1, 1)
    assert data["findings"][0]["code"] == "unreachable"
    good = put(tmp_path, f"good/E=16,N=3072,device_name={H100}.json", ladder([1, 16, 4096]))
    assert main(["table", "check", str(good)]) == 0
    big = put(
        tmp_path, f"big/E=16,N=3072,device_name={H100}.json", ladder({1: KNOBS, 4096: {**KNOBS, "BLOCK_SIZE_M": 256}})
    )
    assert main(["table", "check", str(big), "--device", "NVIDIA L40S"]) == 1
    assert "NVIDIA_L40S has 101376" in capsys.readouterr().out
    assert main(["table", "check", str(tmp_path / "nowhere")]) == 2
    assert main(["table", "check", str(big), "--device", "L40S"]) == 2  # not passed as if it had been checked
    assert "unknown chip 'L40S': known: " in capsys.readouterr().err


def test_kernels_that_are_compiled_in_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = put(tmp_path, "a8w8_blockscale_tuned_gemm.csv", csv(BLOCKSCALE, blockscale(16)))
    names = put(tmp_path, "kernels.txt", b"other\n")
    assert main(["table", "check", str(table), "--kernels", str(names)]) == 1
    assert "kernel 'ck_256x16x64' is not compiled in" in capsys.readouterr().out


def test_explain_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    a = put(tmp_path, f"a/E=512,N=128,device_name={H100}.json", ladder([96, 128, 1024], triton_version="3.6.0"))
    assert main(["table", "explain", str(a), "--at", "M=1"]) == 0
    assert "key 96, distance 95, below the smallest key: extrapolated" in capsys.readouterr().out
    assert main(["table", "explain", str(a), "--at", "M=1", "--rule", "nearest"]) == 1
    assert main(["table", "diff", str(a), str(a)]) == 0
    b = put(tmp_path, f"b/E=512,N=128,device_name={H100}.json", ladder([96, 128], triton_version="3.6.0"))
    capsys.readouterr()
    assert main(["table", "diff", str(a), str(b), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"] == [{"key": {"M": 1024}, "before": KNOBS, "after": None}]


@pytest.mark.parametrize(
    ("source", "name", "why"),
    [
        ("vllm/E=8,N=512,device_name=NVIDIA_H200.json", "merged.json", "not a table of a known format"),
        ("sglang/E=8,N=512,device_name=NVIDIA_H200.json", "m/E=8,N=512,device_name=NVIDIA_H200.json", "of vllm-moe"),
        ("vllm/E=8,N=512,device_name=NVIDIA_H200.json", "merged.csv", "would not be read again"),
    ],
)
def test_a_merge_is_not_written_where_no_command_would_read_it_as_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, name: str, why: str
):
    one, other = put(tmp_path, source, ladder([1, 64])), put(tmp_path, f"vllm-more/{source}", ladder([1, 128]))
    output = tmp_path / name
    assert main(["table", "merge", str(one), str(other), "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert f"good names: {one.name}" in said
    assert not output.exists()


def test_a_merge_of_a_format_that_is_given_is_written_where_it_is_read_with_it(tmp_path: Path):
    name = "E=8,N=512,device_name=NVIDIA_H200.json"
    one, other = put(tmp_path, f"sglang/{name}", ladder([1])), put(tmp_path, f"sglang/more/{name}", ladder([128]))
    output = tmp_path / "m" / name
    assert main(["table", "merge", str(one), str(other), "-o", str(output), "--format", "sglang-moe"]) == 0
    assert main(["table", "explain", str(output), "--at", "M=100", "--format", "sglang-moe"]) == 0
    assert main(["table", "merge", str(one), "-o", str(tmp_path / "x.json"), "--format", "sglang-moe"]) == 2


def test_import_export_convert_and_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = put(tmp_path, "vllm/E=8,N=512,device_name=NVIDIA_H200.json", ladder([1, 64], triton_version="3.6.0"))
    ours, out = tmp_path / "moe.json", tmp_path / "out"
    assert main(["table", "import", str(source), "--kernel", "moe", "--device", "NVIDIA H200", "-o", str(ours),
                 "--rename", "BLOCK_SIZE_M=BM"]) == 0  # fmt: skip
    table = NativeTable.read(ours)
    assert table.rows[Problem.parse("E=8,N=512,M=64")].config["BM"] == 16
    assert table.soft == {"triton": "3.6.0"}
    assert main(["table", "export", str(ours), "--to", "vllm-moe", "--layer", "experts=8,intermediate=4096,tp=8",
                 "--device", "NVIDIA H200", "--triton", "3.6.0", "-o", str(out), "--where", "E=8,N=512",
                 "--rename", "BM=BLOCK_SIZE_M"]) == 0  # fmt: skip
    assert (out / source.name).read_bytes() == source.read_bytes()
    assert main(["table", "convert", str(source), "--to", "sglang-moe", "-o", str(out)]) == 0
    assert (out / "configs/triton_3_6_0" / source.name).read_bytes() == ladder([1, 64])
    more = put(tmp_path, f"vllm/more/{source.name}", ladder([8], triton_version="3.6.0"))
    assert main(["table", "merge", str(source), str(more), "-o", str(tmp_path / "m" / source.name)]) == 0
    assert (tmp_path / "m" / source.name).read_bytes() == ladder([1, 8, 64], triton_version="3.6.0")
    assert source.read_bytes() == ladder([1, 64], triton_version="3.6.0")
    capsys.readouterr()
    wrong = ["table", "export", str(ours), "--to", "vllm-moe", "--layer", "experts=8", "--device", "NVIDIA H200"]
    assert main([*wrong, "--triton", "3.6.0", "-o", str(out)]) == 2
    assert "needed: experts, intermediate" in capsys.readouterr().err
    assert main(["table", "import", str(source), "--kernel", "moe", "--device", "NVIDIA L40S", "-o", str(ours)]) == 2
    assert "is for 'NVIDIA_H200', not for NVIDIA L40S" in capsys.readouterr().err


def test_a_gemm_table_is_exported_where_each_engine_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ours, out = tmp_path / "gemm.json", tmp_path / "out"
    rows = {Problem({"M": m, "N": 512, "K": 7168}): Entry(Config(KNOBS)) for m in (1, 64)}
    NativeTable("gemm", "cuda:NVIDIA H200:sm_90:132", rows).write(ours)
    usual = [str(ours), "--device", "NVIDIA H200", "--triton", "3.6.0", "-o", str(out), "--where", "N=512,K=7168"]
    for engine, blank in (("sglang", " "), ("vllm", "")):
        assert main(["table", "export", *usual, "--to", f"{engine}-gemm", "--layer", "n=512,k=7168"]) == 0
        name = f"N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,{blank}128].json"
        sheet = formats.read(out / name)
        assert (sheet.format, [row.key["M"] for row in sheet.rows]) == (f"{engine}-gemm", [1, 64])
        assert sheet.rows[0].config == KNOBS
    capsys.readouterr()
    for layer in ("n=512", "n=512,k=7168,experts=8", "n=512,k=big"):
        assert main(["table", "export", *usual, "--to", "vllm-gemm", "--layer", layer]) == 2
        assert "needed: n, k" in capsys.readouterr().err
    assert main(["table", "export", *usual, "--to", "vllm-gemm", "--layer", "n=512,k=7168", "--down"]) == 2
