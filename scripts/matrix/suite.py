"""The suite in a process of one cell's environment, and what came of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HOURS = 4.0


def copy_source(place: Path) -> None:
    """Copy all files that git knows of or would, so that work can go on while they are tried."""
    shutil.rmtree(place, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)


def run_suite(python: Path, source: Path, log: Path) -> dict[str, Any]:
    """Run the tests in an environment; what passed, what did not, and how long it took."""
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-v", "--tb=short"]
    command += ["--show-capture=no", f"--junitxml={report}"]
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as stream:
        subprocess.run(
            [*command, "tests"],
            cwd=source,
            env=_settings(source),
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=3600 * HOURS,
            check=False,
        )
    minutes = (time.monotonic() - begun) / 60
    if not report.exists():
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        return {"passed": 0, "failed": [f"the suite did not end: {' '.join(last)}"]}
    return {**outcome(ElementTree.parse(report).getroot()), "minutes": round(minutes, 1)}


def outcome(report: ElementTree.Element) -> dict[str, Any]:
    """What a report of pytest's says: how many passed, which failed, why others were skipped."""
    failed: list[str] = []
    skipped: Counter[str] = Counter()
    passed = 0
    for case in report.iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skip is not None:
            skipped[skip.get("message") or ""] += 1
        else:
            passed += 1
    return {"passed": passed, "failed": failed, "skipped": dict(sorted(skipped.items()))}


def run_exchange(python: Path, source: Path, place: Path, others: list[Path]) -> dict[str, Any]:
    """Write files and plans for other cells, and read those that they wrote."""
    exchange = [str(python), "-m", "scripts.matrix.exchange"]
    written = _call([*exchange, "write", str(place)], source)
    if written.returncode != 0:
        return {"error": written.stderr.strip()[-500:]}
    read = _call([*exchange, "read", *map(str, (place, *others))], source)
    if read.returncode != 0:
        return {"error": read.stderr.strip()[-500:]}
    found: dict[str, Any] = json.loads(read.stdout.splitlines()[-1])
    return found


def _call(command: list[str], source: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=source, env=_settings(source), capture_output=True, text=True, check=False
    )


def _settings(source: Path) -> dict[str, str]:
    """The environment of a process that runs this source, in one thread."""
    own = {
        "PYTHONPATH": str(source / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **own}
