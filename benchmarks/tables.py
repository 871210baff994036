"""Whole config trees of SGLang and vLLM: round trips, look-ups against the engines' own, `table check`. No GPU.

    python benchmarks/tables.py [--wheels FOLDER]

Downloads both wheels without their dependencies, and unzips their tables and the few source files that read them into
a temporary folder; nothing is installed. Every table is read and written back; every size from 1 to 20000 is looked up
by us and by the engine's own function, cut out of its source. Of what `table check` finds, 40 findings drawn at random
are looked at by hand: `_table_verdicts.json` has the verdicts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from _engine_lookups import SOURCES, Engines
from _results import FOLDER, write

WHEELS = {"sglang": "0.5.23", "vllm": "0.33.0"}
VERDICTS = Path(__file__).with_name("_table_verdicts.json")
UPTO = 20_000
SAMPLE = 40
#: estimates are compared on these chips with what the tables' sizes alone say
CHIPS = ("NVIDIA_L40S", "NVIDIA_A100-SXM4-80GB", "NVIDIA_H100_80GB_HBM3")
ROWS = 100_000


def unzipped(folder: Path, wheels: Path | None) -> Path:
    """The trees below `folder`."""
    if wheels is None:
        wheels = folder / "wheels"
        for name, version in WHEELS.items():
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--dest",
                str(wheels),
            ]
            subprocess.run([*pip, f"{name}=={version}"], check=True, stdout=subprocess.DEVNULL)
    tree = folder / "tree"
    for name, version in WHEELS.items():
        (wheel,) = wheels.glob(f"{name}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                is_table = "/configs/" in member and member.endswith((".json", ".csv"))
                if member in SOURCES or is_table:
                    archive.extract(member, tree)
    return tree


def round_trips(tree: Path) -> tuple[list[Any], dict[str, int]]:
    """Each file that is read, and how many were written back the same."""
    from tunesmith.errors import BadInput
    from tunesmith.tables import csvtext, formats, jsontext

    sheets: list[Any] = []
    counts = {"files": 0, "byte_equal": 0, "tables": 0}
    for path in formats.files(tree):
        data = path.read_bytes()
        document = csvtext.read(data) if path.suffix == ".csv" else jsontext.read(data)
        counts["files"] += 1
        counts["byte_equal"] += document.data() == data
        try:
            sheets.append(formats.parse(path, data))
        except BadInput:
            continue
        counts["tables"] += 1
    return sheets, counts


def look_ups(sheets: Iterable[Any], engines: Engines) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Every size by us and by the engine."""
    counts: Counter[str] = Counter()
    rows: dict[str, Counter[str]] = {}
    for sheet in sheets:
        asked = engines.of(sheet) if sheet.name is not None else None
        if asked is None:
            continue
        engine, table = asked
        of = rows.setdefault(sheet.format, Counter())
        of["tables"] += 1
        if table is None:
            of["never found by the engine"] += 1
            continue
        configs = {row.key[sheet.levels[0][0]]: row.config for row in sheet.rows}
        ladder, wrong = sheet.ladder(), 0
        for first, last, key in ladder.runs(UPTO):
            mine = configs[key]
            for size in range(first, last + 1):
                wrong += table[engine.pick(table, size)] != mine
        of["lookups"] += UPTO
        of["mismatches"] += wrong
        counts["lookups"] += UPTO
        counts["lookup_mismatches"] += wrong
    return dict(counts), [{"format": name, **found} for name, found in sorted(rows.items())]


def checked(tree: Path) -> tuple[list[Any], dict[str, Any]]:
    """What `table check` finds in the trees, on their own chips and on others."""
    from tunesmith.tables.check import Options, check

    started = time.perf_counter()
    report = check([tree], Options())
    figures: dict[str, Any] = {"check_s": time.perf_counter() - started}
    figures["by_code"] = dict(Counter(finding.code for finding in report.findings))
    findings = list(report.findings)
    for chip in CHIPS:
        found = [f for f in check([tree], Options(device=chip)).findings if f.code == "shared-memory"]
        figures[f"too_much_shared_memory_on_{chip}"] = dict(
            Counter(f"{f.path.relative_to(tree).parts[0]} {f.severity}" for f in found)
        )
        findings += found
    return findings, figures


def sampled(findings: list[Any], tree: Path) -> tuple[list[dict[str, Any]], int, int]:
    """40 findings, of each kind in turn, with the verdict of whoever looked at them; how many were false, how many not
    looked at."""
    verdicts: Mapping[str, str] = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    told = sorted({(f.code, f"{f.path.relative_to(tree)}:{f.line}", f.message) for f in findings})
    rng = random.Random(6)
    kinds = {code: rng.sample(same, len(same)) for code in dict.fromkeys(one[0] for one in told)
             for same in [[one for one in told if one[0] == code]]}  # fmt: skip
    in_turn = [one for turn in itertools.zip_longest(*kinds.values()) for one in turn if one is not None]
    picked = in_turn[:SAMPLE]
    rows: list[dict[str, Any]] = []
    for code, place, message in sorted(picked):
        verdict = verdicts.get(f"{code} {place} {message}", "not looked at")
        rows.append({"finding": code, "place": place, "message": message, "verdict": verdict})
    false = sum(row["verdict"].startswith("false") for row in rows)
    return rows, false, sum(row["verdict"] == "not looked at" for row in rows)


def evidence(rows: Iterable[Mapping[str, Any]], tree: Path) -> None:
    """Print each finding with the lines it is about, for whoever looks at it."""
    for row in rows:
        path, _, line = row["place"].rpartition(":")
        lines = (tree / path).read_text().splitlines()
        at = max(int(line) - 1, 0)
        print(f"\n[{row['finding']}] {row['place']}\n  {row['message']}\n  verdict: {row['verdict']}")
        print("    " + " ".join(text.strip() for text in lines[at : at + 12])[:240])


def large_table(folder: Path) -> dict[str, float]:
    """Seconds to read 100 000 rows of ours for the first time and later, and to look one up again."""
    os.environ["TUNESMITH_CACHE_DIR"] = str(folder / "cache")
    from tunesmith import known_device
    from tunesmith.core.config import Config
    from tunesmith.core.key import Key
    from tunesmith.core.problem import Problem
    from tunesmith.tables import NativeTable, load
    from tunesmith.tables.native import Entry

    device = known_device("NVIDIA H200")
    config = Config(BLOCK_SIZE_M=64, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_warps=4, num_stages=3)
    problems = [Problem({"M": m, "N": 128 * n, "K": 4096}) for m in range(1, 1001) for n in range(1, 101)]
    NativeTable("gemm", device.identity, {p: Entry(config, 1e-5) for p in problems}, "f", "p").write(
        folder / "big.json"
    )
    cpu: list[float] = []
    for _ in range(8):
        started = time.process_time()
        table = load(folder / "big.json")
        cpu.append(time.process_time() - started)
    keys = [Key("gemm", "f", problem, device.identity, "p") for problem in problems[:1000]]
    each: list[float] = []
    for _ in range(21):
        started = time.process_time()
        for key in keys:
            assert table.lookup(key, key.problem, device) is not None
        each.append((time.process_time() - started) / len(keys))
    return {"first_load_s": cpu[0], "load_s": min(cpu[1:]), "lookup_s": min(each[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="a folder with both wheels; else they are downloaded")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the result goes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        tree = unzipped(Path(temporary), asked.wheels)
        sheets, trips = round_trips(tree)
        print(f"{trips['byte_equal']} of {trips['files']} files are written back to the byte")
        found, rows = look_ups(sheets, Engines(tree))
        for row in rows:
            print(row)
        findings, figures = checked(tree)
        sample, false, unseen = sampled(findings, tree)
        evidence(sample, tree)
        large = large_table(Path(temporary))
    print(figures, large, f"{false} of {SAMPLE} false, {unseen} not looked at", sep="\n")
    summary = {
        "files": trips["files"], "byte_equal": trips["byte_equal"], "tables": trips["tables"], **found,
        "check_false_in_40": false, "check_not_looked_at_in_40": unseen, "check_s": figures["check_s"],
        "first_load_s": large["first_load_s"], "load_s": large["load_s"], "lookup_us": large["lookup_s"] * 1e6,
    }  # fmt: skip
    protocol = {
        "look-ups": f"sizes 1…{UPTO} of every table: ours against the engine's own functions and its expression for "
        "the nearest key, cut out of the wheels' source and run with stand-ins for device name and version",
        "sample": "40 findings of `table check`, of each kind in turn, drawn with a fixed seed, each looked at by hand "
        "against the table and the engine's source; shared memory by compiling vLLM's kernel with Triton 3.6",
        "loading": f"{ROWS} rows of ours; CPU seconds, the least of 7 after the first; a look-up that was made before",
    }
    path = write(
        "tables", "cpu", protocol=protocol, command="python benchmarks/tables.py",
        rows=[*rows, figures, *sample],
        summary=summary, versions=WHEELS, folder=asked.folder,
    )  # fmt: skip
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
