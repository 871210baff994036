"""`tunesmith store`: what is known, and its housekeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tunesmith.cli.output import AsJson, Commands, print_json, works_long
from tunesmith.cli.refresh import refresh

app = typer.Typer(cls=Commands, help="The store of trials and choices: look at it, clean it, move it.")

#: What `gc` drops when nothing is said: not used for a quarter of a year.
DAYS = 90.0


@app.command()
def info(json: AsJson = False) -> None:
    """Say where the store is, in which state, and what is in it."""
    from tunesmith.store import default_store

    found = default_store().info()
    if json:
        print_json("store-info", {"store": found})
        return
    from tunesmith.report.terminal import print_facts

    print_facts("store", facts_of(found))


def facts_of(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `Store.info` says, as lines for people."""
    from tunesmith.report.units import count, size

    fate = "kept in memory for this process alone: " + found["uncached"] if found["uncached"] else "kept"
    facts = [
        ("path", found["path"]),
        ("results are", fate),
        ("size", size(found["size_bytes"])),
        ("file system", "network: one file for each host" if found["network"] else "local"),
    ]
    if found["problem"]:
        facts.append(("problem", found["problem"]))
    for kernel, counts in found["kernels"].items():
        facts.append((kernel, ", ".join(count(n, what.removesuffix("s")) for what, n in counts.items())))
    beside: list[dict[str, Any]] = found["beside"]
    for other in beside:
        facts.append(("read too", f"{other['path']} {other.get('problem') or ''}".strip()))
    return facts


@app.command()
def gc(
    days: Annotated[float, typer.Option(metavar="N", help="Drop what no call used for so many days.")] = DAYS,
    json: AsJson = False,
) -> None:
    """Drop what was not used for long, and samples that newer ones replaced."""
    from tunesmith.store import default_store

    _report("store-gc", "dropped", default_store().gc(days), json)


@app.command()
def export(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The JSON file to write, or s3://…, gs://…, az://….")],
    json: AsJson = False,
) -> None:
    """Write everything that is known to one JSON file, for another machine's `store merge`."""
    from tunesmith.cli.remote import put
    from tunesmith.store import default_store

    with put(file) as path:
        counts = default_store().export(path)
    _report("store-export", f"wrote {file}:", counts, json)


@app.command()
def merge(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="What `store export` wrote, a path or a URL, or another store's file."),
    ],
    json: AsJson = False,
) -> None:
    """Add what other stores know. What is here stays; doing it twice adds nothing."""
    from tunesmith.cli.remote import fetched
    from tunesmith.store import default_store

    counts: Counter[str] = Counter()
    for file in files:
        with fetched(file) as path:
            counts.update(default_store().merge(path))
    _report("store-merge", "added", counts, json)


app.command()(works_long(refresh))


def _report(kind: str, verb: str, counts: Mapping[str, int], as_json: bool) -> None:
    if as_json:
        print_json(kind, counts)
    else:
        print(f"{verb} {', '.join(_counted(what, number) for what, number in counts.items())}")


def _counted(what: str, number: int) -> str:
    from tunesmith.report.units import count, size

    if what == "bytes_freed":
        return f"{size(number)} freed"
    return count(number, what.removesuffix("s")) if what.endswith("s") else f"{number:,} {what.replace('_', ' ')}"
