"""Small networks at CIFAR-10's resolution, one of each family that the paper prunes.

Each keeps its family's topology (dense and parallel concatenation, inverted residuals, gates) with
less than two megabytes of weights in half precision. `python -m paper.train_subjects` trains them;
`paper.subjects:densenet` is then the trained network, as an import path that a grid can name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).resolve().parent / "weights"
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Training:
    """How weights came about: what was spent on them, what they reach, what they weigh."""

    epochs: int
    minutes: float
    top1: float
    bytes: int


class ConvNorm(nn.Sequential):
    """A convolution that keeps the size unless it strides, its BatchNorm, and an activation."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[[], nn.Module] | None = nn.ReLU,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        super().__init__(*layers, *([activation()] if activation is not None else []))


class Classifier(nn.Module):
    """Features, averaged over the picture, then one linear layer."""

    def __init__(self, features: nn.Module, width: int) -> None:
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.pool(self.features(x)).flatten(1))
        return logits


class Dense(nn.Module):
    """A layer of a DenseNet: reads all before it, adds `growth` channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.relu = nn.ReLU()
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.norm(x)))], dim=1)


def build_densenet() -> nn.Module:
    """Three dense blocks with halving transitions between them; the growth grows with the block."""
    width = 32
    parts: list[nn.Module] = [ConvNorm(3, width), nn.MaxPool2d(2)]
    for block, (growth, depth) in enumerate(((24, 4), (32, 5), (48, 5))):
        if block:
            half = width // 2
            parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, half, 1, bias=False)]
            parts.append(nn.AvgPool2d(2))
            width = half
        for _ in range(depth):
            parts.append(Dense(width, growth))
            width += growth
    return Classifier(nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU()), width)


class Fire(nn.Module):
    """A module of a SqueezeNet, with BatchNorm: squeeze, then two expansions side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = ConvNorm(inputs, squeezed, 1)
        self.expand1 = ConvNorm(squeezed, expanded, 1)
        self.expand3 = ConvNorm(squeezed, expanded, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.expand1(x), self.expand3(x)], dim=1)


def build_squeezenet() -> nn.Module:
    """Seven fire modules at three resolutions."""
    parts: list[nn.Module] = [ConvNorm(3, 32), nn.MaxPool2d(2)]
    width = 32
    stages = (((24, 48), (32, 64)), ((48, 96), (48, 96), (64, 128)), ((64, 128), (96, 192)))
    for stage, fires in enumerate(stages):
        parts += [nn.MaxPool2d(2)] if stage else []
        for squeezed, expanded in fires:
            parts.append(Fire(width, squeezed, expanded))
            width = 2 * expanded
    return Classifier(nn.Sequential(*parts), width)


class Gate(nn.Module):
    """Squeeze and excitation: every channel times a number that all of them decide."""

    def __init__(self, width: int, hidden: int, gate: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.squeeze, self.relu = nn.Conv2d(width, hidden, 1), nn.ReLU()
        self.excite, self.gate = nn.Conv2d(hidden, width, 1), gate()

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(self.excite(self.relu(self.squeeze(self.pool(x)))))
        return x * gate


class Inverted(nn.Module):
    """An inverted residual: widen, depthwise, perhaps a gate, narrow; added where shapes agree."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        activation: Callable[[], nn.Module] = nn.ReLU6,
        gate: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.adds = stride == 1 and inputs == outputs
        layers: list[nn.Module] = []
        if hidden != inputs:
            layers.append(ConvNorm(inputs, hidden, 1, activation=activation))
        layers.append(ConvNorm(hidden, hidden, kernel, stride, hidden, activation))
        if gate is not None:
            layers.append(Gate(hidden, max(8, hidden // 4), gate))
        self.layers = nn.Sequential(*layers, ConvNorm(hidden, outputs, 1, activation=None))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def build_mobilenet_v2() -> nn.Module:
    """Ten inverted residuals that widen four times."""
    parts: list[nn.Module] = [ConvNorm(3, 16, activation=nn.ReLU6), Inverted(16, 16, 16)]
    width = 16
    for outputs, count, stride in ((24, 2, 2), (48, 3, 2), (80, 3, 2), (112, 1, 1)):
        for turn in range(count):
            parts.append(Inverted(width, 4 * width, outputs, stride=stride if turn == 0 else 1))
            width = outputs
    parts.append(ConvNorm(width, 320, 1, activation=nn.ReLU6))
    return Classifier(nn.Sequential(*parts), 320)


def build_mobilenet_v3() -> nn.Module:
    """Inverted residuals with kernels of 3 and 5, hard-swish, and gates in the later half."""
    rows = (
        (3, 16, 16, 1, False),
        (3, 64, 24, 2, False),
        (3, 96, 24, 1, False),
        (5, 96, 48, 2, True),
        (5, 192, 48, 1, True),
        (5, 192, 48, 1, True),
        (3, 192, 80, 2, True),
        (3, 320, 80, 1, True),
        (5, 320, 80, 1, True),
    )
    parts: list[nn.Module] = [ConvNorm(3, 16, activation=nn.Hardswish)]
    width = 16
    for row, (kernel, hidden, outputs, stride, gated) in enumerate(rows):
        activation: Callable[[], nn.Module] = nn.ReLU if row < 3 else nn.Hardswish
        gate = nn.Hardsigmoid if gated else None
        parts.append(Inverted(width, hidden, outputs, kernel, stride, activation, gate))
        width = outputs
    parts.append(ConvNorm(width, 320, 1, activation=nn.Hardswish))
    return Classifier(nn.Sequential(*parts), 320)


def build_efficientnet() -> nn.Module:
    """Inverted residuals with SiLU, all of them gated."""
    parts: list[nn.Module] = [ConvNorm(3, 16, activation=nn.SiLU)]
    width = 16
    stages = (
        (1, 16, 1, 1, 3),
        (4, 24, 2, 2, 3),
        (4, 48, 2, 2, 5),
        (4, 80, 3, 2, 3),
        (4, 112, 1, 1, 5),
    )
    for widens, outputs, count, stride, kernel in stages:
        for turn in range(count):
            first = stride if turn == 0 else 1
            hidden = widens * width
            parts.append(Inverted(width, hidden, outputs, kernel, first, nn.SiLU, nn.Sigmoid))
            width = outputs
    parts.append(ConvNorm(width, 320, 1, activation=nn.SiLU))
    return Classifier(nn.Sequential(*parts), 320)


class Inception(nn.Module):
    """Four branches side by side: 1x1, 3x3, twice 3x3, and a pool."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one = ConvNorm(inputs, width, 1)
        self.three = nn.Sequential(ConvNorm(inputs, width, 1), ConvNorm(width, width))
        self.five = nn.Sequential(
            ConvNorm(inputs, width // 2, 1),
            ConvNorm(width // 2, width),
            ConvNorm(width, width),
        )
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, width // 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def build_inception() -> nn.Module:
    """Seven modules of four branches at three resolutions."""
    parts: list[nn.Module] = [ConvNorm(3, 32), nn.MaxPool2d(2)]
    width = 32
    for stage, (own, count) in enumerate(((16, 2), (32, 3), (64, 2))):
        parts += [nn.MaxPool2d(2)] if stage else []
        for _ in range(count):
            parts.append(Inception(width, own))
            width = 3 * own + own // 2
    return Classifier(nn.Sequential(*parts), width)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "densenet": build_densenet,
    "squeezenet": build_squeezenet,
    "mobilenet_v2": build_mobilenet_v2,
    "mobilenet_v3": build_mobilenet_v3,
    "efficientnet": build_efficientnet,
    "inception": build_inception,
}


def trained(name: str) -> nn.Module:
    """A network with its trained weights, in single precision and evaluation mode."""
    model = BUILDERS[name]().eval()
    model.load_state_dict(widened(load_file(weights_of(name))))
    return model


def widened(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in single precision; counters as they are."""
    return {name: own.float() if own.is_floating_point() else own for name, own in stored.items()}


def trained_names() -> list[str]:
    """The networks that are trained as they are built here: weights are there, and how they came.

    Weights of a network as it was once built have no such account, and are not taken.
    """
    return [name for name in BUILDERS if weights_of(name).with_suffix(".json").is_file()]


def training_of(name: str) -> Training:
    """How a network's weights came about."""
    return Training(**json.loads(weights_of(name).with_suffix(".json").read_text()))


def weights_of(name: str) -> Path:
    """Where a network's trained weights are."""
    return WEIGHTS / f"{name}-cifar10.safetensors"


densenet = partial(trained, "densenet")
squeezenet = partial(trained, "squeezenet")
mobilenet_v2 = partial(trained, "mobilenet_v2")
mobilenet_v3 = partial(trained, "mobilenet_v3")
efficientnet = partial(trained, "efficientnet")
inception = partial(trained, "inception")
