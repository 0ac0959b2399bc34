"""The way back from an export: where channels went, and its weights in the shape of the model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from upscale import masking
from upscale.channels import positions
from upscale.errors import PlanError
from upscale.model.accepting import checked, ordinary_tensors, settled
from upscale.model.layers import (
    column_axis,
    computes_weight,
    layers,
    tensors,
    weight_names,
    weight_of,
)
from upscale.planning import Plan
from upscale.rewrite.building import unclashing
from upscale.selected.selection import Selection
from upscale.tools.grouping import grouped


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """The new place of each input and output channel of a layer that stays, by the old one."""

    inputs: Mapping[int, int]
    outputs: Mapping[int, int]


def channel_maps(model: nn.Module, plan: Plan) -> dict[str, ChannelMap]:
    """Old places to new ones for every convolution and linear of the model a plan was made for.

    Places are those along the axes of the layer's own weight.

    >>> import torch, upscale
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> plan = upscale.plan(net, torch.zeros(1, 4), upscale.Selection(kept={"1": [0, 2]}))
    >>> channel_maps(net, plan)["0"].outputs
    {0: 0, 2: 1}
    """
    model = settled(model)
    names = weight_names(model)
    maps = {}
    for name, layer in layers(model).items():
        cuts, axis = plan.weights.cuts.get(names[name], {}), column_axis(layer)
        sizes = weight_of(layer).shape
        inputs, outputs = (
            {old: new for new, old in enumerate(cuts.get(along, range(sizes[along])))}
            for along in (axis, 1 - axis)
        )
        maps[name] = ChannelMap(inputs, outputs)
    return maps


@ordinary_tensors()
def undo(pruned: fx.GraphModule, model: nn.Module) -> nn.Module:
    """A copy of a model with the weights of its export, and zeros for all that was pruned.

    That is the masked model: it computes what the export computes, trained or not. Weights that
    the model computes from others (`weight_norm`) are plain ones in it, as they are in the export.

    >>> import upscale
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> pruned = upscale.prune(net, torch.zeros(1, 4), amount=0.5)
    >>> int((undo(pruned, net).get_submodule("1").weight == 0).sum())
    8
    """
    plan = pruned.meta.get("plan") if isinstance(pruned, fx.GraphModule) else None
    if not isinstance(plan, Plan):
        raise PlanError("only what upscale.export returned or upscale.load read can be undone")
    if plan.weights.gates:
        layer = next(iter(plan.weights.gates.values())).layer
        raise PlanError(
            f"the export reads a gate beside {layer} for channels it has no more, and the model "
            "has no place for the weight of that: it cannot be undone"
        )
    twin = copy.deepcopy(masking.released(settled(checked(model)))[0])
    small, wide = tensors(pruned), tensors(twin)
    lost = sorted(plan.weights.cuts.keys() - wide.keys())
    if lost:
        raise PlanError(f"the export was made from another model: here is no {lost[0]}")
    for name, *others in grouped((id(tensor), name) for name, tensor in wide.items()).values():
        paths = [unclashing(own) for own in (name, *others) if unclashing(own) in small]
        if paths:
            _fill(wide[name], small[paths[0]], plan.weights.cuts.get(name, {}), name)
        # What makes nothing but zeros, by output masks, is not in the export.
        for axis, gone in () if paths else plan.masks.zeroed.get(name, {}).items():
            wide[name].detach().index_fill_(axis, _index(gone, wide[name]), 0.0)
    _check_folds(plan, twin)
    twin = masking.hold_outputs(twin, plan.held)
    computed = {
        layer: plan.kept[name]
        for layer, name in weight_names(twin).items()
        if name in plan.kept and computes_weight(layers(twin)[layer])
    }
    return masking.mask(twin, Selection(kept=computed)) if computed else twin


def _fill(wide: Tensor, small: Tensor, cuts: Mapping[int, tuple[int, ...]], name: str) -> None:
    """Write what is left of a parameter where it was; the rest of it becomes zero."""
    with torch.no_grad():
        for axis, kept in cuts.items():
            if small.shape[axis] != len(kept) or max(kept, default=-1) >= wide.shape[axis]:
                raise PlanError(f"the export was made from another model: {name} does not fit")
            shape = list(small.shape)
            shape[axis] = wide.shape[axis]
            small = small.new_zeros(shape).index_copy(axis, _index(kept, small), small)
        if small.shape != wide.shape:
            raise PlanError(f"the export was made from another model: {name} does not fit")
        wide.copy_(small)


def _index(places: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.from_numpy(positions(places)).to(like.device)


def _check_folds(plan: Plan, model: nn.Module) -> None:
    """Raise if the export has a bias that the model has no place for."""
    for layer, name in weight_names(model).items():
        folding = plan.weights.folds.get(name)
        if folding is not None and folding.into is None and layers(model)[layer].bias is None:
            raise PlanError(
                f"the export gave {layer} a bias, and the model has no place for it: it cannot be "
                "undone"
            )
