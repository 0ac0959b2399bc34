"""Trace a model with `torch.export`, where its code will not run on proxies.

What comes back is flat: every layer is written out as operations, which know by their meta which
module they came from. Writes to buffers stand at the end, and guards on sizes at the beginning.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from upscale.capture.captured import Example
from upscale.capture.changed_attributes import changed_in_a_call
from upscale.capture.fingerprint import spelling
from upscale.capture.in_place import NO_GRAD, REBINDS
from upscale.capture.remembered_sizes import computes_as, find_memories, forget
from upscale.capture.size_guards import Guards
from upscale.capture.symbolic_trace import Traced, twin_of
from upscale.capture.torch_export import (
    Program,
    export_program,
    export_turn,
    holds_parameters,
    restored,
)
from upscale.model.layers import tensors
from upscale.tools.quiet import quietly
from upscale.tools.versions import module_of

aten = torch.ops.aten
DROPOUTS = {getattr(aten, name).default for name in spelling.DROPOUTS}


def program_of(model: nn.Module, example: Example) -> Program:
    """What `torch.export` makes of a model, and what to say of sizes it fixes.

    Sizes that the model remembers of its last input are forgotten first, if it computes the same
    without them.
    """
    changed = changed_in_a_call(model, example)
    memories = find_memories(model, example)
    if memories:
        try:
            made = export_program(lambda: forget(_twin(model), memories), example.copied())
            with quietly():
                same = computes_as(made.exported, model, example)
                if same and not holds_parameters(made.exported, model):
                    return replace(made, changed=changed)
        except Exception:  # what it remembers may be needed
            pass
    made = export_program(lambda: _twin(model), example.copied())
    if holds_parameters(made.exported, model):
        # A function that the model holds knows the model itself, and no copy of it.
        with restored(model):
            made = export_program(lambda: model, example.copied())
    return replace(made, changed=changed)


def _twin(model: nn.Module) -> nn.Module:
    """A copy of a model, without what holds masks on its weights.

    A program may not write to parameters, and there is nothing to write: the masks are on.
    """
    twin, _ = twin_of(model)
    for module in twin.modules():
        hooks = module._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "only_masks", False)]:
            del hooks[key]
    return twin


def trace_program(model: nn.Module, made: Program, *, functional: bool = False) -> Traced:
    """The graph of a program that `torch.export` made of a model.

    It guards itself: on sizes that would take another branch it raises. In its functional form
    no operation writes in place.
    """
    program = made.exported
    with export_turn(), quietly():
        _say_what_is_shared(program.graph_module)
        if functional:
            program = program.run_decompositions({})
        module = module_of(program)
    made.unpacking.pack(module.graph)
    _leave_out_checks(module.graph)
    _repeat_groups(module.graph)
    _let_views_copy(module.graph)
    _say_what_is_bound(module.graph)
    targets = {str(n.target) for n in module.graph.nodes if n.op in ("get_attr", "call_module")}
    extras = {target: _extra(module, target) for target in sorted(targets - tensors(model).keys())}
    return Traced(module.graph, extras, "export", changed=made.changed, fixed=made.fixed)


def _say_what_is_shared(module: fx.GraphModule) -> None:
    """Call dropout an alias where it drops nothing: it hands back the very tensor it was given.

    Its schema hides that, so a write into one of the two would pass the other by.
    """
    for node in module.graph.nodes:
        if node.target in DROPOUTS and node.args[2] is False:
            node.target, node.args = aten.alias.default, node.args[:1]
    module.recompile()


def _repeat_groups(graph: fx.Graph) -> None:
    """Repeat the keys and values of groups where attention itself would: so they are followed.

    A query head finds its key-value head by its number, which is another once heads have left.
    """
    attention = aten.scaled_dot_product_attention.default
    for node in graph.find_nodes(op="call_function", target=attention):
        heads = [_heads_of(part) for part in node.args[:3]]
        if not node.kwargs.get("enable_gqa") or not all(heads):
            continue
        queries, keys, values = node.args[:3]
        with graph.inserting_before(node):
            repeated = [
                graph.call_function(aten.repeat_interleave.self_int, (part, heads[0] // own, -3))
                for part, own in ((keys, heads[1]), (values, heads[2]))
            ]
        for new in repeated:
            new.meta.update({key: node.meta[key] for key in ("stack_trace",) if key in node.meta})
        node.args = (queries, *repeated, *node.args[3:])
        node.kwargs = {key: own for key, own in node.kwargs.items() if key != "enable_gqa"}


def _heads_of(part: Any) -> int:
    """How many heads a node makes, if that is a number; else none."""
    shape = list(getattr(part.meta.get("val"), "shape", ()))
    heads = shape[-3] if len(shape) > 2 else 0
    return heads if isinstance(heads, int) else 0


def _leave_out_checks(graph: fx.Graph) -> None:
    """Leave out what only says of a tensor which type and device it had on the example."""
    for node in graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        graph.erase_node(node)


def _say_what_is_bound(graph: fx.Graph) -> None:
    """Mark the writes at the end of an exported program, which the model's code does not have."""
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        into = node.args[0]
        of_buffer = isinstance(into, fx.Node) and into.op == "get_attr"
        # The model's own writes are named without their overload.
        if of_buffer and node.name.startswith("copy__default"):
            node.meta |= {REBINDS: True, NO_GRAD: True}


def _let_views_copy(graph: fx.Graph) -> None:
    """A view fits strides that the example had; a narrower tensor may be laid out otherwise."""
    for node in graph.nodes:
        if node.target is aten.view.default:
            node.target = aten.reshape.default


def _extra(module: nn.Module, path: str) -> Any:
    """What a graph refers to at a path: a tensor, or what checks its inputs."""
    extra = attrgetter(path)(module)
    return Guards(extra) if type(extra).__name__ == "GuardsFn" else extra
