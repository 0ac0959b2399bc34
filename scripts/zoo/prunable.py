"""What of a model can be pruned at all, and what keeps the rest whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import fx, nn

from upscale.capture import Captured
from upscale.channels import Parameter
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.model.layers import layers, weight_names, weight_of
from upscale.ops.table import OPERATIONS
from upscale.pruning.survey import needed_rows


def attends(captured: Captured) -> bool:
    """Whether a model mixes positions by attention; one that does not is a CNN here."""
    return any(OPERATIONS[c.op].attends for seen in captured.observed.values() for c in seen.calls)


def prunable_weights(flow: ChannelFlow) -> frozenset[str]:
    """The weights of prunable layers.

    A layer is prunable if a rule knows it for a convolution or linear (a `Reduce` has its
    weight), and wherever it is used its columns or its rows can leave. Columns can leave if the
    axis they contract is a line: channels are told apart there, so a column takes its channel
    along if nobody else reads that. (Columns that read a frozen tensor or the model's input
    leave too, but only the layer shrinks; they do not count.) Rows can leave if not all of them
    are live when every layer drops all its columns: then nothing but other layers' weights needs
    them. A depthwise convolution has one column, which is its row: only the row counts.
    """
    needed = needed_rows(flow)
    stuck = {
        layer.layer
        for _, layer in flow.layers
        if (layer.channelwise or layer.read not in flow.classes) and needed[layer.out].all()
    }
    return frozenset({layer.layer for _, layer in flow.layers} - stuck)


def prunable_share(model: nn.Module, flow: ChannelFlow, unreached: set[str]) -> float:
    """The share of convolution and linear weights, of those reached, in prunable layers."""
    prunable = prunable_weights(flow)
    owners = {Parameter(weight): layer for weight, layer in weights_of(model).items()}
    reached = {w: weight_of(layer).numel() for w, layer in owners.items() if w not in unreached}
    return sum(n for w, n in reached.items() if w in prunable) / sum(reached.values())


def frozen_shares(
    model: nn.Module, captured: Captured, flow: ChannelFlow, unreached: set[str]
) -> dict[str, float]:
    """The share of all parameters that stays whole, by the operation that keeps it so.

    A parameter stays whole where a frozen step, or one no rule relates to any channel, reads it.
    A layer that a rule knows and that is not prunable all the same lies behind such a step, the
    nearest of which it counts for, or else at the model's input.
    """
    nodes = {node.name: node for node in captured.graph.nodes}
    makers = {value: step for step in flow.steps for value in step.makes}
    causes: dict[str, str] = {}
    for step in flow.steps:
        if step.frozen or not step.relations:
            operation = _operation(captured, nodes[step.node])
            causes |= {value: operation for value in step.reads if isinstance(value, Parameter)}
    prunable = prunable_weights(flow)
    for _, layer in flow.layers:
        if layer.layer not in prunable:
            cause = _freezer(makers, layer.read.value)
            operation = _operation(captured, nodes[cause.node]) if cause else "the input"
            causes.setdefault(layer.layer, operation)
    named = model.named_parameters()
    sizes: dict[str, int] = {Parameter(name): each.numel() for name, each in named}
    total = sum(size for name, size in sizes.items() if name not in unreached)
    shares: Counter[str] = Counter()
    for name, operation in causes.items():
        shares[operation] += sizes.get(name, 0)
    return {operation: size / total for operation, size in shares.most_common() if size}


def _freezer(makers: Mapping[str, Step], value: str) -> Step | None:
    """The nearest frozen step that a value comes from, or else the step that made it."""
    front = [value]
    for reached in front:
        maker = makers.get(reached)
        if maker is not None:
            if maker.frozen:
                return maker
            front += [v for v in maker.reads if v not in front and not isinstance(v, Parameter)]
    return makers.get(value)


def _operation(captured: Captured, node: fx.Node) -> str:
    """What a node does, in a word: its one operation, or the function or module that has many."""
    operations = list(dict.fromkeys(call.op for call in captured.observed[node.name].calls))
    if len(operations) == 1:
        return operations[0]
    if node.op == "call_module":
        return captured.kinds[str(node.target)]
    return str(getattr(node.target, "__name__", node.target))


def weights_of(model: nn.Module) -> dict[str, nn.Module]:
    """One layer of each weight, by the weight's name."""
    names = weight_names(model)
    return {names[name]: layer for name, layer in reversed(layers(model).items())}
