"""What a capture says of graphs of a few nodes: who reads, makes, writes and shares what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import upscale
from upscale.capture import Captured, Example, Ref, capture
from upscale.capture.captured import schema_of


class Net(nn.Module):
    """One convolution, a buffer, and what is done with them."""

    def __init__(self, forward: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.register_buffer("count", torch.zeros(()))
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def captured(forward: Callable[[Any, Any], Any], *, training: bool = False) -> Captured:
    model = Net(forward).train(training)
    return capture(model, Example.of(torch.randn(1, 3, 6, 6)))


@contextmanager
def counted_traces() -> Iterator[list[nn.Module]]:
    """The models that `torch.fx` traces within."""
    traced: list[nn.Module] = []
    usual = fx.Tracer.trace

    def counting(self: fx.Tracer, root: Any, *args: Any, **kwargs: Any) -> fx.Graph:
        traced.append(root)
        return usual(self, root, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fx.Tracer, "trace", counting)
        yield traced


def test_a_plain_model_is_traced_once_and_its_code_runs_once() -> None:
    runs = []

    def forward(net: Net, x: Tensor) -> Tensor:
        runs.append(type(x))
        return torch.relu(net.conv(x))

    with counted_traces() as traced:
        captured(forward)
    assert len(traced) == 1
    assert len(runs) == 1
    assert issubclass(runs[0], fx.Proxy)


def test_a_chain_says_what_each_node_takes_and_makes() -> None:
    seen = captured(lambda net, x: torch.relu(net.norm(net.conv(x)))).observed
    assert {name: (node.takes, node.makes) for name, node in seen.items()} == {
        "x": ((), ("x",)),
        "conv": (("x",), ("conv",)),
        "norm": (("conv",), ("norm",)),
        "relu": (("norm",), ("relu",)),
        "output": (("relu",), ("relu",)),
    }
    (call,) = seen["conv"].calls
    assert (call.op, call.outs) == ("conv2d", ("conv",))
    assert call.reads == ("x", "@conv.weight", "@conv.bias")
    assert call.arguments["weight"] == Ref("@conv.weight")
    assert call.arguments["groups"] == 1  # the default, which nobody passed
    assert [node.home for node in seen.values()] == [None, "conv", "norm", None, None]
    assert not any(node.writes or node.keeps or node.statistics for node in seen.values())


def test_two_are_run_and_the_sizes_of_one_are_written_down() -> None:
    found = captured(lambda net, x: torch.relu(net.norm(net.conv(x))))
    assert found.values["relu"].shape == (2, 8, 4, 4)
    assert found.sizes["relu"] == (1, 8, 4, 4)
    assert found.values["@conv.weight"].shape == found.sizes["@conv.weight"] == (8, 3, 3, 3)


def test_parts_of_a_chunk_have_names_of_their_own_and_share_memory() -> None:
    seen = captured(lambda net, x: net.conv(x).chunk(2, 1)[1] * 2).observed
    assert seen["chunk"].makes == ("chunk", "chunk:1")
    assert seen["chunk"].is_view
    assert seen["getitem"].makes == ("chunk:1",)
    assert not seen["getitem"].calls
    assert seen["mul"].takes == ("chunk:1",)
    assert not seen["mul"].is_view


def test_a_write_in_place_gives_the_memory_a_new_name() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.conv(x)
        y.mul_(2)
        return torch.relu(y)

    seen = captured(forward).observed
    assert seen["mul_"].writes == ("conv",)
    assert seen["mul_"].makes == ("mul_",)
    assert seen["relu"].takes == ("mul_",)


def test_an_augmented_assignment_writes_only_where_the_memory_is_read_again() -> None:
    def forward(net: Net, x: Tensor, again: bool) -> Any:
        y = net.conv(x)
        before = y
        y += 1
        return y + before if again else y

    apart, shared = (captured(lambda net, x, a=a: forward(net, x, a)) for a in (False, True))
    assert not apart.observed["add"].writes
    assert shared.observed["add"].writes == ("conv",)
    assert shared.observed["add_1"].takes == ("add",)


def test_what_was_written_through_another_view_must_not_be_read() -> None:
    def forward(net: Net, x: Tensor) -> Any:
        y = net.conv(x)
        half = y[:, :4]
        half.mul_(2)
        return torch.relu(y)

    found = captured(forward)  # by torch.export's functional form, which has no such write
    assert not any(seen.writes for seen in found.observed.values())


def test_a_part_may_be_read_after_another_part_was_written() -> None:
    def forward(net: Net, x: Tensor) -> Any:
        y = net.conv(x)
        one, other = y[:, :4], y[:, 4:]
        other.mul_(2)
        return torch.relu(one), other

    with counted_traces() as traced:
        seen = captured(forward).observed
    assert len(traced) == 1
    assert [name for name, node in seen.items() if node.writes] == ["mul_"]


def test_a_node_that_hands_its_input_back_makes_the_same_value() -> None:
    seen = captured(lambda net, x: F.dropout(net.conv(x), 0.5, training=False).contiguous() + 1)
    assert seen.observed["add"].takes[0] in seen.values
    assert seen.observed["contiguous"].is_view


def test_a_write_to_a_buffer_is_state_that_its_node_keeps() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.count += 1
        return net.conv(x) * net.count

    found = captured(forward)
    assert "@count" in found.state
    keeping = [name for name, seen in found.observed.items() if seen.keeps]
    assert len(keeping) == 1
    assert found.observed[keeping[0]].writes == ("@count",)


def test_a_batchnorm_in_training_keeps_statistics_and_no_state() -> None:
    found = captured(lambda net, x: net.norm(net.conv(x)), training=True)
    kept = set(found.observed["norm"].statistics)
    assert kept == {"@norm.running_mean", "@norm.running_var", "@norm.num_batches_tracked"}
    assert not found.state
    assert not found.observed["norm"].keeps


@fx.wrap
def doubled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2


def test_a_wrapped_function_is_inlined() -> None:
    found = captured(lambda net, x: doubled(net.conv(x)))
    assert [node.op for node in found.graph.nodes].count("call_function") == 2
    assert found.observed["mul"].takes == ("relu",)


def test_a_schema_is_read_once_and_says_what_is_written() -> None:
    aten = torch.ops.aten
    assert schema_of(aten.add.Tensor) is schema_of(aten.add.Tensor)
    assert schema_of(aten.add.Tensor).written == ()
    assert schema_of(aten.add.out).written == ("out",)
    x = torch.zeros(1)
    assert schema_of(aten.add_.Tensor).written_in((x, 1), {}) == [x]


def test_a_parameter_that_forward_writes_is_refused() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            net.conv.weight.mul_(0.5)
        return net.conv(x)

    with pytest.raises(
        upscale.UpscaleError,
        match=r"forward writes to the parameter conv\.weight at test_observe.py:\d+",
    ):
        captured(forward)
