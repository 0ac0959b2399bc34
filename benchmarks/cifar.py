"""The CIFAR-10 ResNets of He et al., section 4.2, trained."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


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
