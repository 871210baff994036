"""Writes `docs/benchmarks.md` from `benchmarks/results/*.json`: each claim with its command, machine and date.

python benchmarks/page.py            write it
python benchmarks/page.py --check    exit code 1 where it is not what the results say
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from _figures import Table, duration
from _wording import WORDING

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"

#: a result's file name ends in where it was made
MADE_ON = {"cpu": "CPU", "h200": "H200", "recorded": "from recordings"}

#: of a result without a wording: larger tables are left to its file
MOST_ROWS, MOST_COLUMNS = 48, 8

HEAD = """# Benchmarks

Each figure on this page is read from a result in `benchmarks/results/`, which has the samples, the command that made
it, and what it was made on; `python benchmarks/page.py` writes the page from them. A result is as old as its date: what
changed since is not in it. What is said of others was measured by the same script, side by side with ours.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or say whether it is current."""
    parser = argparse.ArgumentParser(description="Write docs/benchmarks.md from the results.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is not current")
    asked = parser.parse_args(arguments)
    text = page(sorted(RESULTS.glob("*.json")))
    if asked.check:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not what the results say: python benchmarks/page.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(f"{PAGE.relative_to(ROOT)}: {text.count(chr(10) + '## ')} results")
    return 0


def page(paths: Sequence[Path]) -> str:
    """The page of these results: those with a wording in its order, then the others by name."""
    order = list(WORDING)
    results = {path: json.loads(path.read_text()) for path in paths}
    rank = {
        path: (order.index(name) if (name := result["benchmark"]) in WORDING else len(order))
        for path, result in results.items()
    }
    sections = [section(path, results[path]) for path in sorted(results, key=lambda path: (rank[path], path.name))]
    return HEAD + "\n".join(sections)


def section(path: Path, result: Mapping[str, Any]) -> str:
    """One result: what it says, ours beside each peer, and where the figures come from.

    Raises:
        ValueError: for a result that lacks a figure which its wording names.
    """
    wording = WORDING.get(result["benchmark"])
    device = path.stem.removeprefix(f"{result['benchmark']}-")
    if wording is None:
        lines = [f"## {path.stem}", "", *_table(_plain(result["summary"])), ""]
        rows = _plain_rows(result["rows"])
        lines += [*_table(rows), ""] if rows else []
    else:
        try:
            said = wording.says(result)
            table = wording.table(result) if wording.table is not None else ()
        except KeyError as error:
            raise ValueError(
                f"{path.name} has no {error}, which benchmarks/_wording.py tells of {result['benchmark']}: "
                "change what is told there"
            ) from error
        lines = [f"## {wording.title} ({MADE_ON.get(device, device)})", ""]
        for sentence in said:
            lines += [sentence, ""]
        lines += [*_table(table), ""] if table else []
    return "\n".join([*lines, *_origin(path, result)])


def _plain(summary: Mapping[str, float]) -> Table:
    return [["figure", "value"], *([f"`{name}`", f"{value:.5g}"] for name, value in summary.items())]


def _plain_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of an unknown result: what most of them have that is a word or a number; none where they are many."""
    plain = [{name: value for name, value in row.items() if isinstance(value, (str, int, float))} for row in rows]
    kept = [row for row in plain if list(row)[:1] == list(plain[0])[:1]] if plain else []
    names = [name for name in (kept[0] if kept else {}) if all(name in row for row in kept)][:MOST_COLUMNS]
    if not names or len(kept) > MOST_ROWS:
        return []
    return [[f"`{name}`" for name in names], *([_cell(name, row[name]) for name in names] for row in kept)]


def _cell(name: str, value: str | float) -> str:
    if isinstance(value, (str, bool)):
        return str(value)
    return duration(value) if name.endswith("_s") and value > 0 else f"{value:.4g}"


def _table(rows: Table) -> list[str]:
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def _origin(path: Path, result: Mapping[str, Any]) -> list[str]:
    """Command, machine, versions, date and protocol, in a part that opens."""
    machine = result["machine"]
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver']})" for gpu in machine.get("gpus", ()))
    where = f"{gpus + ', ' if gpus else ''}{machine['cpu']}, {machine['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [
        f"`{result['command']}` · {where} · {result['date'][:10]} · [samples](../benchmarks/results/{path.name})",
        "",
        "<details>",
        "<summary>How it was measured</summary>",
        f"<p>{escape(versions)}; {escape(machine['os'])}</p>",
        *_protocol(result["protocol"]),
        "</details>",
        "",
    ]


def _protocol(protocol: str | Mapping[str, Any]) -> list[str]:
    """The result's own words, as HTML in one piece: a blank line would end it."""
    told = (
        protocol if isinstance(protocol, str) else {name: value for name, value in protocol.items() if name != "what"}
    )
    paragraphs = (protocol if isinstance(protocol, str) else str(protocol.get("what", ""))).split("\n\n")
    lines = [f"<p>{_html(text)}</p>" for text in paragraphs if text.strip()]
    if isinstance(told, Mapping):
        for name, value in told.items():
            value = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines.append(f"<p><code>{escape(name)}</code>: {_html(value)}</p>")
    return lines


def _html(text: str) -> str:
    """Text as HTML, what stands between backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split()), quote=False))


if __name__ == "__main__":
    sys.exit(main())
