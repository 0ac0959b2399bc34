"""How a layer multiplies: its input as rows of a matrix, so that a fit is a system of equations.

A 3x3 convolution of 2 channels computes each output pixel from 18 numbers. Written as a row each,

    y[n, :, i, j]  =  W · row[n, i, j]        row = the 18 numbers under the kernel

and a least-squares fit of W needs only sums over rows. A linear layer's rows are its inputs
themselves. A transposed convolution is an ordinary one, with its kernel turned round, of an input
that was spread apart by zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a layer does besides multiplying by its weight; `kernel` is empty for a linear layer.

    `padding` is as `F.pad` takes it, of the way `mode`; a transposed convolution first puts
    `stride - 1` zeros between its inputs, and takes its rows with a stride of one.
    """

    groups: int = 1
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    mode: str = "constant"
    transposed: bool = False

    @property
    def taps(self) -> int:
        """How many numbers of one channel meet in one output."""
        return prod(self.kernel)

    def as_matrix(self, weight: Tensor) -> Tensor:
        """A weight as groups × columns × taps × rows.

        >>> Geometry(kernel=(3, 3)).as_matrix(torch.zeros(8, 2, 3, 3)).shape
        torch.Size([1, 2, 9, 8])
        """
        if self.transposed:  # (groups · columns) × rows × kernel, the kernel turned round
            own = weight.reshape(self.groups, -1, weight.shape[1], self.taps)
            return own.flip(-1).movedim(2, 3)
        own = weight.reshape(self.groups, -1, weight.shape[1], self.taps)
        return own.permute(0, 2, 3, 1)

    def as_weight(self, matrix: Tensor, like: Tensor) -> Tensor:
        """The weight that a matrix was made of: what `as_matrix` undoes."""
        if self.transposed:
            return matrix.movedim(3, 2).flip(-1).reshape(like.shape)
        return matrix.permute(0, 3, 1, 2).reshape(like.shape)

    def by_channel(self, output: Tensor) -> Tensor:
        """What a layer made, as samples × places × channels."""
        if not self.kernel:
            return output.reshape(output.shape[0], -1, output.shape[-1])
        if output.ndim == len(self.kernel) + 1:
            output = output.unsqueeze(0)
        return output.flatten(2).transpose(1, 2)

    def rows(self, read: Tensor, columns: Tensor, places: Tensor | None) -> Tensor:
        """What meets some columns of the weight, as samples × places × groups × columns × taps."""
        if not self.kernel:
            flat = read.reshape(read.shape[0], -1, read.shape[-1])
            flat = flat if places is None else flat[:, places]
            return flat[:, :, None, columns, None]
        axes = len(self.kernel)
        if read.ndim == axes + 1:
            read = read.unsqueeze(0)
        grouped = read.reshape(len(read), self.groups, -1, *read.shape[2:])[:, :, columns]
        padded = self._padded(grouped.flatten(1, 2))
        grouped = padded.reshape(*grouped.shape[:3], *padded.shape[2:])
        steps = (1,) * axes if self.transposed else self.stride
        windows = grouped
        for axis, (size, step, apart) in enumerate(
            zip(self.kernel, steps, self.dilation, strict=True)
        ):
            windows = windows.unfold(3 + axis, apart * (size - 1) + 1, step)[..., ::apart]
        # samples × groups × columns × places of each axis × taps of each axis; what is copied
        # below comes to lie as it is multiplied: groups, samples and places first.
        around = range(3, 3 + axes)
        windows = windows.permute(1, 0, *around, 2, *(axis + axes for axis in around))
        if places is None:
            windows = windows.flatten(2, 1 + axes)
        else:
            where = torch.unravel_index(places, windows.shape[2 : 2 + axes])
            at: Any = (slice(None), slice(None), *where)
            windows = windows[at]
        return windows.flatten(4).permute(1, 2, 0, 3, 4)

    def _padded(self, read: Tensor) -> Tensor:
        if self.transposed and prod(self.stride) > 1:
            sizes = [(n - 1) * s + 1 for n, s in zip(read.shape[2:], self.stride, strict=True)]
            spread = read.new_zeros(*read.shape[:2], *sizes)
            apart: Any = (..., *(slice(None, None, step) for step in self.stride))
            spread[apart] = read
            read = spread
        if any(self.padding):
            # Of no channels there is no border to mirror.
            return F.pad(read, self.padding, mode=self.mode if read.shape[1] else "constant")
        return read


def convolution(
    shape: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    padding: Sequence[int],
    mode: str = "constant",
) -> Geometry:
    """The geometry of a convolution; `padding` as `F.pad` takes it."""
    return Geometry(groups, tuple(shape[2:]), tuple(stride), tuple(dilation), tuple(padding), mode)


def transposed(
    shape: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    padding: Sequence[int],
    output_padding: Sequence[int],
) -> Geometry:
    """The geometry of a transposed convolution, as one of an input spread apart.

    Its padding takes away from the border that a kernel reaches over; the axes that `F.pad`
    counts begin with the last.
    """
    kernel = tuple(shape[2:])
    around: list[int] = []
    axes = zip(kernel, dilation, padding, output_padding, strict=True)
    for size, apart, less, more in reversed(list(axes)):
        reach = apart * (size - 1) - less
        around += [reach, reach + more]
    return Geometry(
        groups, kernel, tuple(stride), tuple(dilation), tuple(around), "constant", transposed=True
    )
