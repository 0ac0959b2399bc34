"""Passes of lowering, run on flows made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from unittest import mock

import numpy as np

from tests.flow.building import Building, line
from upscale.channels import positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.known import Known
from upscale.lowering import sums
from upscale.lowering.lowered import Lowered
from upscale.lowering.repeats import repeat_constants


def split_sums(
    net: Building, zeros: Mapping[str, Sequence[int]], way: str = "split", adds: str | None = "sum"
) -> ChannelFlow:
    """The flow with the node that `adds` rewritten, where values are zero at some positions."""
    flow, captured = net.flow(), mock.Mock()  # which nodes add is told here, without a model
    known = {
        line(value): Known.zeros_at(positions(own), flow.sizes[line(value)])
        for value, own in zeros.items()
    }
    additions = frozenset() if adds is None else frozenset({adds})
    with mock.patch.object(sums, "_additions", return_value=additions):
        return sums.split_sums(Lowered(flow, {}), captured, known, way).flow


def repeat(
    net: Building, value: str, numbers: Sequence[float], *, firm: bool = True
) -> ChannelFlow:
    """The flow where a value always holds these numbers; NaN where it holds none."""
    known = Known(np.array(numbers), np.full(len(numbers), firm))
    return repeat_constants(Lowered(net.flow(), {}), {line(value): known}).flow
