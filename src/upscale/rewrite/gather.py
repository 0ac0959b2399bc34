"""Gathers: the channels at given places, copied in order, with zeros between them or without."""

# No deferred annotations here: torch.jit.script reads the real ones.

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Gather(nn.Module):
    """The channels at given places, copied in order."""

    indices: Tensor

    def __init__(self, axis: int, indices: tuple[int, ...], device: torch.device) -> None:
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


class Infill(Gather):
    """The channels at given places, and zeros where the place is -1."""

    def __init__(
        self, axis: int, indices: tuple[int, ...], device: torch.device, axes: int
    ) -> None:
        super().__init__(axis, tuple(index + 1 for index in indices), device)
        self.pad = [0] * (2 * (axes - 1 - axis)) + [1, 0]

    def forward(self, x: Tensor) -> Tensor:
        """Put a channel of zeros before a tensor's own, and copy out of both."""
        return torch.index_select(F.pad(x, self.pad), self.axis, self.indices)
