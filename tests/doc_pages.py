"""Code in the documentation's pages: what kind it is, and whether it is run.

A block is run unless the line above it says why not, in one way everywhere: `<!-- not run: needs a GPU -->`.
A block with a title is a file that the page's code uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: made by a program: what they say is no one's word for what the program does
GENERATED = [ROOT / "docs" / "command-reference.md", ROOT / "docs" / "benchmarks.md"]
#: why a block is not run
REASONS = (
    "needs a GPU",
    "shows the form",  # a command with its options, not one to type
    "takes long",
    "part of a program",  # names things that stand elsewhere
    "needs more files",  # the reader's own, or another repository's
    "sets up a machine",  # pip, environment, cluster
    "run by a test of its own",
)
_BLOCK = re.compile(
    r'(?:^<!-- not run: (?P<why>.*?) -->\n)?^```(?P<language>\w+)(?: title="(?P<title>.*?)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block. `title` is a file's name or empty, `why` says why it is not run, or is empty."""

    language: str
    title: str
    why: str
    text: str

    @property
    def is_doctest(self) -> bool:
        return self.language == "python" and self.text.startswith(">>>")


def blocks(page: Path) -> list[Block]:
    """All blocks of a page that name a language, in order."""
    found = _BLOCK.finditer(page.read_text())
    return [Block(m["language"], m["title"] or "", m["why"] or "", m["text"]) for m in found]


def commands(session: str) -> list[tuple[str, list[str]]]:
    """The commands of a console session, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    open_ = False
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif open_:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        else:
            found[-1][1].append(line)
        open_ = line.endswith("\\")
    return found
