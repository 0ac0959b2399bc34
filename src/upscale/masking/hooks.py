"""Hooks that keep masks on a model while it trains, is saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from upscale.model.layers import KINDS, column_axis, columns, weight_of


class HoldOutput:
    """A hook that zeroes pruned channels of what a layer, or its normalisation, makes."""

    only_masks = True

    def __init__(self, module: nn.Module, channels: tuple[int, ...]) -> None:
        self.gone = torch.tensor(channels, dtype=torch.long)
        if isinstance(module, KINDS):
            weight, (rows, times) = weight_of(module), rows_of(module)
            keep = torch.ones(rows * times, dtype=torch.bool)
            keep[self.gone] = False
            self.keep = keep.view(-1, *[1] * (weight.ndim - 2)).to(weight.device)

    def __call__(self, module: nn.Module, inputs: object, output: Any) -> Any:
        if not isinstance(output, Tensor):
            return output * self.keep  # a layer is traced: there is no tensor to look at
        axis = -1 if isinstance(module, nn.Linear) else 1
        if isinstance(module, nn.modules.conv._ConvNd):
            axis = output.ndim - (weight_of(module).ndim - 1)
        return output.index_fill(axis, self.gone.to(output.device), 0.0)


class HoldStored:
    """A hook that zeroes the pruned columns of what named layers store."""

    only_masks = True

    def __init__(self, kept: Mapping[str, tuple[int, ...]]) -> None:
        self.kept = kept

    def __call__(self, model: nn.Module, inputs: object) -> None:
        with torch.no_grad():
            for name, kept in self.kept.items():
                layer = model.get_submodule(name)
                gone = not_kept(columns(layer), kept)
                if len(gone):
                    weight = weight_of(layer)
                    weight.index_fill_(column_axis(layer), gone.to(weight.device), 0.0)


class HoldComputed(TorchFunctionMode):
    """Hooks that, while a layer runs, mask every weight of its weight's shape that it applies."""

    def __init__(self, kept: tuple[int, ...], shape: tuple[int, ...], axis: int) -> None:
        super().__init__()
        self.gone, self.shape, self.axis = not_kept(shape[axis], kept), shape, axis

    def enter(self, layer: nn.Module, inputs: object) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, layer: nn.Module, inputs: object, output: object) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in APPLYING:
            if len(args) > 1:
                args = (args[0], self._masked(args[1]), *args[2:])
            elif "weight" in kwargs:
                kwargs["weight"] = self._masked(kwargs["weight"])
        return func(*args, **kwargs)

    def _masked(self, weight: Tensor) -> Tensor:
        # While the masked model itself is being traced there is no shape to look at.
        if isinstance(weight, Tensor) and tuple(weight.shape) != self.shape:
            return weight
        return weight.index_fill(self.axis, self.gone.to(weight.device), 0.0)


APPLYING = {
    *(torch.conv1d, torch.conv2d, torch.conv3d, F.linear),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
}


def rows_of(layer: nn.Module) -> tuple[int, int]:
    """How many rows a layer's weight has, and how many output channels go with each."""
    transposed = column_axis(layer) == 0
    rows = int(weight_of(layer).shape[1 if transposed else 0])
    return rows, int(getattr(layer, "groups", 1)) if transposed else 1


def not_kept(size: int, kept: tuple[int, ...]) -> Tensor:
    """The indices below a size that are not kept."""
    return torch.tensor(sorted(set(range(size)).difference(kept)), dtype=torch.long)
