"""Records: what was measured, kept in one SQLite file; each is there whole or not at all.

For eyes, and as CSV, they are tables.
"""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upscale.errors import UpscaleError
from upscale.lab.sweep.cells import SETTINGS, Cell, GridError

VERSION = 1
PATIENCE_S = 60.0
OURS = {"records", "sqlite_autoindex_records_1"}
TABLE = """
CREATE TABLE IF NOT EXISTS records (
    key      TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    result   TEXT,
    error    TEXT,
    trace    TEXT,
    begun    REAL NOT NULL,
    seconds  REAL NOT NULL,
    attempts INTEGER NOT NULL,
    place    TEXT NOT NULL
)"""


# What `Record` holds, in its order; these three are JSON.
COLUMNS = ("settings", "result", "error", "trace", "begun", "seconds", "place", "attempts")
AS_JSON = ("settings", "result", "place")


class RecordsError(UpscaleError):
    """A file of records cannot be read, written or had for oneself."""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a cell: a result or an error, when it began and how long it took.

    `begun` is in seconds since 1970; `place` says what it ran on: machine, processor, versions.
    """

    cell: Cell
    result: Mapping[str, Any] | None
    error: str | None
    trace: str | None
    begun: float
    seconds: float
    place: Mapping[str, Any]
    attempts: int = 1


class Records:
    """A file of records, opened. `with Records(path) as records:` closes it."""

    def __init__(self, path: str | Path, *, fresh: bool = True) -> None:
        self.path = Path(path)
        if not fresh and not self.path.is_file():
            raise RecordsError(f"{path} is no file: nothing has been measured yet")
        try:
            # Every statement is a transaction of its own, on disk before it returns.
            file = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)
            with ExitStack() as closing:
                closing.callback(file.close)
                self._file = file
                self._set_up(fresh)
                closing.pop_all()
        except sqlite3.Error as error:
            raise RecordsError(f"{path} is no file of records: {error}") from error

    def _set_up(self, fresh: bool) -> None:
        self._file.execute("PRAGMA synchronous = EXTRA")
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
        if version == 0 and fresh and not tables - OURS:
            self._file.execute(TABLE)
            self._file.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise RecordsError(f"{self.path} holds no records of a sweep that this version reads")

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def keys(self, *, failed: bool = True) -> frozenset[str]:
        """The keys of all cells with a record; without the failed ones, if so asked."""
        where = "" if failed else " WHERE error IS NULL"
        return frozenset(key for (key,) in self._ask(f"SELECT key FROM records{where}"))

    def add(self, record: Record) -> None:
        """Write a record. A result that is there stays; an error gives way."""
        own = asdict(record)
        row = [own["cell"], *(own[name] for name in COLUMNS[1:])]
        renewed = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        self._ask(
            f"INSERT INTO records (key, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)}) "
            f"ON CONFLICT (key) DO UPDATE SET {renewed} WHERE records.error IS NOT NULL",
            (record.cell.key, *(json.dumps(v) if isinstance(v, Mapping) else v for v in row)),
        )

    def read(self) -> tuple[Record, ...]:
        """All records, in the order in which they began."""
        rows = self._ask(f"SELECT {', '.join(COLUMNS)} FROM records ORDER BY begun, key")
        try:
            return tuple(_record(row) for row in rows)
        except (TypeError, json.JSONDecodeError, GridError) as error:
            raise RecordsError(f"{self.path} holds a record that is none: {error}") from error

    def _ask(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise RecordsError(f"{self.path}: {error}") from error


def _record(row: tuple[Any, ...]) -> Record:
    named = zip(COLUMNS, row, strict=True)
    settings, *rest = (
        json.loads(v) if name in AS_JSON and v is not None else v for name, v in named
    )
    return Record(Cell(**settings), *rest)


def read_records(path: str | Path) -> tuple[Record, ...]:
    """All records of a file, in the order in which they began."""
    with Records(path, fresh=False) as records:
        return records.read()


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
        key, deeper = f"{before}{name}", isinstance(value, Mapping)
        found |= _flat(value, f"{key}.") if deeper else {key: value}
    return found


def _short(value: Any) -> str:
    if value is None:
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
