"""Gathers: the channels at given places, copied in order, with zeros between them or without."""

# No deferred annotations here: torch.jit.script reads the real ones.

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Gather(nn.Module):
    """The channels at given places, copied in order.

    With `rows`, the tensor is treated as a matrix with a column for each channel: much faster
    where the channels lie side by side in memory, and right everywhere.
    """

    indices: Tensor

    def __init__(self, axis: int, indices: tuple[int, ...], *, rows: bool = False) -> None:
        super().__init__()
        self.axis, self.rows = axis, rows
        index = torch.tensor(indices, dtype=torch.long)
        self.register_buffer("indices", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Copy the channels out of a tensor."""
        return self.taken(x)

    def taken(self, x: Tensor) -> Tensor:
        """The channels, as a tensor of their own."""
        if not self.rows:
            return torch.index_select(x, self.axis, self.indices)
        rows = x.movedim(self.axis, -1)
        taken = rows.reshape(-1, rows.shape[-1]).index_select(1, self.indices)
        grid: Tensor = taken.unflatten(0, rows.shape[:-1])
        return grid.movedim(-1, self.axis)

    def extra_repr(self) -> str:
        """What the module's print says of it."""
        return f"axis={self.axis}, channels={len(self.indices)}, rows={self.rows}"


class Infill(Gather):
    """The channels at given places, and zeros where the place is -1."""

    def __init__(
        self, axis: int, indices: tuple[int, ...], *, axes: int, rows: bool = False
    ) -> None:
        super().__init__(axis, tuple(index + 1 for index in indices), rows=rows)
        self.axes = axes
        self.pad = [0] * (2 * (axes - 1 - axis)) + [1, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Put a channel of zeros before a tensor's own, and copy out of both."""
        return self.taken(F.pad(x, self.pad))
