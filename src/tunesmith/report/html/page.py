"""From Searches to one HTML file: a template, two style sheets' worth of CSS, our scripts, Plotly, and the data.

Nothing that was measured is executed: texts are escaped by the template, data is JSON that no tag can end, and the
page's own policy allows no script but the two that stand in it, and no network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache
from importlib import metadata, resources
from typing import Any

from tunesmith.errors import MissingEngine
from tunesmith.report.html.data import embedded, report_data
from tunesmith.report.html.gather import Search
from tunesmith.report.html.words import overview, words_of
from tunesmith.report.units import problem_line

#: our scripts, in the order in which they run: one function around them all
SCRIPTS = ("base.js", "table.js", "knobs.js", "race.js", "model.js", "sweep.js", "main.js")


def page(searches: Sequence[Search], notes: Sequence[str]) -> str:
    """The whole file.

    Raises:
        MissingEngine: without jinja2 or plotly.
    """
    made = {"tunesmith": _version(), "at": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    app, packed, plotly_hash = _scripts(), *_plotly()
    text: str = _template().render(
        title=_title(searches),
        policy=_policy(_hash(app), plotly_hash),
        css=_asset("report.css"),
        app=app,
        plotly=packed,
        data=embedded(report_data(searches, made, notes)),
        made={**made, "python": platform.python_version()},
        notes=notes,
        searches=[words_of(search, few=len(searches) > 20) for search in searches],
        overview=overview(searches) if len(searches) > 1 else None,
    )
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair, which JSON can hold, is no text


def _version() -> str:
    try:
        return metadata.version("tunesmith")
    except metadata.PackageNotFoundError:  # run from its source tree
        return "source"


def _title(searches: Sequence[Search]) -> str:
    kernels = sorted({search.key.kernel for search in searches})
    problem = f"({problem_line(searches[0].exact)})" if len(searches) == 1 else f": {len(searches)} problems"
    return f"{', '.join(kernels)}{problem}"


def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise MissingEngine("a report needs jinja2, which is not installed; pip install 'tunesmith[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.jinja")


def _asset(name: str) -> str:
    return (resources.files(__package__ or "") / "assets" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _scripts() -> str:
    body = "\n".join(_asset(name) for name in SCRIPTS)
    return f"(function () {{\n'use strict';\n{body}\n}})();"


@lru_cache(maxsize=1)
def _plotly() -> tuple[str, str]:
    """Plotly, compressed, as text; and the hash by which the page allows it. A third of its 4.8 MB."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingEngine("a report needs plotly, which is not installed; pip install 'tunesmith[report]'") from error
    source: str = get_plotlyjs()
    packed = gzip.compress(source.encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode(), _hash(source)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _policy(*scripts: str) -> str:
    """What the page may do: run these scripts, and draw. Plotly sets styles of its own."""
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
