"""`torch.compile`: a model as Inductor compiles it for the sizes of its example."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from upscale.capture import Example
from upscale.errors import TargetError
from upscale.targets.graph_runtime import GraphRuntime
from upscale.targets.prices import BUILT_IN, CopyPrices
from upscale.targets.target import Target
from upscale.tools.quiet import unwarned

# Near what `upscale.calibrate` measures on one core with AVX-512.
COPY = CopyPrices(gather_byte=0.3, run_byte=0.2, run_row=8.0, slice_byte=0.1, join_byte=0.1)
PRICES = replace(BUILT_IN, outer=COPY, inner=COPY, block=16, slice_call=1000.0)


class Compiled(GraphRuntime):
    """Runs a model as Inductor compiles it; needs a C++ compiler."""

    name = "compile"
    needs = ("torch",)
    built_in = PRICES

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        own = copy.deepcopy(model)
        if target.memory_format == "channels_last":
            own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        try:
            with torch.inference_mode(), unwarned():
                compiled = torch.compile(own, dynamic=False)
                compiled(*example.args, **example.kwargs)
        except Exception as error:  # a compiler that is not there, or a model that it refuses
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise TargetError(f"torch.compile does not take this model: {first}") from error
        return partial(compiled, *example.args, **example.kwargs)


RUNTIME = Compiled()
