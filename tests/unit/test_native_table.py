"""Tables of our own format: exact look-ups, files that are read by people, and rows that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import configs, edit, problems, seconds, softs, texts

from tunesmith import known_device
from tunesmith.core.config import Config
from tunesmith.core.key import Key
from tunesmith.core.outcome import Choice
from tunesmith.core.problem import Problem
from tunesmith.errors import BadInput, TunesmithWarning
from tunesmith.store import Store
from tunesmith.tables import NativeTable, Row, Tables, from_store
from tunesmith.tables.native import Entry

DEVICE = "cpu:x86:avx2:8"
SMALL, LARGE = Problem.parse("M=512,dtype=float32"), Problem.parse("M=1024,dtype=float32")
TABLE = NativeTable(
    "matmul",
    DEVICE,
    {SMALL: Entry(Config(BLOCK=64), 1e-3, {"at": "2026"}), LARGE: Entry(Config(BLOCK=128))},
    "f1",
    "p1",
    {"cc": "12"},
)


def key(problem: Problem = SMALL, **fields: Any) -> Key:
    given = {
        "kernel": "matmul",
        "fingerprint": "f1",
        "device": DEVICE,
        "protocol": "p1",
        "soft": {"cc": "12"},
        **fields,
    }
    return Key(problem=problem, **given)


def ask(table, asked):
    """The row for a call that is not bucketed."""
    return table.lookup(asked, asked.problem, known_device("NVIDIA H200"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    TABLE.write(tmp_path / "matmul.json")
    return tmp_path / "matmul.json"


entries = st.builds(Entry, configs, st.none() | seconds, softs)
tables = st.builds(NativeTable, texts, texts, st.dictionaries(problems, entries, max_size=4), texts, texts, softs)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables)
def test_what_is_written_reads_equal_and_answers_for_each_of_its_rows(tmp_path: Path, table: NativeTable):
    path = tmp_path / "table.json"
    table.write(path)
    read = NativeTable.read(path)
    assert (read.kernel, read.device, read.rows, read.fingerprint, read.protocol, read.soft) == (
        table.kernel, table.device, table.rows, table.fingerprint, table.protocol, table.soft,
    )  # fmt: skip
    for problem, entry in table.rows.items():
        row = ask(read, key(problem, kernel=table.kernel, device=table.device, fingerprint=table.fingerprint))
        assert row is not None
        assert (row.config, row.median_s) == (entry.config, entry.median_s)
    first = path.read_bytes()
    read.write(path)
    assert path.read_bytes() == first


def test_the_file_opens_with_its_format_and_has_a_line_for_each_problem(path: Path):
    text = path.read_text()
    assert text.startswith('{\n  "format": "tunesmith-table/1",\n  "kernel": "matmul",\n')
    assert [line.split('": ')[0].strip() for line in text.splitlines() if "BLOCK" in line] == [
        '"M=512,dtype=float32', '"M=1024,dtype=float32',
    ]  # fmt: skip
    assert json.loads(text)["rows"]["M=512,dtype=float32"] == {
        "config": {"BLOCK": 64}, "median_s": 0.001, "provenance": {"at": "2026"},
    }  # fmt: skip


def test_a_hit_says_where_it_is_from(path: Path):
    table: Tables = NativeTable.read(path)
    assert ask(table, key()) == Row(Config(BLOCK=64), f"table {path}", "", 1e-3, "")


@pytest.mark.parametrize(
    "other", [key(Problem.parse("M=513,dtype=float32")), key(Problem.parse("M=512,dtype=float16")),
              key(kernel="softmax"),
              key(device="cpu:x86:avx2:4"), key(Problem.parse("M=512"))],
)  # fmt: skip
def test_another_problem_kernel_or_device_is_a_miss(path: Path, other: Key):
    assert ask(NativeTable.read(path), other) is None


def test_another_source_or_other_versions_are_used_with_a_note(path: Path):
    row = ask(NativeTable.read(path), key(fingerprint="f2", soft={"cc": "13"}))
    assert row is not None
    assert row.config == Config(BLOCK=64)
    assert "another source of matmul (f1, now f2)" in row.note
    assert "cc: 13, was 12" in row.note


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"M=512": 3}, "no 'config'"),
        ({"M=512": {"config": [1]}}, "no 'config'"),
        ({"M=512": {"config": {"a": {}}}}, "knob 'a'"),
        ({"512": {"config": {"a": 1}}}, "not NAME=VALUE"),
        ({"M=512": {"config": {"a": 1}, "median_s": 0}}, "median_s"),
        ({"M=512": {"config": {"a": 1}, "median_s": "fast"}}, "median_s"),
        ({"M=1": {"config": {"a": 1}}, "M=01": {"config": {"a": 2}}}, "same Problem"),
        ({"M=512": {"config": {"a": 1}, "provenance": 3}}, "M=512"),
    ],
)
def test_a_bad_row_is_a_miss_and_named_in_one_warning(tmp_path: Path, bad: dict[str, Any], why: str):
    data = {
        "format": "tunesmith-table/1",
        "kernel": "matmul",
        "device": DEVICE,
        "rows": {**bad, LARGE.text: {"config": {"b": 1}}},
    }
    (tmp_path / "t.json").write_text(json.dumps(data))
    with pytest.warns(TunesmithWarning, match=why) as caught:
        table = NativeTable.read(tmp_path / "t.json")
    assert len(caught) == 1
    assert "t.json" in str(caught[0].message)
    assert list(bad)[-1] in str(caught[0].message)
    good = ask(table, key(LARGE))
    assert good is not None
    assert good.config == Config(b=1)
    assert ask(table, key(Problem.parse("M=512"))) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "not a table"),
        (b"\xff", "not a table"),
        (b"[" * 100_000, "not a table"),
        (b"[]", "does not begin with"),
        (b'{"format": "tunesmith-store/1"}', "does not begin with"),
        (b'{"format": "tunesmith-table/1", "kernel": 3}', "'kernel' is 3, not a str"),
        (b'{"format": "tunesmith-table/1", "kernel": "k", "device": "d"}', "'rows' is None, not a dict"),
        (b'{"format": "tunesmith-table/1", "kernel": "k", "device": "d", "rows": {}, "soft": 1}', "'soft' is 1"),
        (b'{"format": "tunesmith-table/1", "kernel": "k", "kernel": "k"}', "'kernel' is given twice"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes | None, why: str):
    if content is not None:
        (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(BadInput, match=why) as caught:
        NativeTable.read(tmp_path / "t.json")
    assert "t.json" in str(caught.value)


# --- from a store ----------------------------------------------------------------------------------------


def test_a_table_made_from_a_store_answers_like_the_store(tmp_path: Path):
    store = Store.open(tmp_path / "cache")
    bucket = Choice(Config(BLOCK=128), "search", "search", 2e-3, measured_at=Problem.parse("M=1000,dtype=float32"))
    store.put_choice(key(), Choice(Config(BLOCK=64), "search", "search", 1e-3), {"cc": "12"})
    store.put_choice(key(LARGE), bucket, {"cc": "12"})
    store.put_choice(key(device="cuda:NVIDIA H200:sm_90:132"), bucket, {})
    table = from_store(store, "matmul", DEVICE)
    assert (table.fingerprint, table.protocol, table.soft) == ("f1", "p1", {"cc": "12"})
    for problem in (SMALL, LARGE):
        row, stored = ask(table, key(problem)), store.choice(key(problem))
        assert row is not None
        assert stored is not None
        assert (row.config, row.median_s) == (stored.choice.config, stored.choice.median_s)
    assert table.rows[LARGE].provenance["measured_at"] == "M=1000,dtype=float32"
    assert len(table.rows) == 2


def test_two_states_of_a_kernel_are_never_mixed_in_a_table(tmp_path: Path):
    store = Store.open(tmp_path / "cache")
    store.put_choice(key(), Choice(Config(BLOCK=1), "search", "search"), {})
    store.close()
    edit(store.path, "UPDATE choices SET at = '2020-01-01T00:00:00+00:00'")
    store.put_choice(key(LARGE, fingerprint="f2"), Choice(Config(BLOCK=2), "search", "search"), {})
    table = from_store(store, "matmul", DEVICE)
    assert table.fingerprint == "f2"
    assert list(table.rows) == [LARGE]


def test_nothing_known_names_what_is(tmp_path: Path):
    store = Store.open(tmp_path / "cache")
    store.put_choice(key(), Choice(Config(BLOCK=64), "search", "search"), {})
    with pytest.raises(BadInput, match=r"unknown device of matmul 'cpu:x86:avx2:4'.*cpu:x86:avx2:8"):
        from_store(store, "matmul", "cpu:x86:avx2:4")
    with pytest.raises(BadInput, match=r"unknown kernel 'matmull'.*known: matmul"):
        from_store(store, "matmull", DEVICE)
