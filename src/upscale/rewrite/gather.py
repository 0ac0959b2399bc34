"""Gathers: the channels at given places, copied in order."""

# No deferred annotations here: torch.jit.script reads the real ones.

import torch
from torch import Tensor, nn


class Gather(nn.Module):
    """The channels at given places, copied in order.

    With `rows`, the tensor is treated as a matrix with a column for each channel: much faster
    where the channels lie side by side in memory, and right everywhere.
    """

    indices: Tensor

    def __init__(
        self, axis: int, indices: tuple[int, ...], device: torch.device, *, rows: bool = False
    ) -> None:
        super().__init__()
        self.axis, self.rows = axis, rows
        index = torch.tensor(indices, dtype=torch.long, device=device)
        self.register_buffer("indices", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Copy the channels out of a tensor."""
        if not self.rows:
            return torch.index_select(x, self.axis, self.indices)
        rows = x.movedim(self.axis, -1)
        taken = rows.reshape(-1, rows.shape[-1]).index_select(1, self.indices)
        grid: Tensor = taken.unflatten(0, rows.shape[:-1])
        return grid.movedim(-1, self.axis)

    def extra_repr(self) -> str:
        """What the module's print says of it."""
        return f"axis={self.axis}, channels={len(self.indices)}, rows={self.rows}"
