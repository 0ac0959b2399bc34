"""How far two models are apart, in float64 and on one input: an oracle that shares no code with
what verifies exports."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Example
from upscale.tools.quiet import unwarned


def relative_error(exported: nn.Module, masked: nn.Module, example: Any) -> float:
    """The largest difference of what two models return, relative to the second's largest number."""
    return error_between(*(wide_outputs(model, example) for model in (exported, masked)))


def error_between(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest number of the second."""
    if len(ours) != len(theirs):
        return float("inf")
    return max((_error(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def wide_outputs(model: nn.Module, example: Any) -> list[Tensor]:
    """What a model returns on an input, computed in float64 by a copy."""
    # Copying a graph module that takes nested inputs makes torch warn of its own code.
    with unwarned(FutureWarning):
        wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()  # its noise depends on how many channels there are
    given = (
        Example.of(example)
        .copied()
        .map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x)
    )
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        result = wide(*given.args, **given.kwargs)
    # Graph modules lie in reference cycles: their wide weights would stay for a while.
    outputs = [leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    for tensor in (*wide.parameters(), *wide.buffers()):
        tensor.data = tensor.new_empty(0)
    return outputs


def _error(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = ours.double(), theirs.double()
    finite = theirs.isfinite()
    if not torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num()):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    scale = theirs[finite].abs().amax().item()
    apart = (ours - theirs)[finite].abs().amax().nan_to_num(nan=float("inf")).item()
    return apart / scale if scale > 0 else apart
