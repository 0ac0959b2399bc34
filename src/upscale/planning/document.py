"""Frozen values as JSON and back, by the types of their fields. Plain data only."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from upscale.errors import PlanError

T = TypeVar("T")


def write_json(value: Any, *, version: int, without: frozenset[str]) -> str:
    """A dataclass as JSON, but for some of its fields."""
    fields = {
        name: _written(getattr(value, name)) for name in _hints(type(value)) if name not in without
    }
    return json.dumps({"version": version, **fields}, separators=(",", ":"), allow_nan=False)


def read_json(cls: type[T], text: str, *, version: int, without: frozenset[str]) -> T:
    """The dataclass that `write_json` wrote; raises if anything in it is not of its type."""
    try:
        fields = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"this is no JSON: {error}") from error
    if not isinstance(fields, dict) or fields.pop("version", None) != version:
        raise PlanError(f"this is no plan of version {version}")
    hints = {name: hint for name, hint in _hints(cls).items() if name not in without}
    return _dataclass(cls, hints, fields, "plan")


def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _written(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {name: _written(getattr(value, name)) for name in _hints(type(value))}
    if isinstance(value, Mapping):
        return {str(key): _written(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(_written(item) for item in value)
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return value


def _dataclass(cls: type[T], hints: Mapping[str, Any], fields: Any, where: str) -> T:
    if not isinstance(fields, dict) or fields.keys() != hints.keys():
        raise PlanError(f"{where} has other fields than {', '.join(hints)}")
    return cls(**{name: _read(hint, fields[name], name) for name, hint in hints.items()})


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        (plain,) = (choice for choice in inner if choice is not type(None))
        return None if value is None else _read(plain, value, where)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(inner, value, where)
    if origin in (tuple, frozenset):
        return origin(_items(inner, value, where))
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, _hints(hint), value, where)  # type: ignore[arg-type]
    if type(value) is int and hint is float:
        return float(value)
    if type(value) is not hint:
        raise PlanError(f"{where} holds {str(value)[:40]!r}, which is no {hint.__name__}")
    return value


def _items(inner: tuple[Any, ...], value: Any, where: str) -> list[Any]:
    hints = [item for item in inner if item is not ...]
    if not isinstance(value, list) or (len(hints) > 1 and len(hints) != len(value)):
        raise PlanError(f"{where} holds {str(value)[:40]!r} in place of a list")
    hints = hints if len(hints) > 1 else hints * len(value)
    return [_read(hint, item, where) for hint, item in zip(hints, value, strict=True)]


def _mapping(inner: tuple[Any, ...], value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise PlanError(f"{where} holds {str(value)[:40]!r} in place of a table")
    keys, items = inner
    try:
        return {keys(key): _read(items, item, where) for key, item in value.items()}
    except ValueError as error:
        raise PlanError(f"{where} has a key that is no {keys.__name__}") from error
