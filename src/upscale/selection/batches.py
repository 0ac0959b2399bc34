"""Batches: running a model on the caller's data, and reading what its layers see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from upscale.errors import ExampleError, SelectionError, UpscaleError
from upscale.model.accepting import accepted, is_ordinary, ordinary, with_numbers
from upscale.model.layers import layers, weight_of


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call of the model takes, and the target that came with it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any

    def run(self, model: nn.Module) -> Any:
        """What the model makes of it."""
        try:
            return model(*self.args, **self.kwargs)
        except UpscaleError:
            raise
        except Exception as error:  # the model's own code runs and may raise anything
            raise ExampleError(
                f"{type(model).__name__} fails on a batch of the data: {error}; pass batches of "
                "what its forward takes"
            ) from error


def batches_of(data: Iterable[Any], inputs: int) -> Iterator[Batch]:
    """Batches as loaders give them, for a model of so many positional inputs.

    A batch is a tensor, a tuple of inputs or a dict of keyword inputs; one part more than the
    model has inputs is the target.
    """
    for given in map(ordinary, data):
        if isinstance(given, Tensor):
            yield Batch((given,), {}, None)
        elif isinstance(given, Mapping):
            yield Batch((), given, None)
        elif isinstance(given, Sequence) and len(given) == inputs:
            yield Batch(tuple(given), {}, None)
        elif isinstance(given, Sequence) and len(given) == inputs + 1:
            *args, target = given
            named = inputs == 1 and isinstance(args[0], Mapping)
            yield Batch((), args[0], target) if named else Batch(tuple(args), {}, target)
        else:
            raise SelectionError(
                f"a batch of data is a {type(given).__name__}; it must be what the model takes, "
                "alone or followed by a target"
            )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; each module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def read_maps(
    model: nn.Module,
    names: Sequence[str],
    side: str,
    batches: Sequence[Batch],
    reading: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """For each layer a reading of the feature maps it reads, or makes, averaged over images.

    Maps come as images × channels × space, and a reading is a number for each channel, summed
    over images. Groups of a convolution share columns, so their maps' readings are summed.
    """
    totals: dict[str, Tensor] = {}
    seen: dict[str, int] = {}
    own = layers(model)

    def look(name: str, maps: Tensor) -> None:
        layer = own[name]
        if isinstance(layer, nn.Linear):
            maps = maps.reshape(1, -1) if maps.ndim == 1 else maps
            maps = maps.flatten(1, -2).movedim(-1, 1) if maps.ndim > 2 else maps.unsqueeze(2)
        elif maps.ndim == weight_of(layer).ndim - 1:
            maps = maps.unsqueeze(0)
        found = reading(maps.detach())
        if side == "input":
            found = found.reshape(int(getattr(layer, "groups", 1)), -1).sum(dim=0)
        totals[name] = totals.get(name, torch.zeros_like(found)) + found
        seen[name] = seen.get(name, 0) + maps.shape[0]

    def watch(name: str) -> RemovableHandle:
        if side == "input":
            return own[name].register_forward_pre_hook(lambda _, args: look(name, args[0]))
        return own[name].register_forward_hook(lambda _, args, out: look(name, out))

    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        for name in names:
            hooks.enter_context(watch(name))
        for batch in batches:
            batch.run(model)
    return {name: total / max(1, seen[name]) for name, total in totals.items()}


def recalibrate(model: nn.Module, batches: Iterable[Any], inputs: int = 1) -> nn.Module:
    """Renew a model's BatchNorm statistics on batches of its inputs, in place; returns it.

    Pruning shifts what BatchNorms see; their old statistics cost accuracy that a few batches
    bring back. Everything else stays as it is, modes and dropout included.
    """
    norms = [
        module
        for module in with_numbers(accepted(model)).modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    found = list(batches_of(batches, inputs))
    if not found:
        raise SelectionError("recalibrate needs batches of the model's inputs; there are none")
    momenta = [norm.momentum for norm in norms]
    # What was made under inference mode can be written to under it alone.
    mode = torch.no_grad() if is_ordinary(model) else torch.inference_mode()
    with evaluating(model), mode:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
            norm.training = True
        try:
            for batch in found:
                batch.run(model)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
    return model
