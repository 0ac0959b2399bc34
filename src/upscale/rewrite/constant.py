"""Layers that keep no input channel: what they give is their bias."""

# No deferred annotations here: torch.jit.script reads the real ones.

import copy

from torch import Tensor, nn

from upscale.model.layers import column_axis, weight_of


class Constant(nn.Module):
    """A convolution or linear without input channels: its bias, in the shape it would give.

    It is called with one channel of what the layer read, whose values do not matter. (A
    convolution on no channels at all gives no output channels either, whatever its weight.)
    """

    def __init__(self, rows: int, axis: int, probe: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.axis = axis
        self.probe = probe
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        """The bias, spread over the shape that the layer would give for `x`."""
        blank: Tensor = self.probe(x) * 0
        if isinstance(self.bias, Tensor):
            return blank + self.bias.view(-1, *[1] * (-1 - self.axis))
        sizes = [-1] * blank.dim()
        sizes[self.axis] = self.rows
        return blank.expand(sizes).contiguous()


def constant(layer: nn.Module) -> Constant:
    """What a layer is when it keeps no input channel."""
    weight = weight_of(layer)
    made = Constant(weight.shape[1 - column_axis(layer)], 1 - weight.ndim, _one_to_one(layer))
    made.training = layer.training
    made.weight, made.bias = layer.weight, layer.bias
    return made


def _one_to_one(layer: nn.Module) -> nn.Module:
    """A layer of the same geometry with one channel in and out, and nothing to learn."""
    if not isinstance(layer, nn.modules.conv._ConvNd):
        return nn.Identity()
    probe = copy.deepcopy(layer)
    zeros = layer.weight.detach().new_zeros((1, 1, *layer.weight.shape[2:]))
    del probe.weight
    probe.register_buffer("weight", zeros, persistent=False)
    probe.register_parameter("bias", None)
    probe.in_channels = probe.out_channels = probe.groups = 1
    return probe
