"""Placing masks: output channels that are zero, by zeros in parameters or held at run time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from torch import nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Captured, Observed
from upscale.channels import Parameter
from upscale.errors import SelectionError
from upscale.flow.lines import Line
from upscale.lowering.lowered import Masks
from upscale.model.layers import (
    KINDS,
    column_axis,
    computes_weight,
    parameter_names,
    stock_class,
)

Channels = tuple[int, ...]


def place_masks(model: nn.Module, captured: Captured, after: Mapping[str, Channels]) -> Masks:
    """Write masks into the parameters of modules that nothing else uses; the rest is held.

    Zeros in a BatchNorm's scale and shift make its channels zero, and so do a layer's row and
    bias. Where a parameter is read elsewhere too, zeros in it would be seen there: then channels
    are made zero at run time.
    """
    names = parameter_names(model)
    owned: dict[str, str] = {Parameter(name): name for name in names.values()}
    modules = dict(model.named_modules(remove_duplicate=False))
    # A module may have several names, and a mask under each.
    masked: dict[int, Channels] = {}
    for where, channels in after.items():
        before = masked.get(id(modules[where]), ())
        masked[id(modules[where])] = tuple(sorted({*before, *channels}))
    readers: dict[str, list[nn.Module | None]] = defaultdict(list)
    called = set()
    for node in captured.graph.nodes:
        observed = captured.observed[node.name]
        module = modules.get(observed.home)
        called.add(id(module))
        for value in _parameters_read(observed):
            readers[value].append(module)

    def alone(line: Line, channels: Channels) -> bool:
        """Whether all that reads a parameter is masked alike."""
        return all(
            module is not None
            and masked.get(id(module)) == channels
            and line in _lines(module, names)
            for module in readers[line.value]
        )

    zeroed: dict[str, dict[int, Channels]] = defaultdict(dict)
    held = {}
    for where in after:
        module = modules[where]
        channels = masked[id(module)]
        lines = _lines(module, names) if id(module) in called else ()
        if lines and all(alone(line, channels) for line in lines):
            for line in lines:
                zeroed[owned[line.value]][line.axis] = channels
        elif channels and (
            id(module) in called
            or any(Parameter(names[id(tensor)]) in readers for tensor in module.parameters())
        ):
            held[where] = channels
    if "" in held:
        raise SelectionError(
            "the model is itself the layer whose outputs are pruned; put it into an nn.Sequential"
        )
    return Masks(after, dict(zeroed), held)


def _parameters_read(observed: Observed) -> set[str]:
    read = {value for call in observed.calls for value in call.reads}
    read.update(x for x in tree_leaves(dict(observed.reads)) if isinstance(x, str))
    return {value for value in read if isinstance(value, Parameter)}


def _lines(module: nn.Module, names: Mapping[int, str]) -> tuple[Line, ...]:
    """The parameters' axes along which zeros make a module's output channels zero, if any do."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if module._forward_hooks or weight is None:
        return ()
    if isinstance(module, KINDS):
        if computes_weight(module) or (column_axis(module) == 0 and module.groups != 1):
            return ()
        rows = Line(Parameter(names[id(weight)]), 1 - column_axis(module))
        return (rows,) if bias is None else (rows, Line(Parameter(names[id(bias)]), 0))
    if stock_class(module) is not None and bias is not None:
        return tuple(Line(Parameter(names[id(tensor)]), 0) for tensor in (weight, bias))
    return ()
