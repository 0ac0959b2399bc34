"""All models, one process each; the command line of the zoo."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import scripts.zoo
from scripts.zoo.table import cells, document, show
from scripts.zoo.trial import CASES, EMPTY_CASE, LEAST_PRUNABLE, Case, try_model
from upscale.zoo import import_torchvision

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RECORDS = DOCS / "zoo.json"
EVERY_CASE = tuple(case for group in CASES.values() for case in group)


def run_one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Try a model in a process of its own; failures come back as rows too."""
    command = [sys.executable, "-m", "scripts.zoo", "--one", name, "--seed", str(arguments.seed)]
    command += ["--cases", arguments.cases]
    if arguments.empty:
        command.append("--empty")
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=arguments.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "status": "timeout", "error": f"over {arguments.timeout:.0f} s"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        error = said[-1] if said else f"exit status {done.returncode}"
        if done.returncode < 0:
            error = f"killed by signal {-done.returncode}; {error}"
        return {"model": name, "status": "crash", "error": error}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"status": status_of(row), **row}


def status_of(row: Mapping[str, Any]) -> str:
    """`exact` if every case is and enough can be pruned, else what is wrong."""
    if not row["attends"] and row["prunable"] < LEAST_PRUNABLE:
        return "frozen"
    return next((c["status"] for c in row["cases"] if c["status"] != "exact"), "exact")


def run_all(names: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows as they come; progress goes to stderr."""
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_one, name, arguments) for name in names]
        for number, done in enumerate(as_completed(running), start=1):
            row = done.result()
            print(f"{number}/{len(names)}", *cells(row), sep="  ", file=sys.stderr, flush=True)
            yield row


def joined(before: Mapping[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    """A row, with the cases of an earlier run of the model that were not run now."""
    if before is None or "cases" not in before or "cases" not in row:
        return row
    own = {case["case"] for case in row["cases"]}
    cases = [*row["cases"], *(case for case in before["cases"] if case["case"] not in own)]
    order = [case.name for case in (*EVERY_CASE, EMPTY_CASE)]
    row = {**row, "cases": sorted(cases, key=lambda case: order.index(case["case"]))}
    return {**row, "status": status_of(row), "peak_mib": max(row["peak_mib"], before["peak_mib"])}


def missing(row: Mapping[str, Any] | None, cases: Sequence[Case]) -> bool:
    """Whether a row lacks any of the cases, or failed."""
    if row is None or row["status"] != "exact":
        return True
    return not {case.name for case in cases} <= {case["case"] for case in row["cases"]}


def write(rows: Mapping[str, dict[str, Any]], every: Sequence[str]) -> None:
    """The page and the records, of all rows there are."""
    there = [rows[name] for name in every if name in rows]
    cases = {case["case"] for row in there for case in row.get("cases", ())}
    tried = [name for name, group in CASES.items() if any(case.name in cases for case in group)]
    groups = "" if tried == list(CASES) else f" --cases {','.join(tried)}"
    about = {
        "command": f"python -m scripts.zoo{groups}",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "torchvision": import_torchvision().__version__,
        "python": platform.python_version(),
        "cases": "; ".join(c.name for c in (*EVERY_CASE, EMPTY_CASE) if c.name in cases),
    }
    DOCS.mkdir(exist_ok=True)
    (DOCS / "zoo.md").write_text(document(there, about))
    RECORDS.write_text(json.dumps({"about": about, "rows": there}, indent=1) + "\n")


def main() -> None:
    """Try the models asked for; exit with 1 if any row fails."""
    parser = argparse.ArgumentParser(
        description=scripts.zoo.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B,C", help="only these; the docs are not written")
    parser.add_argument(
        "--cases", default=",".join(CASES), metavar="A,B", help="what is pruned: %(default)s"
    )
    parser.add_argument("--empty", action="store_true", help="a case where some keep nothing, too")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (some need 15 GB)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-write", action="store_true", help="leave the docs alone")
    parser.add_argument(
        "--resume", action="store_true", help="keep what docs/zoo.json has, and run the rest"
    )
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    unknown = set(arguments.cases.split(",")) - CASES.keys()
    if unknown:
        parser.error(f"--cases takes {', '.join(CASES)}, not {', '.join(sorted(unknown))}")
    cases = tuple(case for group in arguments.cases.split(",") for case in CASES[group])
    cases += (EMPTY_CASE,) if arguments.empty else ()
    if arguments.one:
        print(json.dumps(asdict(try_model(arguments.one, cases, arguments.seed))))
        return
    torchvision = import_torchvision()
    every = torchvision.models.list_models(module=torchvision.models)
    names = arguments.models.split(",") if arguments.models else every
    known = json.loads(RECORDS.read_text())["rows"] if arguments.resume else []
    rows = {row["model"]: row for row in known}
    writes = not arguments.models and not arguments.no_write
    for row in run_all([n for n in names if missing(rows.get(n), cases)], arguments):
        rows[row["model"]] = joined(rows.get(row["model"]), row)
        if writes:
            write(rows, every)
    if writes:
        write(rows, every)
    show([rows[name] for name in names])
    sys.exit(0 if all(rows[name]["status"] == "exact" for name in names) else 1)


if __name__ == "__main__":
    main()
