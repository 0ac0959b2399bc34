"""Tracing: a model becomes a graph, symbolically where possible, else by torch.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from upscale.capture.attention import is_plain_self_attention, self_attention
from upscale.capture.exporting import (
    Program,
    export_program,
    holds_parameters,
    quietly,
    restored,
)
from upscale.capture.forgetting import computes_as, find_memories, forget
from upscale.capture.guards import Guards
from upscale.capture.in_place import (
    NO_GRAD,
    REBINDS,
    AugmentedProxy,
    put_writes_back,
    write_bound,
)
from upscale.capture.node_queries import running_line
from upscale.capture.packing import PACKS, parts_of, tensors_in
from upscale.capture.record import Example
from upscale.capture.remembering import check_memory, check_written
from upscale.capture.state import Watch
from upscale.capture.turns import export_turn
from upscale.errors import CaptureError, ExampleError
from upscale.subject.layers import KINDS, copied, stock_class, tensors


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, what it refers to that the model does not own, and how it was made.

    `doubted` nodes call functions that may do something else on another input. If `baked`,
    what is computed from buffers may be a constant of the graph. `changed` are the tensors of
    the model that a call was seen to change, if one was made, with the line that wrote them.
    `fixed` says which sizes of the inputs the graph takes for granted, and why.
    """

    graph: fx.Graph
    extras: Mapping[str, Any]
    way: str
    doubted: frozenset[str] = frozenset()
    baked: bool = False
    changed: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()

    def inputs(self, model: nn.Module, example: Example) -> list[Any]:
        """The example's inputs in the order of the graph's placeholders."""
        if self.way == "export":
            return list(tree_leaves((example.args, dict(example.kwargs))))
        given = bind(model, example).arguments
        return [given[str(n.target)] for n in self.graph.nodes if n.op == "placeholder"]


def bind(model: nn.Module, example: Example) -> inspect.BoundArguments:
    """The example as arguments of the model's forward, defaults filled in."""
    try:
        bound = inspect.signature(model.forward).bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise ExampleError(
            f"{type(model).__name__}.forward does not take the example: {error}"
        ) from error
    bound.apply_defaults()
    return bound


def trace_symbolically(model: nn.Module, example: Example) -> Traced:
    """Trace with `torch.fx`; inputs that the example leaves at a default become constants.

    Buffers stay buffers where the model's code lets them; else what is computed from them
    becomes a constant.
    """
    bound = bind(model, example)
    free = {name for name, value in bound.arguments.items() if tensors_in(value)}
    fixed = {name: value for name, value in bound.arguments.items() if name not in free}
    graph, twin, baked = _trace(model, fixed)
    _drop_fixed_inputs(graph, free)
    put_writes_back(graph, twin)
    write_bound(graph, twin)
    check_memory(model, example, twin)
    added = (set(vars(twin)) | set(twin._buffers)) - set(vars(model)) - set(model._buffers)
    constants = {n: getattr(twin, n) for n in sorted(added) if isinstance(getattr(twin, n), Tensor)}
    return Traced(graph, constants, "symbolic", baked=baked)


def trace_without_example(model: nn.Module) -> fx.Graph:
    """Trace with `torch.fx`, inputs that have a default at it."""
    taken = inspect.signature(model.forward).parameters.values()
    fixed = {p.name: p.default for p in taken if p.default is not p.empty}
    return _trace(model, fixed)[0]


def _twin(model: nn.Module) -> nn.Module:
    """A twin with tensors of its own: tracing may write to them, and set attributes."""
    owned = (*model.parameters(), *model.buffers())
    return copied(model, {id(tensor): _tensor_like(tensor) for tensor in owned})


def _with_forward_in_class(twin: nn.Module) -> nn.Module:
    """The twin with a `forward` of its own moved to a class of its own; changed in place.

    `torch.fx` traces the forward of a class, whatever the instance has in its place.
    """
    own = vars(twin).pop("forward", None)
    if own is not None:
        if getattr(own, "__self__", None) is not twin:
            raise CaptureError("its forward was replaced by a function that is no method of it")
        kind = type(twin)
        twin.__class__ = type(kind.__name__, (kind,), {"forward": own.__func__})
    return twin


def _tensor_like(tensor: Tensor) -> Tensor:
    same = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(same, requires_grad=tensor.requires_grad)
    return same


def _trace(model: nn.Module, fixed: dict[str, Any]) -> tuple[fx.Graph, nn.Module, bool]:
    """A graph, the twin of the model that was traced, and whether buffers were constants there."""
    try:
        return *_trace_twin(model, fixed, proxy_buffers=True), False
    except Exception:  # the model's own code runs on proxies and may raise anything
        return *_trace_twin(model, fixed, proxy_buffers=False), True


def _trace_twin(
    model: nn.Module, fixed: dict[str, Any], *, proxy_buffers: bool
) -> tuple[fx.Graph, nn.Module]:
    twin = _with_forward_in_class(_twin(model))
    given = tensors(twin)
    # Whether the model's own code records gradients, whatever the caller's does.
    with torch.enable_grad(), Watch(twin, _trace_twin.__code__) as watch:
        graph = _Tracer(proxy_buffers=proxy_buffers).trace(twin, concrete_args=fixed or None)
    check_written(model, twin, given, watch.lines)
    return graph, twin


def home(node: fx.Node) -> str | None:
    """The innermost module that a node is part of: the one it calls, or that it was traced in."""
    if node.op == "call_module":
        return str(node.target)
    around = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return around[-1] if around else None


def trace_by_export(model: nn.Module, example: Example) -> Traced:
    """Trace with `torch.export`, every size free that the model leaves free."""
    return trace_program(model, program_of(model, two_of_each(example)))


def program_of(model: nn.Module, example: Example) -> Program:
    """What `torch.export` makes of a model, and what to say of sizes it fixes.

    Sizes that the model remembers of its last input are forgotten first, if it computes the same
    without them.
    """
    changed = check_memory(model, example)
    memories = find_memories(model, example)
    if memories:
        try:
            made = export_program(lambda: forget(_twin(model), memories), example.copied())
            with quietly():
                if computes_as(made.exported, model, example) and not holds_parameters(
                    made.exported, model
                ):
                    return replace(made, changed=changed)
        except Exception:  # what it remembers may be needed
            pass
    made = export_program(lambda: _twin(model), example.copied())
    if holds_parameters(made.exported, model):
        # A function that the model holds knows the model itself, and no copy of it.
        with restored(model):
            made = export_program(lambda: model, example.copied())
    return replace(made, changed=changed)


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
        module = program.module()
    made.unpacking.pack(module.graph)
    _let_views_copy(module.graph)
    _say_what_is_bound(module.graph)
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    owned |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    targets = {str(n.target) for n in module.graph.nodes if n.op in ("get_attr", "call_module")}
    extras = {target: _extra(module, target) for target in sorted(targets - owned)}
    return Traced(module.graph, extras, "export", changed=made.changed, fixed=made.fixed)


DROPOUTS = {
    torch.ops.aten.dropout.default,
    torch.ops.aten.feature_dropout.default,
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
}


def _say_what_is_shared(module: fx.GraphModule) -> None:
    """Call dropout an alias where it drops nothing: it hands back the very tensor it was given.

    Its schema hides that, so a write into one of the two would pass the other by.
    """
    for node in module.graph.nodes:
        if node.target in DROPOUTS and node.args[2] is False:
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
    module.recompile()


def _say_what_is_bound(graph: fx.Graph) -> None:
    """Mark the writes at the end of an exported program, which the model's code does not have."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        into = node.args[0]
        of_buffer = isinstance(into, fx.Node) and into.op == "get_attr"
        # The model's own writes are named without their overload.
        if of_buffer and node.name.startswith("copy__default"):
            node.meta |= {REBINDS: True, NO_GRAD: True}


def _let_views_copy(graph: fx.Graph) -> None:
    """A view fits strides that the example had; a narrower tensor may be laid out otherwise."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


class _Tracer(fx.Tracer):
    """Looks into self-attention.

    A layer of a class that derives from torch's and computes as it does is not looked into.
    """

    def __init__(self, *, proxy_buffers: bool) -> None:
        super().__init__()
        self.proxy_buffer_attributes = proxy_buffers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, KINDS) and stock_class(m) is not None:
            return True
        return bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return AugmentedProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        parts = parts_of(a)
        if parts is None:
            return super().create_arg(a)
        args, kwargs = super().create_arg(parts.args), super().create_arg(dict(parts.kwargs))
        node = self.create_node("call_function", parts.kind, args, kwargs)
        node.meta[PACKS] = True
        return node

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if not torch.is_grad_enabled():
            node.meta[NO_GRAD] = True
        node.stack_trace = running_line(trace_symbolically.__code__)
        return node

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if isinstance(m, nn.MultiheadAttention) and is_plain_self_attention(m, args, kwargs):
            return self_attention(m, args[0])
        return super().call_module(m, forward, args, kwargs)


def _drop_fixed_inputs(graph: fx.Graph, free: set[str]) -> None:
    """Inputs the example leaves at a default are part of the model, not of its signature."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.target not in free:
            doomed = [node]
            for user in doomed:
                doomed.extend(user.users)
            if any(user.op == "output" for user in doomed):
                continue
            for user in reversed(list(dict.fromkeys(doomed))):
                graph.erase_node(user)


def two_of_each(example: Example) -> Example:
    """The example with a batch of two where it has one: a size of one hides what is done to it."""
    if any(x.ndim == 0 or x.shape[0] != 1 for x in example.tensors):
        return example
    return example.map(lambda x: torch.cat([x, x]) if isinstance(x, Tensor) else x)


def _extra(module: nn.Module, path: str) -> Any:
    """What a graph refers to at a path: a tensor, or what checks its inputs."""
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return Guards(found) if type(found).__name__ == "GuardsFn" else found
