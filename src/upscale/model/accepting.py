"""Which models are taken: those of plain tensors with numbers in them, in Python's own modules."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from upscale.errors import CaptureError
from upscale.model.layers import KINDS, tensors
from upscale.model.ordinary import ordinary_model

UNTOUCHED = ("__torch_function__", "__torch_dispatch__")


def checked(model: nn.Module) -> nn.Module:
    """The model given, or an ordinary copy of one that was made under inference mode; raises, and
    says what to do, if nothing here could prune it."""
    return ordinary_model(accepted(model))


def accepted(model: nn.Module) -> nn.Module:
    """The very model given; raises, and says what to do, if nothing here could prune it."""
    if not isinstance(model, nn.Module):
        raise CaptureError(_no_module(model))
    for name, module in model.named_modules():
        said = _module_refused(module)
        if said is not None:
            raise CaptureError(f"{name or 'the model'}, a {type(module).__name__}, {said}")
    for name, tensor in tensors(model).items():
        said = _tensor_refused(tensor)
        if said is not None:
            raise CaptureError(f"{name} {said}")
    for name, module in model.named_modules():
        weight = module._parameters.get("weight") if isinstance(module, KINDS) else None
        if weight is not None and not weight.is_floating_point():
            raise CaptureError(f"{name}.weight {_numbers_refused(weight)}".removeprefix("."))
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


def _tensor_refused(tensor: Tensor) -> str | None:
    """What is said of a parameter or buffer that is no plain tensor."""
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
    return None


def _is_plain(kind: type[Tensor]) -> bool:
    """Whether tensors of a class compute as torch's own do."""
    own = all(getattr(kind, name) == getattr(nn.Parameter, name) for name in UNTOUCHED)
    return kind is Tensor or (own and issubclass(kind, nn.Parameter))


def _numbers_refused(weight: Tensor) -> str:
    """What is said of a layer's weight that holds no real, floating-point numbers."""
    kind = str(weight.dtype).removeprefix("torch.")
    todo = "prune the model it was quantised from, then quantise the export"
    if weight.is_complex():
        todo = "compute with its real and imaginary parts in layers of their own"
    return (
        f"holds numbers of type {kind}, and only layers of real, floating-point weights are "
        f"pruned; {todo}"
    )
