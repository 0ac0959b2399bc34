"""State: what a model keeps from call to call in tensors that it owns."""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import CodeType
from typing import Any

from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from upscale.capture.node_queries import line_of, running_line, source_line
from upscale.capture.record import Call, Observed, Ref
from upscale.errors import StateError
from upscale.subject.layers import tensors

# Normalisations that write their statistics in training, which their schemas do not say: the
# argument that tells whether they do.
NORMS = {
    "batch_norm": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "instance_norm": "use_input_stats",
}
STATISTICS = ("running_mean", "running_var")


class Memory:
    """Whose memory a tensor lies in: a buffer's, a parameter's, or a plain attribute's."""

    def __init__(
        self, model: nn.Module, owned: Mapping[int, str], plain: Mapping[str, Tensor]
    ) -> None:
        self._buffers = {_place(b): owned[id(b)] for b in model.buffers() if id(b) in owned}
        self._parameters = {_place(p): owned[id(p)] for p in model.parameters() if id(p) in owned}
        self._plain = {_place(tensor): path for path, tensor in plain.items()}
        self._bound: set[int] = set()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in memory that outlives a call."""
        place = _place(tensor)
        return place in self._buffers or place in self._parameters or place in self._plain

    def buffer(self, tensor: Tensor) -> str | None:
        """The buffer whose memory a tensor lies in; `None` if in none."""
        return self._buffers.get(_place(tensor))

    def check_write(self, tensor: Tensor, node: fx.Node) -> None:
        """Raise if a write into a tensor is one that no export can keep."""
        place, line = _place(tensor), source_line(node)
        at = f" at {line}" if line else ""
        if place in self._parameters:
            raise StateError(
                f"forward writes to the parameter {self._parameters[place][1:]}{at}, and an export "
                "has other weights than the model; write it outside of forward"
            )
        if place in self._plain:
            raise StateError(
                f"forward writes to the tensor {self._plain[place]}{at}, which is no buffer and "
                "would be lost; register it with register_buffer"
            )

    def check_binding(self, buffer: Tensor, value: Tensor, node: fx.Node) -> None:
        """Raise unless a buffer that was bound to a value can be written with it instead."""
        name, line = self._buffers[_place(buffer)][1:], source_line(node)
        at = f" at {line}" if line else ""
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise StateError(
                f"forward binds the buffer {name} to a tensor of another shape or type{at}; an "
                "export keeps buffers as they are: register it in the shape that it comes to have"
            )
        if _place(value) == _place(buffer):
            return
        if self.holds(value) or _place(value) in self._bound:
            raise StateError(
                f"forward binds the buffer {name} to memory that the model keeps by another name"
                f"{at}; write self.{name}.copy_(...) instead"
            )
        self._bound.add(_place(value))


class Watch(TorchDispatchMode):
    """Notes the line that first writes to each tensor that a module owns."""

    def __init__(self, module: nn.Module, within: CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, str] = {}
        self._names = {_place(tensor): name for name, tensor in tensors(module).items()}
        self._within = within

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for tensor in written_by(func, args, kwargs or {}):
            name = self._names.get(_place(tensor))
            line = line_of(running_line(self._within)) if name is not None else ""
            if name is not None and line:
                self.lines.setdefault(name, line)
        return func(*args, **(kwargs or {}))


def written_by(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes into, as its schema says."""
    written: list[Any] = []
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written.extend(value if isinstance(value, (list, tuple)) else [value])
    return [tensor for tensor in written if isinstance(tensor, Tensor)]


def statistics(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The running statistics that a normalisation writes."""
    flag = NORMS.get(overload._schema.name.removeprefix("aten::"))
    if flag is None:
        return []
    given = {a.name: v for a, v in zip(overload._schema.arguments, args, strict=False)} | {**kwargs}
    found = [given.get(name) for name in STATISTICS] if given.get(flag) else []
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def shared_statistics(graph: fx.Graph, observed: Mapping[str, Observed]) -> set[str]:
    """The statistics that something else than normalisations reads, or that alone are wanted.

    All others lie as the channels that are normalised, as a BatchNorm's own.
    """
    kept = {name for seen in observed.values() for name in seen.statistics}
    shared: set[str] = set()
    for node in graph.nodes if kept else ():
        seen = observed[node.name]
        if not node.users:
            shared.update(seen.statistics)
        by_norms = {name for call in seen.calls if call.op in NORMS for name in _names(call)}
        read = set(tree_leaves(dict(seen.reads))) - by_norms
        if node.op != "call_module":
            others = [call for call in seen.calls if call.op not in NORMS]
            read.update(name for call in others for name in _names(call))
        shared |= kept & read
    return shared


def _names(call: Call) -> list[str]:
    given = tree_leaves((call.args, dict(call.kwargs)))
    return [part.value for part in given if isinstance(part, Ref)]


def check_apart(model: nn.Module, state: Set[str], names: Mapping[int, str]) -> None:
    """Raise if a buffer that is written shares memory with another tensor of the model."""
    places: dict[int, set[str]] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        places.setdefault(_place(tensor), set()).add(names[id(tensor)])
    for together in places.values():
        written = sorted(name for name in together if f"@{name}" in state)
        if written and len(together) > 1:
            other = sorted(together - {written[0]})[0]
            raise StateError(
                f"forward writes to the buffer {written[0]}, which shares memory with {other}; "
                "give each a memory of its own"
            )


def _place(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place
