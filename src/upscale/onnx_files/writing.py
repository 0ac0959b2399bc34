"""Out: a file's own graph, edited so that it computes what an export of its module computes.

The export is read node by node. What it took over from the module it was made from belongs to a
node of the file, which is copied, with other constants where they were cut; what it has besides is
said anew:

    the file            the export                     what is written
    Relu(t) -> x        relu                           Relu(t) -> x
                        narrow(relu, 1, 0, 48)         Slice(x, …) -> narrow
    Conv(x, w) -> y     conv(narrow), w cut to 48      Conv(narrow, w) -> y,  w: 48 columns
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from upscale.errors import OnnxError
from upscale.onnx_files.dtypes import DTYPES
from upscale.onnx_files.importing import Source, source_of
from upscale.onnx_files.nodes import (
    all_there,
    attribute_of,
    first_names,
    groups_of,
    leaves,
    set_whole,
    shapes_of,
    takes_groups,
)
from upscale.onnx_files.reading import opset_of
from upscale.onnx_files.sheet import Sheet, Wish, settle
from upscale.onnx_files.sizing import asked_sizes
from upscale.onnx_files.tidying import in_order, still_used
from upscale.onnx_files.wording import Words, array, say, say_size, sizes
from upscale.rewrite.building import unclashing
from upscale.rewrite.constant import Constant
from upscale.rewrite.graph import COPIED

_item = operator.getitem


def edited(imported: nn.Module, pruned: fx.GraphModule) -> Any:
    """The file that a module was imported from, edited to compute what its export does."""
    source = source_of(imported)
    if all_there(imported, pruned):
        return copy.deepcopy(source.model)  # nothing is gone, however the export reads it
    return _Writer(source, imported, pruned).write()


class _Writer:
    def __init__(self, source: Source, imported: Any, pruned: fx.GraphModule) -> None:
        self._source, self._imported, self._pruned = source, imported, pruned
        self._model = copy.deepcopy(source.model)
        graph = self._model.graph
        self._nodes = list(graph.node)
        taken = {name for node in self._nodes for name in (*node.input, *node.output)}
        taken |= {own.name for own in (*graph.initializer, *graph.input, *graph.output)}
        self._sheet = Sheet(opset_of(self._model), taken)
        self._old = {node.name: node for node in imported.graph.nodes}
        self._new_of: dict[fx.Node, fx.Node] = {}
        self._old_of: dict[fx.Node, fx.Node] = {}
        self._size_now: dict[fx.Node, fx.Node] = {}
        self._names: dict[fx.Node, str] = {}
        self._first = first_names(source.made)
        self._shapes = shapes_of(imported, source)
        self._shapes_now = shapes_of(pruned, source)
        self._makers = {name: node for node in self._nodes for name in node.output if name}
        self._tellers = (self._shape_before, self._shape_now)
        self._words = Words(self._sheet, pruned, self._shapes_now, self._name)
        self._pair()
        self._groups: dict[int, list[fx.Node]] = {}
        for node in imported.graph.nodes:
            if (
                node.op not in ("placeholder", "output", "get_attr")
                and node.name not in source.sizes
            ):
                self._groups.setdefault(source.origins[node.name], []).append(node)
        self._placed: dict[int, list[Any]] = {}

    def write(self) -> Any:
        """The edited file."""
        last = {}
        for node in self._pruned.graph.nodes:
            if node in self._old_of and (place := self._place(node)) is not None:
                last[place] = node
        for node in self._pruned.graph.nodes:
            place = self._place(node)
            if node.op in ("placeholder", "get_attr", "output") or self._asks(node):
                continue
            if place is None:
                self._names[node] = say(node, self._words)
            elif last[place] is node:
                self._place_group(place)
        return self._finish()

    def _pair(self) -> None:
        """Find, for each node of the export, the node of the module that it was copied from."""
        for node in self._pruned.graph.nodes:
            old = self._old.get(str(node.meta.get(COPIED)))
            if node.op in ("placeholder", "output"):
                old = old or self._old.get(node.name)
            elif old is None and node.target is _item and node.args[0] in self._old_of:
                whole = self._old_of[node.args[0]]
                old = next(
                    (u for u in whole.users if u.target is _item and u.args[1] == node.args[1]),
                    None,
                )
            if old is None or old.op != node.op:
                continue
            same = str(old.target) == str(node.target)
            if node.op in ("call_module", "get_attr"):
                same = unclashing(str(old.target)) == str(node.target)
            if not same and node.op not in ("output", "call_function", "call_method"):
                raise OnnxError(f"the export has {node.target} where the file has {old.target}")
            self._old_of[node], self._new_of[old] = old, node
        # What asks for a size is made anew where it is read.
        for old, node in list(self._new_of.items()):
            for one, other in zip(leaves(old), leaves(node), strict=False):
                if (
                    isinstance(one, fx.Node)
                    and one.name in self._source.sizes
                    and isinstance(other, fx.Node)
                ):
                    self._size_now.setdefault(one, other)

    def _place(self, node: fx.Node) -> int | None:
        """The place in the file of the node that one of the export belongs to."""
        old = self._old_of.get(node)
        if old is None or old.op in ("placeholder", "output", "get_attr"):
            return None
        return self._source.origins[old.name]

    def _asks(self, node: fx.Node) -> bool:
        """Whether a node asks for a size or computes with sizes."""
        old = self._old_of.get(node)
        named = old is not None and old.name in self._source.sizes
        return named or (old is None and node.op == "call_method" and node.target == "size")

    def _name(self, node: fx.Node) -> str:
        """What a value of the export is called in the file."""
        if node not in self._names:
            old = self._old_of.get(node)
            if self._asks(node):
                self._names[node] = say_size(node, self._words)
            elif node.op == "get_attr":
                held = attribute_of(self._pruned, str(node.target))
                self._names[node] = self._sheet.constant(node.name, array(held))
            elif old is not None and old.name in self._first:
                self._names[node] = self._first[old.name]
            else:
                raise OnnxError(f"{node.name} has no name in the file")
        return self._names[node]

    def _place_group(self, place: int) -> None:
        """Write what a node of the file has become."""
        olds = self._groups[place]
        news = [self._new_of[old] for old in olds if old in self._new_of]
        operands, node = self._operands(olds), self._nodes[place]
        asks = operands is not None and self._asks_otherwise(node)
        if operands is None or (asks and not self._ask_anew(node)):
            order = {node: i for i, node in enumerate(self._pruned.graph.nodes)}
            for node in sorted(news, key=order.__getitem__):
                self._names[node] = self._called_as_before(node, say(node, self._words))
            self._placed[place] = self._sheet.collect()
            return
        wanted = self._constants(olds)
        for i, name in enumerate(node.input):
            if name in wanted:
                if wanted[name] is not None:
                    self._sheet.wishes.append(Wish(node, i, name, wanted[name]))
            elif name in self._source.made:
                old = self._old.get(self._source.made[name])
                new = operands.get(old) if old is not None else None
                if new is not None and old is not None and not self._as_it_was(name, old, new):
                    node.input[i] = self._name(new)
        before = self._sheet.collect()
        self._placed[place] = [*before, node, *self._adjusted(node, olds)]

    def _called_as_before(self, node: fx.Node, made: str) -> str:
        """Give what was written last the name that the file has for it, if it has one."""
        name = self._first.get(self._old_of[node].name)
        if name is None:
            return made
        if not self._sheet.written or self._sheet.written[-1].output[0] != made:
            self._sheet.write("Identity", [made], node.name)
        self._sheet.written[-1].output[0] = name
        return name

    def _as_it_was(self, name: str, old: fx.Node, new: fx.Node) -> bool:
        """Whether a name of the file still stands for what an operand is."""
        if self._old_of.get(new) is not old:
            return False
        same = self._shapes[old.name] == self._shapes_now[new.name]
        return same or name == self._first.get(old.name)

    def _operands(self, olds: list[fx.Node]) -> dict[fx.Node, fx.Node] | None:
        """What each operand of a node of the file has become; nothing if it is to be said anew."""
        found: dict[fx.Node, fx.Node] = {}
        for old in olds:
            new = self._new_of.get(old)
            if new is None:
                if old.target is _item and old.args[0] in olds:
                    continue  # a part that nothing reads any more
                return None
            if old.op == "call_module" and isinstance(self._module(new), Constant):
                return None
            before, after = leaves(old), leaves(new)
            if len(before) != len(after):
                return None
            for one, other in zip(before, after, strict=True):
                if isinstance(one, fx.Node) != isinstance(other, fx.Node):
                    return None
                if not isinstance(one, fx.Node):
                    if one != other and not (old.op != "call_module" and takes_groups(old, one)):
                        return None
                elif one.name in self._source.sizes:
                    continue
                elif (one in olds and self._old_of.get(other) is not one) or found.setdefault(
                    one, other
                ) is not other:
                    return None
        return found

    def _asks_otherwise(self, node: Any) -> bool:
        """Whether sizes that a node of the file reads would be others in the edited file.

        They are worked out twice, from the shapes of all values as they were and as they are.
        """
        asked = [name for name in node.input if name in self._source.vectors]
        if not asked:
            return False
        told = [asked_sizes(asked, self._makers, self._source, own) for own in self._tellers]
        return told[1] is None or told[0] != told[1]

    def _ask_anew(self, node: Any) -> bool:
        """Let a node of the file read sizes that are asked for anew; whether that can be."""
        found: dict[int, list[Any]] = {}
        for i, name in enumerate(node.input):
            if name in self._source.vectors:
                entries = self._source.vectors[name].entries
                olds = [own if isinstance(own, int) else self._old.get(own) for own in entries]
                news = [own if isinstance(own, int) else self._size_now.get(own) for own in olds]  # type: ignore[arg-type]
                if None in news:
                    return False
                found[i] = news
        for i, news in found.items():
            vector = self._source.vectors[node.input[i]]
            made = sizes(news, self._words, f"{node.input[i]}_again")
            if vector.scalar:
                shape = self._sheet.whole([], f"{made}_scalar")
                made = self._sheet.write("Reshape", [made, shape], f"{made}_one")
            if vector.dtype is not torch.int64:
                to = next(number for number, own in DTYPES.items() if own is vector.dtype)
                made = self._sheet.write("Cast", [made], f"{made}_cast", to=to)
            node.input[i] = made
        return True

    def _shape_before(self, node: str) -> tuple[int, ...] | None:
        return self._shapes.get(node)

    def _shape_now(self, node: str) -> tuple[int, ...] | None:
        new = self._new_of.get(self._old[node]) if node in self._old else None
        return None if new is None else self._shapes_now.get(new.name)

    def _module(self, new: fx.Node) -> nn.Module:
        return self._pruned.get_submodule(str(new.target))

    def _constants(self, olds: list[fx.Node]) -> dict[str, Any]:
        """The constants that a node of the file reads, and their numbers where these are new."""
        found: dict[str, Any] = {}
        for old in olds:
            paths = [(str(a.target), str(self._new_of[a].target)) for a in old.all_input_nodes
                     if a.op == "get_attr" and a in self._new_of]  # fmt: skip
            if old.op == "call_module" and old in self._new_of:
                new = str(self._new_of[old].target)
                paths += [
                    (path, new + path.removeprefix(str(old.target)))
                    for path in self._source.held
                    if path.rpartition(".")[0] == str(old.target)
                ]
            for path, new in paths:
                held = self._source.held.get(path)
                if held is not None:
                    own, now = attribute_of(self._imported, path), attribute_of(self._pruned, new)
                    alike = own.shape == now.shape and torch.equal(own, now)
                    found[held.constant] = None if alike else self._as_held(held, own, now)
        return found

    def _as_held(self, held: Any, own: Tensor, now: Tensor) -> Any:
        """A parameter as the file holds it."""
        if held.how == "transposed":
            return array(now.t())
        if held.how == "line":
            shape = [
                len(now) if size == len(own) and size > 1 else size
                for size in self._line_shape(held.constant)
            ]
            return array(now.reshape(shape))
        return array(now)

    def _line_shape(self, name: str) -> list[int]:
        """The shape that the file has a constant in."""
        for own in self._model.graph.initializer:
            if own.name == name:
                return list(own.dims)
        for node in self._nodes:
            if node.op_type == "Constant" and node.output[0] == name:
                return list(node.attribute[0].t.dims)
        raise OnnxError(f"{name} is computed from constants and cannot be cut")

    def _adjusted(self, node: Any, olds: list[fx.Node]) -> list[Any]:
        """Say in a node of the file what is new of its layer, and what has to follow it."""
        for old in olds:
            new = self._new_of.get(old)
            if old.op != "call_module" or new is None:
                if new is not None and groups_of(old) != groups_of(new):
                    set_whole(node, "group", groups_of(new))
                continue
            module, before = self._module(new), self._imported.get_submodule(str(old.target))
            if getattr(module, "groups", None) != getattr(before, "groups", None):
                set_whole(node, "group", int(module.groups))  # type: ignore[arg-type]
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor) and getattr(before, "bias", None) is None:
                held = self._sheet.constant(f"{new.name}_bias", array(bias))
                if node.op_type in ("Conv", "ConvTranspose"):
                    node.input.extend([held])
                    continue
                made, node.output[0] = node.output[0], self._sheet.name(f"{new.name}_product")
                self._sheet.write("Add", [node.output[0], held], f"{new.name}_sum")
                (added,) = self._sheet.collect()
                added.output[0] = made
                return [added]
        return []

    def _finish(self) -> Any:
        graph = self._model.graph
        trailing = self._outputs()
        nodes: list[Any] = []
        for place, node in enumerate(self._nodes):
            if place in self._placed:
                nodes += self._placed[place]
            elif place not in self._groups:
                nodes.append(node)
        nodes += trailing
        settle(self._sheet, nodes, self._model)
        nodes = in_order(still_used(nodes, self._source.model, graph))
        changed = [own.SerializeToString() for own in nodes] != [
            own.SerializeToString() for own in self._source.model.graph.node
        ]
        del graph.node[:]
        graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input} | {own.name for own in graph.output}
        was = {name for node in self._source.model.graph.node for name in node.input}
        for own in [own for own in graph.initializer if own.name in was - used]:
            graph.initializer.remove(own)
        for own in [
            own
            for own in graph.input
            if own.name in was - used and own.name not in self._source.made
        ]:
            graph.input.remove(own)
        if changed or self._sheet.wishes:
            del graph.value_info[:]  # the shapes that it tells are not those of now
        return self._model

    def _outputs(self) -> list[Any]:
        """Give the outputs their names, where other nodes than before make them."""
        (old,) = self._imported.graph.find_nodes(op="output")
        (new,) = self._pruned.graph.find_nodes(op="output")
        before, after = (tree_flatten(own.args)[0] for own in (old, new))
        made = []
        for own, one, other in zip(self._model.graph.output, before, after, strict=True):
            if self._old_of.get(other) is one:
                continue
            name = self._name(other)
            self._rename(own.name, self._sheet.name(f"{own.name}_whole"))
            name = self._names.get(other, name)
            self._sheet.write("Identity", [name], own.name)
            made += self._sheet.collect()
            made[-1].output[0] = own.name
        return made

    def _rename(self, name: str, to: str) -> None:
        """Call a value otherwise wherever it is made and read."""
        written = [node for own in self._placed.values() for node in own] + self._sheet.written
        for node in [*written, *self._nodes]:
            for names in (node.input, node.output):
                for i, own in enumerate(names):
                    if own == name:
                        names[i] = to
        for node, own in self._names.items():
            if own == name:
                self._names[node] = to
