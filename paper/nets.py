"""The networks whose accuracy is measured: CIFAR-10's that are trained, or ImageNet's."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from paper import cifar, lossless, subjects
from paper.common import chosen

IMAGENET = (
    *("densenet121", "efficientnet_b1", "efficientnet_b3", "efficientnet_v2_s", "mnasnet1_3"),
    *("mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "resnet18", "resnet50"),
    *("resnet101", "squeezenet1_0", "squeezenet1_1"),
)


@dataclass(frozen=True, slots=True)
class Net:
    """A trained network, its images, and the training images that criteria look at.

    `untrained` is the same network as it is built, for what does not depend on weights.
    """

    name: str
    model: str
    untrained: str
    shape: str
    data: str
    sample: str

    @property
    def settings(self) -> dict[str, Any]:
        """What a grid has to say of it."""
        return {
            "model": self.model,
            "shape": self.shape,
            "data": self.data,
            "sample": self.sample,
        }


def nets(arguments: argparse.Namespace) -> list[Net]:
    """ImageNet's where there is a folder of it; else CIFAR-10's whose weights are there."""
    quick = arguments.quick
    if arguments.imagenet is not None:
        data = "paper.imagenet:some_validation" if quick else "paper.imagenet:validation"
        names = chosen(
            arguments.models, IMAGENET, few=("mobilenet_v3_small",) if quick else IMAGENET
        )
        return [
            Net(
                name=name,
                model=f"paper.imagenet:{name}",
                untrained=f"torchvision:{name}",
                shape="1,3,224,224",
                data=data,
                sample="paper.imagenet:sample",
            )
            for name in names
        ]
    there = {
        **{name: (f"paper.cifar:{name}", f"paper.cifar:build_{name}") for name in cifar.resnets()},
        **{
            name: (f"paper.subjects:{name}", f"paper.subjects:build_{name}")
            for name in subjects.trained_names()
        },
    }
    if not there:
        raise SystemExit(
            "No trained network is there: let UPSCALE_DATA name a folder of them, train some with "
            "`python -m paper.train_subjects`, or give a folder of ImageNet with --imagenet."
        )
    names = list(there)
    return [
        Net(
            name,
            *there[name],
            "1,3,32,32",
            lossless.TESTS[_count(arguments)],
            "paper.lossless:sample",
        )
        for name in chosen(arguments.models, names, few=names[:1] if quick else names)
    ]


def images_of(arguments: argparse.Namespace) -> str:
    """What accuracies are of, for a header."""
    if arguments.imagenet is not None:
        return "ImageNet"
    count = _count(arguments)
    return "CIFAR-10" if count == lossless.TEST else f"CIFAR-10, {count:,} images"


def _count(arguments: argparse.Namespace) -> int:
    return arguments.images or (lossless.SAMPLE if arguments.quick else lossless.TEST)
