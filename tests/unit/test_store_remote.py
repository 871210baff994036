"""`store export` and `store merge` with object storage in the place of a file, and with several files at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_store import CHOICE, key, measured

from tunesmith.cli import main
from tunesmith.options import options
from tunesmith.store import Store, default_store

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def there() -> str:
    """A folder of object storage, which is this process's memory."""
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/team"


def fill(folder: Path, number: int) -> Store:
    store = Store.open(folder)
    store.add_trials(key(number), [measured()])
    store.put_choice(key(number), CHOICE, {})
    return store


def test_what_hosts_export_to_object_storage_is_merged_at_once(
    tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / f"host{number}"))
        options.cache_clear()
        fill(options().cache_dir, number)
        assert main(["store", "export", f"{there}/host{number}.json"]) == 0
        assert f"wrote {there}/host{number}.json: 1 key" in capsys.readouterr().out
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / "here"))
    options.cache_clear()
    files = [f"{there}/host1.json", f"{there}/host2.json", str(fill(tmp_path / "host3", 3).path)]
    assert main(["store", "merge", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"format": ""} == {"format": "", "keys": 3, "choices": 3, "trials": 3}
    assert all(default_store().choice(key(number)) is not None for number in (1, 2, 3))
    assert main(["store", "merge", *files]) == 0
    assert "added 0 keys" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("memory://bucket/nobody.json", "nobody.json"),
        ("nonsense://x.json", "nonsense"),
        ("memory://bucket/bad", "export"),
    ],
)
def test_what_is_not_there_is_named(there: str, place: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fsspec.open("memory://bucket/bad", "wb") as file:
        file.write(b"[]")
    assert main(["store", "merge", place]) == 2
    assert said in capsys.readouterr().err
    assert not default_store().path.exists()
