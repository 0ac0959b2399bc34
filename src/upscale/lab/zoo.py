"""Models by name: the small trained network that ships with the package, and torchvision's.

`digits()` needs nothing but torch; `digits_data()` needs scikit-learn, which carries the images;
`torchvision_model()` needs torchvision.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.errors import UpscaleError
from upscale.tools.optional_packages import MissingPackageError, import_optional, import_torchvision

__all__ = [
    "DigitsData",
    "DigitsNet",
    "MissingPackageError",
    "UnknownModelError",
    "digits",
    "digits_data",
    "import_torchvision",
    "torchvision_model",
]

HELD_OUT_SHARE = 0.2
SPLIT_SEED = 0


class UnknownModelError(UpscaleError, ValueError):
    """No model has this name."""


def conv_norm(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    """A convolution followed by batch normalisation, with no activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs)))


class Residual(nn.Module):
    """Two 3x3 convolutions added to a shortcut, which is a projection when the shape changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride=stride)
        self.second = conv_norm(outputs, outputs, 3)
        alike = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if alike else conv_norm(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class Branched(nn.Module):
    """A narrow and a wide branch side by side, concatenated, merged and added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.narrow = conv_norm(width, half, 1)
        self.wide_reduce = conv_norm(width, half, 1)
        self.wide = conv_norm(half, half, 3)
        self.merge = conv_norm(2 * half, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        narrow = F.relu(self.narrow(x))
        wide = F.relu(self.wide(F.relu(self.wide_reduce(x))))
        return F.relu(self.merge(torch.cat([narrow, wide], 1)) + x)


class SqueezeExcite(nn.Module):
    """Each channel scaled by a gate computed from the mean of all channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, width // 4, 1)
        self.excite = nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.excite(F.relu(self.squeeze(pooled))))


class GatedBottleneck(nn.Module):
    """A 1x1, 3x3, 1x1 bottleneck with a squeeze-excite gate, added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.reduce = conv_norm(width, half, 1)
        self.middle = conv_norm(half, half, 3)
        self.gate = SqueezeExcite(half)
        self.expand = conv_norm(half, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.middle(F.relu(self.reduce(x))))
        return F.relu(self.expand(self.gate(inner)) + x)


class DigitsNet(nn.Module):
    """A residual, multi-branch classifier of 8x8 grey digits.

    Two residual streams, each read by several layers: the shape of network in which readers of
    one tensor want different channels of it.
    """

    def __init__(self, *, narrow: int = 32, wide: int = 48) -> None:
        super().__init__()
        self.stem = conv_norm(1, narrow, 3)
        self.stage1 = nn.Sequential(Residual(narrow, narrow), Branched(narrow))
        self.down = Residual(narrow, wide, stride=2)
        self.stage2 = nn.Sequential(Branched(wide), GatedBottleneck(wide), Branched(wide))
        self.head = nn.Linear(wide, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem(images))
        x = self.stage2(self.down(self.stage1(x)))
        logits: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


@dataclass(frozen=True, slots=True)
class DigitsData:
    """scikit-learn's 8x8 digits, split once and for all; images are N x 1 x 8 x 8 in 0..1."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def digits() -> DigitsNet:
    """Return the shipped digits network with its trained weights, in evaluation mode.

    It was trained to be pruned: a group lasso weakened the inputs each layer needs least.

    >>> digits()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    weights = (resources.files("upscale") / "data" / "digits.safetensors").read_bytes()
    model = DigitsNet()
    model.load_state_dict(load_tensors(weights))
    return model.eval()


def digits_data() -> DigitsData:
    """Return the digits the shipped network was trained on, and those it has never seen.

    >>> digits_data().held_out_images.shape
    torch.Size([359, 1, 8, 8])
    """
    needed = "the digits need scikit-learn: pip install it"
    bunch = import_optional("sklearn.datasets", needed).load_digits()
    images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    # RandomState's stream is frozen by NumPy's compatibility policy, so the split never moves.
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(len(labels)))
    held_out, train = order.tensor_split([int(HELD_OUT_SHARE * len(labels))])
    return DigitsData(images[train], labels[train], images[held_out], labels[held_out])


def torchvision_model(name: str, **options: Any) -> nn.Module:
    """Return a torchvision model by name, in evaluation mode and with random weights by default.

    Parameters
    ----------
    name
        A name `torchvision.models.get_model` knows, such as `"resnet50"`.
    options
        Passed on to torchvision's builder, such as `weights="DEFAULT"` or `num_classes=10`.

    """
    models = import_torchvision().models
    if name not in models.list_models():
        raise UnknownModelError(
            f"torchvision has no model {name!r}; torchvision.models.list_models() names them"
        )
    model: nn.Module = models.get_model_builder(name)(**{"weights": None, **options})
    return model.eval()
