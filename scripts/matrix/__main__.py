"""Every cell that has no record yet: its environment, the suite, the files; then the page.

    python -m scripts.matrix                     # what is not tried yet
    python -m scripts.matrix --only 2.7 --again  # one of them once more
    python -m scripts.matrix --page              # the page alone, of the records

Environments lie in build/matrix, or where UPSCALE_MATRIX says: some six gigabytes, one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.matrix.cells import CELLS, Cell, to_run
from scripts.matrix.environments import NoEnvironment, environment
from scripts.matrix.suite import ROOT, copy_source, run_exchange, run_suite
from scripts.matrix.table import PACKAGES, is_green, page

RECORDS = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
PLACE = "UPSCALE_MATRIX"


def try_cell(cell: Cell, work: Path) -> dict[str, Any]:
    """Run the suite in a cell's environment, and exchange files with all cells before it."""
    files, source, stem = work / "files", work / "source", cell.key.replace(" ", "_")
    own = files / stem
    with environment(cell, work / "environment") as (python, versions):
        _say(cell, f"torch {versions['torch']}, Python {versions['python']}")
        others = [place for place in sorted(files.glob("*")) if place != own]
        copy_source(source)
        exchange = run_exchange(python, source, own, others)
        found = run_suite(python, source, work / f"{stem}.log")
    installed = {name: versions[name] for name in PACKAGES if name in versions}
    return {"cell": asdict(cell), "installed": installed, **found, "exchange": exchange}


def main() -> None:
    """Try what is not tried yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="TORCH", help="as in 2.7 2.9")
    parser.add_argument("--again", action="store_true", help="also what has a record")
    parser.add_argument("--page", action="store_true", help="try nothing, write the page")
    arguments = parser.parse_args()
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    cells = to_run(CELLS, records, only=arguments.only, again=arguments.again)
    work = Path(os.environ.get(PLACE) or ROOT / "build" / "matrix").resolve()
    work.mkdir(parents=True, exist_ok=True)
    missed = []
    for cell in [] if arguments.page else cells:
        try:
            records[cell.key] = try_cell(cell, work)
        except NoEnvironment as error:
            _say(cell, str(error))
            missed.append(cell)
            continue
        _say(cell, "all passed" if is_green(records[cell.key]) else "not all passed")
        text = json.dumps(records, indent=1, sort_keys=True, ensure_ascii=False)
        RECORDS.write_text(text + "\n", encoding="utf-8")
        PAGE.write_text(page(CELLS, records), encoding="utf-8")
    PAGE.write_text(page(CELLS, records), encoding="utf-8")
    wanted = [cell.key for cell in CELLS if not arguments.only or cell.torch in arguments.only]
    if missed or not all(key in records and is_green(records[key]) for key in wanted):
        sys.exit(1)


def _say(cell: Cell, text: str) -> None:
    print(f"{cell.key}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
