"""The data of `upscale prune`: what is fitted to it and tested on it, and what is said of it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from upscale.cli.arguments import shape_of
from upscale.cli.data_arguments import BATCH, FITTED, SEED
from upscale.cli.reading import ArgumentsError
from upscale.lab.answers import Answers, compare, count_classes
from upscale.lab.inputs import Arrays, Batches, Pictures, Preparation, draw, find_samples
from upscale.lab.inputs.pictures import DEVIATION, MEAN, MODES
from upscale.lab.sources import SourceError
from upscale.selection.importance import BY_WEIGHT


@dataclass(frozen=True, slots=True)
class GivenData:
    """Samples that the user gave, and how many of them are used for what, in which batches."""

    source: str
    samples: Pictures | Arrays
    fitted: tuple[int, ...]
    tested: tuple[int, ...]
    batch: int

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> GivenData | None:
        """The data that arguments name, if they do."""
        source = arguments.data
        if source is None:
            return None
        images = FITTED if arguments.images is None else arguments.images
        tested = images if arguments.test_images is None else arguments.test_images
        fits = arguments.recover is not None or arguments.importance not in BY_WEIGHT
        dtype = getattr(torch, arguments.dtype)
        most = images + tested
        samples = find_samples(source, lambda: preparation_of(arguments), dtype, most)
        seed = SEED if arguments.seed is None else arguments.seed
        parts = draw(len(samples), images if fits else 0, tested, seed)
        return cls(source, samples, *parts, BATCH if arguments.batch is None else arguments.batch)

    def example(self) -> Any:
        """An input as arrays hold it; of images nothing is known but what the arguments say."""
        return self.samples.take([0])[0] if isinstance(self.samples, Arrays) else None

    def options(self, model: nn.Module, example: Any, importance: str) -> dict[str, Any]:
        """What `prune` is told: batches to fit to, and with them what gradients need."""
        if not self.fitted:
            return {}
        classes = None
        if importance == "taylor":
            classes = self.samples.classes(count_classes(model, example))
            if classes is None:
                raise SourceError(
                    f"importance 'taylor' needs labels, and {self.source} has none that fit: name "
                    "sub-folders by class, one for each output of the model, or by its number"
                )
        found = list(Batches(self.samples, self.fitted, self.batch, classes))
        if not found:
            path, why = next(iter(self.unreadable.items()))
            raise SourceError(f"no image of {self.source} can be read; {path}: {why}")
        return {"data": found} if classes is None else {"data": found, "loss": F.cross_entropy}

    def answers(self, before: nn.Module, after: nn.Module, example: Any) -> Answers | None:
        """What the model answers, before and after, to samples that nothing was fitted to."""
        classes = self.samples.classes(count_classes(before, example))
        return compare(before, after, Batches(self.samples, self.tested, self.batch, classes))

    @property
    def unreadable(self) -> dict[str, str]:
        """The files that were left out, and why."""
        return self.samples.unreadable if isinstance(self.samples, Pictures) else {}

    def told(self) -> dict[str, Any]:
        """What is said of the data, as JSON."""
        counts = {"samples": len(self.samples), "drawn": len(self.fitted)}
        return {"source": self.source, **counts, "unreadable": self.unreadable}

    def lines(self) -> list[str]:
        """What is said of the data, as text."""
        count, drawn, lines = len(self.samples), len(self.fitted), list[str]()
        if drawn:
            lines.append(f"Fitted to {drawn} of the {count} samples of {self.source}.")
        if self.unreadable:
            path, why = next(iter(self.unreadable.items()))
            left = len(self.unreadable)
            lines.append(f"{left} files could not be read and were left out. {path}: {why}")
        return lines


def preparation_of(arguments: argparse.Namespace) -> Preparation:
    """How images become inputs, by the arguments."""
    shape = shape_of(arguments)
    if len(shape) != 4 or shape[1] not in MODES:
        said = ",".join(map(str, shape))
        raise ArgumentsError(
            f"--shape is {said}; images make inputs of batch, one or three channels, height, width"
        )
    height, width = shape[2:] if arguments.size is None else arguments.size
    mean = _each(arguments.mean, MEAN, shape[1], "mean")
    return Preparation(
        height, width, mean, _each(arguments.deviation, DEVIATION, shape[1], "deviation")
    )


def _each(
    given: tuple[float, ...] | None, usual: tuple[float, ...], channels: int, name: str
) -> tuple[float, ...]:
    """A number for each channel; of the usual ones, grey pictures have the average."""
    if given is None:
        return usual if channels == len(usual) else (sum(usual) / len(usual),) * channels
    if len(given) not in (1, channels):
        raise ArgumentsError(f"--{name} has {len(given)} numbers; images have {channels} channels")
    return given * channels if len(given) == 1 else given
