"""What is given: batches of the model's inputs, checked before anything is fitted to them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example, OwnDraws, tensors_in
from upscale.errors import BatchError, RecoveryError
from upscale.model.batches import Batch, batches_of


def taken_batches(model: nn.Module, batches: Iterable[Any]) -> list[Example]:
    """The caller's batches, checked; a model takes as many inputs as it cannot do without."""
    given = inspect.signature(model.forward).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in given if one.kind in plain and one.default is one.empty]
    taken = [Example(b.args, b.kwargs) for b in batches_of(batches, max(1, len(needed)))]
    if not taken:
        raise BatchError("there are no batches; pass some of the model's inputs")
    return taken


def check_responds(model: nn.Module, batches: Sequence[Example]) -> None:
    """Raise if the model cannot take the batches, or makes the same of them all."""
    made: list[list[Tensor]] = []
    known, varies = set(), False
    with torch.no_grad(), OwnDraws():
        for batch in batches:
            kind = (*batch.kwargs, *((own.shape[1:], own.dtype) for own in batch.tensors))
            # Once it is known to respond, one batch of each kind tells whether the model takes it.
            if varies and kind in known:
                continue
            known.add(kind)
            given = batch.copied()
            new = tensors_in(Batch(given.args, given.kwargs, None).run(model))
            made = [*made[-1:], new]
            varies = varies or any(_varies(own) for own in zip(*made, strict=False))
    if varies:
        return
    if any(_varies(own) for own in zip(*(batch.tensors for batch in batches), strict=False)):
        raise RecoveryError(
            "the model makes the same of all samples, although they differ: its outputs do not "
            "depend on the input, and there is nothing to fit to"
        )
    raise RecoveryError(
        "all samples are the same, or there is one: that is nothing to fit to. Pass several "
        "different inputs"
    )


def _varies(values: Sequence[Tensor]) -> bool:
    """Whether samples of one tensor differ, or the first samples of several."""
    first, *others = (x if x.ndim else x.reshape(1) for x in values)
    if not torch.allclose(first, first[:1].expand_as(first)):
        return True
    return any(
        x.shape[1:] != first.shape[1:]
        or x.dtype != first.dtype
        or not torch.allclose(first[:1], x[:1])
        for x in others
    )
