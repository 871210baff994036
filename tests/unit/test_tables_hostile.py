"""Files that are torn, mutated or malicious: a look-up misses, a check says what is wrong, and neither raises."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_files import BF16, FMOE, KNOBS, bf16, csv, fmoe, ladder, put

from tunesmith import known_device
from tunesmith.core.key import Key
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput
from tunesmith.tables import check, csvtext, formats, jsontext, load

H200, MI300 = known_device("NVIDIA H200"), known_device("AMD Instinct MI300X")
LADDER = "E=8,N=8,device_name=NVIDIA_H200.json"
LONG = "9" * 5000


def use(folder: Path, name: str, data: bytes, format: str | None = None) -> None:
    """Whatever one may do with a file: `BadInput` is the one error that is let through."""
    path = put(folder, name, data)
    for rule in (None, "nearest-stock"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                table = load(path, format=format, rule=rule)
        except BadInput:
            continue
        for m in (0, 1, 64, 9000):
            for device in (H200, MI300):
                exact = Problem({"E": 8, "N": 8, "K": 8, "M": m})
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    table.lookup(Key("k", "f", exact, device.identity, "p"), exact, device)
                    if hasattr(table, "explain"):
                        assert table.explain(exact, device)  # type: ignore[attr-defined]
    try:
        report = check.check([path], check.Options("NVIDIA_H200", 64, frozenset({"k1"}), format))
    except BadInput:
        return
    assert all(str(finding) for finding in report.findings)


def native(rows: str, head: str = "") -> bytes:
    said = f'{{"format": "tunesmith-table/1", "kernel": "k", "device": "{H200.identity}", {head}"rows": {{{rows}}}}}'
    return said.encode()


HUGE = "1" + "0" * 400
DEEP = "[" * 700 + "]" * 700


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", f'{{"M_LEQ_{LONG}": {{"a": 1}}, "any": {{"a": 1}}}}'),
        ("a.json", '{"M_GEQ_064": {"a": 1}, "any": {"a": 1}}'),
        ("a.json", '{"M_GEQ_\u0663": {"a": 1}, "any": {"a": 1}}'),
        ("a.json", f'{{"gfx950:1:1:{LONG}": "x"}}'),
        ("a.json", '{"(": [{"template_id": "x"}]}'),
        *[
            ("a.json", json.dumps({"_metadata": {}, "metadata": {}, "shared": {key: {}}, key: ["a", 1]}))
            for key in ("({[]: 1},1,2,3)", f"(0x{'f' * 5000},1,2,3)", f"(1,2,3,0x{'f' * 5000})", "(" * 100_000,
                        "-" * 100_000 + "1", "(1,2,3,'\x00')", "('\\d',1,2,3)")
        ],
        ("a.json", f'{{"metadata": {{}}, "shared": {{"(1,2,3,4)": {{"min_time": {HUGE}}}}}}}'),
        ("a.autotune.json", '{"configs_timings": [[{"kwargs": null}, [1, 2, 3]], [{"kwargs": [1]}, 1]]}'),
        ("a.autotune.json", f'{{"configs_timings": [[{{"kwargs": {{}}}}, [{HUGE}]], [{{}}, []], [{{}}, 1e999]]}}'),
        ("a.json", '{"cache": {"a": {"x": 1}}, "tune_params_keys": null}'),
        ("a.json", f'{{"cache": {{"a": {{"x": 1, "time": {HUGE}}}}}, "tune_params_keys": ["x"]}}'),
        ("a.json", '{"results": [{"configuration": {}, "measurements": null}]}'),
        ("a.json", f'{{"results": [{{"configuration": {{}}, "measurements": [{{"name":"time","value": {HUGE}}}]}}]}}'),
        ("a.json", native(f'"M=64": {{"config": {{"a": 1}}, "median_s": {HUGE}}}').decode()),
        ("a.json", native(f'"M=64": {{"config": {{"a": {DEEP}}}}}').decode()),
        ("a.json", native(f'"M=64": {{"config": {{"a": 1}}, "provenance": {{"x": {DEEP}}}}}').decode()),
        ("a.json", "[" * 100_000),
        ("NVIDIA_H200_SHRINK.json", '{"1": {"1": {"1": {"1": {"1": null, "01": {"1": {}}}}}}}'),
        (LADDER, f'{{"64": {{"BLOCK_SIZE_K": 0, "num_warps": {HUGE}, "num_stages": NaN}}, "{LONG}": {{}}}}'),
        ("a.csv", f"M,N,K,us,kernelName\n{LONG},8,8,1e999,k\n{'9' * 90},8,8,1e-300,k\n-5,8,8,nan%,k\n"),
        ("a.csv", 'M,N,K,us\n"'),
    ],
)  # fmt: skip
def test_one_bad_row_raises_nowhere(tmp_path: Path, name: str, text: str):
    use(tmp_path, name, text.encode())


def test_a_bad_row_leaves_the_others(tmp_path: Path):
    rows = f'"M=64": {{"config": {{"a": {DEEP}}}}}, "\\ud800=1": {{"config": {{}}}}, "M=1": {{"config": {{"a": 1}}}}'
    with pytest.warns(UserWarning, match="2 of 3 rows are left out"):
        table = load(put(tmp_path, "a.json", b"\xef\xbb\xbf" + native(rows)))
    exact = Problem({"M": 1})
    row = table.lookup(Key("k", "f", exact, H200.identity, "p"), exact, H200)
    assert row is not None
    assert row.config["a"] == 1


def test_a_large_table_of_ours_may_hold_odd_text(tmp_path: Path):
    rows = ",\n".join(f'    "M={i}": {{"config": {{"a": 1}}}}' for i in range(5000))
    head = f'{{\n  "format": "tunesmith-table/1",\n  "kernel": "k",\n  "device": "{H200.identity}",\n  "rows": {{\n'
    nested = head.replace('"rows"', '"soft": {\n  "rows": {\n "a": 1}},\n "rows"')
    for text in (head + '    "x=\\ud800": {"config": {}},\n', nested):
        use(tmp_path, "a.json", (text + rows + "\n  }\n}\n").encode())


@pytest.mark.parametrize("format", formats.NAMES)
def test_a_format_that_the_file_is_not_of_is_said(tmp_path: Path, format: str):
    bodies = (b"{}", b"[]", b"null", b"3", b"[{}]", b'{"a": {}}', b'{"configs": {}}', b'{"cache": {}}', b'{"any": 3}')
    for body in bodies:
        for name in ("a.json", LADDER, "x_NVIDIA-H200_t8_h2048_bf16.json", "NVIDIA_H200_SHRINK.json"):
            use(tmp_path, name, body, format)
    with pytest.raises(BadInput, match=r"a\.json"):
        formats.read(put(tmp_path, "a.json", b"[3]"), format)


SEEDS = {
    LADDER: ladder({1: KNOBS, 64: KNOBS}, triton_version="3.6.0"),
    "sglang/N=8,K=8,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json": ladder({1: KNOBS, 64: None}),
    "bf16_tuned_gemm.csv": csv(BF16, bf16(16, 7.9), bf16(64, 9, kernel='"a, b"')),
    "tuned_fmoe.csv": csv(FMOE, fmoe(64)),
    "GEMM-A16W16-N=8-K=8.json": b'{"M_LEQ_64": {"BLOCK_SIZE_M": 16}, "M_GEQ_128": {"a": 1}, "any": {"a": null}}',
    "a.json": native('"M=64": {"config": {"a": 1}, "median_s": 1e-6, "provenance": {"at": ""}}', '"soft": {"x": "1"},'),
    "b.json": b'{"_metadata": {"gpu": "x"}, "(\'a\', \'b\', ((1, 2),), ())": ["b", 3]}',
    "c.json": b'{"metadata": {"a": 1}, "shared": {"(1, 2, 3, 4)": {"runner_id": 0, "min_time": 0.1}}}',
    "d.autotune.json": b'{"key": [1], "configs_timings": [[{"kwargs": {"A": 1}, "num_warps": 4}, [1.0, 1.0, 1.0]]]}',
    "e.json": b'{"cache": {"1": {"x": 1, "time": 0.5}}, "tune_params_keys": ["x"], "kernel_name": "k"}',
    "f.json": b'{"results": [{"configuration": {"x": 1}, "measurements": [{"name": "time","value": 1,"unit": "s"}]}]}',
    "g.json": b'{"dev+((torch.float16, [1], [1]),)+mm": [{"template_id": "mm", "BLOCK_M": 16}]}',
    "k/nvidia_h200.json": b'[{"key": {"M": 64}, "config": {"x": [1, "a"]}}]',
    "NVIDIA_H200_SHRINK.json": b'{"1": {"1": {"64": {"8": {"8": {"1": {"a": 1}}}}}}}',
    "world=8,H=8,device_name=NVIDIA_H200.json": b'{"configs": {"op": {"1": {"a": 1}}}, "selection": {"rule": "x"}}',
    "topk=8,E=8,device_name=NVIDIA_H200.json": b'{"configs": {"1": "fast", "64": {"a": 1}}, "meta": {"a": 1}}',
    "h.json": b'{"gfx950:8:8:64": "w16"}',
    "i.json": b'{"tokens": {"1": {"a": 1}}, "experts": 8}',
}  # fmt: skip
#: what is put in the place of some bytes
SPLICES = [
    *(bytes([one]) for one in b'{}[],:"\\\r\n\t\x00\xff_=0'),
    *(b"", b"{}", b"[[]]", b"null", b"NaN", b"-Infinity", b"1e999", b"-0", b"1.0", b"true", b"\r\n", b"\\ud800"),
    *(b"\xef\xbb\xbf", HUGE.encode()),
]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(SEEDS)),
    cuts=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(SPLICES)), min_size=1, max_size=4
    ),
    utf16=st.booleans(),
)  # fmt: skip
def test_mutated_files(tmp_path: Path, name: str, cuts: list[tuple[int, int, bytes]], utf16: bool):
    data = SEEDS[name]
    for at, length, instead in cuts:
        at %= len(data) + 1
        data = data[:at] + instead + data[at + length :]
    use(tmp_path, name, data)
    try:
        document = jsontext.read(data)
    except BadInput:
        pass
    else:
        assert document.data() == data
    if utf16:
        use(tmp_path, name, data.decode(errors="replace").encode("utf-16"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from([name for name in sorted(SEEDS) if name.endswith(".json")]), data=st.data())
def test_values_of_other_types(tmp_path: Path, name: str, data: st.DataObject):
    def mutated(value: object) -> object:
        if data.draw(st.integers(0, 5)) == 0:
            return data.draw(VALUES)
        if isinstance(value, dict):
            return {key: mutated(inner) for key, inner in value.items()}
        return [mutated(inner) for inner in value] if isinstance(value, list) else value

    use(tmp_path, name, json.dumps(mutated(json.loads(SEEDS[name]))).encode())


CSV_PARTS = ['"', '""', ",", "\r", "\n", "\r\n", " ", "\t", "a", "1.0", "\ufeff", "é", "\x00", "\x0b", "\u2028"]


@settings(max_examples=500, deadline=None)
@given(
    parts=st.lists(st.sampled_from(CSV_PARTS), max_size=14), new=st.sampled_from(["x", "a,b", '"q"', "a\nb", "\r", " "])
)
def test_any_csv_is_written_back_and_one_cell_changes_alone(parts: list[str], new: str):
    data = "".join(parts).encode()
    try:
        document = csvtext.read(data)
    except BadInput:
        return
    assert document.data() == data
    for i, row in enumerate(document.rows):
        for j in range(len(row)):
            wanted = [list(cells) for cells in document.rows]
            wanted[i][j] = new
            changed = csvtext.read(document.replaced(i, j, new).data())
            assert [list(cells) for cells in changed.rows] == wanted
