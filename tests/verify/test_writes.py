"""What a model writes to its buffers is compared after two calls, through the channel map."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import upscale
from tests.verify.test_evidence import made
from upscale.capture import Example
from upscale.verify import compare

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
EXAMPLE = Example.of(X)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        self.count += 1
        self.mean.lerp_(h.mean(0).detach(), 0.5)
        return self.last(h)


class Forgetting(Counting):
    """Counts as well, but loses what it wrote."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


class CountingOnce(Counting):
    """Writes as it should at the first call alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.count == 0:
            self.count += 1
        self.mean.lerp_(h.mean(0).detach(), 0.5)
        return self.last(h)


class Stale(Forgetting):
    """Returns for every input what the first one gave."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.seen = super().forward(x)
        return self.seen


def test_writes_that_are_the_same_are_counted_and_pass() -> None:
    found = compare(made(Counting), made(Counting), EXAMPLE)
    assert found.exact
    assert found.buffers == 2
    assert "1 output and 2 buffers that it writes differ" in str(found)


def test_a_write_that_is_lost_is_seen() -> None:
    found = compare(made(Forgetting), made(Counting), EXAMPLE)
    assert not found.exact
    assert "the buffer" in str(found)
    without = made(Forgetting)
    del without.count
    without.mean.copy_(made(Counting).mean)
    found = compare(without, made(Counting), EXAMPLE)
    assert not found.exact


def test_a_buffer_that_the_export_lacks_is_named() -> None:
    without = made(Forgetting)
    del without.count, without.mean
    found = compare(without, made(Counting), EXAMPLE)
    assert found.because == "the export lacks the buffer count, to which the masked model writes"


def test_what_goes_wrong_at_the_second_call_alone_is_seen() -> None:
    assert not compare(made(CountingOnce), made(Counting), EXAMPLE).exact
    assert not compare(made(Stale), made(Forgetting), EXAMPLE).exact


def test_pruned_buffers_are_compared_through_the_channel_map() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).train()
    selection = upscale.Selection(kept={"3": [1, 6, 4]})
    exported = upscale.export(model, upscale.plan(model, X, selection))
    masked = upscale.mask(model, selection)
    found = compare(exported, masked, EXAMPLE)
    assert exported.get_submodule("1").running_mean.shape == (3,)
    assert found.exact
    assert found.buffers == 3
    exported.get_submodule("1").momentum = 0.2
    assert not compare(exported, masked, EXAMPLE).exact


def test_statistics_of_a_norm_that_nobody_reads_any_more_may_leave() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(4, 8), nn.Linear(4, 8), nn.BatchNorm1d(8)
            self.last, self.end = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.a(x)) + self.end(self.norm(self.b(x)))

    torch.manual_seed(0)
    model = Two().train()
    selection = upscale.Selection(kept={"end": [], "last": [0, 3]})
    exported = upscale.export(model, upscale.plan(model, X, selection))
    assert compare(exported, upscale.mask(model, selection), EXAMPLE).exact


def test_both_models_are_left_as_they_were() -> None:
    one, other = made(Counting), made(Counting)
    before = copy.deepcopy(one.state_dict())
    compare(one, other, EXAMPLE)
    for model in (one, other):
        for name, own in model.state_dict().items():
            assert torch.equal(own, before[name]), name
        assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
