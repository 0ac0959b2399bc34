"""Writes into tensors that outlive a call: which an export can keep, and which are refused.

A buffer that forward writes to is state. `self.count += 1` is kept; a write to a parameter or to
a tensor that is a plain attribute would be lost in an export, and is refused with its line.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from torch import Tensor, fx, nn

from upscale.capture.captured import Observed, place_of
from upscale.capture.tracer import source_line
from upscale.channels import Parameter
from upscale.errors import StateError
from upscale.model.layers import parameter_names

# Normalisations that write their statistics in training, which their schemas do not say: the
# argument that tells whether they do.
NORMS = {
    "batch_norm": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "instance_norm": "use_input_stats",
}
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True, slots=True)
class BufferMemory:
    """Whose memory is where: the names of buffers, parameters and plain attributes, by place.

    `bound` are places of values that a buffer was bound to, which no other buffer may be.
    """

    buffers: Mapping[int, str]
    parameters: Mapping[int, str]
    plain: Mapping[int, str]
    bound: set[int] = field(default_factory=set)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that outlives a call."""
        place = place_of(tensor)
        return any(place in names for names in (self.buffers, self.parameters, self.plain))

    def check_write(self, tensor: Tensor, node: fx.Node) -> None:
        """Raise if a write into a tensor is one that no export can keep."""
        place, at = place_of(tensor), _at(node)
        if place in self.parameters:
            raise StateError(
                f"forward writes to the parameter {self.parameters[place][1:]}{at}, and an export "
                "has other weights than the model; write it outside of forward"
            )
        if place in self.plain:
            raise StateError(
                f"forward writes to the tensor {self.plain[place]}{at}, which is no buffer and "
                "would be lost; register it with register_buffer"
            )

    def check_binding(self, buffer: Tensor, value: Tensor, node: fx.Node) -> None:
        """Raise unless a buffer that was bound to a value can be written with it instead."""
        name, place = self.buffers[place_of(buffer)][1:], place_of(value)
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise StateError(
                f"forward binds the buffer {name} to a tensor of another shape or type{_at(node)}; "
                "an export keeps buffers as they are: register it in the shape that it comes "
                "to have"
            )
        if place == place_of(buffer):
            return
        if self.holds(value) or place in self.bound:
            raise StateError(
                f"forward binds the buffer {name} to memory that the model keeps by another name"
                f"{_at(node)}; write self.{name}.copy_(...) instead"
            )
        self.bound.add(place)


def _at(node: fx.Node) -> str:
    line = source_line(node)
    return f" at {line}" if line else ""


def shared_statistics(graph: fx.Graph, observed: Mapping[str, Observed]) -> set[str]:
    """The statistics that something else than normalisations reads, or that alone are wanted.

    All others lie as the channels that are normalised, as a BatchNorm's own.
    """
    kept = {name for seen in observed.values() for name in seen.statistics}
    shared: set[str] = set()
    for node in graph.nodes:
        seen = observed[node.name]
        if not node.users:
            shared.update(seen.statistics)
        by_norms = {name for call in seen.calls if call.op in NORMS for name in call.reads}
        read = set(seen.takes) - by_norms
        if node.op != "call_module":
            read.update(n for call in seen.calls if call.op not in NORMS for n in call.reads)
        shared |= kept & read
    return shared


def check_apart(model: nn.Module, state: Set[str]) -> None:
    """Raise if a buffer that is written shares memory with another tensor of the model."""
    names, places = parameter_names(model), dict[int, set[str]]()
    for tensor in (*model.parameters(), *model.buffers()):
        places.setdefault(place_of(tensor), set()).add(names[id(tensor)])
    for together in places.values():
        written = sorted(name for name in together if Parameter(name) in state)
        if written and len(together) > 1:
            other = sorted(together - {written[0]})[0]
            raise StateError(
                f"forward writes to the buffer {written[0]}, which shares memory with {other}; "
                "give each a memory of its own"
            )
