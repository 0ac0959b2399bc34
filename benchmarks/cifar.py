"""CIFAR-10 and the trained ResNets of He et al., section 4.2, from a directory of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

Pixels = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]
SIDE = 32
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two 3x3 convolutions; where the width changes, the shortcut pads zero channels (option A)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.padding = outputs // inputs, (outputs - inputs) // 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.padding:
            zeros = (0, 0, 0, 0, self.padding, self.padding)
            x = F.pad(x[:, :, :: self.stride, :: self.stride], zeros)
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """The CIFAR-10 ResNets of He et al., section 4.2: three stages of 16, 32 and 64 channels."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(Block(16, 16) for _ in range(blocks)))
        self.layer2 = nn.Sequential(Block(16, 32), *(Block(32, 32) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(Block(32, 64), *(Block(64, 64) for _ in range(blocks - 1)))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


def trained(depth: int, data: Path) -> CifarResNet:
    """A ResNet with its trained weights, in evaluation mode."""
    model = CifarResNet(depth).eval()
    model.load_state_dict(load_file(data / f"resnet{depth}-cifar10.safetensors"))
    return model


def images(data: Path, split: str, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many images of a split drawn by a seed, normalised, and their classes."""
    pixels, labels = mosaics(data, split)
    order = np.random.default_rng(seed).permutation(len(labels))[:count]
    return normalised(pixels[order]), torch.from_numpy(labels[order])


def normalised(pixels: Pixels) -> Tensor:
    """Pictures (N, height, width, RGB) of bytes as the networks take them."""
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (MEAN, DEVIATION))
    return (
        (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - mean) / deviation
    ).contiguous()


def mosaics(data: Path, split: str) -> tuple[Pixels, Classes]:
    """All pictures of a split, (N, 32, 32, RGB) of bytes, and their classes, in the stored order.

    `cifar10/SPLIT*.webp` are square mosaics of pictures, row by row; `cifar10/labels.json` has the
    classes in that order.
    """
    folder = data / "cifar10"
    labels = np.asarray(json.loads((folder / "labels.json").read_text())[split], dtype=np.int64)
    parts = [apart(np.asarray(Image.open(own).convert("RGB"))) for own in files_of(folder, split)]
    return np.concatenate(parts)[: len(labels)], labels


def files_of(folder: Path, split: str) -> list[Path]:
    """The mosaics of a split, in order."""
    return sorted(folder.glob(f"{split}*.webp"))


def apart(mosaic: Pixels) -> Pixels:
    """The pictures of a mosaic, row by row."""
    down, right = (side // SIDE for side in mosaic.shape[:2])
    tiles = mosaic.reshape(down, SIDE, right, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(down * right, SIDE, SIDE, 3)
