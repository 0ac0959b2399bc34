"""Tracing: a model becomes a graph, symbolically where possible, else by torch.export."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from upscale.capture.attention import is_plain_self_attention, self_attention
from upscale.capture.augmented import AugmentedProxy, put_writes_back
from upscale.capture.exporting import export_program, holds_parameters, quietly, restored
from upscale.capture.forgetting import computes_as, find_memories, forget
from upscale.capture.questions import running_line
from upscale.capture.record import Example
from upscale.errors import ExampleError
from upscale.layers import KINDS, copied, stock_class
from upscale.sizes import Guards


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, what it refers to that the model does not own, and how it was made.

    `doubted` nodes call functions that may do something else on another input; `fixed` says
    which sizes of the inputs the graph takes for granted, and why.
    """

    graph: fx.Graph
    extras: Mapping[str, Any]
    way: str
    doubted: frozenset[str] = frozenset()
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
    free = {
        name
        for name, value in bound.arguments.items()
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
    }
    fixed = {name: value for name, value in bound.arguments.items() if name not in free}
    twin = _twin(model)
    before = set(vars(twin)) | set(twin._buffers)
    graph = _trace(twin, fixed)
    _drop_fixed_inputs(graph, free)
    put_writes_back(graph, twin)
    added = (set(vars(twin)) | set(twin._buffers)) - before
    constants = {n for n in added if isinstance(getattr(twin, n), Tensor)}
    return Traced(graph, {name: getattr(twin, name) for name in sorted(constants)}, "symbolic")


def trace_without_example(model: nn.Module) -> fx.Graph:
    """Trace with `torch.fx`, inputs that have a default at it."""
    taken = inspect.signature(model.forward).parameters.values()
    return _trace(_twin(model), {p.name: p.default for p in taken if p.default is not p.empty})


def _twin(model: nn.Module) -> nn.Module:
    """A twin that shares the parameters: tracing may set attributes on what it traces."""
    return copied(model, {id(t): t for t in (*model.parameters(), *model.buffers())})


def _trace(model: nn.Module, fixed: dict[str, Any]) -> fx.Graph:
    try:
        return _Tracer(proxy_buffers=True).trace(model, concrete_args=fixed or None)
    except Exception:  # the model's own code runs on proxies and may raise anything
        return _Tracer(proxy_buffers=False).trace(model, concrete_args=fixed or None)


def home(node: fx.Node) -> str | None:
    """The innermost module that a node is part of: the one it calls, or that it was traced in."""
    if node.op == "call_module":
        return str(node.target)
    around = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return around[-1] if around else None


def trace_by_export(model: nn.Module, example: Example) -> Traced:
    """Trace with `torch.export`, every size free that the model leaves free."""
    return trace_program(model, *program_of(model, two_of_each(example)))


def program_of(model: nn.Module, example: Example) -> tuple[ExportedProgram, tuple[str, ...]]:
    """What `torch.export` makes of a model, and what to say of sizes it fixes.

    Sizes that the model remembers of its last input are forgotten first, if it computes the same
    without them.
    """
    memories = find_memories(model, example)
    if memories:
        try:
            made = export_program(lambda: forget(_twin(model), memories), example.copied())
            with quietly():
                if computes_as(made[0], model, example) and not holds_parameters(made[0], model):
                    return made
        except Exception:  # what it remembers may be needed
            pass
    made = export_program(lambda: _twin(model), example.copied())
    if not holds_parameters(made[0], model):
        return made
    # A function that the model holds knows the model itself, and no copy of it.
    with restored(model):
        return export_program(lambda: model, example.copied())


def trace_program(
    model: nn.Module,
    program: ExportedProgram,
    fixed: tuple[str, ...],
    *,
    functional: bool = False,
) -> Traced:
    """The graph of a program that `torch.export` made of a model.

    It guards itself: on sizes that would take another branch it raises. In its functional form
    no operation writes in place.
    """
    with quietly():
        _say_what_is_shared(program.graph_module)
        if functional:
            program = program.run_decompositions({})
        module = program.module()
    _let_views_copy(module.graph)
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    owned |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    targets = {str(n.target) for n in module.graph.nodes if n.op in ("get_attr", "call_module")}
    extras = {target: _extra(module, target) for target in sorted(targets - owned)}
    return Traced(module.graph, extras, "export", fixed=fixed)


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

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
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
