"""Draw the pictures of terminals in the documentation: each is a command that was really run, in a terminal.

    $ python docs/scripts/terminal.py            # all of them, as SVG in docs/pictures
    $ python docs/scripts/terminal.py explain    # one
    $ python docs/scripts/terminal.py --look COLUMNS [--plain] FILE.svg -- tunesmith …  # any command, to look at

Needs a system with pseudo-terminals, and what tunesmith itself needs. Times differ from run to run.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from pathlib import Path
from select import select
from termios import TIOCSWINSZ

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).parents[1] / "pictures"
COLUMNS, LINES = 88, 60
#: A small kernel in plain Python, slow enough that there is something to see.
KERNEL = """
import numpy, tunesmith
from tunesmith import Space

@tunesmith.autotune(space=Space(block=[64, 256, 1024, 4096], order=["C", "F"], dtype=["float64", "float32"]),
    key=["M", "N"], make_inputs=lambda p: {"x": numpy.ones((p["M"], p["N"])), "M": p["M"], "N": p["N"]})
def row_sums(x, M, N, *, block, order, dtype):
    x = numpy.asarray(x, dtype=dtype, order=order)
    for start in range(0, M, block):
        x[start : start + block].sum(axis=1)
"""
PROBLEM = ("--problem", "M=4096,N=512")
#: picture → the commands before it, the command that is shown, and what it shows when it is cut short
PICTURES: Mapping[str, tuple[Sequence[Sequence[str]], Sequence[str], str | None]] = {
    "tune": ((), ("tune", "mine.py:row_sums", *PROBLEM), None),
    "explain": ((("tune", "mine.py:row_sums", *PROBLEM),), ("explain", "mine.py:row_sums", *PROBLEM), None),
    "missed": (
        (("tune", "mine.py:row_sums", *PROBLEM),), ("explain", "mine.py:row_sums", "--problem", "M=8192,N=512"), None,
    ),
    "progress": ((), ("tune", "mine.py:row_sums", "--problem", "M=32768,N=1024", "--budget", "60"), "round 2"),
}  # fmt: skip


class Screen:
    """What a terminal shows: lines of text with their colours, as far as rich's control codes go."""

    CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|\x07|[^\x1b\r\n\x07]+")

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.row, self.style = columns, [""], 0, ""

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        for match in self.CODE.finditer(text):
            numbers, code = match.group(1), match.group(2)
            if code == "A":
                self.row = max(0, self.row - int(numbers or 1))
            elif code == "K":
                self.lines[self.row] = ""
            elif code == "m":
                self.lines[self.row] += match.group()
            elif match.group() == "\n":
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif code is None and match.group() not in ("\r", "\x07"):
                self.lines[self.row] += match.group()

    @property
    def text(self) -> str:
        """The lines, with the codes of their colours."""
        return "\n".join(self.lines).rstrip("\n")


def run(
    command: Sequence[str], columns: int, environ: Mapping[str, str], folder: Path, until: str | None = None
) -> str:
    """What a command shows in a terminal of so many columns, progress that is taken away again left out.

    Args:
        until: a second after it shows this text it is ended by Ctrl-C, and the result is what it showed.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe(command[0], list(command), {**os.environ, **environ})
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    screen, end = Screen(columns), None
    rest, shown = b"", ""
    while True:
        if until is not None and until in screen.text and end is None and not shown:
            end = time.monotonic() + 1.0
        if end is not None and time.monotonic() > end:
            screen.feed(rest.decode(errors="replace"))
            shown, end, rest = screen.text, None, b""
            os.kill(child, signal.SIGINT)
        if not select([terminal], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        if not data:
            break
        rest += data
        whole = rest.rfind(b"\n") + 1 or len(rest)
        screen.feed(rest[:whole].decode(errors="replace"))
        rest = rest[whole:]
    os.waitpid(child, 0)
    screen.feed(rest.decode(errors="replace"))
    os.close(terminal)
    return shown or screen.text


def draw(command: str, shown: str, columns: int, file: Path) -> None:
    """Write an SVG of a terminal: no fonts from the network, and the same names for the same picture."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold"), command), soft_wrap=True)
    console.print(Text.from_ansi(shown), soft_wrap=True)
    svg = console.export_svg(title="", theme=MONOKAI, unique_id=file.stem)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    file.write_text(svg.replace("Fira Code", "ui-monospace, DejaVu Sans Mono"))
    sys.stdout.write(f"{file}: {file.stat().st_size:,} bytes\n")


def main(asked: Sequence[str]) -> None:
    """Draw what is asked for."""
    tunesmith = [sys.executable, "-m", "tunesmith"]
    if asked[:1] == ["--look"]:
        columns, command = int(asked[1]), list(asked[asked.index("--") + 1 :])
        colour = {"NO_COLOR": "1", "TERM": "dumb"} if "--plain" in asked else {"TERM": "xterm-256color"}
        line = [*tunesmith, *command[1:]] if command[0] == "tunesmith" else command
        file = Path(asked[asked.index("--") - 1])
        draw(shlex.join(command), run(line, columns, colour, Path.cwd()), columns, file)
        return
    for name in asked or PICTURES:
        before, command, until = PICTURES[name]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "mine.py").write_text(KERNEL)
            environ = {"TUNESMITH_CACHE_DIR": str(folder / "cache"), "TERM": "xterm-256color"}
            for one in before:
                run([*tunesmith, *one], COLUMNS, environ, folder)
            shown = run([*tunesmith, *command], COLUMNS, environ, folder, until)
        draw(shlex.join(["tunesmith", *command]), shown, COLUMNS, HERE / f"terminal-{name}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
