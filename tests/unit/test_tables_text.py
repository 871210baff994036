"""JSON and CSV that are written back as they were read, and of which a changed value changes its own bytes alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.tables import csvtext, jsontext

keys = st.text(st.characters(codec="utf-8"), max_size=6) | st.integers(0, 5000).map(str)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=True) | st.text(max_size=8)
    | st.sampled_from(["fp8", "ä", "\ud800", '"', "\\", "\n"])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)
gaps = st.text(" \t\r\n", max_size=3)


@st.composite
def texts(draw: Any) -> str:
    """A JSON text spelled in any way that the grammar allows."""

    def spell(value: Any) -> str:
        def gap() -> str:
            return draw(gaps)

        if isinstance(value, dict):
            inner = ",".join(f"{gap()}{word(k)}{gap()}:{gap()}{spell(v)}{gap()}" for k, v in value.items())
            return f"{{{inner or gap()}}}"
        if isinstance(value, list):
            return f"[{','.join(gap() + spell(v) + gap() for v in value) or gap()}]"
        return word(value)

    def word(value: Any) -> str:
        usual = json.dumps(value, ensure_ascii=draw(st.booleans()) or "\ud800" in str(value))
        others = {1: ["1.0", "1e0", "1E+0"], 0: ["-0", "0.0", "0e1"]}.get(value if type(value) is int else None, [])
        return draw(st.sampled_from([usual, *others]))

    return draw(gaps) + spell(draw(values)) + draw(gaps)


@settings(max_examples=150)
@given(text=texts(), bom=st.booleans())
def test_any_spelling_is_written_back_to_the_byte(text: str, bom: bool):
    data = (jsontext.BOM * bom + text).encode()
    document = jsontext.read(data)
    assert document.data() == data
    assert repr(jsontext.plain(document.value)) == repr(json.loads(text))


@settings(max_examples=100)
@given(
    indent=st.sampled_from([None, 0, 1, 2, 4]), newline=st.sampled_from(["\n", "\r\n"]), end=st.booleans(),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True), data=st.data(),
)  # fmt: skip
def test_a_changed_value_changes_its_own_bytes_and_no_others(
    indent: int | None, newline: str, end: bool, sizes: list[int], data: st.DataObject
):
    rows = {str(size): {"BLOCK_SIZE_M": 16, "num_warps": 4, "x": 1.5} for size in sizes}
    text = (json.dumps(rows, indent=indent) + "\n" * end).replace("\n", newline)
    size = data.draw(st.sampled_from(sizes))
    changed = jsontext.read(text.encode()).replaced((str(size), "num_warps"), 16).data().decode()
    before, row, after = text.partition(f'"{size}":')
    assert changed == before + row + after.replace('"num_warps": 4', '"num_warps": 16', 1)


def test_a_row_that_is_added_or_taken_out_leaves_the_others_alone():
    text = '{\r\n  "1": {"a": 1.50,\t"b": null},\r\n  "64": {"a": 2, "b": 0, "c": 1}\r\n}'
    document = jsontext.read(text.encode())
    added = document.inserted((), "8", jsontext.members({"a": 3, "b": True}), before="64").data().decode()
    assert added == text.replace('  "64"', '  "8": {"a": 3, "b": true},\r\n  "64"')
    assert jsontext.read(added.encode()).removed(("8",)).data().decode() == text


def test_keys_given_twice_both_stay_and_the_last_is_read():
    document = jsontext.read(b'{"1": {"a": 1}, "1": {"a": 2}}')
    assert jsontext.plain(document.value) == {"1": {"a": 2}}
    assert document.replaced((("1", 1), "a"), 3).data() == b'{"1": {"a": 1}, "1": {"a": 3}}'


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"), (b" \n", "empty"), (b'{"1": {"a": 16},', "line 1"), (b'{\n\n"1" 3}', "line 3: a colon"),
        (b"{1: 2}", "key in quotes"), (b'{"a": 01}', "line 1"), (b"[1,]", "value was expected"),
        (b"{} {}", "nothing more"),
        (b'{"a": "\n"}', "line 1"), (b'\xff{"a"}', "UTF-8"), (b"[" * 200, "deep"), (b'["\\x"]', "line 1"),
        (b"1" * 6000, "line 1"), (b"'a'", "value"), (b"<<<<<<< a\n{}", "line 1"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_with_its_line(data: bytes, why: str):
    with pytest.raises(BadInput, match=why):
        jsontext.read(data)


# --- CSV ------------------------------------------------------------------------------------------

cells = st.text(st.characters(codec="utf-8", exclude_characters='",\r\n'), max_size=6) | st.sampled_from(
    ["1", " 16384", "torch.int8\t", "0.0%", '"a,b"', '""', '"say ""x"""', '"two\nlines"', "2.61", "inf"]
)


@settings(max_examples=150)
@given(
    rows=st.lists(st.lists(cells, min_size=1, max_size=4), max_size=6),
    bom=st.booleans(),
    data=st.data(),
    end=st.booleans(),
)
def test_any_csv_is_written_back_to_the_byte(rows: list[list[str]], bom: bool, data: st.DataObject, end: bool):
    ends = [data.draw(st.sampled_from(["\n", "\r\n"])) for _ in rows]
    if ends and not end:
        ends[-1] = ""
    text = "".join(",".join(row) + ending for row, ending in zip(rows, ends, strict=True))
    content = (csvtext.BOM * bom + text).encode()
    assert csvtext.read(content).data() == content


def test_a_changed_cell_changes_its_own_bytes():
    text = 'M,us,name\r\n 1 ,2.50,"a,b"\r\n\r\n2,0.0%,x'
    document = csvtext.read(text.encode())
    assert document.rows == (("M", "us", "name"), (" 1 ", "2.50", "a,b"), (), ("2", "0.0%", "x"))
    assert [document.line(i) for i in range(4)] == [1, 2, 3, 4]
    assert document.replaced(1, 1, "2.4").data().decode() == text.replace("2.50", "2.4")
    assert document.replaced(3, 2, 'y,"z"').data().decode() == text[:-1] + '"y,""z"""'
    assert document.appended([("3", "1", "")]).data().decode() == text + "\r\n3,1,\r\n"


def test_a_quote_that_is_not_closed_is_named_with_its_line():
    with pytest.raises(BadInput, match="line 2: a quote"):
        csvtext.read(b'a,b\n"x,1\n2,3')
