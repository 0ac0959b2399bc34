"""Teachers: networks whose outputs a masked model learns to give, with labels or without.

    soft      T² · KL(softmax(teacher / T) ‖ softmax(student / T)): all classes, softened
    squares   the mean square of the difference, of every tensor they give

The square of the temperature keeps slopes as large as those of labels (Hinton et al. 2015).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.capture import tensors_in
from upscale.lab.tuning.recipes import TuningError

LOSSES = ("soft", "squares")


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """A network to learn from, usually the unpruned one, and how.

    `loss` is `"soft"`, which takes outputs for logits of classes, or `"squares"`. If it is not
    said, it is the first where the teacher gives one row of such for each sample, else the second.
    `labels` is the share that labels have in the loss: with none, data needs none.
    """

    model: nn.Module
    loss: str | None = None
    temperature: float = 2.0
    labels: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TuningError(
                f"the teacher is a {type(self.model).__name__}, not a torch.nn.Module"
            )
        if self.loss not in (None, *LOSSES):
            raise TuningError(f"loss is {self.loss!r}; it must be 'soft', 'squares' or None")
        if not 0 < self.temperature < math.inf:
            raise TuningError(f"temperature is {self.temperature!r}; it must be a number > 0")
        if not 0 <= self.labels < 1:
            raise TuningError(f"labels is {self.labels!r}; it must be a share from 0 to below 1")

    @classmethod
    def of(cls, given: nn.Module | Teacher | None) -> Teacher | None:
        """A teacher, as it is or with the usual settings."""
        return given if given is None or isinstance(given, Teacher) else cls(given)

    def prepared(self, outputs: Any, device: torch.device) -> Teacher:
        """A copy that answers there, with a loss that suits what the network gives."""
        loss = self.loss or ("soft" if _are_logits(outputs) else "squares")
        if (loss == "soft" or self.labels) and _logits(_numbers(outputs)) is None:
            raise TuningError(
                "the teacher gives no row of logits for each sample; take the loss 'squares', and "
                "no labels"
            )
        model = copy.deepcopy(self.model).to(device).eval().requires_grad_(False)
        return Teacher(model, loss, self.temperature, self.labels)

    def answer(self, inputs: Tensor) -> list[Tensor]:
        """What the network gives."""
        with torch.no_grad():
            return _numbers(self.model(inputs))

    def loss_of(self, outputs: Any, answer: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """How far outputs are from the teacher's and, as far as that is asked for, from labels."""
        found = compared(outputs, answer)
        if self.loss == "soft":
            own, known = (_wide(pair) / self.temperature for pair in found[0])
            both = F.log_softmax(own, 1), F.log_softmax(known, 1)
            apart = F.kl_div(*both, reduction="batchmean", log_target=True) * self.temperature**2
        else:
            apart = torch.stack(
                [F.mse_loss(own.float(), known.float()) for own, known in found]
            ).sum()
        if not self.labels:
            return apart
        if labels is None:
            raise TuningError("labels have a share in the loss, and the training data has none")
        return self.labels * F.cross_entropy(found[0][0], labels) + (1 - self.labels) * apart


def compared(outputs: Any, answer: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What a student gives, each beside what the teacher gives there."""
    own = _numbers(outputs)
    if not own or [x.shape for x in own] != [x.shape for x in answer]:
        here, there = ([tuple(x.shape) for x in made] for made in (own, answer))
        raise TuningError(f"the teacher gives {there}, the model {here}; both must give alike")
    return list(zip(own, answer, strict=True))


def answers_of(outputs: Any) -> Tensor | None:
    """The class that each sample is taken for, where outputs are rows of logits."""
    found = _logits(_numbers(outputs))
    return None if found is None else found.argmax(dim=1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _numbers(made: Any) -> list[Tensor]:
    return [own for own in tensors_in(made) if own.is_floating_point()]


def _logits(made: Sequence[Tensor]) -> Tensor | None:
    first = made[0] if len(made) == 1 else None
    return first if first is not None and first.ndim == 2 and first.shape[1] > 1 else None


def _are_logits(outputs: Any) -> bool:
    """Whether outputs look like logits: a row for each sample, and no probabilities already."""
    found = _logits(_numbers(outputs))
    if found is None:
        return False
    sums = found.sum(dim=1)
    return not (bool((found >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3))
