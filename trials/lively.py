"""Random models whose output follows their input through all layers, calmly.

An untrained model forgets its input: the input's share in the output shrinks with every layer,
until all that two models are compared by is a sum of biases. Scaled up without care, a deep one
is chaotic: it makes more of rounding than any tolerance. Here every layer is scaled by what it
computes from the very images that are compared, and its norms are damped as far as calm needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

import upscale
from upscale.model.layers import column_axis, columns, layers, weight_of

ROUNDING = 1e-15
NUDGE = 1e-3
MOST_RESPONSE = 1e-12
DAMPING = (1.0, 0.5, 0.25, 0.125, 0.0625)
OFFSET = 0.5

Shape = tuple[int, ...]
Selections = Sequence[upscale.Selection]


@dataclass(frozen=True, slots=True)
class Liveliness:
    """How a model answers on the images compared; all relative to the size of its output.

    `to_rounding` and `to_nudge` tell how far the output moves when every pixel is moved at random
    by shares of `ROUNDING` and `NUDGE`, `variation` how far outputs for different images are
    apart. Scaling all pixels alike would not do: a normalisation may take that back.
    """

    to_rounding: float
    to_nudge: float
    variation: float

    @property
    def calm(self) -> bool:
        """Whether the model makes so little of rounding that an exact export can show it."""
        return self.to_rounding <= MOST_RESPONSE


@dataclass(frozen=True, slots=True)
class Lively:
    """A model, what it is to keep, the inputs that it is scaled for, and how it answers them."""

    model: nn.Module
    selections: Selections
    inputs: Tensor
    measured: Liveliness


def make_lively(
    make: Callable[[], nn.Module],
    select: Callable[[nn.Module], Selections],
    shape: Shape,
) -> Lively:
    """A model enlivened, with as little damping as makes it calm: all there is, if none does."""
    for damping in DAMPING:
        model = make()
        selections = select(model)
        inputs = images(shape)
        enliven(model, selections, inputs, damping)
        measured = liveliness(upscale.mask(model, selections).double(), inputs)
        if measured.calm:
            break
    return Lively(model, selections, inputs, measured)


@torch.no_grad()
def tell_channels_apart(model: nn.Module) -> None:
    """Draw every parameter whose entries are all equal: norms, scales, zero biases, tokens."""
    for parameter in model.parameters():
        first = parameter.flatten()[0]
        if bool((parameter == first).all()):
            if first == 0:
                parameter.normal_(std=0.5)
            else:
                parameter.uniform_(0.5, 2)


def calm(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics and parameters that tell every channel apart.

    Enough for small models. In deep ones the input's share in the output shrinks all the same.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
        if isinstance(module, norms) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    for layer in layers(model).values():
        if isinstance(layer.bias, Tensor) and not bool(layer.bias.any()):
            nn.init.normal_(layer.bias, std=0.1)
    return model.eval()


def images(shape: Shape) -> Tensor:
    """Noise whose level and strength differ from image to image, so that their means do too."""
    strength, level = torch.rand(shape[0], 3, 1, 1) + 0.5, torch.randn(shape[0], 3, 1, 1)
    return torch.randn(shape) * strength + level


@torch.no_grad()
def enliven(model: nn.Module, selections: Selections, inputs: Tensor, damping: float = 1.0) -> None:
    """Scale a model so that the masked one's output follows these inputs.

    Layers are scaled to outputs of variance one. BatchNorm gets the statistics of what it reads,
    each channel's mean off by some of its own, and its variance as if it were larger by the
    damping: the stronger, the less a residual branch adds to what it branches from. What the
    mask hides is drawn anew, far from zero.
    """
    masked = upscale.mask(model, selections)
    for module in masked.modules():
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)):
            # Before the masks' own hooks: what they make zero stays zero.
            module.register_forward_hook(_scale_layer, prepend=True)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(partial(_shift_norm, damping))
    masked(inputs)
    model.load_state_dict(masked.state_dict())
    columns_kept = (s.kept.items() for s in selections if s.side == "input")
    for name, kept in chain.from_iterable(columns_kept):
        layer = model.get_submodule(name)
        gone = torch.tensor(sorted(set(range(columns(layer))).difference(kept)), dtype=torch.long)
        weight = weight_of(layer)
        fill = torch.randn_like(weight.index_select(column_axis(layer), gone))
        weight.index_copy_(column_axis(layer), gone, fill * weight.std())


@torch.no_grad()
def liveliness(masked: nn.Module, inputs: Tensor) -> Liveliness:
    """How a model in float64 answers to rounding, to a nudge, and to another image.

    Rounding differs between any two ways to compute one function. Where the function itself
    makes more of it than the tolerance, two models cannot be told apart by comparing them.
    """
    inputs = inputs.double()
    plain = masked(inputs)
    size = plain.abs().max()
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0)).double()
    return Liveliness(
        to_rounding=float((masked(inputs * (1 + ROUNDING * noise)) - plain).abs().max() / size),
        to_nudge=float((masked(inputs * (1 + NUDGE * noise)) - plain).abs().max() / size),
        variation=float((plain - plain.mean(0)).abs().max() / size),
    )


def _scale_layer(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    channels = -1 if isinstance(layer, nn.Linear) else 1
    spread = output.movedim(channels, 0).flatten(1).var(1).mean().sqrt()
    if not bool(spread > 0):
        return output
    weight_of(layer).div_(spread)
    if not isinstance(layer.bias, Tensor):
        return output / spread
    bias = layer.bias
    if channels == 1:
        bias = bias.view(-1, *[1] * (output.dim() - 2))
    return (output - bias) / spread + bias


def _shift_norm(damping: float, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    variance, mean = torch.var_mean(inputs[0].transpose(0, 1).flatten(1), dim=1)
    # A channel that hardly varies must not be blown up.
    variance = variance.clamp_min(variance.mean() / 10)
    assert isinstance(norm.running_mean, Tensor)
    assert isinstance(norm.running_var, Tensor)
    norm.running_mean.copy_(mean + variance.sqrt() * torch.randn_like(mean) * OFFSET)
    norm.running_var.copy_(variance * (torch.rand_like(variance) + 0.5) / damping**2)
