"""Recurrent layers: whole, as torch has them. Nothing is pruned inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call, rule

# The order in which torch has the gates, by their places in ONNX's order.
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
KINDS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@rule("LSTM GRU RNN")
def recurrent(call: Call, build: Build) -> Any:
    """All steps of a sequence: (steps, batch, features) to (steps, directions, batch, hidden)."""
    name, direction = call.operator, call.attribute("direction", "forward")
    usual = USUAL[name] * (2 if direction == "bidirectional" else 1)
    if list(call.attribute("activations", usual)) != usual or direction == "reverse":
        raise OnnxError("only forward or both ways, with the usual activations")
    if call.attribute("layout", 0) or call.attribute("clip") or call.attribute("input_forget", 0):
        raise OnnxError("layout, clip and input_forget are not supported")
    if name == "GRU" and not call.attribute("linear_before_reset", 0):
        raise OnnxError("only with linear_before_reset=1")
    if call.input(4) is not None or call.input(7) is not None:
        raise OnnxError("sequence_lens and peepholes are not supported")
    read = call.read(0, build)
    own = _layer(call, build)
    states = [call.read(place, build) for place in (5, 6) if call.input(place) is not None]
    weight = build.constant(call.given(1), "weight")
    made = _called(build, weight, own, read, states)
    steps, last = made[0], made[1:]
    directions = 2 if direction == "bidirectional" else 1
    count, batch = build.size(read, 0), build.size(read, 1)
    grid = build.call(
        torch.reshape, steps, (count, batch, directions, call.attribute("hidden_size"))
    )
    return [build.call(torch.permute, grid, (0, 2, 1, 3)), *last]


def _called(
    build: Build, weight: Tensor, own: nn.Module, read: Any, states: list[Any]
) -> list[Any]:
    given = [] if not states else [tuple(states)] if len(states) > 1 else states
    made: Any = build.layer(weight, own.eval(), {}, read, *given)
    steps, last = made
    return [steps, *(last if isinstance(last, list) else [last])]


def _layer(call: Call, build: Build) -> nn.Module:
    """torch's layer, with the file's weights in its order of gates."""
    hidden, order = call.attribute("hidden_size"), GATES[call.operator]
    weight, again = (build.constant(call.given(place), "weight") for place in (1, 2))
    bias = build.constant(call.given(3), "bias") if call.input(3) is not None else None
    both = len(weight) == 2
    made: nn.Module = KINDS[call.operator](
        weight.shape[2], hidden, bias=bias is not None, bidirectional=both, device="meta"
    )

    def turned(own: Tensor) -> nn.Parameter:
        gates = own.reshape(len(order), hidden, *own.shape[1:])
        return nn.Parameter(gates[list(order)].reshape(own.shape).clone())

    for side in range(len(weight)):
        end = "_reverse" if side else ""
        setattr(made, f"weight_ih_l0{end}", turned(weight[side]))
        setattr(made, f"weight_hh_l0{end}", turned(again[side]))
        if bias is not None:
            half = len(bias[side]) // 2
            setattr(made, f"bias_ih_l0{end}", turned(bias[side][:half]))
            setattr(made, f"bias_hh_l0{end}", turned(bias[side][half:]))
    return made
