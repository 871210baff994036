"""Is a report's file small, does it open fast and without errors, on a phone and in the dark? Needs Chromium.

    python benchmarks/report.py [--pictures FOLDER] [--screenshots] [--case TEXT]

Makes the reports of `_report_cases.py` and opens each in a headless Chromium with an empty profile. Medians:
`load_s` from the navigation until the page says that what is seen is drawn, and has been painted; `first_s` until the
facts and the table are painted; `main_thread_s` what the page's own thread takes of a core until the former, whatever
else runs on the machine. Then each is scrolled to its end and used, in the light, in the dark and as wide as a phone
(375 px), so that every figure is drawn; `console_errors` counts errors on the console, exceptions and requests for
anything that is not in the file. The summary's sizes and times are those of the recorded space of 480 configurations,
its errors are of all.

`--screenshots` makes the pictures of the documentation instead, and `--pictures` keeps one of each whole page.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _browser import Browser, Page, browser
from _report_cases import ROOT, hostile, huge, odd, recorded, sweep
from _results import version, write

from tunesmith.report.html import Report

RUNS = 5
LIMIT_BYTES, LIMIT_S = 6_000_000, 2.0
LOOKS = {"light": (1280, 900, False), "dark": (1280, 900, True), "phone": (375, 812, False)}
PICTURES = ROOT / "docs" / "pictures"


def cases() -> Iterator[tuple[str, Report]]:
    yield "recorded space of 480", recorded()
    yield "sweep of 8 problems", sweep()
    yield "space of 12,000", huge()
    yield "markup as names", hostile()
    yield from odd()


def measure(web: Browser, name: str, report: Report, folder: Path, pictures: Path | None) -> dict[str, Any]:
    began = time.perf_counter()
    file = folder / "report.html"
    report.save(file)
    made_s = time.perf_counter() - began
    loads, firsts, threads, errors = list[float](), list[float](), list[float](), list[str]()
    for _ in range(RUNS):
        with web.page() as page:
            page.look(*LOOKS["light"][:2])
            loads.append(page.open(file))
            firsts.append(page.first_s)
            threads.append(page.main_thread_s)
            errors += page.errors
    wide: dict[str, int] = {}
    for look, (width, height, dark) in LOOKS.items():
        with web.page() as page:
            page.look(width, height, dark=dark)
            page.open(file)
            scroll_through(page, height)
            exercise(page)
            wide[look] = int(page.run("document.documentElement.scrollWidth")) - width
            if page.run("window.pwned"):
                errors.append(f"{look}: what was measured was executed")
            errors += page.errors
            asked = [url for url in page.requests if not url.startswith(("data:", file.as_uri()))]
            errors += [f"{look}: asked for {url}" for url in asked]
            if pictures is not None:
                whole(page, width, dark, pictures / f"{name.replace(' ', '-')}-{look}.png")
    for error in errors:
        print(f"  {error}")
    row = {
        "case": name, "problems": len(report.searches), "trials": sum(len(one.trials) for one in report.searches),
        "bytes": file.stat().st_size, "load_s": statistics.median(loads), "loads_s": loads,
        "first_s": statistics.median(firsts),
        "main_thread_s": statistics.median(threads), "made_s": made_s,
        "console_errors": len(errors), "wider_than_the_window_px": wide,
    }  # fmt: skip
    times = f"{row['load_s']:.2f} s ({row['first_s']:.2f} s to the first paint, {row['main_thread_s']:.2f} s of a core)"
    said = f"{row['bytes']:,} bytes, {times}, {len(errors)} errors, too wide by {max(wide.values())} px"
    print(f"{name}: {said}", flush=True)
    return row


def scroll_through(page: Page, height: int) -> None:
    """See every part, until every figure that can be drawn is."""
    top = 0
    while top < int(page.run("document.documentElement.scrollHeight")):  # figures that come make the page longer
        page.run(f"window.scrollTo(0, {top}); new Promise((go) => setTimeout(go, 40))")
        top += height


def exercise(page: Page) -> None:
    """Use every control as a person would: filter, sort, choose, show more."""
    page.run("""(async () => {
      const wait = () => new Promise((go) => setTimeout(go, 220));
      for (const text of ['a=1', '×best<2', 'nonsense', '']) {
        document.getElementById('filter').value = text;
        document.getElementById('filter').dispatchEvent(new Event('input'));
        await wait();
      }
      const headings = document.querySelectorAll('table.live th button').length;
      for (let i = 0; i < 2 * Math.min(headings, 12); i += 1) {
        document.querySelectorAll('table.live th button')[Math.floor(i / 2)].click();
      }
      document.getElementById('more').click();
      for (const select of document.querySelectorAll('select')) {
        for (let i = 0; i < Math.min(3, select.options.length); i += 1) {
          select.selectedIndex = i;
          select.dispatchEvent(new Event('change'));
          await wait();
        }
      }
      window.dispatchEvent(new Event('beforeprint'));
      window.dispatchEvent(new Event('afterprint'));
      await wait();
    })()""")


def whole(page: Page, width: int, dark: bool, path: Path) -> None:
    height = min(16_000, int(page.run("document.documentElement.scrollHeight")))
    page.look(width, height, dark=dark)
    page.run("new Promise((go) => setTimeout(go, 1500))")
    page.picture(path)


def screenshots(web: Browser, folder: Path) -> None:
    """The pictures of docs/report.md."""
    PICTURES.mkdir(exist_ok=True)
    for name, report, look, part in (
        ("report.png", recorded(), (1000, 700, False), "0"),
        ("report-knobs-dark.png", recorded(), (1000, 760, True), "document.getElementById('heat').offsetTop - 50"),
        ("report-sweep-phone.png", sweep(), (375, 700, False), "0"),
    ):
        file = folder / name.replace("png", "html")
        report.save(file)
        with web.page() as page:
            page.look(*look[:2], dark=look[2])
            page.open(file)
            scroll_through(page, look[1])
            page.run(f"window.scrollTo(0, {part}); new Promise((go) => setTimeout(go, 800))")
            page.picture(PICTURES / name)
        print(f"{PICTURES / name}: {(PICTURES / name).stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="keep a picture of each page")
    parser.add_argument("--screenshots", action="store_true", help="make the pictures of the documentation")
    parser.add_argument("--case", metavar="TEXT", default="", help="only those named so; nothing is written")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, browser() as web:
        if asked.screenshots:
            screenshots(web, Path(scratch))
            return 0
        chosen = [case for case in cases() if asked.case in case[0]]
        rows = [measure(web, name, report, Path(scratch), asked.pictures) for name, report in chosen]
        product = web.version
    if asked.case:
        return int(not rows or any(row["console_errors"] for row in rows))
    accepted = rows[0]
    errors = sum(row["console_errors"] for row in rows)
    wide = max(pixels for row in rows for pixels in row["wider_than_the_window_px"].values())
    path = write(
        "report", "cpu",
        protocol=f"headless, empty profile, 1280 × 900; median of {RUNS} loads, from the navigation to the paint after "
        "what is seen is drawn; then scrolled through and used in light, dark and at 375 px",
        command="python benchmarks/report.py", rows=rows,
        versions={"chromium": product, "plotly": version("plotly"), "jinja2": version("jinja2")},
        summary={
            "bytes": accepted["bytes"], "load_s": accepted["load_s"], "console_errors": errors,
            "first_s": accepted["first_s"], "main_thread_s": accepted["main_thread_s"],
            "largest_bytes": max(row["bytes"] for row in rows), "slowest_load_s": max(row["load_s"] for row in rows),
            "wider_than_the_window_px": wide,
        },
    )  # fmt: skip
    print(path)
    return int(errors > 0 or wide > 0 or accepted["bytes"] >= LIMIT_BYTES or accepted["load_s"] >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
