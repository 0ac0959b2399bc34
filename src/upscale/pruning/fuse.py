"""Fusing: what an export need not run when nobody trains it any more."""

from __future__ import annotations

import copy
from collections import Counter
from operator import attrgetter
from typing import Any

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from upscale.errors import PlanError

IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def fuse(module: fx.GraphModule) -> fx.GraphModule:
    """Fold every BatchNorm into the layer it follows alone, and drop what does nothing.

    The module is changed and returned. It computes the same, to rounding, in evaluation mode,
    and is not meant to be trained further.

    >>> net = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval())
    >>> [name for name, _ in fuse(net).named_children()]
    ['0']
    """
    if module.training:
        raise PlanError("only a model in evaluation mode can be fused; call .eval() first")
    called = _calls(module)
    for node in list(module.graph.nodes):
        if node.op != "call_module":
            continue
        own = module.get_submodule(str(node.target))
        if isinstance(own, IDLE) and not own.training:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        elif isinstance(own, _BatchNorm):
            _fold(module, node, own, called)
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()
    return module


def _calls(module: fx.GraphModule) -> Counter[int]:
    """How often each parameter is used: through modules, and by itself."""
    count: Counter[int] = Counter()
    for node in module.graph.nodes:
        if node.op == "call_module":
            count.update(map(id, module.get_submodule(str(node.target)).parameters()))
        elif node.op == "get_attr":
            count[id(attrgetter(str(node.target))(module))] += 1
    return count


def _fold(module: fx.GraphModule, node: fx.Node, norm: _BatchNorm, called: Counter[int]) -> None:
    """Fold a norm into the layer before it, if that layer has no other reader and no other use."""
    before = node.args[0]
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return
    layer: Any = module.get_submodule(str(before.target))
    # Behind a linear a norm may be over another axis than its features.
    fits = type(layer) in CONVOLUTIONS and norm.running_mean is not None
    shared = any(called[id(p)] > 1 for p in (*layer.parameters(), *norm.parameters()))
    if not fits or shared or layer._forward_hooks or norm._forward_hooks:
        return

    # In double precision, so that the result is rounded once.
    fused = fuse_conv_bn_eval(copy.deepcopy(layer).double(), copy.deepcopy(norm).double())
    dtype, trained = layer.weight.dtype, layer.weight.requires_grad
    for name in ("weight", "bias"):
        own = getattr(fused, name).detach().to(dtype)
        setattr(layer, name, nn.Parameter(own, requires_grad=trained))
    node.replace_all_uses_with(before)
    module.graph.erase_node(node)
