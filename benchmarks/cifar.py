"""CIFAR-10 and the trained ResNets of He et al., section 4.2, from a directory of both."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

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
    with zipfile.ZipFile(data / "cifar10-jpeg.zip") as archive:
        names = sorted(n for n in archive.namelist() if f"{split}/" in n and n.endswith(".jpg"))
        classes = sorted({name.split("/")[-2] for name in names})
        order = np.random.default_rng(seed).permutation(len(names))[:count]
        pictures, labels = [], []
        for index in order.tolist():
            picture = Image.open(io.BytesIO(archive.read(names[index]))).convert("RGB")
            pictures.append(np.asarray(picture))
            labels.append(classes.index(names[index].split("/")[-2]))
    pixels = torch.from_numpy(np.stack(pictures)).float().permute(0, 3, 1, 2) / 255
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (MEAN, DEVIATION))
    return ((pixels - mean) / deviation).contiguous(), torch.tensor(labels)
