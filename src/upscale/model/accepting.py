"""Which models are taken, and what they are taken as: plain, stored weights with numbers in them.

A model is `accepted` if its modules and tensors are of kinds that can be pruned. One made under
inference mode is copied into ordinary tensors, which can be trained and saved. Weights that it
computes anew in every call are settled: `weight_norm`, `spectral_norm` and `torch.nn.utils.prune`
compute them in hooks, parametrisations in properties. In evaluation mode they compute the same
every time, so once is enough, and the copy stores them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves, tree_map_only

from upscale.errors import CaptureError
from upscale.model.layers import KINDS, copied, equal, modules_of, tensors
from upscale.tools.own_draws import OwnDraws

UNTOUCHED = ("__torch_function__", "__torch_dispatch__")
# What hooks compute a tensor from, beside it in the module: its name and an ending.
ENDINGS: Mapping[type[Any], tuple[str, ...]] = {
    prune.BasePruningMethod: ("_orig", "_mask"),
    WeightNorm: ("_g", "_v"),
    SpectralNorm: ("_orig", "_u", "_v"),
}
# Where torch defines hooks that only carry the parts in and out of a state dict.
CARRIERS = {"torch.nn.utils.parametrizations", "torch.nn.utils.spectral_norm"}


def checked(model: nn.Module) -> nn.Module:
    """The model given, or an ordinary copy of one that was made under inference mode; raises, and
    says what to do, if nothing here could prune it."""
    return ordinary_model(accepted(model))


def accepted(model: nn.Module) -> nn.Module:
    """The very model given; raises, and says what to do, if nothing here could prune it."""
    if not isinstance(model, nn.Module):
        raise CaptureError(_no_module(model))
    for path, module in modules_of(model).items():
        said = _module_refused(module)
        if said is not None:
            raise CaptureError(f"{path or 'the model'}, a {type(module).__name__}, {said}")
        for name, tensor in {**module._parameters, **module._buffers}.items():
            weighs = name == "weight" and isinstance(module, KINDS)
            said = None if tensor is None else _tensor_refused(tensor, weighs)
            if said is not None:
                raise CaptureError(f"{path}.{name} {said}".removeprefix("."))
    return model


def with_numbers(model: nn.Module) -> nn.Module:
    """The model given; raises if parameters or buffers of it are on the meta device.

    >>> with_numbers(nn.Linear(2, 3, device="meta"))
    Traceback (most recent call last):
    ...
    upscale.errors.CaptureError: weight is on the meta device and has no numbers; load ...
    """
    for name, tensor in tensors(model).items():
        if tensor.is_meta:
            raise CaptureError(
                f"{name} is on the meta device and has no numbers; load the model's weights first "
                "(model.to_empty(device='cpu'), then load_state_dict)"
            )
    return model


def _no_module(model: object) -> str:
    said = f"expected a torch.nn.Module, not {type(model).__name__}"
    if isinstance(model, torch.export.ExportedProgram):
        return f"{said}; pass the module that the program was exported from"
    if isinstance(model, type) and issubclass(model, nn.Module):
        return f"{said}; {model.__name__} is a class, pass an instance of it"
    return said


def _module_refused(module: nn.Module) -> str | None:
    """What is said of a module whose layers cannot be seen, or must not be changed."""
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "is TorchScript, which does not show its layers; pass the module it was scripted or "
            "traced from, and script the export (upscale.deploy.to_torchscript)"
        )
    home = type(module).__module__
    if home.startswith("torch.") and ".quantized." in home:
        return (
            "is quantised: it has no weights that could be pruned; prune the model it was "
            "quantised from, then quantise the export"
        )
    if isinstance(module, fx.GraphModule) and "eval" in vars(module):
        return (
            "is what torch.export made of a model, and has no layers any more; pass the module "
            "that was exported, and export what is pruned (upscale.deploy.to_exported)"
        )
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return "is one process's part of a model; pass what it wraps, its .module"
    return None


def _tensor_refused(tensor: Tensor, weighs: bool) -> str | None:
    """What is said of a parameter or buffer that is no plain tensor, or that `weighs`, as layers'
    weights do, and holds no real, floating-point numbers."""
    if is_lazy(tensor):
        return (
            "has no shape yet: its module is lazy; call the model once on an example before it "
            "is pruned"
        )
    if not _is_plain(type(tensor)):
        return (
            f"is a {type(tensor).__name__}, a kind of tensor that computes in its own way; prune "
            "the model with plain weights, and convert (quantise, shard) the export"
        )
    if tensor.is_quantized:
        return "is quantised; prune the model it was quantised from, then quantise the export"
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return f"is stored as {layout}; make it dense first: nn.Parameter(weight.to_dense())"
    if weighs and not tensor.is_floating_point():
        todo = "prune the model it was quantised from, then quantise the export"
        if tensor.is_complex():
            todo = "compute with its real and imaginary parts in layers of their own"
        return (
            f"holds numbers of type {str(tensor.dtype).removeprefix('torch.')}, and only layers "
            f"of real, floating-point weights are pruned; {todo}"
        )
    return None


def _is_plain(kind: type[Tensor]) -> bool:
    """Whether tensors of a class compute as torch's own do."""
    own = all(getattr(kind, name) == getattr(nn.Parameter, name) for name in UNTOUCHED)
    return kind is Tensor or (own and issubclass(kind, nn.Parameter))


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Leave inference mode for a while: what is made under it can never be trained.

    It is left only where it is on, since leaving it turns gradients on.

    >>> with torch.inference_mode(), ordinary_tensors():
    ...     torch.zeros(1).is_inference()
    False
    """
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        yield


def ordinary_model(model: nn.Module) -> nn.Module:
    """The model; or, if it was made under inference mode, a copy that was not."""
    if is_ordinary(model):
        return model
    with ordinary_tensors():
        return copy.deepcopy(model)


def is_ordinary(model: nn.Module) -> bool:
    """Whether all that a model owns was made outside of inference mode."""
    return not any(own.is_inference() for own in (*model.parameters(), *model.buffers()))


def ordinary(tree: Any) -> Any:
    """What was given, with copies in place of tensors that were made under inference mode."""
    with ordinary_tensors():
        return tree_map_only(Tensor, lambda x: x.clone() if x.is_inference() else x, tree)


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
    if not isinstance(first, Tensor) or not equal(first, second):
        raise CaptureError(
            f"{where}: its {name} is computed otherwise every time, also in evaluation mode; make "
            "it permanent first (torch.nn.utils.parametrize.remove_parametrizations)"
        )
    return first.detach().clone()


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
        if equal(known, value):
            return known
    trained = any(source.requires_grad for source in sources)
    alike.append(nn.Parameter(value, requires_grad=trained))
    return alike[-1]
