"""Selections: which channels each layer keeps. Plain data, no torch."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from upscale.errors import SelectionError

SIDES = ("input", "output")


@dataclass(frozen=True)
class Selection:
    """The channels each named layer keeps; layers it does not name keep everything.

    Indices are columns of the layer's own weight on the input side, and rows on the output
    side.

    >>> Selection(kept={"conv1": [2, 0]}).kept["conv1"]
    (0, 2)
    """

    kept: Mapping[str, Iterable[int]]
    side: str = "input"

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise SelectionError(f"side is {self.side!r}; it must be 'input' or 'output'")
        if not isinstance(self.kept, Mapping):
            raise SelectionError("kept maps layer names to the channel indices they keep")
        frozen = {str(layer): _indices(layer, kept) for layer, kept in self.kept.items()}
        object.__setattr__(self, "kept", MappingProxyType(frozen))

    def kept_by(self, layer: str) -> tuple[int, ...] | None:
        """The channels a layer keeps, or `None` if the selection does not name it."""
        return self.kept.get(layer)  # type: ignore[return-value]  # frozen to tuples above

    def __reduce__(self) -> tuple[type, tuple[dict[str, Iterable[int]], str]]:
        return (Selection, (dict(self.kept), self.side))


def check_kind(selection: object) -> None:
    """Raise unless given a selection."""
    if not isinstance(selection, Selection):
        raise SelectionError(
            f"expected a Selection, not {type(selection).__name__}; make one of a dict by "
            "Selection(kept={'layer': [0, 1]}, side='input')"
        )


def check_selection(
    selection: Selection, sizes: Mapping[str, int], shared: Mapping[str, str]
) -> None:
    """Raise unless a selection fits layers with the given numbers of channels.

    `shared` gives every layer the name of its weight: layers that share one must agree.
    """
    owners: dict[str, str] = {}
    for layer, kept in selection.kept.items():
        indices = tuple(kept)
        if layer not in sizes:
            raise SelectionError(
                f"there is no convolution or linear layer named {layer!r}{_hint(layer, sizes)}"
            )
        if indices and indices[-1] >= sizes[layer]:
            raise SelectionError(
                f"{layer} has {sizes[layer]} {selection.side} channels; kept index "
                f"{indices[-1]} is out of range 0..{sizes[layer] - 1}"
            )
        owner = owners.setdefault(shared[layer], layer)
        if tuple(selection.kept[owner]) != indices:
            raise SelectionError(
                f"{owner} and {layer} share one weight but keep different channels; "
                "give both the same list"
            )


def _indices(layer: object, kept: Iterable[int]) -> tuple[int, ...]:
    try:
        given = list(kept)
        if any(isinstance(index, bool) for index in given):
            raise TypeError("a mask of booleans is no list of indices")
        indices = sorted(operator.index(index) for index in given)
    except TypeError as error:
        raise SelectionError(f"{layer}: kept is {kept!r}; it must be a list of integers") from error
    if indices and indices[0] < 0:
        raise SelectionError(f"{layer}: kept index {indices[0]} is negative")
    for one, other in pairwise(indices):
        if one == other:
            raise SelectionError(f"{layer}: kept index {one} appears twice; list it once")
    return tuple(indices)


def _hint(layer: str, sizes: Mapping[str, int]) -> str:
    tail = layer.rsplit(".", 1)[-1]
    near = [name for name in sizes if name.endswith(tail) or layer in name][:3]
    return f"; did you mean {', '.join(near)}?" if near else ""


def keep_highest(scores: Mapping[str, Sequence[float]], amount: float) -> dict[str, list[int]]:
    """For each layer the channels left when the given share with the lowest scores goes.

    At least one channel stays.

    >>> keep_highest({"conv": [3.0, 1.0, 2.0, 5.0]}, amount=0.5)
    {'conv': [0, 3]}
    """
    if not isinstance(amount, (int, float)) or not 0 <= amount < 1:
        raise SelectionError(f"amount is {amount!r}; it must be a share from 0 up to, not with, 1")
    kept = {}
    for layer, values in scores.items():
        count = max(1, len(values) - round(amount * len(values)))
        best = sorted(range(len(values)), key=lambda index: (-values[index], index))
        kept[layer] = sorted(best[:count])
    return kept
