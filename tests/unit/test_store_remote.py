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
        ("memory://bucket/bad", "memory://bucket/bad is not an export"),
    ],
)
def test_what_is_not_there_is_named(there: str, place: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fsspec.open("memory://bucket/bad", "wb") as file:
        file.write(b"[]")
    assert main(["store", "merge", place]) == 2
    assert said in capsys.readouterr().err
    assert not default_store().path.exists()


class Halting(fsspec.get_filesystem_class("file")):
    """Storage on this disk that breaks off in the midst of a write."""

    protocol = "halting"
    broken = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("halting://"))

    def pipe_file(self, path: str, value: bytes, **more: object) -> None:
        with open(self._strip_protocol(path), "wb") as file:
            file.write(value[: len(value) // 2] if self.broken else value)
        if self.broken:
            raise OSError("the connection broke off")


def test_a_write_that_breaks_off_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("halting", Halting, clobber=True)
    fill(options().cache_dir, 1)
    folder = tmp_path / "there"
    place = f"halting://{folder}/x.json"
    assert main(["store", "export", place]) == 2
    assert f"{place}: OSError: the connection broke off" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(Halting, "broken", False)
    assert main(["store", "export", place]) == 0
    whole = (folder / "x.json").read_bytes()
    monkeypatch.setattr(Halting, "broken", True)
    assert main(["store", "export", place]) == 2
    assert [path.read_bytes() for path in folder.iterdir()] == [whole]
    monkeypatch.setattr(Halting, "broken", False)
    assert main(["store", "export", place]) == 0  # in the place of one that is there
    assert main(["store", "export", f"file://{folder}/new/y.json"]) == 0
    assert {path.name for path in folder.rglob("*.json")} == {"x.json", "y.json"}
