"""Observation: run a graph once and write down every ATen operation it performs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from upscale.capture.in_place import AUGMENTED, REBINDS, write_back
from upscale.capture.packing import PACKS, Packed
from upscale.capture.record import Call, Observed, Ref, TensorInfo
from upscale.capture.state import Memory, shared_statistics, statistics, written_by
from upscale.errors import CaptureError

# Convolutions, and how many axes their input has if the first is one of samples.
SAMPLED_CONVOLUTIONS = {"conv1d": 3, "conv2d": 4, "conv3d": 5}


class Observer(fx.Interpreter):
    """Runs a graph and names every tensor every operation reads and makes."""

    def __init__(
        self, model: nn.Module, graph: fx.Graph, owned: dict[int, str], lasting: Memory
    ) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self.at = ""
        self.values: dict[str, TensorInfo] = {}
        self.measured: dict[str, tuple[int, ...]] = {}
        self.observed: dict[str, Observed] = {}
        self._owned, self._lasting = owned, lasting
        self._within: dict[str, str] = {}
        self._changed: set[str] = set()
        self._names: dict[fx.Node, Any] = {}
        self._newest: dict[str, str] = {}
        self._memory: dict[int, set[str]] = {}
        self._overwritten: dict[str, str] = {}
        self._bound: dict[int, str] = {}
        self._alive: list[Tensor] = []
        self._calls: list[Call] = []
        self._writes: list[str] = []
        self._statistics: list[str] = []

    @property
    def state(self) -> frozenset[str]:
        """The values in the memory of buffers that were written."""
        changed = self._changed | shared_statistics(self.graph, self.observed)
        return frozenset(name for name, buffer in self._within.items() if buffer in changed)

    @property
    def written(self) -> frozenset[str]:
        """The names of all buffers that were written."""
        kept = {name for seen in self.observed.values() for name in seen.statistics}
        return frozenset(name[1:] for name in kept | self._changed)

    def run_node(self, n: fx.Node) -> Any:
        self.at, self._node = n.name, n
        self._bound, self._calls, self._writes, self._statistics = {}, [], [], []
        reads = {operand.name: self._bind(operand) for operand in n.all_input_nodes}
        if n.op == "output":
            self._check_overwritten([name for name in tree_leaves(reads) if name is not None])
        given = [
            leaf
            for operand in n.all_input_nodes
            for leaf in tree_leaves(self.env[operand])
            if isinstance(leaf, Tensor)
        ]
        operands = {id(leaf) for leaf in given}
        if AUGMENTED in n.meta and any(map(self._lasting.holds, given[:1])):
            write_back(n)
        if REBINDS in n.meta:
            self._lasting.check_binding(given[0], given[1], n)
        with _Recorder(self):
            result = super().run_node(n)
        if PACKS in n.meta:
            result = Packed(result)
        leaves, spec = tree_flatten(result)
        names = [self._name_of(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves]
        if not self._writes and n.op != "output":
            # A node may hand its input back; a fresh alias keeps the two values apart.
            leaves = [
                torch.ops.aten.alias(leaf) if id(leaf) in operands else leaf for leaf in leaves
            ]
            result = spec.unflatten(leaves)
        self._names[n] = spec.unflatten(names)
        memory = {leaf.untyped_storage()._cdata for leaf in given}
        is_view = any(
            isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata in memory for leaf in leaves
        )
        self.observed[n.name] = Observed(
            tuple(self._calls),
            reads,
            self._names[n],
            tuple(self._writes),
            is_view,
            tuple(self._statistics),
        )
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a node is given: containers themselves, but for the output, which hands them on."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if n.op == "output":
            return args, kwargs
        return tree_map_only(Packed, _unpacked, args), tree_map_only(Packed, _unpacked, kwargs)

    def measure(self, *inputs: Any) -> None:
        """Run once more, on another example, and note the shapes that values have then."""
        runner = _Measurer(self)
        with torch.inference_mode(), _Performer():  # type: ignore[no-untyped-call]
            runner.run(*inputs, enable_io_processing=False)

    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen operation and write it down."""
        if overload is torch.ops.aten.sym_size.int:
            return overload(*args, **kwargs)
        refs = self._refs(args), {name: self._refs(value) for name, value in kwargs.items()}
        names = [self._name_of(x) for x in _tensors((*args, *kwargs.values()))]
        self._check_overwritten(names)
        aliased = any(name in self._overwritten for name in names)
        written = written_by(overload, args, kwargs)
        for tensor in written:
            self._lasting.check_write(tensor, self._node)
        places = [self._lasting.buffer(tensor) for tensor in written]
        result = _perform(overload, args, kwargs)
        if places != [self._lasting.buffer(tensor) for tensor in written]:
            raise CaptureError(f"{self.at} gives a buffer other memory; copy into it instead")
        for tensor in written:
            self._write(tensor)
        self._statistics += [self._name_of(tensor) for tensor in statistics(overload, args, kwargs)]
        outs = tuple(self._name_result(leaf, overload) for leaf in _tensors(result))
        name = overload._schema.name.removeprefix("aten::")
        self._calls.append(Call(name, *refs, outs, aliased, overload))
        return result

    def _bind(self, operand: fx.Node) -> Any:
        """Bind an operand's tensors to their newest names for this node."""
        leaves, spec = tree_flatten(self.env[operand])
        names, _ = tree_flatten(self._names[operand], is_leaf=lambda x: x is None)
        newest = []
        for leaf, name in zip(leaves, names, strict=True):
            while name in self._newest:
                name = self._newest[name]
            newest.append(name)
            if isinstance(leaf, Tensor):
                self._bound[id(leaf)] = name
        return spec.unflatten(newest)

    def _name_of(self, tensor: Tensor) -> str:
        name = self._bound.get(id(tensor)) or self._owned.get(id(tensor))
        if name is None:
            return self._new(tensor)
        if name not in self.values:
            self.values[name] = TensorInfo(tuple(tensor.shape), tensor.element_size())
            self._place(name, tensor)
        return name

    def _place(self, name: str, tensor: Tensor) -> None:
        """Remember that a value lies in a buffer's memory, if it does."""
        buffer = self._lasting.buffer(tensor)
        if buffer is not None:
            self._within[name] = buffer

    def _new(self, tensor: Tensor) -> str:
        name, version = self.at, 0
        while name in self.values:
            version += 1
            name = f"{self.at}:{version}"
        self._bound[id(tensor)] = name
        self._alive.append(tensor)
        self.values[name] = TensorInfo(tuple(tensor.shape), tensor.element_size())
        self._memory.setdefault(tensor.untyped_storage()._cdata, set()).add(name)
        self._place(name, tensor)
        return name

    def _refs(self, part: Any) -> Any:
        """Part of a call's arguments with its tensors named; operations take no deeper trees."""
        if isinstance(part, (list, tuple)):
            return type(part)(self._refs(inner) for inner in part)
        return Ref(self._name_of(part)) if isinstance(part, Tensor) else part

    def _name_result(self, tensor: Tensor, overload: Any) -> str:
        if overload._schema.is_mutable and id(tensor) in self._bound:
            return self._bound[id(tensor)]
        return self._new(tensor)

    def _write(self, tensor: Tensor) -> None:
        old = self._name_of(tensor)
        if id(tensor) in self._owned and id(tensor) not in self._bound:
            self._statistics.append(old)  # a buffer of a layer's own, such as a count of batches
            return
        buffer = self._lasting.buffer(tensor)
        if buffer is not None:
            # Whatever meets it runs in its place, so that it needs no name for what it is now.
            self._changed.add(buffer)
            self._writes.append(old)
            return
        for other in self._memory.get(tensor.untyped_storage()._cdata, set()) - {old}:
            self._overwritten[other] = self.at
        self._newest[old] = self._new(tensor)
        self._writes.append(old)

    def _check_overwritten(self, names: list[str]) -> None:
        for name in names:
            if self._overwritten.get(name, self.at) != self.at:
                raise CaptureError(
                    f"{self.at} reads {name}, whose memory {self._overwritten[name]} wrote in "
                    "place through another view; write that operation out of place"
                )


class _Measurer(fx.Interpreter):
    """Runs a graph for the shapes of what its nodes return, where they are not known already."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer.module, graph=observer.graph)
        self._observer = observer

    def run_node(self, n: fx.Node) -> Any:
        seen = self._observer.observed[n.name]
        result = self._known(n, seen)
        if result is None:
            result = super().run_node(n)
        names = tree_leaves(seen.result, is_leaf=lambda x: x is None)
        if PACKS in n.meta:
            return result
        for name, leaf in zip(names, tree_leaves(result), strict=True):
            if name is not None and isinstance(leaf, Tensor):
                self._observer.measured[name] = tuple(leaf.shape)
        return result

    def _known(self, n: fx.Node, seen: Observed) -> Tensor | None:
        """What a layer that treats samples alike returns: the same, for as many as are given."""
        if n.op != "call_module" or len(seen.calls) != 1:
            return None
        (call,), given = seen.calls, self.env[n.all_input_nodes[0]]
        if call.op != "batch_norm" and SAMPLED_CONVOLUTIONS.get(call.op) != given.ndim:
            return None
        _, *rest = self._observer.values[call.outs[0]].shape
        known: Tensor = given.new_empty((given.shape[0], *rest))
        return known


def _unpacked(packed: Packed) -> Any:
    return packed.value


def _tensors(part: Any) -> list[Tensor]:
    """The tensors among what an operation takes or gives."""
    if isinstance(part, (list, tuple)):
        return [tensor for inner in part for tensor in _tensors(inner)]
    return [part] if isinstance(part, Tensor) else []


def _perform(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Shapes alone take the long way through batch_norm's decomposition; its own is known.
    if overload is torch.ops.aten.batch_norm.default and args[0].is_meta and not args[5]:
        return torch.empty_like(args[0])
    return overload(*args, **kwargs)


class _Performer(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _perform(func, args, kwargs or {})


class _Recorder(TorchDispatchMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.observer.record(func, args, kwargs or {})
