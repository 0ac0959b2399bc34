"""A runtime of the tests' own, as anybody would write one: all of it is in this file."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from upscale.capture import Example
from upscale.model.layers import layers
from upscale.targets.prices import BUILT_IN, CopyPrices, Prices
from upscale.targets.runtime import Runtime
from upscale.targets.target import Target

DEAR = CopyPrices(gather_byte=1e6, run_byte=1e6, run_row=1e6, slice_byte=0.0, join_byte=1e6)


class Fake(Runtime):
    """Its copies take forever, and a layer the longer the fewer inputs it has."""

    name = "fake"
    built_in = replace(BUILT_IN, outer=DEAR, inner=DEAR)

    def version(self) -> str:
        return "fake 1"

    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        inputs = sum(layer.in_channels for layer in layers(model).values())  # type: ignore[misc]
        return partial(time.sleep, 0.05 / inputs)

    def block(self, target: Target) -> int:
        return 4

    def measure(self, target: Target) -> Prices:
        return replace(BUILT_IN, call=17.0, block=self.block(target))


RUNTIME = Fake()
