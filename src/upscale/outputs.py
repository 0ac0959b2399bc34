"""Output masks: where they can be written into parameters, and which columns they free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Captured, Observed
from upscale.channels import Positions
from upscale.constants import Known
from upscale.flow.domain import ChannelFlow, Line, Reduce
from upscale.flow.walk import tensors
from upscale.layers import KINDS, column_axis, computes_weight, parameter_names


@dataclass(frozen=True, slots=True)
class Masks:
    """Channels that are zero after modules: by zeros in parameters, or `held` at run time.

    `zeroed` are the positions along an axis of each parameter that become zero.
    """

    zeroed: Mapping[Line, Positions]
    held: Mapping[str, tuple[int, ...]]

    @property
    def by_parameter(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """What becomes zero, by the parameters' names."""
        return {
            line.value[1:]: {line.axis: tuple(own.tolist())} for line, own in self.zeroed.items()
        }


def place_masks(
    model: nn.Module, captured: Captured, gone: Mapping[str, tuple[int, ...]]
) -> Masks:
    """Write masks into the parameters of modules that nothing else uses; the rest is held."""
    names = parameter_names(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    masked: dict[int, tuple[int, ...]] = {id(modules[where]): own for where, own in gone.items()}
    readers: dict[str, list[nn.Module | None]] = defaultdict(list)
    called = set()
    for node in captured.graph.nodes:
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        called.add(id(module))
        for value in _parameters_read(captured.observed[node.name]):
            readers[value].append(module)

    def alone(line: Line, channels: tuple[int, ...]) -> bool:
        """Whether all that reads a parameter is masked alike."""
        return all(
            module is not None
            and masked.get(id(module)) == channels
            and line in _lines(module, names)
            for module in readers[line.value]
        )

    zeroed: dict[Line, Positions] = {}
    held = {}
    for where, channels in gone.items():
        module = modules[where]
        lines = _lines(module, names) if id(module) in called else ()
        if lines and all(alone(line, channels) for line in lines):
            zeroed |= dict.fromkeys(lines, np.array(channels, dtype=np.int64))
        elif channels:
            held[where] = channels
    return Masks(zeroed, held)


def _parameters_read(observed: Observed) -> set[str]:
    read = {value for call in observed.calls for value in tensors(call)}
    read.update(x for x in tree_leaves(dict(observed.reads)) if isinstance(x, str))
    return {value for value in read if value.startswith("@")}


def _lines(module: nn.Module, names: Mapping[int, str]) -> tuple[Line, ...]:
    """The parameters' axes along which zeros make a module's output channels zero, if any do."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if module._forward_hooks or weight is None:
        return ()
    if isinstance(module, KINDS):
        if computes_weight(module) or (column_axis(module) == 0 and module.groups != 1):
            return ()
        rows = Line(f"@{names[id(weight)]}", 1 - column_axis(module))
        return (rows,) if bias is None else (rows, Line(f"@{names[id(bias)]}", 0))
    if type(module).forward.__module__.startswith("torch.nn.modules") and bias is not None:
        return tuple(Line(f"@{names[id(tensor)]}", 0) for tensor in (weight, bias))
    return ()


def columns_read(
    flow: ChannelFlow, constants: Mapping[Line, Known], kept: Mapping[str, Positions]
) -> dict[str, Positions]:
    """The columns each weight keeps once those go that only ever meet zeros."""
    needed: dict[str, np.ndarray] = {}
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.layer.startswith("@"):
                read = constants.get(relation.read)
                alive = np.ones(relation.columns, dtype=bool)
                if read is not None and not relation.channelwise:
                    alive = ~read.zero.reshape(relation.groups, -1).all(axis=0)
                before = needed.get(relation.layer, np.zeros(relation.columns, dtype=bool))
                needed[relation.layer] = before | alive
    found = dict(kept)
    for layer, alive in needed.items():
        if not alive.all():
            own = kept.get(layer, np.arange(len(alive)))
            found[layer] = own[alive[own]]
    return found
