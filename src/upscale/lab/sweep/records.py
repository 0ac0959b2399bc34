"""Records: what was measured, kept in one SQLite file; each is there whole or not at all."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from upscale.errors import UpscaleError
from upscale.lab.sweep.cells import Cell, GridError

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
            self._file = sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)
            self._file.execute("PRAGMA synchronous = EXTRA")
            version = self._file.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master")}
            if version == 0 and fresh and not tables - OURS:
                self._file.execute(TABLE)
                self._file.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise RecordsError(f"{path} holds no records of a sweep that this version reads")
        except sqlite3.Error as error:
            raise RecordsError(f"{path} is no file of records: {error}") from error

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
        self._ask(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET result = excluded.result, error = excluded.error, "
            "trace = excluded.trace, begun = excluded.begun, seconds = excluded.seconds, "
            "attempts = excluded.attempts, place = excluded.place WHERE records.error IS NOT NULL",
            (
                record.cell.key,
                json.dumps(asdict(record.cell)),
                None if record.result is None else json.dumps(record.result),
                record.error,
                record.trace,
                record.begun,
                record.seconds,
                record.attempts,
                json.dumps(record.place),
            ),
        )

    def read(self) -> tuple[Record, ...]:
        """All records, in the order in which they began."""
        rows = self._ask(
            "SELECT settings, result, error, trace, begun, seconds, place, attempts "
            "FROM records ORDER BY begun, key"
        )
        try:
            return tuple(
                Record(
                    Cell(**json.loads(settings)),
                    None if result is None else json.loads(result),
                    *(error, trace, begun, seconds),
                    json.loads(place),
                    attempts,
                )
                for settings, result, error, trace, begun, seconds, place, attempts in rows
            )
        except (TypeError, json.JSONDecodeError, GridError) as error:
            raise RecordsError(f"{self.path} holds a record that is none: {error}") from error

    def _ask(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise RecordsError(f"{self.path}: {error}") from error


def read_records(path: str | Path) -> tuple[Record, ...]:
    """All records of a file, in the order in which they began."""
    with Records(path, fresh=False) as records:
        return records.read()
