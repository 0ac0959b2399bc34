"""Masking: the model that users train, with zeros where a selection prunes.

What judges an export is the oracle, which knows nothing of this room.
"""

from upscale.masking.masks import (
    held,
    held_channels,
    hold_output,
    hold_outputs,
    kept_columns,
    mask,
    masked_by,
    outputs_gone,
    released,
    zeroed,
)
from upscale.masking.norms import find_norms

__all__ = ["held", "held_channels", "hold_output", "hold_outputs", "mask", "outputs_gone"]
__all__ += ["find_norms", "kept_columns", "masked_by", "released", "zeroed"]
