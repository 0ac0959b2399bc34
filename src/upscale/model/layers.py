"""The layers a selection may name, whether it fits them, and the names of what a model owns."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from upscale.errors import SelectionError
from upscale.selected.selection import Selection, no_selection

KINDS = (nn.modules.conv._ConvNd, nn.Linear)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module of a model, itself among them, by every qualified name it has.

    As `named_modules` gives them, but without a generator for each level that is walked.
    """
    found: dict[str, nn.Module] = {}
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        found[path] = module
        for name, part in reversed(module._modules.items()):
            if part is not None:
                waiting.append((f"{path}.{name}" if path else name, part))
    return found


def layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every convolution and linear of a model, by name."""
    return {
        name: module
        for name, module in modules_of(model).items()
        if isinstance(module, KINDS) and isinstance(getattr(module, "weight", None), Tensor)
    }


def weight_of(layer: nn.Module) -> Tensor:
    """A layer's weight, as it is now."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def column_axis(layer: nn.Module) -> int:
    """The axis of a layer's weight that its input channels lie along."""
    return 0 if getattr(layer, "transposed", False) else 1


def columns(layer: nn.Module) -> int:
    """How many input channels a layer's weight tells apart."""
    return int(weight_of(layer).shape[column_axis(layer)])


# What a class may say anew and still compute as the class that it derives from.
HARMLESS = {"reset_parameters", "extra_repr"}
CALLING = {"__call__", "__getattr__", "__getattribute__"}


def stock_class(module: nn.Module) -> type[nn.Module] | None:
    """The class of torch's own that a module computes as, if it does: its own, or one before it.

    A class that derives from torch's may construct itself otherwise, and have methods of its own.
    """
    if "forward" in vars(module) or "_conv_forward" in vars(module):
        return None
    kinds = type(module).__mro__
    stock = next(kind for kind in kinds if kind.__module__.startswith("torch.nn.modules."))
    if stock is type(module):
        return stock
    used = {name for name in dir(stock) if not name.startswith("__")} - HARMLESS | CALLING
    used |= {*module._parameters, *module._buffers, *vars(module)}
    own = {name for kind in kinds[: kinds.index(stock)] for name in vars(kind)}
    return None if own & used else stock


def as_stock(layer: nn.Module) -> nn.Module:
    """The layer as one of torch's own class, if it computes as that; changed in place."""
    stock = stock_class(layer)
    if stock is not None and stock is not type(layer):
        plain = stock(1, 1) if stock is nn.Linear else stock(1, 1, 1)
        for name in vars(layer).keys() - vars(plain).keys():
            delattr(layer, name)
        layer.__class__ = stock
    return layer


def computes_weight(layer: nn.Module) -> bool:
    """Whether a layer may use another weight than the one it stores.

    So do those whose class has a forward of its own, such as weight standardisation. Zeroing
    what they store would change what they compute from it.
    """
    return stock_class(layer) is None or "weight" not in layer._parameters


def stock_layers(model: nn.Module) -> frozenset[str]:
    """The names of all layers that compute as one of torch's own class does."""
    modules = modules_of(model).items()
    return frozenset(n for n, m in modules if isinstance(m, KINDS) and stock_class(m) is not None)


def computed_weights(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The layers that compute their weight in every call, and its shape."""
    computing = {n: layer for n, layer in layers(model).items() if computes_weight(layer)}
    return {name: tuple(weight_of(layer).shape) for name, layer in computing.items()}


def weight_names(model: nn.Module) -> dict[str, str]:
    """The name of each layer's weight; layers that share one have one name."""
    names = parameter_names(model)
    return {
        name: f"{name}.weight" if computes_weight(layer) else names[id(weight_of(layer))]
        for name, layer in layers(model).items()
    }


def check_fits(model: nn.Module, selection: object) -> None:
    """Raise unless a selection fits a model: its layers, their channels, and weights they share."""
    if not isinstance(selection, Selection):
        raise no_selection(selection)
    own, shared, side = layers(model), weight_names(model), selection.side
    owners: dict[str, str] = {}
    for name, kept in [*selection.kept.items(), *selection.windows.items()]:
        if name not in own:
            tail = name.rpartition(".")[2]
            near = [other for other in own if other.endswith(tail) or name in other][:3]
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise SelectionError(f"there is no convolution or linear layer named {name!r}{hint}")
        axis = column_axis(own[name])
        size = weight_of(own[name]).shape[axis if side == "input" else 1 - axis]
        last = max(kept, default=-1)
        if last >= size:
            raise SelectionError(
                f"{name} has {size} {side} channels; kept index {last} is out of range "
                f"0..{size - 1}"
            )
        owner = owners.setdefault(shared[name], name)
        for lists in (selection.kept, selection.windows):
            if lists.get(owner) != lists.get(name):
                raise SelectionError(
                    f"{owner} and {name} share one weight but keep different channels; "
                    "give both the same list"
                )


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, by every qualified name it has."""
    modules = modules_of(model).items()
    return {
        f"{path}.{name}" if path else name: tensor
        for table in ("_parameters", "_buffers")
        for path, module in modules
        for name, tensor in vars(module)[table].items()
        if tensor is not None
    }


def parameter_names(model: nn.Module) -> dict[int, str]:
    """The first qualified name of every parameter and buffer, by identity."""
    names: dict[int, str] = {}
    for name, tensor in tensors(model).items():
        names.setdefault(id(tensor), name)
    return names


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, also where they are no numbers."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta or torch.equal(one, other):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())


def copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy, quick for torch's own modules, which hold little but their parameters.

    `memo` gives what takes the place of things, as `copy.deepcopy` has it.
    """
    if id(module) in memo:
        known: nn.Module = memo[id(module)]
        return known
    if hasattr(type(module), "__deepcopy__") or _copies_itself(type(module)):
        return copy.deepcopy(module, memo)
    twin = module.__new__(type(module))
    memo[id(module)] = twin
    own = {}
    for name, part in vars(module).items():
        kind = type(part)
        if kind in TABLES and not part:
            own[name] = kind()
        elif name != "_modules":
            own[name] = part if kind in SIMPLE else _copied_part(part, memo)
    parts = module._modules.items()
    own["_modules"] = {n: None if m is None else copied(m, memo) for n, m in parts}
    twin.__dict__ = own
    return twin


COPYING = {"__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"}


def _copies_itself(kind: type[nn.Module]) -> bool:
    """Whether a class says how its modules are copied, such as those that `torch.compile` makes."""
    return any(
        COPYING & vars(own).keys()
        for own in kind.__mro__
        if own is not object and not own.__module__.startswith("torch.nn.")
    )


# What is never changed, and what most often is there and empty: the tables of hooks.
SIMPLE = {type(None), bool, int, float, str, torch.dtype, torch.device}
TABLES = {dict, OrderedDict, set}


def _copied_part(part: Any, memo: dict[int, Any]) -> Any:
    kind = type(part)
    if kind is tuple and all(type(x) in SIMPLE for x in part):
        return part
    if isinstance(part, dict) and all(
        isinstance(x, Tensor) and id(x) in memo for x in part.values()
    ):
        return kind((name, memo[id(x)]) for name, x in part.items())
    return copy.deepcopy(part, memo)
