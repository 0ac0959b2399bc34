"""Batches that say nothing, or that the model does not take: what is told, and that it is ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from upscale import BatchError, ExampleError, RecoveryError, RecoveryWarning, Selection
from upscale.recovery.recover import Recovery

KEPT = Selection(kept={"3": [0, 1, 2, 3, 5, 6, 7]})
X = torch.randn(1, 6)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3)]
    return nn.Sequential(*layers).eval()


def good() -> Tensor:
    return torch.randn(40, 6)


def spoilt(value: float) -> Tensor:
    x = good()
    x[3, 2] = value
    return x


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "none": ([], BatchError, "no batch"),
    "an empty one": ([good(), torch.zeros(0, 6)], BatchError, "batch 2 of the data holds no sampl"),
    "NaN": ([good(), spoilt(torch.nan)], BatchError, "batch 2 of the data holds numbers that are"),
    "infinite": ([spoilt(torch.inf)], BatchError, "not finite"),
    "one tensor": (good(), BatchError, r"data is one Tensor.*split"),
    "one dict": ({"input": good()}, BatchError, "data is one dict"),
    "no iterable": (3, BatchError, "data is of type int"),
    "another shape": ([torch.randn(40, 7)], ExampleError, "shape"),
    "another shape later": ([good(), torch.randn(40, 7)], ExampleError, "fails on a batch"),
    "another type": ([good().double()], ExampleError, "dtype|type"),
    "another type later": ([good(), good().double()], ExampleError, "fails on a batch"),
    "integers": ([torch.ones(40, 6, dtype=torch.long)], ExampleError, "dtype|type"),
    "text": (["what"], upscale.UpscaleError, "batch|example"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("how", [True, "norms"])
def test_bad_batches_are_an_error_of_ours_before_anything_changes(
    case: str, how: bool | str
) -> None:
    batches, kind, said = BAD[case]
    net = model()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(kind, match=said):
        upscale.prune(net, X, amount=0.2, data=batches, recover=how)
    if how is True:
        with pytest.raises(kind, match=said):
            upscale.recover(net, KEPT, batches)
    assert all(torch.equal(own, before[name]) for name, own in net.state_dict().items())


def test_bad_batches_leave_statistics_as_they_were() -> None:
    net = model()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ExampleError):
        upscale.recalibrate(net, [good(), torch.randn(40, 7)])
    assert all(torch.equal(own, before[name]) for name, own in net.state_dict().items())
    upscale.recalibrate(net, [good()])
    assert not torch.equal(net[1].running_mean, before["1.running_mean"])


@pytest.mark.parametrize("importance", ["activation", "hrank"])
def test_criteria_say_what_is_wrong_with_their_data(importance: str) -> None:
    for data, said in (([], "no batch"), ([spoilt(torch.nan)], "not finite"), (good(), "split")):
        with pytest.raises(BatchError, match=said):
            upscale.prune(model(), X, amount=0.2, importance=importance, data=data)


class Deaf(nn.Module):
    """A model that reads nothing of its input but the size."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(torch.zeros_like(x)))


def test_a_model_that_does_not_listen_cannot_be_refitted() -> None:
    kept = Selection(kept={"two": [0, 1]})
    with pytest.raises(RecoveryError, match="do not depend on the input"):
        upscale.recover(Deaf().eval(), kept, [good(), good()[:7]])
    with pytest.raises(RecoveryError, match="several different inputs"):
        upscale.recover(model(), KEPT, [torch.ones(4, 6), torch.ones(3, 6)])


def test_weights_that_are_no_numbers_are_told_by_name() -> None:
    net = model()
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    with pytest.raises(RecoveryError, match=r"3\.weight: .* not finite"):
        upscale.recover(net, KEPT, [good()])


@pytest.mark.parametrize("samples", [1, 3])
def test_fewer_samples_than_columns_are_told_with_what_was_done(samples: int) -> None:
    batches = [torch.randn(samples, 6) for _ in range(2)]
    with pytest.warns(RecoveryWarning, match="close to their old weights, or keep them"):
        recovered = upscale.recover(model(), KEPT, batches)
    found = Recovery.of(recovered)
    assert found is not None
    assert found.refits[-1].rows < found.refits[-1].columns


def test_batches_that_can_be_read_once_are_enough() -> None:
    given = [good() for _ in range(3)]

    def once() -> Iterator[Tensor]:
        yield from given

    net = model()
    expected = upscale.recover(net, KEPT, given).state_dict()
    found = upscale.recover(net, KEPT, once()).state_dict()
    assert all(torch.equal(own, expected[name]) for name, own in found.items())
    options: dict[str, Any] = {"amount": 0.2, "importance": "activation", "recover": True}
    one = upscale.prune(net, X, data=given, steps=2, **options)
    other = upscale.prune(net, X, data=once(), steps=2, **options)
    assert torch.equal(one(given[0]), other(given[0]))


def test_batches_of_several_sizes_are_fine_where_the_model_takes_them() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    batches = [torch.randn(20, 3, 8, 8), torch.randn(9, 3, 12, 10)]
    recovered = upscale.recover(net, Selection(kept={"2": [0, 1, 2, 5, 6]}), batches)
    assert not torch.equal(recovered.get_submodule("2").weight, net[2].weight)


class Named(nn.Module):
    """A model that only `torch.export` can capture, and that is called by keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor, y: Tensor, z: Tensor | None = None) -> Tensor:
        if x.shape[1] > 2:
            x = x - y
        made = self.two(torch.relu(self.one(x)))
        return made if z is None else made + z


def test_batches_may_name_inputs_in_any_order_but_must_give_the_same() -> None:
    torch.manual_seed(0)
    net, kept = Named().eval(), Selection(kept={"two": [0, 1, 2, 5, 7]})
    pairs = [(good(), good()) for _ in range(3)]
    ways: list[list[Any]] = [
        [{"x": x, "y": y} for x, y in pairs],
        [{"x": x, "y": y} if at else {"y": y, "x": x} for at, (x, y) in enumerate(pairs)],
        list(pairs),
    ]
    first, *others = (upscale.recover(net, kept, own).state_dict() for own in ways)
    assert not torch.equal(first["two.weight"], net.two.weight)
    assert all(torch.equal(own, other[name]) for other in others for name, own in first.items())
    x, y = pairs[0]
    with pytest.raises(BatchError, match="a batch gives x, y, z and another x, y"):
        upscale.recover(net, kept, [ways[0][0], {"x": x, "y": y, "z": torch.zeros(3)}])
