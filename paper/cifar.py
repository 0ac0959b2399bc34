"""The trained CIFAR-10 ResNets, as import paths that a grid can name."""

from __future__ import annotations

from functools import partial

from benchmarks.cifar import CifarResNet, trained
from benchmarks.data import DATA

resnet20 = partial(trained, 20, DATA)
resnet56 = partial(trained, 56, DATA)
build_resnet20 = partial(CifarResNet, 20)
build_resnet56 = partial(CifarResNet, 56)


def resnets() -> list[str]:
    """Those whose weights are there."""
    names = {20: "resnet20", 56: "resnet56"}
    return [n for d, n in names.items() if (DATA / f"resnet{d}-cifar10.safetensors").is_file()]
