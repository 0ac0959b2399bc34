"""The oracle: what it makes zero, by hand, and the masks that users train held against it."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED, Residual, StandardisedConv2d, conv, image
from trials.networks import ANOTHER_SIZE, SIZE, Network, build, networks
from upscale import Selection, oracle
from upscale.capture import Example

# `make masks` draws a thousand.
COUNT = int(os.environ.get("UPSCALE_NETWORKS", "60"))
ROUNDING = 1e-12

every_after = pytest.mark.parametrize("after", ["norm", "layer"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


CALL = re.compile(r"t(\d+) = (self\.(?:conv|transpose)\d+)\((.*)\)")


def normed(network: Network) -> Network:
    """The network with a BatchNorm after every convolution that stands in a line of its own.

    Two of three belong to their layer; beside the third, something else reads what that makes.
    """

    def changed(op: Any) -> Any:
        calls = [call for line in op.lines if (call := CALL.fullmatch(line))]
        setup, lines = list(op.setup), list(op.lines)
        for call in calls:
            at, layer, read = call.groups()
            setup.append(f"self.after{at} = nn.BatchNorm2d({layer}.out_channels)")
            line = f"t{at} = {layer}({read})" if int(at) % 3 == 0 else ""
            norm = f"self.after{at}(t{at}) + t{at}" if line else f"self.after{at}({layer}({read}))"
            where = lines.index(call.group())
            lines[where : where + 1] = [*([line] if line else []), f"t{at} = {norm}"]
        return replace(op, setup=tuple(setup), lines=tuple(lines))

    return replace(network, ops=tuple(map(changed, network.ops)), after="norm")


@seed(0)
@settings(
    max_examples=COUNT,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(networks(sides=("input", "output", "both")))
def test_the_masks_that_users_train_compute_what_the_oracle_computes(network: Network) -> None:
    network = normed(network) if network.made else network
    model, example = build(network), network.example(network.batch, SIZE)
    trained = upscale.mask(model, network.selections, example=example)
    judging = oracle.masked(model, network.selections, Example.of(example))
    size = SIZE if network.fixed else ANOTHER_SIZE
    other = network.example(network.batch % 3 + 1, size, seed=1)
    assert relative_error(trained, judging, other) <= ROUNDING


@every_after
@pytest.mark.parametrize("name", TRACED)
def test_masks_and_oracle_agree_on_networks_of_every_kind(name: str, after: str) -> None:
    make, example = NETS[name]
    model = calm(make())
    selections = [
        random_selection(model, 0.4, 1),
        random_selection(model, 0.4, 2, side="output", after=after),
    ]
    x = example(2, 12)
    trained = upscale.mask(model, selections, example=x)
    assert relative_error(trained, oracle.masked(model, selections, Example.of(x)), x) <= ROUNDING


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear, of matrices": (lambda: nn.Linear(6, 4), (3, 6)),
    "convolution": (lambda: nn.Conv2d(6, 4, 3, padding=1), (6, 5, 5)),
    "reflecting": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), (6, 5, 5)),
    "grouped": (lambda: nn.Conv2d(6, 4, 3, groups=2), (6, 5, 5)),
    "of a line": (lambda: nn.Conv1d(6, 4, 3), (6, 5)),
    "of a volume": (lambda: nn.Conv3d(6, 4, 2), (6, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2), (6, 5, 5)),
    "transposed and grouped": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (6, 5, 5)),
    "standardised": (lambda: StandardisedConv2d(6, 4, 3), (6, 5, 5)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Alone(nn.Module):
    """A model of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def of_kind(kind: str) -> tuple[nn.Module, Tensor, int]:
    """A model of one layer, an input of it, and the axis of channels in both."""
    make, shape = KINDS[kind]
    axis = len(shape) if kind.startswith("linear") else 1
    return Alone(make().double()), torch.randn(2, *shape).double(), axis


@every_kind
def test_a_pruned_column_is_an_input_that_reads_as_zero(kind: str) -> None:
    model, x, axis = of_kind(kind)
    columns = model.layer.weight.shape[0 if "transposed" in kind else 1]
    kept = [0, 2]
    masked = oracle.masked(model, [Selection(kept={"layer": kept})], Example.of(x))
    read = x.clone()
    for channel in range(6):
        if channel % columns not in kept:  # groups share the columns of their weight
            read.select(axis, channel).zero_()
    with torch.no_grad():
        torch.testing.assert_close(masked(x), model(read), rtol=0, atol=ROUNDING)
        assert not torch.allclose(masked(x), model(x))


@every_kind
def test_a_pruned_row_is_an_output_that_is_zero(kind: str) -> None:
    model, x, axis = of_kind(kind)
    rows = 2 if kind == "transposed and grouped" else 4
    selection = Selection(kept={"layer": [1]}, side="output")
    masked = oracle.masked(model, [selection], Example.of(x))
    with torch.no_grad():
        expected, made = model(x), masked(x)
    for channel in range(4):
        if channel % rows != 1:
            expected.select(axis, channel).zero_()
    assert torch.equal(made, expected)


def test_a_column_of_a_shared_weight_is_gone_wherever_the_weight_is_read() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.head(self.words(x)), self.head.weight.t())

    model, x = Tied(), torch.tensor([[0, 3]])
    masked = oracle.masked(model, [Selection(kept={"head": [1, 2]})], Example.of(x))
    assert not masked(x)[..., [0, 3]].any()
    assert not masked.words.weight[:, [0, 3]].any()


def test_a_layer_that_computes_both_sides_of_its_product_is_masked_in_the_product() -> None:
    class Cosine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(input=F.normalize(x), weight=F.normalize(self.weight))

    model, x = Alone(Cosine(4, 3)), torch.randn(2, 4)
    selection = Selection(kept={"layer": [0, 3]})
    masked = oracle.masked(model, [selection], Example.of(x))
    by_hand = F.normalize(model.layer.weight)[:, [0, 3]]
    torch.testing.assert_close(masked(x), F.normalize(x)[:, [0, 3]] @ by_hand.t())
    torch.testing.assert_close(masked(x), upscale.mask(model, selection)(x))


def test_a_failing_call_of_a_layer_that_computes_its_weight_leaves_nothing_behind() -> None:
    model = Alone(StandardisedConv2d(6, 6, 3))
    x = torch.randn(1, 6, 5, 5)
    masked = oracle.masked(model, [Selection(kept={"layer": [0]})], Example.of(x))
    other = conv(6, 6)
    before = other(x)
    with pytest.raises(RuntimeError, match="size of tensor"):
        masked(torch.randn(1, 5, 5, 5))
    assert torch.equal(other(x), before)


def test_channels_that_are_zero_anyway_come_on_top_of_what_is_selected() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    selection = Selection(kept={"0": [0, 1]}, side="output")
    masked = oracle.masked(model, [selection], Example.of(x), zero_after={"0": [1], "1": [3]})
    with torch.no_grad():
        assert masked[:2](x).any(dim=0).tolist() == [True, False, False, False]


def test_the_oracle_leaves_the_model_the_example_and_the_draws_alone() -> None:
    model = Residual().train()
    model.register_forward_pre_hook(lambda module, inputs: inputs[0].mul_(1.0 + torch.rand(())))
    x = image(2, 8)
    before, given_x, draws = copy.deepcopy(model.state_dict()), x.clone(), torch.get_rng_state()
    oracle.masked(model, [random_selection(model, 0.5, 1, side="output")], Example.of(x))
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items())
    assert torch.equal(x, given_x)
    assert torch.equal(torch.get_rng_state(), draws)


def misplaced(*_: object) -> dict[str, tuple[str, ...]]:
    return {}


def cut_short(size: int, kept: tuple[int, ...]) -> Tensor:
    return torch.tensor(sorted(set(range(size)).difference(kept))[1:], dtype=torch.long)


MISTAKES = {
    "norms that are not found": ("upscale.subject.norms_of", misplaced),
    "a channel that is forgotten": ("upscale.masking.masks.not_kept", cut_short),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_masks_no_longer_verifies_as_exact(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = calm(Residual()), image(2, 8)
    options = {"amount": 0.3, "side": "output"}
    assert upscale.prune(model, x, **options).meta["verified"].exact
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(upscale.VerificationError, match="differs from the masked one"):
        upscale.prune(model, x, **options)
