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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from upscale.errors import StoreError
from upscale.store.checks import Json, as_entry, as_integers, as_object, check_shape, longest_header
from upscale.tools.atomic import replacing

LENGTH = struct.Struct("<Q")
DOCUMENT, DIGEST, METADATA = "upscale", "sha256", "__metadata__"
# Every kind of number that is read, and torch's own name for it.
KINDS: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NOT_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# Sparse files: the unit of `st_blocks`, what is large enough to ask, how empty is too empty.
BLOCK, LARGE, EMPTIEST = 512, 2**30, 8


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
    longest = longest_header(LENGTH.size + len(header) + len(data))
    if len(header) > longest:
        raise StoreError(
            f"the plan and graph take {len(header):,} bytes; a file with {len(data):,} bytes of "
            f"weights holds {longest:,}"
        )
    return LENGTH.pack(len(header)), header, data


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds: its document, its tensors, and how many bytes it has."""

    document: Json
    tensors: dict[str, Tensor]
    size: int


def read(path: Path) -> Content:
    """The content of a file; raises on anything that `write` has not written.

    The header is checked before anything behind it is read.
    """
    try:
        with _opened(path) as file:
            return _read(file, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def _opened(path: Path) -> BinaryIO:
    """A regular file; nothing else is waited for, or even opened."""
    if stat.S_ISREG(path.stat().st_mode):
        # Another thing may have taken its place by now: opening a pipe would wait for a writer.
        file = os.fdopen(os.open(path, os.O_RDONLY | NOT_WAITING), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    kind = "a directory" if path.is_dir() else "no regular file"
    raise StoreError(f"{path} cannot be read: it is {kind}")


def _read(file: BinaryIO, path: Path) -> Content:
    size = os.fstat(file.fileno()).st_size
    if size < LENGTH.size:
        raise StoreError(f"{path} is no safetensors file: it has {size} bytes")
    (length,) = LENGTH.unpack(file.read(LENGTH.size))
    if length > min(longest_header(size), size - LENGTH.size):
        raise StoreError(f"{path} is cut off, or no safetensors file")
    header = _parsed(file.read(length), path)
    metadata = header.pop(METADATA, None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(DOCUMENT), str):
        raise StoreError(f"{path} was not written by upscale.save: it holds tensors alone")
    expected = size - LENGTH.size - length
    _check_entries(header, expected, path)
    document = _parsed(metadata[DOCUMENT].encode(errors="surrogatepass"), path)
    _check_room(file, path)
    data = memoryview(file.read(expected))
    if len(data) < expected:
        raise StoreError(f"{path} is cut off: it became shorter while it was read")
    if metadata.get(DIGEST) != _digest(metadata[DOCUMENT], header, data):
        raise StoreError(f"{path} is damaged: its contents do not match their digest")
    return Content(document, {name: _tensor(own, data) for name, own in header.items()}, size)


def _check_room(file: BinaryIO, path: Path) -> None:
    """Raise on a file that is nearly all hole: it would take memory that nobody has written."""
    found = os.fstat(file.fileno())
    written = getattr(found, "st_blocks", found.st_size) * BLOCK
    if found.st_size > LARGE and written < found.st_size // EMPTIEST:
        raise StoreError(
            f"{path} has {found.st_size:,} bytes of which {written:,} were ever written; "
            "weights are not like that"
        )


def _tensor(entry: Json, data: memoryview) -> Tensor:
    """One tensor out of a file's data, in memory of its own."""
    begin, end = entry["data_offsets"]
    dtype = KINDS[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    own = bytearray(data[begin:end])
    if dtype is torch.bool and max(own) > 1:
        raise StoreError("the file has a tensor of truth values that are neither true nor false")
    return torch.frombuffer(own, dtype=dtype).reshape(entry["shape"])


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
        shape, span = as_integers(given["shape"]), as_integers(given["data_offsets"])
        width = as_entry(KINDS, given["dtype"], "kind of number").itemsize
        check_shape(shape, size, f"tensor {name[:80]!r}")
        if len(span) != 2 or math.prod(shape) * width != span[1] - span[0]:
            raise StoreError(f"{path} is damaged: tensor {name[:80]!r} has another size")
        spans.append(span)
    edges = [0, *(edge for span in sorted(spans) for edge in span), size]
    if edges[::2] != edges[1::2]:
        raise StoreError(f"{path} is cut off or padded: its tensors do not fill it")


def _digest(text: str, entries: Mapping[str, Any], data: bytes | memoryview) -> str:
    tensors = json.dumps(entries, sort_keys=True)
    digest = hashlib.sha256()
    for part in (text.encode(errors="surrogatepass"), tensors.encode()):
        digest.update(LENGTH.pack(len(part)) + part)
    digest.update(data)
    return digest.hexdigest()
