"""torch.export: a model as a `.pt2` file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from upscale.formats.program import exported
from upscale.model.accepting import ordinary_tensors
from upscale.tools.atomic import replacing
from upscale.tools.quiet import unwarned


@ordinary_tensors()
def to_exported(
    model: nn.Module, example: Any, path: str | os.PathLike[str], *, dynamic_batch: bool = True
) -> None:
    """Write a model as `torch.export.load` reads it, for any batch or for the example's alone."""
    program = exported(model, example, dynamic_batch=dynamic_batch)
    with replacing(path) as fresh, unwarned():  # torch warns of its own format's age
        torch.export.save(program, fresh)
