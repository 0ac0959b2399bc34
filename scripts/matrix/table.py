"""The page of what was tried, made of the records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scripts.matrix.cells import Cell

HEAD = """# Versions

{sentence}

Written by `make matrix`, which makes an environment for each row, one after the other, runs the
tests in it and removes it ([installation](installation.md) says what it takes). Builds of torch are
the registry's, on the CPU of one Linux machine, in one thread. The columns:

- **skipped**: tests of what is not there; the reasons are below.
- **files read**: each environment prunes every small network of the tests on both sides and writes
  its file and its plan; this is how many it read, of its own and of those written with the versions
  of torch that are named, and found to compute what they did there, to 1e-10. Each is read three
  ways: the file alone, the file beside a model of its class, and the plan.

"""
COLUMNS = (
    *("torch", "Python", "numpy", "transformers", "torchvision", "onnxruntime"),
    *("passed", "failed", "skipped", "minutes", "files read", "of torch"),
)
PACKAGES = ("torch", "python", "numpy", "transformers", "torchvision", "onnxruntime")


def page(cells: Sequence[Cell], records: Mapping[str, Mapping[str, Any]]) -> str:
    """The page, rows by version of torch; cells without a record are named as not tried."""
    tried = [cell for cell in sorted(cells, key=_order) if cell.key in records]
    rows = [row(records[cell.key], records) for cell in tried]
    green = [cell for cell in tried if is_green(records[cell.key])]
    pythons = {cell.python for cell in green}
    sentence = (
        f"Every test passes, and every file is read, in {len(green)} of {len(cells)} environments: "
        f"{_count(len({c.torch for c in green}), 'version')} of torch and {len(pythons)} of Python."
    )
    missing = [cell for cell in sorted(cells, key=_order) if cell.key not in records]
    if missing:
        sentence += f" Not tried yet: {', '.join(cell.key for cell in missing)}."
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, rows)]
    text = HEAD.format(sentence=sentence) + "\n".join(lines) + "\n"
    return text + _failures(tried, records) + _reasons(tried, records)


def is_green(record: Mapping[str, Any]) -> bool:
    """Whether all tests passed, and all files were read."""
    read = record["exchange"]
    whole = "error" not in read and not any(place["faults"] for place in read.values())
    return bool(record["passed"]) and not record["failed"] and whole


def row(record: Mapping[str, Any], records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The cells of one row."""
    installed, read = record["installed"], record["exchange"]
    texts = [str(installed.get(name, "–")) for name in PACKAGES]
    texts += [str(record["passed"]), str(len(record["failed"]))]
    texts += [str(sum(record.get("skipped", {}).values())), f"{record.get('minutes', 0):.0f}"]
    if "error" in read:
        return [*texts, "none", "–"]
    faults = sum(len(place["faults"]) for place in read.values())
    count = sum(place["read"] for place in read.values())
    own = {_place(key): other["cell"]["torch"] for key, other in records.items()}
    known = sorted({own.get(place, place) for place in read}, key=_number)
    return [*texts, f"{count - faults} of {count}", ", ".join(known)]


def _place(key: str) -> str:
    """The folder that a cell writes its files to."""
    return key.replace(" ", "_")


def _failures(tried: Sequence[Cell], records: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for cell in tried:
        record = records[cell.key]
        lines += [f"- torch {cell.torch}: `{name}`" for name in record["failed"]]
        if "error" in record["exchange"]:
            lines.append(f"- torch {cell.torch}, files: {record['exchange']['error']}")
            continue
        for place, found in record["exchange"].items():
            lines += [
                f"- torch {cell.torch}, of {place}: {name}: {fault}"
                for name, fault in found["faults"].items()
            ]
    return "\n".join(["\n## What fails", "", *lines, ""]) if lines else ""


def _reasons(tried: Sequence[Cell], records: Mapping[str, Mapping[str, Any]]) -> str:
    where: dict[str, list[str]] = {}
    for cell in tried:
        for reason, count in records[cell.key].get("skipped", {}).items():
            where.setdefault(reason, []).append(f"{count} with torch {cell.torch}")
    lines = [f"- {reason}: {', '.join(cells)}" for reason, cells in sorted(where.items())]
    return "\n".join(["\n## What is skipped", "", *lines, ""]) if lines else ""


def _order(cell: Cell) -> list[int]:
    return _number(cell.torch)


def _number(version: str) -> list[int]:
    """What a version is sorted by: 2.9 comes before 2.15."""
    return [int(part) for part in version.split(".") if part.isdigit()]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
