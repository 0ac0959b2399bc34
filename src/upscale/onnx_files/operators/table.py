"""The table of operators: what each does to values, in one entry.

A rule is given one node of the file, whose inputs are values already, and answers with what it
makes: a value, or a list where it makes several. A rule that cannot do what the node asks raises
`OnnxError`; the node's name is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.values import Made, Value

Rule = Callable[["Call", Build], Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One node of the file: its operator, what it reads, its attributes and the file's opset."""

    operator: str
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    opset: int

    def input(self, place: int) -> Value | None:
        """What the node reads at a place; nothing if it leaves that out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def given(self, place: int) -> Value:
        """What the node must read at a place."""
        value = self.input(place)
        if value is None:
            raise OnnxError(f"its input {place} is missing")
        return value

    def read(self, place: int, build: Build) -> Any:
        """What the node reads at a place, as a tensor."""
        return build.tensor(self.given(place))

    def attribute(self, name: str, otherwise: Any = None) -> Any:
        """An attribute, or what stands for it if it is left out."""
        return self.attributes.get(name, otherwise)

    def only(self, name: str, *allowed: Any) -> None:
        """Raise unless an attribute is left out or one of those allowed."""
        if name in self.attributes and self.attributes[name] not in allowed:
            raise OnnxError(f"{name}={self.attributes[name]!r} is not supported")


def rank_of(value: Any) -> int:
    """How many axes a tensor has."""
    return value.rank if isinstance(value, Made) else int(value.dim())


OPERATORS: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Enter a rule under one name or several."""

    def enter(own: Rule) -> Rule:
        OPERATORS.update(dict.fromkeys(names.split(), own))
        return own

    return enter
