"""Selections: which channels each layer keeps. Plain data, no torch."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from upscale.errors import SelectionError
from upscale.selected.amounts import Reached

SIDES = ("input", "output")
AFTER = ("norm", "layer")

Kept = Mapping[str, Iterable[int]]


@dataclass(frozen=True)
class Selection:
    """The channels each named layer keeps; layers it does not name keep everything.

    Indices are columns of the layer's own weight on the input side, and rows on the output
    side. There `after` says where a pruned channel becomes zero: after the layer and its
    normalisation, or directly after the layer. `windows` are channels that layers shall read
    along with those they keep, at weight zero, so that what they read lies side by side.
    `reached` tells what a selection that `select` made amounts to.

    >>> Selection(kept={"conv1": [2, 0]}).kept["conv1"]
    (0, 2)
    """

    kept: Kept
    side: str = "input"
    after: str = "norm"
    windows: Kept = field(default_factory=dict)
    reached: Reached | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise SelectionError(f"side is {self.side!r}; it must be 'input' or 'output'")
        if self.after not in AFTER:
            raise SelectionError(f"after is {self.after!r}; it must be 'norm' or 'layer'")
        object.__setattr__(self, "kept", _frozen(self.kept, "kept"))
        object.__setattr__(self, "windows", _frozen(self.windows, "windows"))
        for layer, window in self.windows.items():
            if not set(self.kept.get(layer, window)) <= set(window):
                raise SelectionError(f"{layer}: the window must hold every channel kept")

    def with_kept(self, kept: Kept) -> Selection:
        """This selection with other lists for the layers given; their windows go.

        >>> Selection(kept={"a": [0], "b": [1]}).with_kept({"b": [0, 1]}).kept["b"]
        (0, 1)
        """
        windows = {name: window for name, window in self.windows.items() if name not in kept}
        return replace(self, kept={**self.kept, **kept}, windows=windows, reached=None)

    def without(self, *layers: str) -> Selection:
        """This selection without the layers given: they keep everything.

        >>> dict(Selection(kept={"a": [0], "b": [1]}).without("b").kept)
        {'a': (0,)}
        """
        if missing := sorted(set(layers) - self.kept.keys()):
            raise SelectionError(f"the selection does not name {missing[0]!r}")
        kept = {name: indices for name, indices in self.kept.items() if name not in layers}
        windows = {name: window for name, window in self.windows.items() if name not in layers}
        return replace(self, kept=kept, windows=windows, reached=None)

    def __and__(self, other: Selection) -> Selection:
        """What both keep: every channel that either prunes is pruned.

        >>> a, b = Selection(kept={"a": [0, 1]}), Selection(kept={"a": [1, 2], "b": [0]})
        >>> dict((a & b).kept)
        {'a': (1,), 'b': (0,)}
        """
        both = self._both(other)
        kept = {**self.kept, **other.kept, **{name: one & two for name, (one, two) in both}}
        return Selection(kept=kept, side=self.side, after=self.after)

    def __or__(self, other: Selection) -> Selection:
        """What either keeps: only channels that both prune are pruned.

        >>> a, b = Selection(kept={"a": [0, 1]}), Selection(kept={"a": [1, 2], "b": [0]})
        >>> dict((a | b).kept)
        {'a': (0, 1, 2)}
        """
        kept = {name: one | two for name, (one, two) in self._both(other)}
        return Selection(kept=kept, side=self.side, after=self.after)

    def differences(self, other: Selection) -> dict[str, tuple[int, ...]]:
        """For each layer that both name, the channels that only one of them keeps.

        >>> a, b = Selection(kept={"a": [0, 1]}), Selection(kept={"a": [1, 2]})
        >>> a.differences(b)
        {'a': (0, 2)}
        """
        both = self._both(other)
        return {name: tuple(sorted(one ^ two)) for name, (one, two) in both if one != two}

    def to_json(self) -> str:
        """This selection as JSON text, which `from_json` reads.

        >>> Selection(kept={"a": [0, 2]}).to_json()
        '{"side": "input", "after": "norm", "kept": {"a": [0, 2]}, "windows": {}}'
        """
        lists = {"kept": dict(self.kept), "windows": dict(self.windows)}
        return json.dumps({"side": self.side, "after": self.after, **lists})

    @classmethod
    def from_json(cls, text: str) -> Selection:
        """The selection that `to_json` wrote.

        >>> Selection.from_json('{"kept": {"a": [0, 2]}}').kept["a"]
        (0, 2)
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SelectionError(f"this is no JSON: {error}") from error
        known = {"side", "after", "kept", "windows"}
        if not isinstance(found, dict) or "kept" not in found or found.keys() - known:
            raise SelectionError(
                "a selection in JSON is an object of kept and, if need be, side, after, windows"
            )
        return cls(**found)

    def __str__(self) -> str:
        width = max((len(name) for name in self.kept), default=0)
        where = f", zero after the {self.after}" if self.side == "output" else ""
        lines = [f"selection: {self.side} channels of {len(self.kept)} layers{where}"]
        if self.reached:
            lines += str(self.reached).splitlines()
        for name, kept in self.kept.items():
            of = f" of {self.reached.widths[name]}" if self.reached else ""
            window = f", reads {len(tuple(self.windows[name]))}" if name in self.windows else ""
            lines.append(f"{name:{width}}  keeps {len(tuple(kept))}{of}{window}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (dict(self.kept), self.side, self.after, dict(self.windows), self.reached)
        return Selection, given

    def _both(self, other: object) -> list[tuple[str, tuple[set[int], set[int]]]]:
        """What this selection and one like it keep of each layer that both name."""
        if not isinstance(other, Selection):
            raise no_selection(other)
        if (self.side, self.after) != (other.side, other.after):
            raise SelectionError("selections of different sides cannot be put together")
        theirs = other.kept
        return [(n, (set(own), set(theirs[n]))) for n, own in self.kept.items() if n in theirs]


def no_selection(given: object) -> SelectionError:
    """What is raised if something else is given for a selection."""
    return SelectionError(
        f"expected a Selection, not {type(given).__name__}; make one of a dict by "
        "Selection(kept={'layer': [0, 1]}, side='input')"
    )


def _frozen(lists: Kept, what: str) -> Kept:
    if not isinstance(lists, Mapping):
        raise SelectionError(f"{what} maps layer names to channel indices")
    return MappingProxyType({str(name): _indices(name, kept) for name, kept in lists.items()})


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
