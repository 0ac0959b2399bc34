"""All models, one process each; the command line of the zoo."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import scripts.zoo
from scripts.zoo.table import cells, document, show
from scripts.zoo.trial import CASES, EMPTY_CASE, LEAST_PRUNABLE, try_model
from upscale.zoo import import_torchvision

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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


def run_all(names: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows in the order of the names; progress goes to stderr."""
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_one, name, arguments) for name in names]
        for done in as_completed(running):
            row = done.result()
            rows[row["model"]] = row
            print(f"{len(rows)}/{len(names)}", *cells(row), sep="  ", file=sys.stderr, flush=True)
    return [rows[name] for name in names]


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
    rows = run_all(names, arguments)
    show(rows)
    if not arguments.models and not arguments.no_write:
        about = {
            "command": " ".join(["python -m scripts.zoo", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": platform.python_version(),
            "cases": "; ".join(case.name for case in cases),
        }
        DOCS.mkdir(exist_ok=True)
        (DOCS / "zoo.md").write_text(document(rows, about))
        (DOCS / "zoo.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if all(row["status"] == "exact" for row in rows) else 1)


if __name__ == "__main__":
    main()
