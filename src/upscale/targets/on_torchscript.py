"""TorchScript: a model traced and frozen. What it computes with is torch's, and so are most prices;
starting an operation costs less."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from upscale.capture import Example
from upscale.targets.on_torch import Torch
from upscale.tools.quiet import unwarned


class TorchScript(Torch):
    """Runs a model traced on its example, and frozen."""

    name = "torchscript"

    def compiled(self, model: nn.Module, example: Example) -> Any:
        """A model as TorchScript runs it.

        It is written and read before it is frozen: torch keeps for good what was traced, and would
        keep the weights of what is frozen from that, but lets go of what was read.
        """
        written = io.BytesIO()
        with torch.inference_mode(), unwarned():  # of tracing and of the format's age
            traced = torch.jit.trace(model.eval(), example.args, strict=False, check_trace=False)
            torch.jit.save(traced, written)
            written.seek(0)
            return torch.jit.freeze(torch.jit.load(written))


RUNTIME = TorchScript()
