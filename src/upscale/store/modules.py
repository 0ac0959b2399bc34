"""Modules as specifications and back: a class of the registry and how it is constructed.

A specification says nothing of tensors: those are in the file's own table. Modules are made
anew without memory; a module that would come out otherwise than it is cannot be saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from upscale.errors import StoreError
from upscale.rewrite.constant import Constant
from upscale.rewrite.gather import Gather, Infill
from upscale.store import words
from upscale.store.checks import MOST_AXES, Json, as_entry, as_object, as_table
from upscale.store.literals import json_to_literal, literal_to_json
from upscale.store.tensors import check_fits
from upscale.tools.quiet import unwarned

CLASSES: Mapping[str, type[nn.Module]] = {
    **{f"nn.{name}": getattr(nn, name) for name in words.LAYERS},
    "nn.modules.linear.NonDynamicallyQuantizableLinear": NonDynamicallyQuantizableLinear,
    "upscale.Constant": Constant,
    "upscale.Gather": Gather,
    "upscale.Infill": Infill,
}
NAMES = {cls: name for name, cls in CLASSES.items()}
RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
WEIGHTS_OF_A_LAYER = 2  # at least: one for what comes in, one for what was there
# Set for every tensor a module has, or only once it runs: no part of how it was constructed.
DERIVED = {"training", "_flat_weights", "_flat_weight_refs", "_is_hf_initialized"}
NOT_PLAIN = DERIVED | vars(nn.Module()).keys()
HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


def module_to_json(module: nn.Module) -> dict[str, Json]:
    """How a module is made anew; raises if a file cannot say it."""
    name = NAMES.get(type(module))
    if name is None:
        raise StoreError(f"it is a {_class_name(module)}, which a file cannot hold")
    arguments = {
        key: module_to_json(value) if isinstance(value, nn.Module) else literal_to_json(value)
        for key, value in _arguments(module).items()
    }
    spec: dict[str, Json] = {"class": name, "arguments": arguments}
    _check_same(module, json_to_module(spec, len(module._parameters)))
    return spec


def json_to_module(spec: Json, tensors: int = 0) -> nn.Module:
    """A module as a file specifies it, on the meta device: without numbers in its tensors.

    `tensors` is how many the file has for it: no more are made.
    """
    entries = as_object(spec, "class", "arguments")
    cls = as_entry(CLASSES, entries["class"], "layer")
    arguments = _json_to_arguments(entries["arguments"])
    try:
        with torch.device("meta"), unwarned():  # of sizes that are zero, say
            _check_arguments(cls, arguments, tensors)
            return cls(**arguments)
    except StoreError:
        raise
    except Exception as error:  # constructors are torch's own, and check as they please
        raise StoreError(f"the file has no {cls.__name__} that torch can make: {error}") from error


def _check_arguments(cls: type[nn.Module], arguments: dict[str, Any], tensors: int) -> None:
    """Raise where a class would make more than a file has tensors for, or lists without end."""
    if cls in RECURRENT:
        ways = 2 if arguments.get("bidirectional") else 1
        if not 0 < arguments.get("num_layers", 1) * ways * WEIGHTS_OF_A_LAYER <= tensors:
            raise StoreError("the file has a recurrent layer without the weights for it")
    if issubclass(cls, (Gather, Constant)):
        given = (arguments.get(name, 0) for name in ("axis", "axes"))
        if not all(-MOST_AXES <= axis <= MOST_AXES for axis in given):
            raise StoreError(f"the file has a {cls.__name__} along an axis that no tensor has")
    if cls is Constant and not isinstance(arguments.get("probe"), nn.Module):
        raise StoreError("the file has no module where one belongs")


def _json_to_arguments(given: Json) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, value in as_table(given).items():
        if name in ("device", "dtype") or name.startswith("_"):
            raise StoreError(f"the file constructs a layer with a {name}, which none needs")
        nested = isinstance(value, dict) and "class" in value
        arguments[name] = json_to_module(value) if nested else json_to_literal(value, {})
    return arguments


def _arguments(module: nn.Module) -> dict[str, Any]:
    """What a module's class was constructed with, or could have been."""
    if isinstance(module, Gather):
        found = {"axis": module.axis, "indices": (), "rows": module.rows}
        return found | ({"axes": module.axes} if isinstance(module, Infill) else {})
    if isinstance(module, nn.MultiheadAttention):
        projected = {"bias": module.in_proj_bias, "add_bias_kv": module.bias_k}
        return _read(module, nn.MultiheadAttention) | {
            name: tensor is not None for name, tensor in projected.items()
        }
    if isinstance(module, RECURRENT):
        dropped = {"mode"} if isinstance(module, nn.LSTM) else {"mode", "proj_size"}
        found = _read(module, nn.RNNBase)
        extra = {"nonlinearity": module.nonlinearity} if isinstance(module, nn.RNN) else {}
        return {name: value for name, value in found.items() if name not in dropped} | extra
    return _read(module, type(module))


def _read(module: nn.Module, cls: type[nn.Module]) -> dict[str, Any]:
    """The arguments of a constructor that a module keeps under their own names.

    Those that are as they are by default are left out: an older torch may not know of them.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls).parameters.items():
        value = getattr(module, name, parameter.default)
        if name in module._parameters:
            value = value is not None
        if not isinstance(value, Tensor) and repr(value) != repr(parameter.default):
            found[name] = value
    return found


def _check_same(module: nn.Module, made: nn.Module) -> None:
    """Raise unless a module made anew is what the module is, but for its tensors."""
    twins = dict(made.named_modules(remove_duplicate=False))
    for path, own in module.named_modules(remove_duplicate=False):
        where = f"{path}: " if path else ""
        twin = twins.pop(path, None)
        if type(own) is not type(twin):
            raise StoreError(f"{where}it holds a {_class_name(own)}, which a file cannot hold")
        check_hooks(own, where)
        for name, tensor in (*own._parameters.items(), *own._buffers.items()):
            if tensor is not None:
                check_fits(twin, name, tensor)
        held, anew = _plain(own), _plain(twin)
        for name in sorted(held.keys() | anew.keys()):
            one, other = repr(held.get(name)), repr(anew.get(name))
            if one != other:
                raise StoreError(
                    f"{where}its {name} is {one:.80}; constructed anew it would be {other:.80}"
                )
    if twins:
        raise StoreError(f"it lacks what a {_class_name(module)} has: {', '.join(twins)}")


def check_hooks(module: nn.Module, where: str) -> None:
    """Raise if a module, or a tensor of it, has hooks: a file would lose them.

    Hooks that mask outputs are no loss: the file says them in its own way.
    """
    found = [hook for name in HOOKS for hook in getattr(module, name).values()]
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found += (getattr(tensor, name, None) or {}).values()
    if not all(getattr(hook, "only_masks", False) for hook in found):
        raise StoreError(f"{where}it has hooks, which a file cannot hold: remove them")


def _plain(module: nn.Module) -> dict[str, object]:
    """What a module holds besides tensors, modules and hooks."""
    return {name: value for name, value in vars(module).items() if name not in NOT_PLAIN}


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
