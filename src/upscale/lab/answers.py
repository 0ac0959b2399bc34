"""Answers: what a pruned model makes of inputs, beside what the unpruned one makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example, tensors_in
from upscale.model.batches import Batch, evaluating


@dataclass(frozen=True, slots=True)
class Answers:
    """How two models answer the same samples; shares are of all of them.

    The answer is the class with the largest output: `None` where outputs are no classes, and
    accuracy without labels. `relative_error` is of all numbers they make, as a root mean square.
    """

    samples: int
    accuracy_before: float | None
    accuracy_after: float | None
    agreement: float | None
    relative_error: float

    def __str__(self) -> str:
        told = []
        if self.accuracy_before is not None and self.accuracy_after is not None:
            told.append(
                f"accuracy {self.accuracy_before:.1%} before, {self.accuracy_after:.1%} after"
            )
        if self.agreement is not None:
            told.append(f"{self.agreement:.1%} of answers as before")
        told.append(f"outputs differ by {self.relative_error:.1%}")
        return f"On {self.samples} samples that nothing was fitted to: {'; '.join(told)}."


def count_classes(model: nn.Module, example: Any) -> int:
    """How many classes a model tells apart; none if it is no classifier by its looks.

    >>> count_classes(nn.Linear(3, 5), torch.zeros(1, 3))
    5
    """
    given = Example.of(example)
    with evaluating(model), torch.inference_mode():
        found = _classes(_numbers(Batch(given.args, given.kwargs, None).run(model)))
    return 0 if found is None else found.shape[1]


def compare(before: nn.Module, after: nn.Module, batches: Iterable[Any]) -> Answers | None:
    """What two models answer; a batch may be a pair of inputs and labels. None to no samples."""
    sums: Counter[str] = Counter()
    squares = {"apart": 0.0, "whole": 0.0}
    with evaluating(before), evaluating(after), torch.inference_mode():
        for given in batches:
            inputs, labels = given if isinstance(given, tuple) else (given, None)
            example = Example.of(inputs)
            batch = Batch(example.args, example.kwargs, None)
            ones, others = (_numbers(batch.run(model)) for model in (before, after))
            sums.update(samples=len(example.tensors[0]), **_counted(ones, others, labels))
            for one, other in zip(ones, others, strict=True):
                squares["apart"] += float((one.double() - other.double()).square().sum())
                squares["whole"] += float(one.double().square().sum())
    samples = sums["samples"]
    if not samples:
        return None
    shares = {name: count / samples for name, count in sums.items()}
    error = (squares["apart"] / (squares["whole"] or 1)) ** 0.5
    right = shares.get("right before"), shares.get("right after")
    return Answers(samples, *right, shares.get("agreeing"), error)


def _counted(ones: list[Tensor], others: list[Tensor], labels: Tensor | None) -> dict[str, int]:
    """How many samples of a batch are answered alike, and rightly, where that can be told."""
    one, other = _classes(ones), _classes(others)
    if one is None or other is None:
        return {}
    before, after = one.argmax(1).cpu(), other.argmax(1).cpu()
    counts = {"agreeing": before == after}
    if labels is not None:
        counts |= {"right before": before == labels, "right after": after == labels}
    return {name: int(own.sum()) for name, own in counts.items()}


def _numbers(made: Any) -> list[Tensor]:
    return [own for own in tensors_in(made) if own.is_floating_point()]


def _classes(made: list[Tensor]) -> Tensor | None:
    """The outputs that say how likely each class is: the first, if it is a row for each sample."""
    first = made[0] if made else None
    return first if first is not None and first.ndim == 2 and first.shape[1] > 1 else None
