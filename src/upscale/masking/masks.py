"""Masked models, as users train them: same architecture, and zeros where a selection prunes."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from upscale.errors import SelectionError
from upscale.masking.hooks import HoldComputed, HoldOutput, HoldStored, not_kept, rows_of
from upscale.model.layers import (
    check_fits,
    column_axis,
    columns,
    computes_weight,
    layers,
    weight_of,
)
from upscale.selected.selection import Selection

# The BatchNorms that belong to each layer.
Norms = Mapping[str, tuple[str, ...]]


def mask(model: nn.Module, selection: Selection, norms: Norms | None = None) -> nn.Module:
    """A copy of a model in which everything that the selection prunes is zero, and stays so.

    The masks are applied again before every call, so the copy can be trained, saved and
    loaded like any model. A layer that computes its weight anew in every call has the computed
    weight masked. On the output side, `norms` names the modules after which a layer's channels
    are zero, where that is not the layer itself.
    """
    check_fits(model, selection)
    if selection.side == "output":
        return hold_outputs(model, outputs_gone(model, selection, norms))
    masked = copy.deepcopy(model)
    stored = {}
    for name, kept in selection.kept.items():
        layer = masked.get_submodule(name)
        if computes_weight(layer):
            held = HoldComputed(tuple(kept), tuple(weight_of(layer).shape), column_axis(layer))
            layer.register_forward_pre_hook(held.enter)
            layer.register_forward_hook(held.leave, always_call=True)
        else:
            stored[name] = tuple(kept)
    hold_stored = HoldStored(stored)
    hold_stored(masked, ())
    masked.register_forward_pre_hook(hold_stored)
    return masked


def masked_by(
    model: nn.Module,
    selections: Sequence[Selection],
    norms: Callable[[], Norms],
) -> nn.Module:
    """A model masked by selections; `norms` finds the BatchNorms that belong to layers."""
    for selection in selections:
        behind = selection.side == "output" and selection.after == "norm"
        model = mask(model, selection, norms() if behind else {})
    return model


def outputs_gone(
    model: nn.Module, selection: Selection, norms: Norms | None = None
) -> dict[str, tuple[int, ...]]:
    """The channels that an output selection makes zero, by the module after which they are."""
    gone: dict[str, set[int]] = defaultdict(set)
    for name, kept in selection.kept.items():
        # The groups of a transposed convolution share the rows of its weight.
        rows, times = rows_of(model.get_submodule(name))
        channels = torch.arange(times)[:, None] * rows + not_kept(rows, tuple(kept))
        for where in (norms or {}).get(name, (name,)):
            gone[where].update(channels.flatten().tolist())
    return {where: tuple(sorted(channels)) for where, channels in gone.items()}


def hold_outputs(model: nn.Module, gone: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """A copy of a model in which channels are zero after the modules named."""
    masked = copy.deepcopy(model)
    for where, channels in gone.items():
        hold_output(masked.get_submodule(where), channels)
    return masked


def hold_output(module: nn.Module, channels: tuple[int, ...]) -> None:
    """Make channels zero after a module whenever it is called."""
    module.register_forward_hook(HoldOutput(module, channels))


def held_channels(module: nn.Module) -> tuple[int, ...]:
    """The channels that output masks make zero after a module."""
    return tuple(sorted({int(channel) for hold in _holds(module) for channel in hold.gone}))


def _holds(module: nn.Module) -> list[HoldOutput]:
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, HoldOutput)]


def kept_columns(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The columns that masks leave to each layer they are on."""
    kept: dict[str, set[int]] = {}
    for outer, module in model.named_modules():
        for hook in _stored(module):
            for name, own in hook.kept.items():
                path = f"{outer}.{name}" if outer else name
                kept[path] = kept.get(path, set(own)) & set(own)
    return {name: tuple(sorted(own)) for name, own in kept.items()}


def held(module: nn.Module, made: Tensor) -> Tensor:
    """What a module made, with what its output masks make zero; it may have run without hooks."""
    for hold in _holds(module):
        made = hold(module, (), made)
    return made


def released(model: nn.Module) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    """A model without the output masks that were put on it, and what they made zero.

    Masks of columns hold from call to call; an optimiser's step may have come after the last
    one, so they are applied again.
    """
    for own in model.modules():
        for stored in _stored(own):
            stored(own, ())
    gone = {name: held_channels(own) for name, own in model.named_modules() if _holds(own)}
    if not gone:
        return model, {}
    bare = copy.deepcopy(model)
    for name in gone:
        hooks = bare.get_submodule(name)._forward_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, HoldOutput)]:
            del hooks[key]
    return bare, gone


def _stored(module: nn.Module) -> list[HoldStored]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, HoldStored)]


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
