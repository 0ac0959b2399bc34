"""The oracle: a model with zeros where selections prune, built as plainly as can be.

An export is right if it computes what this computes. The masks that users train are made in
another room, by other means, and the two share nothing but the `Selection`: a mistake in one of
them shows as a difference. What both have to know is written down here once more:

- A column of a weight is an input channel. A convolution with groups has fewer columns than
  inputs, and column `c` is read by input `c` of every group: inputs `c`, `c + columns`, ...
- A row is an output channel. A transposed convolution has its axes the other way round, and with
  groups fewer rows than outputs.
- With `after="norm"` an output is zero after the layer's BatchNorm, if it has one of its own:
  `conv → bn → relu` has, `conv → relu → bn` has not, and neither has `bn(y) + y`.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from upscale.capture import Example, OwnDraws, leaves_of
from upscale.selected.selection import Selection

LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
APPLYING = {"linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))}


def masked(
    model: nn.Module,
    selections: Sequence[Selection],
    example: Example,
    *,
    zero_after: Mapping[str, Collection[int]] | None = None,
) -> nn.Module:
    """A copy of a model that computes what an export with these selections must compute.

    `zero_after` names modules after which further channels are zero, whatever is selected.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> given = Example.of(torch.ones(1, 2))
    >>> masked(net, [Selection(kept={"1": [0]})], given)[1].weight[0, 1:].tolist()
    [0.0, 0.0]
    >>> masked(net, [Selection(kept={"0": [0]}, side="output")], given)[0](*given.args)[0, 1:]
    tensor([0., 0.], grad_fn=<SliceBackward0>)
    """
    twin = copy.deepcopy(model)
    zeros = defaultdict(set, {name: set(lost) for name, lost in (zero_after or {}).items()})
    for selection in selections:
        after_norms = selection.side == "output" and selection.after == "norm"
        norms = _norms(model, example) if after_norms else {}
        for name, kept in selection.kept.items():
            layer = model.get_submodule(name)
            if selection.side == "input":
                _forget_columns(twin.get_submodule(name), frozenset(kept))
                continue
            lost = _lost_outputs(layer, frozenset(kept))
            for where in norms.get(layer, [name]):
                zeros[where] |= lost
    for where, channels in zeros.items():
        twin.get_submodule(where).register_forward_hook(partial(_zero_outputs, channels))
    return twin


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The convolutions and linear layers of a model, each by every name it has."""
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, LAYERS) and isinstance(getattr(module, "weight", None), Tensor)
    }


def _forget_columns(layer: Any, kept: frozenset[int]) -> None:
    """Make a layer read nothing but the columns it keeps; changed in place."""
    column_axis = 0 if getattr(layer, "transposed", False) else 1
    lost = [column not in kept for column in range(layer.weight.shape[column_axis])]
    if _applies_what_it_stores(layer):
        with torch.no_grad():
            layer.weight.masked_fill_(_flags(layer.weight, column_axis, lost), 0.0)
        return
    # What it applies is another weight than what it stores: inputs that are zero do the same.
    blind = _BlindTo(tuple(layer.weight.shape), lost)
    layer.register_forward_pre_hook(blind.enter)
    layer.register_forward_hook(blind.leave, always_call=True)


def _applies_what_it_stores(layer: Any) -> bool:
    """Whether a layer computes with the very weight that it stores, as torch's own classes do.

    One that standardises its weight first, or has it computed by a parametrisation, does not.
    """
    ways = [getattr(layer, name, None) for name in ("__call__", "forward", "_conv_forward")]
    return layer._parameters.get("weight") is layer.weight and all(
        way is None or way.__module__.startswith("torch.nn.modules.") for way in ways
    )


def _lost_outputs(layer: Any, kept: frozenset[int]) -> set[int]:
    """The output channels of a layer that keeps some rows of its weight."""
    transposed = getattr(layer, "transposed", False)
    rows = layer.weight.shape[1 if transposed else 0]
    outputs = rows * layer.groups if transposed else rows
    return {channel for channel in range(outputs) if channel % rows not in kept}


def _channel_axis(module: nn.Module) -> int:
    """The axis of what a module returns that its channels lie along."""
    # A layer's from behind: a linear's are last, a convolution may be called without a batch.
    return 1 - int(module.weight.dim()) if isinstance(module, LAYERS) else 1


def _flags(like: Tensor, axis: int, lost: Sequence[bool]) -> Tensor:
    """Flags along one axis of a tensor, in a shape that fits it."""
    shape = [1] * like.dim()
    shape[axis] = len(lost)
    return torch.tensor(lost, device=like.device).view(shape)


def _zero_outputs(channels: set[int], module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """A hook that makes channels zero in whatever a module returns."""
    axis = _channel_axis(module)
    lost = [channel in channels for channel in range(output.shape[axis])]
    return output.masked_fill(_flags(output, axis, lost), 0.0)


class _BlindTo(TorchFunctionMode):
    """Hooks that, while a layer runs, make inputs zero that meet columns it does not keep.

    They do so in the convolution or product itself, of which the layer may compute both sides.
    """

    def __init__(self, shape: tuple[int, ...], lost: list[bool]) -> None:
        super().__init__()
        self.shape, self.lost = shape, lost

    def enter(self, layer: nn.Module, inputs: object) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, layer: nn.Module, inputs: object, output: object) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in APPLYING:
            kwargs |= dict(zip(("input", "weight"), args, strict=False))
            read, weight = kwargs.pop("input"), kwargs.pop("weight")
            if tuple(weight.shape) == self.shape:
                axis = 1 - weight.dim()
                lost = self.lost * (read.shape[axis] // len(self.lost))
                read = read.masked_fill(_flags(read, axis, lost), 0.0)
            args = (read, weight, *args[2:])
        return func(*args, **kwargs)


# How a tensor that a layer made is marked with those who read it: tensors take attributes, and
# lose them with whatever is computed from them.
READERS = "_upscale_readers"


class _Readers(TorchDispatchMode):
    """Sees, while a model runs, in which module each operation reads what layers made.

    Operations are those that compute: to ask for a shape, or to hand a tensor on as it is, is not
    to read it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        # Of each call of a layer: the axis its channels lie along, and the modules that read them.
        self.made: dict[str, list[tuple[int, set[str]]]] = defaultdict(list)
        self._inside = [""]
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._enter(name))
            module.register_forward_hook(
                lambda module, inputs, output, name=name: self._leave(name, module, output)
            )

    def _enter(self, name: str) -> None:
        self._inside.append(name)
        self.calls[name] += 1

    def _leave(self, name: str, module: nn.Module, output: Any) -> None:
        self._inside.pop()
        if isinstance(module, LAYERS) and isinstance(output, Tensor):
            readers: set[str] = set()
            setattr(output, READERS, readers)
            self.made[name].append((_channel_axis(module) % output.dim(), readers))

    def note(self, values: Any) -> None:
        """Note that some values are read here."""
        for leaf in leaves_of(values):
            readers: set[str] = getattr(leaf, READERS, set())
            readers.add(self._inside[-1])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.note((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _norms(model: nn.Module, example: Example) -> dict[nn.Module, list[str]]:
    """For each layer with a BatchNorm of its own after every call, the names of those.

    Its own is one that runs once and is alone in reading what the layer made. A layer that does
    not apply what it stores has none: what it computes is its own affair.
    """
    norms = {name for name, module in model.named_modules() if _is_batch_norm(module)}
    if not norms:
        return {}
    twin, given = copy.deepcopy(model), example.copied()
    watch = _Readers(twin)
    with torch.no_grad(), OwnDraws(), watch:
        watch.note(twin(*given.args, **given.kwargs))  # the caller reads what it gets
    own = {name for name in norms if watch.calls[name] == 1}
    return {
        model.get_submodule(name): [min(readers) for _, readers in made]
        for name, made in watch.made.items()
        if _applies_what_it_stores(model.get_submodule(name))
        and all(len(readers) == 1 and readers <= own and axis == 1 for axis, readers in made)
    }


def _is_batch_norm(module: nn.Module) -> bool:
    """Whether a module is one of torch's own; what others do beside is not known."""
    torchs_own = type(module).__module__.startswith("torch.nn.")
    return torchs_own and isinstance(module, nn.modules.batchnorm._BatchNorm)
