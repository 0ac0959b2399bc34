"""Verification: the exported model against the masked one, in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Example
from upscale.draws import OwnDraws
from upscale.errors import VerificationError
from upscale.quiet import unwarned

TOLERANCE = 1e-10


@dataclass(frozen=True, slots=True)
class Verified:
    """How far two models are apart on an example: the largest relative error."""

    relative_error: float

    @property
    def exact(self) -> bool:
        """Whether the difference is rounding alone."""
        return self.relative_error <= TOLERANCE


def compare(exported: nn.Module, masked: nn.Module, example: Example) -> Verified:
    """Run both models in float64 on one example and compare every tensor they return."""
    wide = example.map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
    )
    ours, theirs = (_outputs(model, wide.copied()) for model in (exported, masked))
    if len(ours) != len(theirs):
        return Verified(float("inf"))
    return Verified(max((_error(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0))


def verify(exported: nn.Module, masked: nn.Module, example: Example) -> Verified:
    """Compare two models and raise if they differ by more than rounding."""
    verified = compare(exported, masked, example)
    if not verified.exact:
        raise VerificationError(
            f"the exported model differs from the masked one by {verified.relative_error:.2e} "
            f"(relative; at most {TOLERANCE:.0e} is rounding). Please report this: it is a bug"
        )
    return verified


def _outputs(model: nn.Module, example: Example) -> list[Tensor]:
    # Copying a graph module that takes nested inputs makes torch warn of its own code.
    with unwarned(FutureWarning):
        wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()  # its noise depends on how many channels there are
    with torch.no_grad(), OwnDraws():
        result = wide(*example.args, **example.kwargs)
    outputs = [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    # Graph modules lie in reference cycles: their wide weights would stay for a while.
    for tensor in (*wide.parameters(), *wide.buffers()):
        tensor.data = tensor.new_empty(0)
    return outputs


def _error(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.numel() == 0:
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    if not torch.equal(ours.isfinite(), theirs.isfinite()):
        return float("inf")
    finite = theirs.isfinite()
    scale = theirs[finite].abs().amax().item() if bool(finite.any()) else 0.0
    difference = (ours - theirs)[finite].abs().amax().item() if bool(finite.any()) else 0.0
    return difference / scale if scale > 0 else difference
