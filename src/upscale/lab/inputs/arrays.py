"""Arrays: inputs as a model takes them, from `.npy`, `.npz` and `.safetensors`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from upscale.lab.sources import SourceError

LABELS = "labels"
Rows = Callable[[int], Tensor]


@dataclass(frozen=True, slots=True)
class Arrays:
    """Inputs along the first axis of one array, or of several that go by the names of arguments.

    Numbers are made of the type that the model has; whole numbers stay, as indices.
    """

    count: int
    rows: Mapping[str, Rows]
    labels: tuple[int, ...] | None
    dtype: torch.dtype

    @classmethod
    def read(cls, path: Path, dtype: torch.dtype) -> Arrays:
        """The inputs that a file holds."""
        read = {".npy": _numpy, ".npz": _several}.get(path.suffix, _safetensors)
        try:
            shapes, rows, labels = read(path)
        except Exception as error:  # readers raise what they like on damaged files
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise SourceError(f"{path} cannot be read: {first}") from error
        counts = {shape[0] if shape else 0 for shape in shapes.values()}
        if labels is not None:
            counts.add(len(labels))
        if not rows or len(counts) != 1 or not min(counts):
            told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise SourceError(f"{path} holds {told or 'nothing'}; inputs lie along the first axis")
        return cls(counts.pop(), rows, labels, dtype)

    @classmethod
    def held(cls, inputs: Tensor, labels: Tensor, dtype: torch.dtype) -> Arrays:
        """Inputs and labels that are in memory already."""
        return cls(len(inputs), {"inputs": inputs.__getitem__}, tuple(labels.tolist()), dtype)

    def __len__(self) -> int:
        return self.count

    def take(self, numbers: Sequence[int]) -> tuple[Any, list[int]]:
        """A batch of some inputs, all of which can be read."""
        parts = {
            name: self._cast(torch.stack([row(number) for number in numbers]))
            for name, row in self.rows.items()
        }
        return (next(iter(parts.values())) if len(parts) == 1 else parts), list(numbers)

    def classes(self, outputs: int) -> Sequence[int] | None:
        """What the file says under `labels`, if a model of so many outputs has such classes."""
        labels = self.labels
        fits = labels is not None and min(labels) >= 0 and max(labels) < outputs
        return labels if fits else None

    def _cast(self, batch: Tensor) -> Tensor:
        return batch.to(self.dtype) if batch.is_floating_point() else batch.long()


Read = tuple[dict[str, tuple[int, ...]], dict[str, Rows], tuple[int, ...] | None]


def _numpy(path: Path) -> Read:
    held = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(held, np.ndarray) or held.dtype.kind not in "fiub":
        raise ValueError("it is no array of numbers")
    native = held.dtype.newbyteorder("=")
    rows = {path.name: lambda number: torch.from_numpy(np.array(held[number], dtype=native))}
    return {path.name: held.shape}, rows, None


def _several(path: Path) -> Read:
    """Arrays by the names of a model's inputs, in which files have signs that Python's lack."""
    with np.load(path, allow_pickle=False) as opened:
        held = {re.sub(r"\W", "_", name): opened[name] for name in opened.files}
    if any(own.dtype.kind not in "fiub" for own in held.values()):
        raise ValueError("it holds what is no array of numbers")
    rows: dict[str, Rows] = {n: torch.from_numpy(own).__getitem__ for n, own in held.items()}
    return {name: own.shape for name, own in held.items()}, rows, None


def _safetensors(path: Path) -> Read:
    held: Any = safe_open(path, framework="pt")
    names = list(held.keys())
    slices = {name: held.get_slice(name) for name in names if name != LABELS}
    shapes = {name: tuple(own.get_shape()) for name, own in slices.items()}
    labels = None
    if LABELS in names:
        found = held.get_tensor(LABELS)
        if found.ndim != 1 or found.is_floating_point() or found.is_complex():
            raise ValueError(f"{LABELS} must be whole numbers, one for each input")
        labels = tuple(found.tolist())
    return shapes, {name: _row(own) for name, own in slices.items()}, labels


def _row(part: Any) -> Rows:
    def row(number: int) -> Tensor:
        found: Tensor = part[number : number + 1]
        return found[0]

    return row
