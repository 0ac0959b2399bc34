"""TorchScript: scripted where that can be done, else traced on the example."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn

from upscale.capture import Example, two_of_each
from upscale.errors import DeployError
from upscale.model.accepting import ordinary, ordinary_model, ordinary_tensors
from upscale.tools.atomic import replacing
from upscale.tools.quiet import unwarned


@ordinary_tensors()
def to_torchscript(model: nn.Module, example: Any, path: str | os.PathLike[str]) -> None:
    """Write a model as `torch.jit.load` reads it, for any batch."""
    model = ordinary_model(model)
    with unwarned():  # torch warns that the format is old
        scripted = _scripted(copy.deepcopy(model), two_of_each(Example.of(ordinary(example))))
        own = dict(model.named_buffers())  # scripted, it was tried, and may have written to its own
        with torch.no_grad():
            for name, buffer in scripted.named_buffers():
                if name in own:
                    buffer.copy_(own[name])
        with replacing(path) as fresh:
            torch.jit.save(scripted, fresh)


def _scripted(model: nn.Module, example: Example) -> torch.jit.ScriptModule:
    try:
        scripted: torch.jit.ScriptModule = torch.jit.script(model)
        given = example.copied()
        with torch.no_grad():  # some modules refuse only once they run
            scripted(*given.args, **given.kwargs)
        return scripted
    except Exception as first:  # the compiler reads the model's code, and refuses in many ways
        try:
            return torch.jit.trace(  # type: ignore[no-any-return]
                model,
                example_inputs=None if example.kwargs else example.args,
                example_kwarg_inputs=dict(example.kwargs) or None,
            )
        except Exception as second:
            raise DeployError(
                f"torch.jit takes this model neither as a script ({first}) nor as a trace "
                f"({second})"
            ) from second
