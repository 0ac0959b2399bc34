"""Gathers: the channels at given places, copied in order."""

# No deferred annotations here: torch.jit.script reads the real ones.

import torch
from torch import Tensor, nn


class Gather(nn.Module):
    """The channels at given places, copied in order."""

    indices: Tensor

    def __init__(
        self, axis: int, indices: tuple[int, ...], device: torch.device | None = None
    ) -> None:
        super().__init__()
        self.axis = axis
        index = torch.tensor(indices, dtype=torch.long, device=device)
        self.register_buffer("indices", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Copy the channels out of a tensor."""
        return torch.index_select(x, self.axis, self.indices)

    def extra_repr(self) -> str:
        """What the module's print says of it."""
        return f"axis={self.axis}, channels={len(self.indices)}"
