"""Files that are written whole: links and devices stay what they are."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

from tunesmith.files import write_whole


def test_a_link_stays_a_link(tmp_path: Path):
    real, link = tmp_path / "a" / "real.json", tmp_path / "link.json"
    real.parent.mkdir()
    link.symlink_to(real)
    for data in (b"1", b"2"):  # to nothing, and to a file
        write_whole(link, data)
        assert link.is_symlink()
        assert real.read_bytes() == data
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "link.json"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"said")
    reader.join(10)
    assert heard == [b"said"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_is_no_file_to_replace(tmp_path: Path):
    code = "from pathlib import Path; from tunesmith.files import write_whole; write_whole(Path('/dev/stdout'), b'x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"x"
