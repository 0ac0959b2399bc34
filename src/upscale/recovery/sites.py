"""Sites: the nodes of a graph at which something can be refitted, and what belongs to each.

In the residual block

    x ──► conv1 ─ bn1 ─ relu ─► conv2 ─ bn2 ─┐
    └────────────────────────────────────── add ─ relu

`conv1` is a site with the norm `bn1`; so is `conv2` with `bn2`, and it also meets the shortcut at
`add`: there a fit can mend what the shortcut has lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.capture import Call, Captured, Ref
from upscale.channels import Parameter
from upscale.model.layers import stock_class
from upscale.recovery.geometry import Geometry, convolution, transposed

CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
TRANSPOSED = {"conv_transpose1d": 1, "conv_transpose2d": 2, "conv_transpose3d": 3}
# What hands on in evaluation mode what it is given.
HANDING_ON = {"dropout", "alias", "feature_dropout", "alpha_dropout", "contiguous", "clone"}


@dataclass(frozen=True, slots=True)
class Norm:
    """A BatchNorm with running statistics, scale and shift, by the names of its tensors."""

    node: str
    scale: str
    shift: str
    mean: str
    variance: str
    eps: float


@dataclass(frozen=True, slots=True)
class Cut:
    """An activation that cuts off what is below or above: ReLU, ReLU6, and their like."""

    low: float
    high: float

    def nearest(self, wanted: Tensor, made: Tensor, met: Tensor) -> Tensor:
        """Of all that is cut to the same as `wanted` is, what comes nearest to `made`.

        Both are still added to `met` before they are cut.

        >>> wanted, made = torch.tensor([-3.0, -3.0, 2.0]), torch.tensor([-1.0, 1.0, 1.0])
        >>> Cut(0.0, torch.inf).nearest(wanted, made, torch.zeros(3)).tolist()
        [-1.0, 0.0, 2.0]
        """
        whole = wanted + met
        least = torch.where(whole <= self.low, -torch.inf, whole)
        most = torch.where(whole >= self.high, torch.inf, whole)
        # At or below the lower end anything up to it will do, at or above the upper the reverse.
        least = torch.where(whole >= self.high, self.high, least)
        most = torch.where(whole <= self.low, self.low, most)
        return (made + met).clamp(least, most) - met


@dataclass(frozen=True, slots=True)
class Site:
    """One call of a layer: where it reads, its tensors, and what follows it alone.

    `other` is the node that is added to what the layer, and its norm, make; it ran before. `cut`
    says what of the sum is cut off next.
    """

    node: str
    read: str
    weight: str
    bias: str | None
    geometry: Geometry
    norm: Norm | None = None
    other: str | None = None
    cut: Cut | None = None

    @property
    def own_columns(self) -> bool:
        """Whether its groups name their columns apart: 0 to 3 are of the first, 4 to 7 the next."""
        return self.geometry.transposed and self.geometry.groups > 1

    @property
    def shifts(self) -> bool:
        """Whether a number can be added to each channel that it makes."""
        return self.norm is not None or self.bias is not None


def find_sites(captured: Captured, model: nn.Module) -> tuple[dict[str, Site], dict[str, Norm]]:
    """The sites of a captured model, and its norms, each by its node."""
    return _Finder(captured, model).found()


class _Finder:
    def __init__(self, captured: Captured, model: nn.Module) -> None:
        self._captured, self._model = captured, model
        self._nodes: dict[str, fx.Node] = {node.name: node for node in captured.graph.nodes}
        self._rank = {name: at for at, name in enumerate(self._nodes)}
        reads = (
            v for seen in captured.observed.values() for call in seen.calls for v in call.reads
        )
        self._reads = Counter(value.name for value in reads if isinstance(value, Parameter))

    def found(self) -> tuple[dict[str, Site], dict[str, Norm]]:
        """All sites and norms."""
        norms = {n: norm for n, node in self._nodes.items() if (norm := self._norm(node))}
        sites = {n: site for n, node in self._nodes.items() if (site := self._site(node, norms))}
        times = Counter(site.weight for site in sites.values())
        # What others read too, such as an embedding that is a classifier as well, stays.
        sites = {
            n: site
            for n, site in sites.items()
            if self._reads[site.weight] == times[site.weight]
            and self._is_own(site.bias, times[site.weight])
        }
        shared = {n for n, site in sites.items() if times[site.weight] > 1}
        sites = {
            n: replace(s, norm=None, other=None, cut=None) if n in shared else s
            for n, s in sites.items()
        }
        return sites, norms

    def _is_own(self, name: str | None, times: int) -> bool:
        """Whether nothing else reads a tensor than a layer in its calls."""
        return name is None or self._reads[name] == times

    def _call(self, node: fx.Node, *ops: str) -> Call | None:
        """The one operation that a node performs, if it is one of these."""
        calls = self._captured.observed[node.name].calls
        return calls[0] if len(calls) == 1 and calls[0].op in ops else None

    def _site(self, node: fx.Node, norms: Mapping[str, Norm]) -> Site | None:
        geometry, call = self._geometry(node)
        if geometry is None or call is None:
            return None
        weight, read = call.arguments["weight"], _operand(node, 0)
        if not isinstance(weight.value, Parameter) or read is None:
            return None
        bias = call.arguments.get("bias")
        if isinstance(bias, Ref) and not isinstance(bias.value, Parameter):
            return None
        after, norm = self._alone_after(node), None
        if after is not None and self._normalises(norms.get(after.name), call, geometry):
            norm = norms[after.name]
            node_made, after = after, self._alone_after(after)
        else:
            node_made = node
        other = None if after is None else self._added(after, node_made, node)
        if after is not None and other is not None:
            after = self._alone_after(after)
        cut = None if after is None else self._cut(after)
        own = None if bias is None else bias.value.name
        return Site(node.name, read.name, weight.value.name, own, geometry, norm, other, cut)

    def _cut(self, node: fx.Node) -> Cut | None:
        """What a node cuts off, if that is all it does."""
        if self._call(node, "relu", "relu_") is not None:
            return Cut(0.0, torch.inf)
        if self._call(node, "relu6", "relu6_") is not None:
            return Cut(0.0, 6.0)
        call = self._call(node, "hardtanh", "hardtanh_")
        if call is None:
            return None
        return Cut(float(call.arguments["min_val"]), float(call.arguments["max_val"]))

    def _normalises(self, norm: Norm | None, call: Call, geometry: Geometry) -> bool:
        """Whether a norm scales and shifts what a layer makes by channel.

        It works along axis 1; of `(samples, tokens, channels)` that would be the tokens.
        """
        axes = len(self._captured.values[call.outs[0]].shape)
        along = bool(geometry.kernel) or axes == 2
        return norm is not None and along

    def _geometry(self, node: fx.Node) -> tuple[Geometry | None, Call | None]:
        """How a node that is a convolution or a linear layer multiplies."""
        module = self._module(node)
        if isinstance(module, nn.modules.conv._ConvNd) and module.padding_mode != "zeros":
            return self._padded_otherwise(node, module)
        call = self._call(node, "linear", *CONVOLUTIONS, *TRANSPOSED)
        if call is None or not isinstance(call.arguments["weight"], Ref):
            return None, None
        if call.op == "linear":
            return Geometry(), call
        shape = self._captured.values[call.arguments["weight"].value].shape
        axes = len(shape) - 2
        stride, dilation = (_each(call.arguments[n], axes) for n in ("stride", "dilation"))
        groups, padding = call.arguments["groups"], call.arguments["padding"]
        if call.op in TRANSPOSED:
            more = _each(call.arguments["output_padding"], axes)
            less = _each(padding, axes)
            return transposed(shape, stride, dilation, groups, less, more), call
        around = _around(padding, shape[2:], dilation)
        return convolution(shape, stride, dilation, groups, around), call

    def _padded_otherwise(
        self, node: fx.Node, module: nn.modules.conv._ConvNd
    ) -> tuple[Geometry | None, Call | None]:
        """A convolution that repeats or mirrors its border pads before it multiplies."""
        calls = self._captured.observed[node.name].calls
        own = [call for call in calls if call.op in CONVOLUTIONS]
        if len(own) != 1 or stock_class(module) is None or module.transposed:
            return None, None
        around = tuple(module._reversed_padding_repeated_twice)
        geometry = convolution(
            *(module.weight.shape, module.stride, module.dilation, module.groups),
            *(around, module.padding_mode),
        )
        return geometry, own[0]

    def _module(self, node: fx.Node) -> nn.Module | None:
        if node.op != "call_module" or str(node.target) in self._captured.extras:
            return None
        return self._model.get_submodule(str(node.target))

    def _norm(self, node: fx.Node) -> Norm | None:
        call = self._call(node, "batch_norm")
        if call is None or call.arguments["training"]:
            return None
        parts = [call.arguments[n] for n in ("weight", "bias", "running_mean", "running_var")]
        names = [part.value.name if _is_parameter(part) else None for part in parts]
        scale, shift, mean, variance = names
        if scale is None or shift is None or mean is None or variance is None:
            return None
        if any(self._reads[name] > 1 for name in (scale, shift, mean, variance)):
            return None
        return Norm(node.name, scale, shift, mean, variance, float(call.arguments["eps"]))

    def _alone_after(self, node: fx.Node) -> fx.Node | None:
        """The only node that reads what a node makes; what only hands it on is looked through."""
        while len(node.users) == 1:
            (user,) = node.users
            seen = self._captured.observed[user.name]
            if user.op == "output" or len(seen.takes) == 0:
                return None
            if not all(call.op in HANDING_ON for call in seen.calls):
                return user
            if user.op not in ("call_module", "call_function", "call_method"):
                return None
            node = user
        return None

    def _added(self, node: fx.Node, one: fx.Node, site: fx.Node) -> str | None:
        """What a node adds to another, if that was there when the site ran."""
        call = self._call(node, "add", "add_")
        if call is None or call.arguments.get("alpha", 1) != 1:
            return None
        others = [x for x in node.all_input_nodes if not self._comes_from(x, one)]
        if len(others) != 1 or len(node.all_input_nodes) != 2:
            return None
        (other,), shapes = others, self._captured.values
        both = [call.arguments["self"], call.arguments["other"]]
        if not all(isinstance(part, Ref) for part in both):
            return None
        if shapes[both[0].value].shape != shapes[both[1].value].shape:
            return None
        return other.name if self._rank[other.name] < self._rank[site.name] else None

    def _comes_from(self, node: fx.Node, start: fx.Node) -> bool:
        while node is not start:
            operands = node.all_input_nodes
            calls = self._captured.observed[node.name].calls
            if len(operands) != 1 or not all(call.op in HANDING_ON for call in calls):
                return False
            node = operands[0]
        return True


def _operand(node: fx.Node, at: int) -> fx.Node | None:
    """The operand at a place, if it is a node."""
    found = node.args[at] if len(node.args) > at else node.kwargs.get("input")
    return found if isinstance(found, fx.Node) else None


def _is_parameter(part: Any) -> bool:
    return isinstance(part, Ref) and isinstance(part.value, Parameter)


def _each(number: Any, axes: int) -> tuple[int, ...]:
    """One number for each axis."""
    many = tuple(number) if isinstance(number, (tuple, list)) else (int(number),)
    return many * axes if len(many) == 1 else many


def _around(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding as `F.pad` takes it: the last axis first, before and behind.

    >>> _around(1, (3, 5), (1, 1)), _around("same", (3, 4), (1, 1)), _around("valid", (3,), (1,))
    ((1, 1, 1, 1), (1, 2, 1, 1), (0, 0))
    """
    if padding == "same":
        reach = [apart * (size - 1) for size, apart in zip(kernel, dilation, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in reach]
    else:
        sizes = (0,) * len(kernel) if padding == "valid" else _each(padding, len(kernel))
        pairs = [(size, size) for size in sizes]
    return tuple(side for pair in reversed(pairs) for side in pair)


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """A parameter or buffer, by its name."""
    owner, _, own = name.rpartition(".")
    found = getattr(model.get_submodule(owner), own)
    assert isinstance(found, Tensor)
    return found
