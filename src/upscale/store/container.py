"""The container: one safetensors file with a document in its metadata, sealed by a digest.

The digest finds damage and careless edits. It is no signature: who can write a file can seal it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from upscale.errors import StoreError
from upscale.store.atomic import replacing
from upscale.store.checks import Json, as_entry, as_integer, as_list, as_object

# As safetensors has it; a header is read whole before anything in it can be trusted.
LONGEST_HEADER = 100_000_000
LENGTH = struct.Struct("<Q")
DOCUMENT, DIGEST, METADATA = "upscale", "sha256", "__metadata__"
# Bytes an element takes, of every kind of number that is read.
WIDTHS = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "F16": 2,
    "BF16": 2,
    "F32": 4,
    "F64": 8,
    "C64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


def write(path: Path, document: Json, tensors: Mapping[str, Tensor]) -> None:
    """Write a file at once: whoever looks sees the old one or the new one, never a part."""
    try:
        packed = safetensors.torch.save({k: v.cpu().contiguous() for k, v in tensors.items()})
    except (SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"safetensors cannot hold these tensors: {error}") from error
    (length,) = LENGTH.unpack_from(packed)
    data = memoryview(packed)[LENGTH.size + length :]
    entries = json.loads(packed[LENGTH.size : LENGTH.size + length])
    entries.pop(METADATA, None)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    with replacing(path) as fresh, fresh.open("xb") as file:
        for part in seal(text, entries, data):
            file.write(part)


def seal(text: str, entries: Json, data: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """The parts of a file: how long its header is, the header, and the tensors' data.

    `text` is the document as JSON, `entries` says where in the data each tensor lies.
    """
    metadata = {DOCUMENT: text, DIGEST: _digest(text, entries, data)}
    header = json.dumps({METADATA: metadata, **entries}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH.size)
    if len(header) > LONGEST_HEADER:
        raise StoreError(
            f"the plan and graph take {len(header):,} bytes; a file holds {LONGEST_HEADER:,}"
        )
    return LENGTH.pack(len(header)), header, data


def read(path: Path) -> tuple[Json, dict[str, Tensor]]:
    """The document and tensors of a file; raises on anything that `write` has not written."""
    content = _content(path)
    if len(content) < LENGTH.size:
        raise StoreError(f"{path} is no safetensors file: it has {len(content)} bytes")
    (length,) = LENGTH.unpack_from(content)
    if length > min(LONGEST_HEADER, len(content) - LENGTH.size):
        raise StoreError(f"{path} is cut off, or no safetensors file")
    view = memoryview(content)
    header = _parsed(bytes(view[LENGTH.size : LENGTH.size + length]), path)
    metadata = header.pop(METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(DOCUMENT), str):
        raise StoreError(f"{path} was not written by upscale.save: it holds tensors alone")
    data = view[LENGTH.size + length :]
    _check_entries(header, len(data), path)
    if metadata.get(DIGEST) != _digest(metadata[DOCUMENT], header, data):
        raise StoreError(f"{path} is damaged: its contents do not match their digest")
    document = _parsed(metadata[DOCUMENT].encode(errors="surrogatepass"), path)
    try:
        return document, dict(safetensors.torch.load(content))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise StoreError(f"{path} holds tensors that cannot be read: {error}") from error


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StoreError(f"{path} is no regular file")
            return file.read()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: a part that should be JSON is none") from error
    if not isinstance(parsed, dict):
        raise StoreError(f"{path} is damaged: a part that should be an object is none")
    return parsed


def _check_entries(entries: Mapping[str, Any], size: int, path: Path) -> None:
    """Raise unless tensors lie side by side and fill the data exactly."""
    spans = []
    for name, entry in entries.items():
        given = as_object(entry, "dtype", "shape", "data_offsets")
        shape, span = _naturals(given["shape"]), _naturals(given["data_offsets"])
        width = as_entry(WIDTHS, given["dtype"], "kind of number")
        if len(span) != 2 or math.prod(shape) * width != span[1] - span[0]:
            raise StoreError(f"{path} is damaged: tensor {name[:80]!r} has another size")
        spans.append(span)
    edges = [0, *(edge for span in sorted(spans) for edge in span), size]
    if edges[::2] != edges[1::2]:
        raise StoreError(f"{path} is cut off or padded: its tensors do not fill it")


def _naturals(value: Json) -> list[int]:
    numbers = [as_integer(number) for number in as_list(value)]
    if any(number < 0 for number in numbers):
        raise StoreError("the file has a size or place below zero")
    return numbers


def _digest(text: str, entries: Mapping[str, Any], data: bytes | memoryview) -> str:
    tensors = json.dumps(entries, sort_keys=True)
    digest = hashlib.sha256()
    for part in (text.encode(errors="surrogatepass"), tensors.encode()):
        digest.update(LENGTH.pack(len(part)))
        digest.update(part)
    digest.update(data)
    return digest.hexdigest()
