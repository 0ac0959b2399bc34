"""Apart: the nodes at which two networks differ, though they read the same and nothing is fitted.

Output masks make something zero there, or a weight is pruned that cannot be refitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from torch import nn

from upscale import masking
from upscale.capture import Captured
from upscale.channels import Parameter
from upscale.errors import RecoveryError
from upscale.recovery.side_by_side import Mask
from upscale.recovery.sites import CONVOLUTIONS, TRANSPOSED

PRODUCTS = {"linear", *CONVOLUTIONS, *TRANSPOSED}
# Operations that are all a module does.
WHOLE_MODULES = {"batch_norm", *PRODUCTS}


def masked_nodes(captured: Captured, pruned: nn.Module) -> dict[str, Mask]:
    """The nodes after which output masks make something zero, with what does so.

    A node that calls a module runs its hooks. One that `torch.export` wrote in the place of a
    module does not; there the masks are laid on what it makes, if that is all the module did.
    """
    masks: dict[str, Mask] = {}
    modules = {n: own for n, own in pruned.named_modules() if masking.held_channels(own)}
    for node in captured.graph.nodes:
        seen = captured.observed[node.name]
        if seen.home not in modules:
            continue
        if node.op == "call_module":
            masks[node.name] = _as_it_is
        elif len(seen.calls) == 1 and seen.calls[0].op in WHOLE_MODULES:
            masks[node.name] = partial(masking.held, modules[seen.home])
        else:
            raise RecoveryError(
                f"{node.name}: output masks on {seen.home} cannot be refitted, for it is made of "
                "several operations in a model that torch.fx cannot trace; prune its input side"
            )
    return masks


def reading(captured: Captured, weights: Collection[str]) -> dict[str, Mask]:
    """The nodes that read weights which are pruned and not refitted: the networks differ there."""
    own = {Parameter(weight) for weight in weights}
    return {
        node.name: _as_it_is
        for node in captured.graph.nodes
        if (node.op == "get_attr" and str(node.target) in weights)
        or any(not own.isdisjoint(call.reads) for call in captured.observed[node.name].calls)
    }


def multiplying(captured: Captured, nodes: Iterable[str]) -> set[str]:
    """The weights that nodes multiply by, or by parts of."""
    found: set[str] = set()
    for name in nodes:
        parts: dict[str, str] = {}
        for call in captured.observed[name].calls:
            own = [x.name if isinstance(x, Parameter) else parts.get(x) for x in call.reads]
            if call.op in PRODUCTS:
                found |= {x for x in own[1:2] if x is not None}
            elif len(own) == 1 and own[0] is not None:
                parts |= dict.fromkeys(call.outs, own[0])
    return found


def _as_it_is(made: Any) -> Any:
    return made
