"""Values and their channels: what values are called, and where channels lie in them. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
T = TypeVar("T")


class Parameter(str):
    """The value of a parameter or buffer, by its qualified `name`.

    All other values are plain strings: the names of the nodes that make them. A parameter may have
    such a name too, so the two are never equal.

    >>> Parameter("scale").name, Parameter("scale") == "scale"
    ('scale', False)
    """

    name: str

    def __new__(cls, name: str) -> Parameter:
        value = super().__new__(cls, f"@{name}")
        value.name = name
        return value


def derived(of: str, what: str) -> str:
    """The name of a value, or a step, that the model does not have and lowering derives."""
    return f"{of}~{what}"


def by_name(parameters: Mapping[str, T]) -> dict[str, T]:
    """What is known of parameters, by their names."""
    return {
        value.name: known for value, known in parameters.items() if isinstance(value, Parameter)
    }


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The stream and the place in it of every class of channels; -1 where neither is free."""

    stream: Positions
    place: Positions

    @classmethod
    def none(cls, count: int) -> Places:
        """Places for so many classes, none of them free."""
        return cls(np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64))


def positions(indices: Sequence[int] | range) -> Positions:
    """The given indices as an array of positions."""
    return np.fromiter(indices, dtype=np.int64, count=len(indices))
