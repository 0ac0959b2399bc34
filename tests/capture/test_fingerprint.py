"""A fingerprint tells what a model computes, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.networks import ANOTHER_SIZE, SIZE, Network, build, networks, outputs
from upscale.capture import Captured, Example, capture, capture_model
from upscale.capture.fingerprint.digests import FORMAT, difference, fingerprint, made_for
from upscale.capture.fingerprint.normal_form import normal_form

Forward = Callable[[Any, Any], Any]


class Net(nn.Module):
    """A small network; what happens between its two layers is given."""

    def __init__(
        self, between: Forward, *, stride: int = 1, eps: float = 1e-5, last: bool = True
    ) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1, stride=stride)
        self.n = nn.BatchNorm2d(8, eps=eps)
        self.b = nn.Conv2d(8, 4, 1) if last else nn.Identity()
        self.register_buffer("held", torch.ones(8, 1, 1))
        self.between = between
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.b(self.between(self, self.n(self.a(x))))


def shuffled(groups: int) -> Forward:
    def shuffle(net: Net, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)

    return shuffle


def attended(scale: float | None) -> Forward:
    def attend(net: Net, x: Tensor) -> Tensor:
        rows = x.flatten(2).transpose(1, 2)
        seen = F.scaled_dot_product_attention(rows, rows, rows, scale=scale)
        return seen.transpose(1, 2).reshape(x.shape)

    return attend


def constant(value: float) -> Forward:
    return lambda net, x: x + torch.tensor([[[value]]])


WAYS: dict[str, Forward] = {
    "relu": lambda net, x: F.relu(x),
    "relu in place, dropout off": lambda net, x: F.dropout(F.relu(x, inplace=True), 0.3, False),
    "sigmoid": lambda net, x: x.sigmoid(),
    "leaky relu": lambda net, x: F.leaky_relu(x, 0.1),
    "another slope": lambda net, x: F.leaky_relu(x, 0.2),
    "two times": lambda net, x: x * 2,
    "three times": lambda net, x: 3 * x,
    "a difference": lambda net, x: x.relu() - x.sigmoid(),
    "the other difference": lambda net, x: x.sigmoid() - x.relu(),
    "one of it": lambda net, x: 1 - x,
    "softmax over channels": lambda net, x: x.softmax(1),
    "softmax over rows": lambda net, x: x.softmax(2),
    "shuffled by two": shuffled(2),
    "shuffled by four": shuffled(4),
    "attention": attended(None),
    "attention at another scale": attended(0.5),
    "a constant": constant(0.25),
    "another constant": constant(0.75),
    "a buffer": lambda net, x: x + net.held,
    "a buffer twice": lambda net, x: x + net.held * 2,
    "a written sum": lambda net, x: x.relu().add_(x),
    "a slice": lambda net, x: torch.cat([x[:, :2], x[:, 2:]], 1),
    "another slice": lambda net, x: torch.cat([x[:, :3], x[:, 3:]], 1),
    "the other order": lambda net, x: torch.cat([x[:, 2:], x[:, :2]], 1),
    "pooled": lambda net, x: x * F.adaptive_avg_pool2d(x, 1).expand_as(x),
    "mean": lambda net, x: x - x.mean((2, 3), keepdim=True),
    "cast": lambda net, x: x.softmax(1, dtype=torch.float64).to(x.dtype),
    "halves": lambda net, x: torch.cat([part.tanh() for part in x.chunk(2, 1)], 1),
    "a half of the rows": lambda net, x: x[:, :, : x.shape[2] // 2],
}
BY_EXPORT = {"halves"}  # its code iterates over what is no tuple yet, which torch.fx refuses
ALIKE = {("relu", "relu in place, dropout off")}


def captured(model: nn.Module, *shape: int) -> Captured:
    return capture(model, Example.of(torch.zeros(shape or (1, 3, 8, 8))))


def by_export(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Captured:
    def fails(*given: object) -> None:
        raise RuntimeError("traced by export")

    monkeypatch.setattr(capture_model, "trace_symbolically", fails)
    return captured(model)


def test_what_computes_differently_has_another_fingerprint() -> None:
    found: dict[str, str] = {}
    for name, between in WAYS.items():
        found[name] = fingerprint(captured(Net(between)))
    for one in found:
        for other in found:
            alike = one == other or (one, other) in ALIKE or (other, one) in ALIKE
            assert (found[one] == found[other]) == alike, (one, other)


def all_ways(*names: str) -> Net:
    """Every way side by side in one network, each on a copy of its own."""
    ways = [WAYS[name] for name in sorted(names)]
    return Net(lambda net, x: torch.stack([way(net, x.clone()).mean() for way in ways]), last=False)


def test_both_ways_of_tracing_give_one_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    model = all_ways(*(WAYS.keys() - BY_EXPORT))
    there, here = captured(model), by_export(model, monkeypatch)
    assert difference(there, here) is None
    assert fingerprint(there) == fingerprint(here)


@pytest.mark.parametrize("ways", [WAYS.keys() - BY_EXPORT - {"a half of the rows"}, BY_EXPORT])
def test_the_size_of_the_example_is_not_in_it(ways: set[str]) -> None:
    model = all_ways(*ways)
    there = captured(model)
    for shape in ((2, 3, 8, 8), (3, 3, 12, 4)):
        here = captured(model, *shape)
        assert difference(there, here) is None
        assert made_for(there) == made_for(here)


def test_a_reshape_by_another_size_that_happens_to_be_equal_is_told_apart() -> None:
    """Two samples of two channels look alike by either size; one sample does not."""
    ways: list[Forward] = [
        lambda net, x: x[:, :2].reshape(x.shape[0], x[:, :2].shape[1], -1),
        lambda net, x: x[:, :2].reshape(x[:, :2].shape[1], x[:, :2].shape[1], -1),
    ]
    one, other = (captured(Net(way, last=False)) for way in ways)
    assert fingerprint(one) != fingerprint(other)


def test_values_of_weights_are_not_in_it_and_settings_of_layers_are() -> None:
    plain = fingerprint(captured(Net(WAYS["relu"])))
    other = Net(WAYS["relu"])
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor += 1
    assert fingerprint(captured(other)) == plain
    assert fingerprint(captured(other.double().float())) == plain
    changed = [Net(WAYS["relu"], stride=2), Net(WAYS["relu"], eps=1e-3), Net(WAYS["relu"]).train()]
    for layer in (
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 8, 3, padding=2, dilation=2),
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.Conv2d(3, 8, 3),
    ):
        changed.append(Net(WAYS["relu"]))
        changed[-1].a = layer
    found = [fingerprint(captured(model)) for model in changed]
    assert len({plain, *found}) == len(found) + 1


def test_a_dropout_counts_where_it_drops() -> None:
    ways = [nn.Sequential(nn.Linear(2, 2), nn.Dropout(p)) for p in (0.1, 0.2)]
    evaluating, training = (
        {fingerprint(captured(model.train(mode), 1, 2)) for model in ways} for mode in (False, True)
    )
    assert (len(evaluating), len(training)) == (1, 2)


def test_two_names_of_one_weight_are_one() -> None:
    free, tied = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    tied[1].weight = tied[0].weight
    assert fingerprint(captured(free, 1, 2)) != fingerprint(captured(tied, 1, 2))


def test_the_normal_form_has_a_number_and_can_be_read() -> None:
    found = captured(Net(lambda net, x: F.leaky_relu(x, 0.2, inplace=True)))
    assert fingerprint(found).startswith(f"{FORMAT}:")
    lines = [line.text for line in normal_form(found)]
    assert lines[0] == "input 0 of 4 axes"
    assert lines[1:4] == [
        "a.weight (8, 3, 3, 3)",
        "a.bias (8,)",
        "conv2d(input=%0, weight=%1, bias=%2, padding=1)",
    ]
    assert "leaky_relu(self=%8, negative_slope=0.2)" in lines


def test_a_difference_is_said_in_words_with_its_place() -> None:
    there, here = (captured(Net(WAYS[name])) for name in ("leaky relu", "another slope"))
    said = difference(there, here)
    assert said is not None
    assert re.match(
        r"there leaky_relu\(negative_slope=0.1\), here leaky_relu\(negative_slope=0.2\), at ", said
    )
    assert "test_fingerprint.py:" in said


def test_the_numbers_of_an_index_show() -> None:
    class Indexed(nn.Module):
        def __init__(self, index: list[int]) -> None:
            super().__init__()
            self.index = index

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, self.index]

    example = Example.of(torch.randn(2, 3, 4))
    found = [fingerprint(capture(Indexed(own), example)) for own in ([0, 2], [2, 0], [0, 2])]
    assert found[0] == found[2] != found[1]


NUMBER = re.compile(r"(?<![\w.])\d+(\.\d+)?(?![\w.])")


def mutated(network: Network, choice: random.Random) -> Network | None:
    """The network with one number in its code changed."""
    spots = [
        (place, part, line, found)
        for place, op in enumerate(network.ops)
        for part in ("setup", "lines")
        for line, text in enumerate(getattr(op, part))
        for found in NUMBER.finditer(text)
    ]
    if not spots:
        return None
    place, part, line, found = choice.choice(spots)
    old, ops = found.group(), list(network.ops)
    new = str(float(old) * 1.5 + 0.25) if "." in old else str(int(old) + choice.choice((-1, 1, 2)))
    texts = list(getattr(ops[place], part))
    texts[line] = texts[line][: found.start()] + new + texts[line][found.end() :]
    fields: dict[str, Any] = {part: tuple(texts)}
    ops[place] = replace(ops[place], **fields)
    return replace(network, ops=tuple(ops))


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(networks(), st.integers(0, 1000))
def test_whatever_number_is_changed_in_any_network_shows_if_it_matters(
    network: Network, seed: int
) -> None:
    other = mutated(network, random.Random(seed))
    assume(other is not None)
    assert other is not None
    example = network.example(network.batch, SIZE)
    try:
        one, two = build(network), build(other)
        two.load_state_dict(one.state_dict())
        expected, changed = outputs(one, example), outputs(two, example)
        found = [fingerprint(capture(model, Example.of(example))) for model in (one, two)]
    except Exception:  # not every number may be changed
        assume(False)
    if any(x.shape != y.shape or not x.equal(y) for x, y in zip(expected, changed, strict=True)):
        assert found[0] != found[1]


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(networks())
def test_any_network_has_one_fingerprint_at_all_sizes(network: Network) -> None:
    model = build(network)
    size = SIZE if network.fixed else ANOTHER_SIZE
    examples = network.example(network.batch, SIZE), network.example(network.batch % 3 + 1, size)
    try:
        there, here = (capture(model, Example.of(example)) for example in examples)
    except upscale.CaptureError:
        assume(False)
    assert difference(there, here) is None
