"""Settling: weights that a model computes anew in every call become weights that it stores.

`weight_norm`, `spectral_norm` and `torch.nn.utils.prune` compute them in hooks, parametrisations
in properties. In evaluation mode they compute the same every time, so once is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from upscale.errors import CaptureError
from upscale.model.layers import KINDS, copied
from upscale.tools.own_draws import OwnDraws

# What hooks compute a tensor from, beside it in the module: its name and an ending.
ENDINGS: Mapping[type[Any], tuple[str, ...]] = {
    prune.BasePruningMethod: ("_orig", "_mask"),
    WeightNorm: ("_g", "_v"),
    SpectralNorm: ("_orig", "_u", "_v"),
}
# Where torch defines hooks that only carry the parts in and out of a state dict.
CARRIERS = {"torch.nn.utils.parametrizations", "torch.nn.utils.spectral_norm"}


def settled(model: nn.Module) -> nn.Module:
    """The model; or, if it computes weights from others, a copy that stores them as they are.

    Raises if such a layer trains: its weights are other ones after every step, and some after
    every call.

    >>> net = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)).eval()
    >>> sorted(name for name, _ in settled(net).named_parameters())
    ['bias', 'weight']
    """
    if not any(_is_unsettled(module) for module in model.modules()):
        return model
    for name, module in model.named_modules():
        _check(module, name or type(model).__name__)
    made: dict[frozenset[int], list[nn.Parameter]] = {}
    # A parametrisation may draw numbers; the caller's stay as they were.
    with torch.inference_mode(False), torch.no_grad(), OwnDraws():
        twin = duplicate(model)
        for name, module in list(twin.named_modules()):
            _settle(module, name or type(model).__name__, made)
    return twin


def duplicate(model: nn.Module) -> nn.Module:
    """A copy of a model that holds results of its last call, which a deep copy would refuse."""
    results = {
        id(tensor): tensor.detach().clone()
        for module in model.modules()
        for tensor in tree_leaves(vars(module))
        if isinstance(tensor, Tensor) and not tensor.is_leaf
    }
    return copied(model, dict(results))


def _is_unsettled(module: nn.Module) -> bool:
    return bool(
        _hooks(module) or _carriers(module) or parametrize.is_parametrized(module) or _loose(module)
    )


def _hooks(module: nn.Module) -> dict[int, Any]:
    """The hooks that compute a tensor of a module before each call."""
    hooks = module._forward_pre_hooks.items()
    return {key: hook for key, hook in hooks if isinstance(hook, tuple(ENDINGS))}


def _parts(hook: Any) -> tuple[str, ...]:
    """The names of what a hook computes its tensor from."""
    endings = next(found for kind, found in ENDINGS.items() if isinstance(hook, kind))
    return tuple(_name(hook) + ending for ending in endings)


def _name(hook: Any) -> str:
    return str(hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name)


def _carriers(module: nn.Module) -> list[tuple[dict[int, Any], int]]:
    """Hooks on a module's state dict that torch leaves behind, each with the table it is in."""
    return [
        (table, key)
        for table in (module._state_dict_hooks, module._load_state_dict_pre_hooks)
        for key, hook in table.items()
        if getattr(getattr(hook, "hook", hook), "__module__", None) in CARRIERS
    ]


def _loose(module: nn.Module) -> tuple[str, ...]:
    """What a layer applies although it is neither a parameter nor a buffer."""
    if not isinstance(module, KINDS):
        return ()
    return tuple(n for n in ("weight", "bias") if isinstance(vars(module).get(n), Tensor))


def _check(module: nn.Module, where: str) -> None:
    """Raise if what a module computes cannot be computed once for all calls."""
    hooks = _hooks(module)
    masks = [hook for hook in hooks.values() if isinstance(hook, prune.BasePruningMethod)]
    computed = [hook for hook in hooks.values() if hook not in masks]
    if module.training and (computed or parametrize.is_parametrized(module)):
        raise CaptureError(
            f"{where} is in training mode and computes its weights anew in every call: call "
            "model.eval() first, which has them computed once, or make them permanent (torch has "
            "remove_weight_norm, remove_spectral_norm and parametrize.remove_parametrizations)"
        )
    strangers = module._forward_pre_hooks.keys() - hooks.keys()
    loose = set(_loose(module)).difference(map(_name, hooks.values()))
    if strangers and loose:
        raise CaptureError(
            f"{where} has a hook, and its {min(loose)} is neither a parameter nor a buffer: the "
            "hook may compute it, in a way that is not known here. Make it permanent first: "
            f"remove the hook and register the {min(loose)} as a parameter"
        )


def _settle(module: nn.Module, where: str, made: dict[frozenset[int], list[nn.Parameter]]) -> None:
    """Let a module store what it computes, and nothing that it computes it from."""
    hooks, loose = _hooks(module), _loose(module)
    parts = {_name(hook): _parts(hook) for hook in hooks.values()}
    lists: dict[str, nn.Module] = {}
    if parametrize.is_parametrized(module):
        lists = dict(module.parametrizations.items())  # type: ignore[operator, union-attr]
    for _ in hooks:  # one may compute from what a later one computes
        for hook in hooks.values():
            hook(module, ())
    dropped = {part for own in parts.values() for part in own}
    names = dict.fromkeys(n for n in (*parts, *lists, *loose) if n not in dropped)
    values = {name: _value(module, name, where) for name in names}
    sources = {name: list(_sources(module, name, parts, lists)) for name in names}
    _strip(module, dropped | names.keys())
    for name, value in values.items():
        if sources[name]:
            setattr(module, name, _parameter(value, sources[name], made))
        else:
            module.register_buffer(name, value)


def _strip(module: nn.Module, names: set[str]) -> None:
    """Take away what computes a module's tensors, and everything of these names."""
    if parametrize.is_parametrized(module):
        # Torch made a class for the module; the caller's own module is of that class still.
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module._modules["parametrizations"]
    for key in _hooks(module):
        del module._forward_pre_hooks[key]
    for table, key in _carriers(module):
        del table[key]
    for name in names:
        module._parameters.pop(name, None)
        module._buffers.pop(name, None)
        vars(module).pop(name, None)


def _value(module: nn.Module, name: str, where: str) -> Tensor:
    """What a module computes for a name; raises unless it is the same every time."""
    try:
        first, second = (getattr(module, name) for _ in range(2))
    except Exception as error:  # parametrisations are the caller's code and may raise anything
        raise CaptureError(f"{where}: its {name} cannot be computed: {error}") from error
    if not isinstance(first, Tensor) or not _equal(first, second):
        raise CaptureError(
            f"{where}: its {name} is computed otherwise every time, also in evaluation mode; make "
            "it permanent first (torch.nn.utils.parametrize.remove_parametrizations)"
        )
    return first.detach().clone()


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, also where they are no numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.is_meta or torch.equal(one.nan_to_num(), other.nan_to_num())


def _sources(
    module: nn.Module,
    name: str,
    parts: Mapping[str, tuple[str, ...]],
    lists: Mapping[str, nn.Module],
) -> Iterator[nn.Parameter]:
    """The parameters that a module computes a tensor from."""
    if name in lists:
        yield from lists[name].parameters()
    for part in parts.get(name, ()):
        own = module._parameters.get(part)
        yield from [own] if own is not None else _sources(module, part, parts, lists)


def _parameter(
    value: Tensor, sources: list[nn.Parameter], made: dict[frozenset[int], list[nn.Parameter]]
) -> nn.Parameter:
    """A parameter of a value; one that was made, if that was computed alike from the same."""
    alike = made.setdefault(frozenset(map(id, sources)), [])
    for known in alike:
        if _equal(known, value):
            return known
    trained = any(source.requires_grad for source in sources)
    alike.append(nn.Parameter(value, requires_grad=trained))
    return alike[-1]
