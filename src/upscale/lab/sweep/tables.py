"""Records as tables: for eyes, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from upscale.lab.sweep.cells import SETTINGS
from upscale.lab.sweep.records import Record

WIDEST = 60


def rows_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A flat row for each record: settings, results, and how it went."""
    return [
        {
            "key": record.cell.key,
            **asdict(record.cell),
            **_flat(record.result or {}),
            "error": record.error,
            "seconds": round(record.seconds, 3),
            "attempts": record.attempts,
            **_flat({"on": record.place}),
        }
        for record in records
    ]


def as_csv(records: Iterable[Record]) -> str:
    """All that is recorded, a line for each record."""
    rows = rows_of(records)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_table(records: Sequence[Record]) -> str:
    """What differs between records, in columns; what is the same in all is said once."""
    rows = rows_of(records)
    columns = [name for name in _columns(rows) if name not in ("key", "attempts")]
    values = {name: {str(row.get(name)) for row in rows} for name in columns}
    same = [n for n in columns if len(rows) > 1 and len(values[n]) == 1 and n in SETTINGS]
    shown = [n for n in columns if n not in same and not n.startswith("on.")]
    shown = [n for n in shown if values[n] != {"None"}]
    told = [f"{name}: {rows[0][name]}" for name in same if rows[0][name] is not None]
    lines = [[*shown], *([_short(row.get(name)) for name in shown] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(shown))]
    table = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*([", ".join(told), ""] if told else []), *table])


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all columns; those that only some rows have come where they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _flat(nested: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _short(value: Any) -> str:
    if value is None:
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
