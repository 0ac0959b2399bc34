"""The masked model: same architecture, pruned weights zero. The oracle; it never sees a plan."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from upscale.errors import SelectionError
from upscale.selection.masks import Selection, check_kind, check_selection
from upscale.subject.layers import (
    KINDS,
    column_axis,
    columns,
    computes_weight,
    layers,
    weight_names,
    weight_of,
)


def check(model: nn.Module, selection: Selection) -> None:
    """Raise unless a selection fits a model."""
    check_kind(selection)
    axis = column_axis if selection.side == "input" else (lambda layer: 1 - column_axis(layer))
    sizes = {
        name: int(weight_of(layer).shape[axis(layer)]) for name, layer in layers(model).items()
    }
    check_selection(selection, sizes, weight_names(model))


def mask(
    model: nn.Module, selection: Selection, norms: Mapping[str, tuple[str, ...]] | None = None
) -> nn.Module:
    """A copy of a model in which everything that the selection prunes is zero, and stays so.

    The masks are applied again before every call, so the copy can be trained, saved and
    loaded like any model. A layer that computes its weight anew in every call has the computed
    weight masked. On the output side, `norms` names the modules after which a layer's channels
    are zero, where that is not the layer itself.
    """
    check(model, selection)
    if selection.side == "output":
        return hold_outputs(model, outputs_gone(model, selection, norms))
    masked = copy.deepcopy(model)
    stored = {}
    for name, kept in selection.kept.items():
        layer = masked.get_submodule(name)
        if computes_weight(layer):
            held = _HoldComputed(tuple(kept), tuple(weight_of(layer).shape), column_axis(layer))
            layer.register_forward_pre_hook(held.enter)
            layer.register_forward_hook(held.leave, always_call=True)
        else:
            stored[name] = tuple(kept)
    hold_stored = _HoldStored(stored)
    hold_stored(masked, ())
    masked.register_forward_pre_hook(hold_stored)
    return masked


def outputs_gone(
    model: nn.Module, selection: Selection, norms: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, tuple[int, ...]]:
    """The channels that an output selection makes zero, by the module after which they are."""
    gone: dict[str, set[int]] = {}
    for name, kept in selection.kept.items():
        for where in (norms or {}).get(name, (name,)):
            channels = _gone_outputs(model.get_submodule(name), tuple(kept))
            gone.setdefault(where, set()).update(channels.tolist())
    return {where: tuple(sorted(channels)) for where, channels in gone.items()}


def hold_outputs(model: nn.Module, gone: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """A copy of a model in which channels are zero after the modules named."""
    masked = copy.deepcopy(model)
    for where, channels in gone.items():
        hold_output(masked.get_submodule(where), channels)
    return masked


def hold_output(module: nn.Module, channels: tuple[int, ...]) -> None:
    """Make channels zero after a module whenever it is called."""
    module.register_forward_hook(_HoldOutput(module, channels))


def held_channels(module: nn.Module) -> tuple[int, ...]:
    """The channels that output masks make zero after a module."""
    return tuple(sorted({int(channel) for hold in _holds(module) for channel in hold.gone}))


def _holds(module: nn.Module) -> list[_HoldOutput]:
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, _HoldOutput)]


def released(model: nn.Module) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """A model without the output masks that were put on it, and what they made zero.

    Masks of columns hold from call to call; an optimiser's step may have come after the last
    one, so they are applied again.
    """
    for own in model.modules():
        for hook in own._forward_pre_hooks.values():
            if isinstance(hook, _HoldStored):
                hook(own, ())
    gone = {name: held_channels(own) for name, own in model.named_modules() if _holds(own)}
    if not gone:
        return model, {}
    bare = copy.deepcopy(model)
    for name in gone:
        hooks = bare.get_submodule(name)._forward_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _HoldOutput)]:
            del hooks[key]
    return bare, gone


class _HoldOutput:
    """A hook that zeroes pruned channels of what a layer, or its normalisation, makes."""

    only_masks = True

    def __init__(self, module: nn.Module, channels: tuple[int, ...]) -> None:
        self.gone = torch.tensor(channels, dtype=torch.long)
        if isinstance(module, KINDS):
            weight = weight_of(module)
            groups = int(getattr(module, "groups", 1)) if column_axis(module) == 0 else 1
            keep = torch.ones(int(weight.shape[1 - column_axis(module)]) * groups, dtype=torch.bool)
            keep[self.gone] = False
            self.keep = keep.view(-1, *[1] * (weight.ndim - 2)).to(weight.device)

    def __call__(self, module: nn.Module, inputs: object, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output * self.keep  # a layer is traced: there is no tensor to look at
        axis = -1 if isinstance(module, nn.Linear) else 1
        if isinstance(module, nn.modules.conv._ConvNd):
            axis = output.ndim - (weight_of(module).ndim - 1)
        return output.index_fill(axis, self.gone.to(output.device), 0.0)


class _HoldStored:
    """A hook that zeroes the pruned columns of what named layers store."""

    only_masks = True

    def __init__(self, kept: Mapping[str, tuple[int, ...]]) -> None:
        self.kept = kept

    def __call__(self, model: nn.Module, inputs: object) -> None:
        with torch.no_grad():
            for name, kept in self.kept.items():
                layer = model.get_submodule(name)
                gone = _gone(columns(layer), kept)
                if len(gone):
                    weight = weight_of(layer)
                    weight.index_fill_(column_axis(layer), gone.to(weight.device), 0.0)


class _HoldComputed(TorchFunctionMode):
    """Hooks that, while a layer runs, mask every weight of its weight's shape that it applies."""

    def __init__(self, kept: tuple[int, ...], shape: tuple[int, ...], axis: int) -> None:
        super().__init__()
        self.gone, self.shape, self.axis = _gone(shape[axis], kept), shape, axis

    def enter(self, layer: nn.Module, inputs: object) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, layer: nn.Module, inputs: object, output: object) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in APPLYING:
            if len(args) > 1:
                args = (args[0], self._masked(args[1]), *args[2:])
            elif "weight" in kwargs:
                kwargs["weight"] = self._masked(kwargs["weight"])
        return func(*args, **kwargs)

    def _masked(self, weight: Tensor) -> Tensor:
        # While the masked model itself is being traced there is no shape to look at.
        if isinstance(weight, Tensor) and tuple(weight.shape) != self.shape:
            return weight
        return weight.index_fill(self.axis, self.gone.to(weight.device), 0.0)


APPLYING = {
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.linear),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
}


def _gone(size: int, kept: tuple[int, ...]) -> Tensor:
    return torch.tensor(sorted(set(range(size)).difference(kept)), dtype=torch.long)


def _gone_outputs(layer: nn.Module, kept: tuple[int, ...]) -> Tensor:
    """The output channels of a layer that go with rows of its weight; groups may share rows."""
    rows = int(weight_of(layer).shape[1 - column_axis(layer)])
    groups = int(getattr(layer, "groups", 1)) if column_axis(layer) == 0 else 1
    gone = _gone(rows, kept)
    return (torch.arange(groups)[:, None] * rows + gone).flatten()


def zeroed(model: nn.Module) -> Selection:
    """The selection that a model's own weights show: columns that are not all zero are kept."""
    kept: dict[str, tuple[int, ...]] = {}
    for name, layer in layers(model).items():
        if weight_of(layer).is_meta:
            raise SelectionError(
                f"{name} is on the meta device and has no values to read zeros from; "
                "pass a selection"
            )
        by_column = weight_of(layer).detach().movedim(column_axis(layer), 0).flatten(1)
        alive = (by_column != 0).any(dim=1).nonzero().flatten().tolist()
        if len(alive) < columns(layer) and not computes_weight(layer):
            kept[name] = tuple(alive)
    return Selection(kept=kept, side="input")
