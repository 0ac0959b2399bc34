"""What a name of an ONNX file stands for while the file is read.

    a constant        a torch tensor: an initialiser, or what follows from initialisers alone
    `Made`            what a node of the torch graph makes
    `Sizes`           whole numbers that follow from the sizes of inputs, as `Shape` gives them

Every node is run twice, on tensors without numbers, with other sizes wherever the file leaves a
size free. A size that is the same in both runs is a plain number; one that differs is a `Size`, a
node of the torch graph that asks for it:

    x: (N, 3, H, W)    runs: (2, 3, 64, 128), (3, 3, 96, 160)    Shape(x) = [size_0, 3, size_2, ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx

RUNS = (0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A node of the torch graph, and the tensor without numbers that it makes in each run."""

    node: fx.Node
    runs: tuple[Any, Any]

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return int(self.runs[0].dim())

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        dtype: torch.dtype = self.runs[0].dtype
        return dtype

    @property
    def shape(self) -> list[int | None]:
        """Its sizes; `None` where they are free."""
        one, other = (run.shape for run in self.runs)
        return [int(a) if a == b else None for a, b in zip(one, other, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """A size that depends on the inputs': the node that asks for it, and the number in each run."""

    node: fx.Node
    runs: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """A scalar or a vector of whole numbers, some of which depend on the sizes of inputs.

    `dtype` is the type that the file has them in.
    """

    entries: tuple[int | Size, ...]
    scalar: bool = False
    dtype: torch.dtype = torch.int64

    def array(self) -> Any:
        """The entries as an array of objects, for numpy to move about."""
        made = np.empty(len(self.entries), dtype=object)
        made[:] = self.entries
        return made.reshape(()) if self.scalar else made


Value: TypeAlias = Tensor | Made | Sizes


def sizes_of(array: Any) -> Tensor | Sizes:
    """What an array of sizes stands for: a constant, if none depends on an input."""
    entries = [own if isinstance(own, Size) else int(own) for own in np.ravel(array)]
    if any(isinstance(own, Size) for own in entries):
        return Sizes(tuple(entries), scalar=np.ndim(array) == 0)
    plain = [own for own in entries if isinstance(own, int)]
    return torch.tensor(plain, dtype=torch.int64).reshape(np.shape(array))


def typed(value: Tensor | Sizes, dtype: torch.dtype) -> Tensor | Sizes:
    """Sizes in a type of numbers."""
    return replace(value, dtype=dtype) if isinstance(value, Sizes) else value.to(dtype)


def at_run(value: Any, run: int) -> Any:
    """What a value is in one of the two runs."""
    if isinstance(value, Made | Size):
        return value.runs[run]
    if isinstance(value, Tensor):
        return value.to("meta") if value.dim() else value
    if isinstance(value, slice):
        return slice(*(at_run(own, run) for own in (value.start, value.stop, value.step)))
    if isinstance(value, tuple | list):
        return type(value)(at_run(own, run) for own in value)
    return value


def holds_made(values: Sequence[Any]) -> bool:
    """Whether anything among values is made when the model runs."""
    return any(
        isinstance(own, Made | Size)
        or (isinstance(own, tuple | list) and holds_made(own))
        or (isinstance(own, slice) and holds_made([own.start, own.stop, own.step]))
        for own in values
    )
