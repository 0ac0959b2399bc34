"""Heads of attention, by the projections that read them. Plain data, no torch."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from upscale.errors import SelectionError
from upscale.selected.selection import Selection


@dataclass(frozen=True)
class Heads:
    """The heads that can leave a model whole: for each layer that reads heads, how many and wide.

    A head is the columns of the layer that it feeds, so what keeps heads is a selection like any
    other. Of two heads of three channels the second is kept:

    >>> heads = Heads({"blocks.0.attn.proj": (2, 3)})
    >>> heads.count
    2
    >>> dict(heads.keeping({"blocks.0.attn": [1]}).kept)
    {'blocks.0.attn.proj': (3, 4, 5)}
    """

    of: Mapping[str, tuple[int, int]]

    @property
    def count(self) -> int:
        """How many heads there are, in all layers."""
        return sum(count for count, _ in self.of.values())

    def keeping(self, heads: Mapping[str, Iterable[int]]) -> Selection:
        """The selection that keeps some heads of the layers named; the others keep all.

        A name is the layer's, or that of a module around it that has no other such layer.
        """
        kept: dict[str, list[int]] = {}
        for name, own in heads.items():
            layer = self._layer(name)
            if layer in kept:
                raise SelectionError(f"{name}: the heads of {layer} were given before")
            count, width = self.of[layer]
            kept[layer] = [
                head * width + channel
                for head in _checked(name, own, count)
                for channel in range(width)
            ]
        return Selection(kept=kept)

    def kept_by(self, selection: Selection) -> dict[str, tuple[int, ...]]:
        """The heads of which a selection of columns keeps anything, by layer.

        >>> heads = Heads({"proj": (2, 3)})
        >>> heads.kept_by(Selection(kept={"proj": [0, 2]}))
        {'proj': (0,)}
        """
        return {
            layer: tuple(sorted({column // width for column in selection.kept[layer]}))
            for layer, (_, width) in self.of.items()
            if layer in selection.kept
        }

    def _layer(self, name: str) -> str:
        within = [layer for layer in self.of if layer == name or layer.startswith(f"{name}.")]
        if len(within) == 1:
            return within[0]
        known = ", ".join(list(self.of)[:3]) or "none"
        what = f"has {len(within)} layers that read heads" if within else "reads no heads"
        raise SelectionError(f"{name!r} {what}; layers whose heads can leave: {known}")


def _checked(name: str, heads: Iterable[int], count: int) -> list[int]:
    try:
        own = sorted(operator.index(head) for head in heads)
    except TypeError as error:
        raise SelectionError(f"{name}: heads are {heads!r}; give a list of integers") from error
    if own and not 0 <= own[0] <= own[-1] < count:
        wrong = own[0] if own[0] < 0 else own[-1]
        raise SelectionError(f"{name} has {count} heads; {wrong} is out of range 0..{count - 1}")
    if len(set(own)) < len(own):
        raise SelectionError(f"{name}: a head appears twice; list it once")
    return own
