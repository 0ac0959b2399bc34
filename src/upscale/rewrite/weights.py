"""Smaller layers: copies of modules whose parameters were masked and cut as a plan says."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from upscale.model.layers import (
    KINDS,
    as_stock,
    column_axis,
    computes_weight,
    copied,
    layers,
    parameter_names,
    weight_names,
    weight_of,
)
from upscale.planning import Plan
from upscale.rewrite.constant import constant as constant_layer

# The numbers that the columns of a weight always meet which a plan folds, by the weight's name.
Met = Mapping[str, tuple[float, ...]]


class Cutter:
    """Copies parameters, buffers and modules of a model, each parameter once."""

    def __init__(self, model: nn.Module, extras: Mapping[str, Any], plan: Plan, met: Met) -> None:
        self._model, self._extras, self._plan, self._met = model, extras, plan, met
        self._names = parameter_names(model)
        named = weight_names(model)
        self._column_axes = {
            named[name]: column_axis(layer)
            for name, layer in layers(model).items()
            if not computes_weight(layer)
        }
        self._memo: dict[int, Any] = {}

    def attribute(self, path: str) -> Any:
        """A copy of whatever the model holds at a path, cut if it is a parameter or buffer."""
        if path in self._extras:
            return copy.deepcopy(self._extras[path])
        held: Any = attrgetter(path)(self._model)
        return self._tensor(held) if isinstance(held, Tensor) else copy.deepcopy(held)

    def module(self, path: str, node: str) -> nn.Module:
        """A copy of a module with its parameters cut, as the node that calls it needs it."""
        extra = self._extras.get(path)
        if isinstance(extra, nn.Module):
            return copy.deepcopy(extra)
        original = self._model.get_submodule(path)
        for tensor in [*original.parameters(), *original.buffers()]:
            self._tensor(tensor)
        module = copied(original, self._memo)
        if isinstance(original, KINDS):
            self._raise_bias(as_stock(module), original)
        changes = self._plan.graph
        if node in changes.constants:
            return constant_layer(module)
        _fit(module, changes.groups.get(node), changes.widths.get(node))
        return module

    def gate(self, name: str) -> tuple[nn.Module, str]:
        """The small layer that reads a gate, by its weight's name, and a path for it.

        It makes what the layer would make of the gate, each channel times the number that it is
        multiplied with, at every place.
        """
        gates = self._plan.weights.gates.items()
        weight, gating = next((own, each) for own, each in gates if each.weight == name)
        layer, cuts = self._model.get_submodule(gating.layer), self._plan.weights.cuts[name]
        own = weight_of(layer)
        with torch.no_grad():
            wide = self._zero(own.detach(), weight).double()
            wide = wide.flatten(2).sum(dim=2) if wide.ndim > 2 else wide
            if gating.norm is not None:
                wide = wide * self._scale(self._model.get_submodule(gating.norm))[:, None]
            met = torch.zeros(wide.shape[1], dtype=wide.dtype, device=wide.device)
            met[list(gating.columns)] = met.new_tensor(self._met[name])
            small = (wide * met)[_as_index(cuts[0], wide.device)]
            small = small[:, _as_index(cuts[1], wide.device)].to(own.dtype)
            small = small.reshape(*small.shape, *[1] * (own.ndim - 2))
        made = _pointwise(layer, *small.shape[:2])
        made.weight = nn.Parameter(small, requires_grad=own.requires_grad)
        return made.train(layer.training), f"{gating.layer}_gated"

    def _scale(self, norm: Any) -> Tensor:
        """What a BatchNorm multiplies each channel with."""
        scale: Tensor = (norm.running_var.double() + norm.eps).rsqrt()
        if not norm.affine:
            return scale
        return scale * self._zero(norm.weight.detach(), self._names[id(norm.weight)]).double()

    def _raise_bias(self, module: nn.Module, original: nn.Module) -> None:
        """Add to a layer's bias what the columns that it no longer reads have always added."""
        name = self._names.get(id(original.weight), "")
        folding = self._plan.weights.folds.get(name)
        if folding is None or folding.into is not None:
            return
        axis = column_axis(original)
        with torch.no_grad():
            added = self._added(self._zero(weight_of(original).detach(), name), name, axis)
            added = added.movedim(1 - axis, 0).flatten(1).sum(dim=1)
            rows = self._plan.weights.cuts.get(name, {}).get(1 - axis, range(len(added)))
            added = added[_as_index(rows, added.device)]
            if isinstance(module.bias, Tensor):
                module.bias.copy_(module.bias.double() + added)
            else:
                dtype, trained = weight_of(original).dtype, weight_of(original).requires_grad
                module.bias = nn.Parameter(added.to(dtype), requires_grad=trained)

    def _added(self, weight: Tensor, name: str, axis: int) -> Tensor:
        """The sum of the folded columns of a weight, each times the number it meets."""
        folded = _as_index(self._plan.weights.folds[name].columns, weight.device)
        met = torch.tensor(self._met[name], dtype=torch.float64, device=weight.device)
        added: Tensor = weight.index_select(axis, folded).double().movedim(axis, -1) @ met
        return added.unsqueeze(axis)

    def _zero(self, tensor: Tensor, name: str) -> Tensor:
        """A parameter with zeros where the plan has them."""
        for axis, gone in self._plan.masks.zeroed.get(name, {}).items():
            tensor = tensor.index_fill(axis, _as_index(gone, tensor.device), 0.0)
        return tensor

    def _fold(self, weight: Tensor, name: str) -> Tensor:
        """A weight in which one column stands for all that are folded into it."""
        folding = self._plan.weights.folds.get(name)
        if folding is None or folding.into is None:
            return weight
        axis, lead = self._column_axes[name], self._met[name][folding.columns.index(folding.into)]
        column = self._added(weight, name, axis) / lead
        return weight.index_copy(
            axis, _as_index([folding.into], weight.device), column.to(weight.dtype)
        )

    def _tensor(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._memo:
            with torch.no_grad():
                smaller = self._cut(tensor, self._names.get(id(tensor), ""))
            if isinstance(tensor, nn.Parameter):
                smaller = nn.Parameter(smaller, requires_grad=tensor.requires_grad)
            self._memo[id(tensor)] = smaller
        copied: Tensor = self._memo[id(tensor)]
        return copied

    def _cut(self, tensor: Tensor, name: str) -> Tensor:
        cuts: Mapping[int, tuple[int, ...]] = self._plan.weights.cuts.get(name, {})
        smaller = self._fold(self._zero(tensor.detach(), name), name)
        for axis, indices in sorted(cuts.items()):
            if indices != tuple(range(smaller.shape[axis])):
                smaller = smaller.index_select(axis, _as_index(indices, smaller.device))
        kept = self._plan.kept.get(name)
        if kept is not None and name in self._column_axes:
            axis, staying = self._column_axes[name], set(kept)
            columns = cuts.get(axis, range(tensor.shape[axis]))
            gone = [place for place, column in enumerate(columns) if column not in staying]
            if gone:  # some are read beside those kept, and have weights of zero
                smaller = smaller.index_fill(axis, _as_index(gone, smaller.device), 0.0)
        if smaller.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            smaller = smaller.clone()
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
        if last is not None and tensor.is_contiguous(memory_format=last):
            smaller = smaller.contiguous(memory_format=last)
        return smaller


def _pointwise(layer: nn.Module, rows: int, columns: int) -> nn.Module:
    """A layer of a kind that looks at one place at a time, without weight or bias."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(columns, rows, bias=False, device="meta")
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[weight_of(layer).ndim - 3]
    return kind(columns, rows, 1, bias=False, device="meta")


def _as_index(indices: Sequence[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.array(indices, dtype=np.int64)).to(device)


def _fit(module: nn.Module, groups: int | None, width: int | None) -> None:
    """Make a module's attributes say what its parameters are."""
    if isinstance(module, nn.modules.conv._ConvNd):
        module.groups = groups or module.groups
        first, second = module.weight.shape[:2]
        if module.transposed:
            module.in_channels, module.out_channels = first, second * module.groups
        else:
            module.in_channels, module.out_channels = second * module.groups, first
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        module.num_features = width or module.num_features
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
