"""Frozen values as JSON and back, by the types of their fields. Plain data only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from upscale.errors import PlanError

T = TypeVar("T")
LARGEST = 2**62


DIGEST, VERSION = "sha256", "version"


def write_json(value: Any, *, version: int) -> str:
    """A dataclass as JSON, with a digest of its fields."""
    fields = _written(value)
    document = {VERSION: version, DIGEST: digest_of(fields), **fields}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def read_json(cls: type[T], text: str, *, version: int, check: Callable[[T], None]) -> T:
    """The dataclass that `write_json` wrote; raises if anything in it is not as it was.

    `check` raises on values that cannot be. The digest finds damage and careless edits; it is no
    signature.
    """
    fields = _parsed(text)
    found, digest = fields.pop(VERSION, None), fields.pop(DIGEST, None)
    if found != version:
        older = type(found) is int and found < version
        raise PlanError(
            f"this is no plan of version {version}"
            + (": an older upscale wrote it; make the plan again" if older else "")
        )
    try:
        value = _dataclass(cls, fields, "plan")
        check(value)
        sealed = digest == digest_of(fields)
    except RecursionError as error:
        raise PlanError("this is no plan: it is nested too deeply") from error
    if not sealed:
        raise PlanError(
            "the plan was damaged or edited since it was written: its contents do not match their "
            "digest; make the plan again"
        )
    return value


def _parsed(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_constant=_refuse)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"this is no JSON: {error!s:.200}") from error
    if not isinstance(fields, dict):
        raise PlanError("this is no plan: it is no JSON object")
    return fields


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def digest_of(fields: Mapping[str, Any]) -> str:
    """A digest of what a document says, however its keys are ordered and its text is spaced."""
    said = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


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


def _dataclass(cls: type[T], fields: Any, where: str) -> T:
    hints = _hints(cls)
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
        return _dataclass(hint, value, where)  # type: ignore[arg-type]
    if type(value) is int and hint is float and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not hint or (hint is int and abs(value) > LARGEST):
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
    return {_key(keys, key, where): _read(items, item, where) for key, item in value.items()}


def _key(kind: type, key: str, where: str) -> Any:
    """A key of a table; numbers have one way to be written."""
    try:
        found = kind(key)
    except ValueError as error:
        raise PlanError(f"{where} has a key that is no {kind.__name__}") from error
    if str(found) != key:
        raise PlanError(f"{where} has a key that is no {kind.__name__}")
    return found
