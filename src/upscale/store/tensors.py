"""The table of tensors: what each is to the module that holds it, and how it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from upscale.errors import StoreError
from upscale.model.layers import tensors
from upscale.rewrite.constant import Constant
from upscale.rewrite.gather import Gather
from upscale.store.checks import Json, as_bool, as_entry, as_object, as_table

FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
RANKS = {"channels_last": 4, "channels_last_3d": 5}
ROLES = {"parameter": True, "buffer": False}  # and whether it is trained, if nothing is said


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of a module: the name it is stored under, and what it is there."""

    stored: str
    role: str
    memory: str
    trained: bool
    persistent: bool


def tensors_to_json(module: nn.Module) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """The table of every parameter and buffer by its path, without what goes without saying, and
    the tensors to store, shared ones once."""
    told: dict[str, Json] = {}
    first: dict[int, str] = {}
    stored: dict[str, Tensor] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for role, table in (("parameter", owner._parameters), ("buffer", owner._buffers)):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                path = f"{prefix}.{name}" if prefix else name
                known, memory = first.setdefault(id(tensor), path), _memory(tensor, path)
                stored[known] = tensor.detach()
                trained, lost = tensor.requires_grad, name in owner._non_persistent_buffers_set
                told[path] = {
                    "role": role,
                    **({} if known == path else {"stored": known}),
                    **({} if memory == "contiguous" else {"memory": memory}),
                    **({} if trained == ROLES[role] else {"trained": trained}),
                    **({"persistent": False} if lost else {}),
                }
    return told, stored


def json_to_tensors(table: Json) -> dict[str, Held]:
    """The table of a file."""
    held: dict[str, Held] = {}
    for path, entry in as_table(table).items():
        given = as_object(
            entry, "role", stored=path, memory="contiguous", trained=None, persistent=True
        )
        trained = as_entry(ROLES, given["role"], "role")
        as_entry(FORMATS, given["memory"], "memory format")
        given["trained"] = trained if given["trained"] is None else as_bool(given["trained"])
        as_bool(given["persistent"])
        held[path] = Held(**given)
    return held


def install(module: nn.Module, held: dict[str, Held], stored: dict[str, Tensor]) -> None:
    """Give a module the tensors of a file, in place of those it has, which say what must fit."""
    made: dict[tuple[str, str], Tensor] = {}
    for path, own in held.items():
        prefix, _, name = path.rpartition(".")
        owner = submodule(module, prefix, f"has a tensor in {prefix[:80]!r}, where no module is")
        key = (own.stored, own.role)
        tensor = as_entry(stored, own.stored, "tensor")
        check_fits(owner, name, tensor)
        if key not in made:
            made[key] = _made(tensor, own, path)
        if name not in owner._parameters and name not in owner._buffers and hasattr(owner, name):
            raise StoreError(f"the file has a tensor {path} where no tensor can be")
        owner._parameters.pop(name, None)
        owner._buffers.pop(name, None)
        if own.role == "buffer":
            owner.register_buffer(name, made[key], persistent=own.persistent)
        else:
            setattr(owner, name, made[key])  # recurrent layers keep a list of theirs
    missing = tensors(module).keys() - held.keys()
    if missing:
        raise StoreError(f"the file lacks tensors: {', '.join(sorted(missing)[:5])}")
    _check_recurrent(module)


def check_fits(owner: nn.Module, name: str, tensor: Tensor) -> None:
    """Raise unless a tensor is one that a layer made anew has under a name.

    Some of torch's layers trust their weights to have the shapes they were made with, and read
    beyond shorter ones.
    """
    if type(owner) is nn.Module or isinstance(owner, fx.GraphModule):
        return  # what is read by name alone meets operations that look at shapes themselves
    expected: Tensor | None = (owner._buffers | owner._parameters).get(name)
    if isinstance(owner, (Constant, Gather)):
        # Which channels a gather copies, and what a constant's layer has kept, is the file's say.
        ranks = {"indices": tensor.ndim == 1, "bias": tensor.ndim == 1, "weight": True}
        fits = ranks.get(name, False) and (name == "indices") == (tensor.dtype == torch.long)
    else:
        fits = expected is not None and tensor.shape == expected.shape and _alike(tensor, expected)
    if not fits:
        like = "" if expected is None else f", but {tuple(expected.shape)} of {expected.dtype}"
        raise StoreError(
            f"a {type(owner).__name__} like this has no {name} of shape {tuple(tensor.shape)} of "
            f"{tensor.dtype}{like}"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether tensors hold one kind of numbers: any that float, or the very same."""
    return (one.is_floating_point() and other.is_floating_point()) or one.dtype == other.dtype


def _check_recurrent(module: nn.Module) -> None:
    """Raise unless every recurrent layer has the weights it runs with, all of one dtype."""
    for path, own in module.named_modules():
        if isinstance(own, nn.RNNBase):
            held = [own._parameters.get(name) for name in own._flat_weights_names]
            apart = any(one is not two for one, two in zip(held, own._flat_weights, strict=True))
            if apart or len({tensor.dtype for tensor in held if tensor is not None}) != 1:
                raise StoreError(f"the file's weights of {path} are not those of one layer")


def submodule(module: nn.Module, path: str, otherwise: str) -> nn.Module:
    """The module at a path, or an error that says what the file does otherwise."""
    try:
        return module.get_submodule(path)
    except AttributeError as error:
        raise StoreError(f"the file {otherwise}") from error


def _made(tensor: Tensor, own: Held, path: str) -> Tensor:
    if RANKS.get(own.memory, tensor.ndim) != tensor.ndim:
        raise StoreError(f"the file has {path} in {own.memory}, which its shape cannot be")
    laid = torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=FORMATS[own.memory])
    laid.copy_(tensor)
    if own.trained and not (tensor.is_floating_point() or tensor.is_complex()):
        raise StoreError(f"the file trains {path}, whose numbers are whole")
    if own.role == "parameter":
        return nn.Parameter(laid, requires_grad=own.trained)
    return laid.requires_grad_(own.trained)


def _memory(tensor: Tensor, path: str) -> str:
    """The memory format whose strides a tensor has; a tensor in none is stored contiguous."""
    if tensor.is_meta:
        raise StoreError(f"{path} is on the meta device and has no numbers to save")
    if tensor.layout is not torch.strided:
        raise StoreError(f"{path} is sparse; make it dense to save it")
    for name, memory in FORMATS.items():
        if RANKS.get(name, tensor.ndim) == tensor.ndim:
            like = torch.empty(tensor.shape, device="meta", memory_format=memory)
            if like.stride() == tensor.stride():
                return name
    return "contiguous"
