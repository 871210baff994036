"""Reads a report's file as a browser would, without one: elements that are closed, texts, data, what may run."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Read(HTMLParser):
    """An HTML file.

    Attributes:
        open: elements that were never closed, at the end none.
        faults: what a browser would have to guess.
        scripts: (type, content) of each script.
        text: all that is shown.
        elements: (name, attributes) of each.
    """

    open: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    scripts: list[tuple[str, str]] = field(default_factory=list)
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if len(dict(attrs)) != len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs).get("type") or "", ""))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind, content = self.scripts[-1]
            self.scripts[-1] = kind, content + data
        elif not self.open or self.open[-1] != "style":
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        """The measurements that stand in it."""
        (found,) = [content for kind, content in self.scripts if kind == "application/json"]
        return json.loads(found, parse_constant=lambda name: 1 / 0)  # no reader but Python's knows NaN

    @property
    def runs(self) -> list[str]:
        """What the page may run: its own script, and Plotly's, unpacked."""
        (own,) = [content for kind, content in self.scripts if not kind]
        (packed,) = [content for kind, content in self.scripts if kind == "text/plain"]
        return [own, gzip.decompress(base64.b64decode(packed)).decode()]

    @property
    def allowed(self) -> set[str]:
        """Hashes of the scripts that the page's policy lets run."""
        (policy,) = [a["content"] or "" for name, a in self.elements if name == "meta" and "http-equiv" in a]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        (scripts,) = re.findall(r"script-src ([^;]*)", policy)
        return set(scripts.split())


def read(html: str) -> Read:
    """Read a file to its end."""
    page = Read()
    page.feed(html)
    page.close()
    return page


def hash_of(script: str) -> str:
    """As a policy names a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
