"""What a file says, checked: each function returns it as what it should be, or raises.

A file may ask for no more than its own length explains, whatever it says. Bounds leave room for
small files: what costs a few megabytes needs no explanation. `save` keeps to the same bounds, so
that whatever is saved can be loaded.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from torch import nn

from upscale.errors import StoreError
from upscale.rewrite.building import TAKEN

Json: TypeAlias = Any  # what `json.loads` gives: anything, until it has been checked
T = TypeVar("T")

LONGEST_NAME = 1000
LARGEST = 2**63
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A part of a path that is no identifier stands within quotes in generated code.
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ +@=:,/-]*")

# What every module within a graph module has; the graph module itself has more.
TAKEN_WITHIN = frozenset((*dir(nn.Module()), "self"))
TAKEN_FIRST = TAKEN | TAKEN_WITHIN | {"_in_spec", "_out_spec"}


def as_identifier(value: Json, what: str) -> str:
    """A name that may stand in generated code as it is."""
    fits = isinstance(value, str) and len(value) <= LONGEST_NAME and IDENTIFIER.fullmatch(value)
    if not fits or keyword.iskeyword(value) or value == "self" or value.startswith("__"):
        raise StoreError(f"{_cut(value)} is no name for {what}")
    return str(value)


def as_path(value: Json) -> str:
    """The path of a module or tensor: parts with dots between them.

    A part that names anything else of its owner, such as a method, would be called in its place.
    """
    parts = value.split(".") if isinstance(value, str) and len(value) <= LONGEST_NAME else [""]
    taken = set(parts[:1]) & TAKEN_FIRST | set(parts[1:]) & TAKEN_WITHIN
    fits = all(PART.fullmatch(part) and not keyword.iskeyword(part) for part in parts)
    if taken or not fits:
        raise StoreError(f"{_cut(value)} is no path of a module or tensor that a file can hold")
    return str(value)


def as_entry(table: Mapping[str, T], key: Json, what: str) -> T:
    """What a table has under a name in the file."""
    if not isinstance(key, str) or key not in table:
        raise StoreError(f"the file names a {what} that is not there: {_cut(key)}")
    return table[key]


def as_list(value: Json) -> list[Json]:
    """A list."""
    return _as(list, value, "a list")


def as_pairs(value: Json) -> list[list[Json]]:
    """The entries of a dictionary: a list of lists of two, of which the first is its key."""
    pairs = as_list(value)
    if not all(isinstance(p, list) and len(p) == 2 and type(p[0]) in (str, int) for p in pairs):
        raise StoreError(f"the file has {_cut(value)} where the entries of a dictionary belong")
    return pairs


def as_object(value: Json, *required: str, **optional: Json) -> dict[str, Json]:
    """An object with the keys required and no others but the optional ones, filled in."""
    given = _as(dict, value, "an object")
    wrong = set(required) - given.keys() or given.keys() - {*required, *optional}
    if wrong:
        raise StoreError(f"the file has missing or unknown entries: {_cut(sorted(wrong))}")
    return {**optional, **given}


def as_table(value: Json) -> dict[str, Json]:
    """An object with paths for keys."""
    return {as_path(key): item for key, item in _as(dict, value, "an object").items()}


def as_integer(value: Json) -> int:
    """A whole number of 64 bits."""
    if type(value) is not int or not -LARGEST <= value < LARGEST:
        raise StoreError(f"the file has {_cut(value)} where a number of 64 bits belongs")
    return value


def as_integers(value: Json) -> list[int]:
    """A list of whole numbers."""
    return [as_integer(number) for number in as_list(value)]


def as_bool(value: Json) -> bool:
    """True or false."""
    return _as(bool, value, "true or false")


def _as(kind: type[T], value: Json, what: str) -> T:
    if not isinstance(value, kind):
        raise StoreError(f"the file has {_cut(value)} where {what} belongs")
    return value


def _cut(value: Json) -> str:
    return f"{str(value)[:80]!r}"


MEGABYTE = 2**20
LONGEST_HEADER = 100_000_000  # as safetensors has it
MOST_AXES = 64  # torch's own bound


def longest_header(size: int) -> int:
    """How long the header of a file may be: read, it takes thirty times its length in memory."""
    return min(LONGEST_HEADER, 6 * MEGABYTE + size // 4)


def most_values(size: int) -> int:
    """How many values a graph may have: each takes about a kilobyte, as code is made of it."""
    return 100_000 + size // 200


def check_values(tree: Any, size: int) -> None:
    """Raise if a tree of JSON has more values than a file of so many bytes explains."""
    count, waiting = 0, [tree]
    while waiting and count <= most_values(size):
        item = waiting.pop()
        count += 1
        if isinstance(item, (dict, list)):
            waiting.extend(item.values() if isinstance(item, dict) else item)
    if count > most_values(size):
        raise StoreError(
            f"the graph has more than {most_values(size):,} nodes and arguments, which is more "
            f"than a file of {size:,} bytes may hold"
        )


def most_example_bytes(size: int) -> int:
    """How large the inputs may be that a file says its model was captured with."""
    return 64 * MEGABYTE + 1000 * size


def most_made_bytes(size: int) -> int:
    """How large inputs may be that are made with numbers: a model may make much more of them."""
    return 8 * MEGABYTE + 10 * size


def check_shape(shape: Sequence[int], size: int, what: str) -> None:
    """Raise on a shape that a file of so many bytes does not explain, even without elements."""
    if len(shape) > MOST_AXES or any(not 0 <= own <= MEGABYTE + size for own in shape):
        raise StoreError(f"{what} has a shape that the file's {size:,} bytes do not explain")
