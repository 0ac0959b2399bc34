"""Observe one run of a graph: every ATen operation it performs, with a name for every tensor.

A graph node may do anything: `self.block(x)`, `x += y`, a function of the caller's. What is known
is what it does to tensors, so it is run, and a dispatch mode sees every operation on its way to
the kernel:

    node relu:  torch.relu_(conv)   ──►  aten.relu_(Ref("conv"))   writes conv, makes "relu"

A tensor is named after the node that made it (`chunk`, `chunk:1`, ...). An in-place write gives
its memory a new name from there on; a view of the same memory that is read later under its old
name would be wrong, and is refused.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only

from upscale.capture.buffer_writes import NORMS, STATISTICS, BufferMemory, shared_statistics
from upscale.capture.captured import (
    Call,
    Observed,
    Ref,
    TensorInfo,
    home,
    place_of,
    plain_tensors,
    schema_of,
)
from upscale.capture.in_place import AUGMENTED, REBINDS, write_back
from upscale.capture.records import PACKS, Packed
from upscale.errors import CaptureError

# Convolutions, and how many axes their input has if the first is one of samples.
SAMPLED_CONVOLUTIONS = {"conv1d": 3, "conv2d": 4, "conv3d": 5}
# Where a slice ends that says no end.
END = sys.maxsize
# Arguments that are what they say.
LITERALS = {
    *(bool, int, float, complex, str, type(None), torch._ops.OpOverload),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}


def run_nodes(runner: fx.Interpreter, inputs: Iterable[Any]) -> Any:
    """What a graph gives, run node by node.

    `Interpreter.run` makes a progress bar that nobody sees, and with the first bar of a process
    comes a thread that stays; beside other threads the garbage collector is not paused.
    """
    runner.args_iter = iter(inputs)
    for node in runner.graph.nodes:
        runner.env[node] = runner.run_node(node)
    return runner.env[node]


class Observer(fx.Interpreter):
    """Runs a graph and names every tensor every operation reads and makes."""

    def __init__(
        self, model: nn.Module, graph: fx.Graph, owned: dict[int, str], memory: BufferMemory
    ) -> None:
        super().__init__(model, garbage_collect_values=False, graph=graph)
        self.values: dict[str, TensorInfo] = {}
        self.measured: dict[str, tuple[int, ...]] = {}
        self.observed: dict[str, Observed] = {}
        self._owned, self._memory, self._kernels = owned, memory, Kernels()
        # Of values: the buffer they lie in, all tensors in one place, which stay alive so that ids
        # stay theirs, what took their name since, and who wrote to them through another view.
        self._within: dict[str, str] = {}
        self._sharing: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
        self._newest: dict[str, str] = {}
        self._overwritten: dict[str, str] = {}
        self._changed: set[str] = set()
        # What each node gave, in a row, with the names of its tensors and how it is put together.
        self.given: dict[fx.Node, tuple[list[Any], list[str | None], TreeSpec]] = {}

    @property
    def state(self) -> frozenset[str]:
        """The values in the memory of buffers that were written."""
        changed = set(self._changed)
        if any(seen.statistics for seen in self.observed.values()):
            changed |= shared_statistics(self.graph, self.observed)
        return frozenset(name for name, buffer in self._within.items() if buffer in changed)

    @property
    def written(self) -> frozenset[str]:
        """The names of all buffers that were written."""
        kept = {name for seen in self.observed.values() for name in seen.statistics}
        return frozenset(name[1:] for name in kept | self._changed)

    def run_node(self, n: fx.Node) -> Any:
        self._node, self._at = n, n.name
        self._bound: dict[int, str] = {}
        self._calls: list[Call] = []
        self._writes: list[str] = []
        self._statistics: list[str] = []
        self._kept: list[Tensor] = []  # what has no name of its own stays alive: its id is bound
        reads, takes, operands = {}, list[str | None](), list[Tensor]()
        for operand in n.all_input_nodes:
            leaves, names, spec = self.given[operand]
            newest = [self._bind(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
            reads[operand.name] = spec.unflatten(newest)
            takes += newest
            operands += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if n.op == "output":
            self._check_overwritten(_each_once(takes))
        if AUGMENTED in n.meta and any(map(self._memory.holds, operands[:1])):
            write_back(n)
        if REBINDS in n.meta:
            self._memory.check_binding(operands[0], operands[1], n)
        with _Dispatched(self._record):
            result = super().run_node(n)
            if self._kept and not self._calls:
                # On another size it may be a part: `x[:, :height]` is whole at this one.
                result = tree_map_only(Tensor, torch.ops.aten.alias.default, result)
        if PACKS in n.meta:
            result = Packed(result)
        leaves, spec = tree_flatten(result)
        names = [self._name_of(leaf) if isinstance(leaf, Tensor) else None for leaf in leaves]
        known = {id(tensor) for tensor in operands}
        if not self._writes and n.op != "output" and any(id(leaf) in known for leaf in leaves):
            # A node may hand its input back; a fresh alias keeps the two values apart.
            leaves = [torch.ops.aten.alias(leaf) if id(leaf) in known else leaf for leaf in leaves]
            result = spec.unflatten(leaves)
        self.given[n] = (leaves, names, spec)
        places = {place_of(tensor) for tensor in operands}
        self.observed[n.name] = Observed(
            calls=tuple(self._calls),
            reads=reads,
            result=spec.unflatten(names),
            takes=_each_once(takes),
            makes=_each_once(names),
            writes=tuple(self._writes),
            statistics=tuple(self._statistics),
            is_view=any(isinstance(leaf, Tensor) and place_of(leaf) in places for leaf in leaves),
            home=home(n),
        )
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a node is given: records themselves, but for the output, which hands them on."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if n.op != "output" and any(PACKS in operand.meta for operand in n.all_input_nodes):
            args, kwargs = tree_map_only(Packed, lambda packed: packed.value, (args, kwargs))
        return args, kwargs

    def measure(self, *inputs: Any) -> None:
        """Run once more, on another example, and note the shapes that values have then."""
        with _Dispatched(self._kernels.perform):
            run_nodes(_Measurer(self), inputs)

    def _record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one ATen operation and write it down."""
        if overload is torch.ops.aten.sym_size.int:
            return overload(*args, **kwargs)
        schema = schema_of(overload)
        reads: list[str] = []
        refs = tuple(self._ref(part, reads) for part in args)
        named = {name: self._ref(part, reads) for name, part in kwargs.items()}
        arguments = schema.arguments(refs, named)
        self._check_overwritten(reads)
        aliased = any(name in self._overwritten for name in reads)
        result = self._perform(overload, args, kwargs, schema.written_in(args, kwargs))
        if _is_whole_slice(overload, args):
            # Older versions of torch take one along each axis that `x[:, :, 3]` names.
            self._bound[id(result)] = reads[0]
            self._kept.append(result)
            return result
        if schema.op in NORMS and arguments[NORMS[schema.op]]:
            kept = (arguments[name] for name in STATISTICS)
            self._statistics += [ref.value for ref in kept if isinstance(ref, Ref)]
        known = self._bound if schema.written else {}
        outs = tuple(known.get(id(made)) or self._new(made) for made in plain_tensors(result))
        call = Call(schema.op, refs, named, tuple(reads), outs, aliased, arguments, overload)
        self._calls.append(call)
        return result

    def _perform(self, overload: Any, args: Any, kwargs: Any, written: list[Tensor]) -> Any:
        """Run an operation, and give what it writes into a new name."""
        for tensor in written:
            self._memory.check_write(tensor, self._node)
        buffers = [self._memory.buffers.get(place_of(tensor)) for tensor in written]
        result = self._kernels.perform(overload, args, kwargs)
        if buffers != [self._memory.buffers.get(place_of(tensor)) for tensor in written]:
            raise CaptureError(f"{self._at} gives a buffer other memory; copy into it instead")
        for tensor in written:
            self._write(tensor)
        return result

    def _write(self, tensor: Tensor) -> None:
        old, place = self._name_of(tensor), place_of(tensor)
        if id(tensor) in self._owned and id(tensor) not in self._bound:
            self._statistics.append(old)  # a buffer of a layer's own, such as a count of batches
            return
        self._writes.append(old)
        if place in self._memory.buffers:
            # Whatever meets it runs in its place, so that it needs no name for what it is now.
            self._changed.add(self._memory.buffers[place])
            return
        for name, other in self._sharing[place].items():
            if name != old and _overlap(tensor, other):
                self._overwritten[name] = self._at
        self._newest[old] = self._new(tensor)

    def _bind(self, leaf: Any, name: str | None) -> str | None:
        """The newest name of a value that a node is given, under which it is known there."""
        while name in self._newest:
            name = self._newest[name]
        if isinstance(leaf, Tensor) and name is not None:
            self._bound[id(leaf)] = name
        return name

    def _ref(self, part: Any, reads: list[str]) -> Any:
        """Part of a call's arguments with its tensors named; `reads` gathers the names."""
        if isinstance(part, Tensor):
            reads.append(self._name_of(part))
            return Ref(reads[-1])
        if isinstance(part, (list, tuple)):
            return type(part)(self._ref(inner, reads) for inner in part)
        return part

    def _name_of(self, tensor: Tensor) -> str:
        name = self._bound.get(id(tensor)) or self._owned.get(id(tensor))
        if name is None:
            return self._new(tensor)
        if name not in self.values:
            self._note(name, tensor)
        return name

    def _new(self, tensor: Tensor) -> str:
        name, version = self._at, 0
        while name in self.values:
            version += 1
            name = f"{self._at}:{version}"
        self._bound[id(tensor)] = name
        self._sharing[place_of(tensor)][name] = tensor
        self._note(name, tensor)
        return name

    def _note(self, name: str, tensor: Tensor) -> None:
        self.values[name] = TensorInfo(tuple(tensor.shape), tensor.element_size())
        buffer = self._memory.buffers.get(place_of(tensor))
        if buffer is not None:
            self._within[name] = buffer

    def _check_overwritten(self, names: Sequence[str]) -> None:
        for name in names:
            if self._overwritten.get(name, self._at) != self._at:
                raise CaptureError(
                    f"{self._at} reads {name}, whose memory {self._overwritten[name]} wrote in "
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
        if PACKS not in n.meta:
            _, names, _ = self._observer.given[n]
            for name, leaf in zip(names, tree_leaves(result), strict=True):
                if name is not None and isinstance(leaf, Tensor):
                    self._observer.measured[name] = tuple(leaf.shape)
        return result

    def _known(self, n: fx.Node, seen: Observed) -> Tensor | None:
        """What is known without running: a layer that treats samples alike makes the same, for as
        many as are given; one that writes into what it is given hands that on."""
        if n.op != "call_module" or len(seen.calls) != 1:
            return None
        (call,), given = seen.calls, self.env[n.all_input_nodes[0]]
        schema = schema_of(call.overload)
        if schema.written == ("self",) and (call.reads, call.outs) == (seen.takes, seen.makes):
            return None if schema.views else given
        if call.op != "batch_norm" and SAMPLED_CONVOLUTIONS.get(call.op) != given.ndim:
            return None
        _, *rest = self._observer.values[call.outs[0]].shape
        known: Tensor = given.new_empty((given.shape[0], *rest))
        return known


def _each_once(names: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _is_whole_slice(overload: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation takes all there is along an axis, as `x[:]` does."""
    return overload is torch.ops.aten.slice.Tensor and args[2:] in ((0, END), (0, END, 1))


def _overlap(written: Tensor, other: Tensor) -> bool:
    """Whether two tensors in one memory have an element in common.

    >>> x = torch.zeros(2, 6)
    >>> one, other = x.chunk(2, 1)
    >>> _overlap(one, other), _overlap(one, x)
    (False, True)
    """
    memory = written.untyped_storage().nbytes() // written.element_size()
    whole = written.numel() == memory or 0 in written.stride()
    if whole or written.element_size() != other.element_size():
        return True
    touched = torch.zeros(memory, dtype=torch.bool, device="cpu")
    touched.as_strided(written.shape, written.stride(), written.storage_offset()).fill_(True)
    return bool(touched.as_strided(other.shape, other.stride(), other.storage_offset()).any())


class Kernels:
    """Runs operations; of shapes alone, each but once: layers of equal shapes make equal ones.

    Torch works out many shapes in Python, which takes longer than all else in a run. Remembered is
    how results are laid out that lie in memory of their own; or, by `None`, that an operation gives
    back what it was given first and wrote into.
    """

    def __init__(self) -> None:
        self._known: dict[Any, list[tuple[Any, ...]] | None] = {}

    def perform(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an operation gives."""
        key = None if schema_of(overload).views else _key((overload, args, kwargs))
        if key is not None and key in self._known:
            known = self._known[key]
            if known is None:
                return args[0]
            made = [torch.empty_strided(*laid, dtype=d, device="meta") for *laid, d in known]
            return made[0] if len(made) == 1 else tuple(made)
        result = overload(*args, **kwargs)
        if key is not None:
            made = [result] if isinstance(result, Tensor) else result
            given = {place_of(tensor) for tensor in plain_tensors((args, kwargs))}
            if args and result is args[0]:
                self._known[key] = None
            elif _are_apart(made, given):
                self._known[key] = [(x.shape, x.stride(), x.dtype) for x in made]
        return result


def _key(part: Any) -> Any:
    """What shapes depend on in a call; `None` where numbers do, or nobody can tell."""
    kind = type(part)
    if kind in LITERALS:
        return kind, part  # 1 and 1.0 are equal, and make tensors of different types
    if kind in (Tensor, nn.Parameter):
        return (part.shape, part.stride(), part.dtype) if part.is_meta else None
    if isinstance(part, (dict, tuple, list)):
        keys = tuple(map(_key, part.items() if isinstance(part, dict) else part))
        return None if None in keys else keys
    return None


def _are_apart(made: Any, given: set[int]) -> bool:
    """Whether results are tensors that lie in memory of their own, from its beginning on."""
    if not (isinstance(made, (list, tuple)) and all(type(x) is Tensor for x in made)):
        return False
    places = {place_of(x) for x in made}
    whole = all(x.is_meta and x.storage_offset() == 0 for x in made)
    return whole and len(places) == len(made) and places.isdisjoint(given)


class _Dispatched(TorchDispatchMode):
    """While it is on, every ATen operation is performed by a function of ours."""

    def __init__(self, perform: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._perform = perform

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._perform(func, args, kwargs or {})
