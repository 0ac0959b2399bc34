"""Names of values: what a graph computes, and what a model owns, told apart by type. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

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
