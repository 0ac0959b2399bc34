"""Buffers that a model writes to in forward: exports write them too, call after call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.masks import random_selection
from upscale.capture import Example, capture
from upscale.errors import CaptureError, StateError, StoreError

CALLS = 3


class Written(nn.Module):
    """Two layers, between which a subclass writes to what the model owns.

    A decision on a size keeps torch.fx from tracing it.
    """

    m: Tensor
    count: Tensor

    def __init__(self, *, decides: bool = False) -> None:
        super().__init__()
        self.decides = decides
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.register_buffer("m", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if self.decides and x.shape[-1] % 2:
            x = F.pad(x, (0, 1))
        x = self.first(x)
        self.write(x)
        made: Tensor = self.last(self.read(x))
        return made

    def write(self, x: Tensor) -> None:
        raise NotImplementedError

    def read(self, x: Tensor) -> Tensor:
        return x * (1 + self.m.view(1, -1, 1, 1))


class Lerp(Written):
    def write(self, x: Tensor) -> None:
        self.m.lerp_(x.mean((0, 2, 3)), 0.1)


class Chain(Written):
    def write(self, x: Tensor) -> None:
        self.m.mul_(0.9).add_(0.1 * x.amax((0, 2, 3)))


class Copied(Written):
    def write(self, x: Tensor) -> None:
        self.m.copy_(0.5 * self.m + x.mean((0, 2, 3)))
        self.count.fill_(3)


class Counted(Written):
    def write(self, x: Tensor) -> None:
        self.count += 1

    def read(self, x: Tensor) -> Tensor:
        return x * self.count


class CountedUnread(Written):
    def write(self, x: Tensor) -> None:
        self.count.add_(1)


class ByAnotherName(Written):
    def write(self, x: Tensor) -> None:
        mine = self.m
        mine += 1


class Bound(Written):
    def write(self, x: Tensor) -> None:
        self.m = 0.9 * self.m + 0.1 * x.mean((0, 2, 3))


class Filled(Written):
    def write(self, x: Tensor) -> None:
        self.m[:] = x.mean((0, 2, 3))


class FilledInPart(Written):
    def write(self, x: Tensor) -> None:
        self.m[2:4] = x.mean()
        self.m[5] += 1


class ThroughAView(Written):
    def write(self, x: Tensor) -> None:
        self.m.view(2, 4)[0].add_(x.mean())


class ReadBeforeAndAfter(Written):
    """What was read, concatenated or gathered before the write is as it was then."""

    def write(self, x: Tensor) -> None:
        self.before = torch.cat([self.m, self.m])
        self.m.add_(x.mean((0, 2, 3)))

    def read(self, x: Tensor) -> Tensor:
        before = self.before[:8] + self.before[8:]
        return x * before.view(1, -1, 1, 1) + x * self.m.view(1, -1, 1, 1) + x


class WithoutGradients(Written):
    """Written as most are; an export must not carry gradients from call to call either."""

    @torch.no_grad()
    def write(self, x: Tensor) -> None:
        self.m.lerp_(x.mean((0, 2, 3)), 0.1)
        part = self.m[2:]
        part *= 0.5
        self.count += 7
        counted = self.count
        counted %= 5


class Cache(Written):
    """A ring of the last things seen, all of which are read."""

    kept: Tensor

    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.register_buffer("kept", torch.zeros(4, 8))

    def write(self, x: Tensor) -> None:
        self.kept.copy_(torch.cat([self.kept[1:], x.mean((0, 2, 3))[None]]))

    def read(self, x: Tensor) -> Tensor:
        return x + self.kept.softmax(0).sum(0).view(1, -1, 1, 1)


class WhileTraining(Written):
    def write(self, x: Tensor) -> None:
        if self.training:
            self.m.lerp_(x.mean((0, 2, 3)), 0.1)


class Norm(Written):
    """Functional normalisation, whose statistics nothing else reads."""

    v: Tensor

    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.register_buffer("v", torch.ones(8))
        self.stock = nn.BatchNorm2d(4)

    def write(self, x: Tensor) -> None:
        pass

    def read(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.m, self.v, training=self.training)


class NormReadElsewhere(Norm):
    """Statistics that are read again after they were written."""

    def read(self, x: Tensor) -> Tensor:
        x = F.batch_norm(x, self.m, self.v, training=self.training)
        return x + self.m.view(1, -1, 1, 1)


class NormForItsStatistics(Norm):
    def read(self, x: Tensor) -> Tensor:
        F.batch_norm(x, self.m, self.v, training=self.training)
        return x


class OwnLayer(nn.Module):
    """A layer of the model's own that counts, below the model."""

    def __init__(self, *, decides: bool = False) -> None:
        super().__init__()
        self.inner = Counted(decides=decides)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


KINDS = [
    *(Lerp, Chain, Copied, Counted, CountedUnread, ByAnotherName, Bound, Filled, FilledInPart),
    *(ThroughAView, ReadBeforeAndAfter, Cache, WithoutGradients, WhileTraining, Norm),
    *(NormReadElsewhere, NormForItsStatistics, OwnLayer),
]


def made(kind: Callable[..., nn.Module], *, decides: bool, training: bool) -> nn.Module:
    torch.manual_seed(0)
    return kind(decides=decides).double().train(training)


def assert_same_for_many_calls(exported: nn.Module, masked: nn.Module, cuts: Any) -> None:
    """Call both in a row; outputs and buffers stay equal, pruned ones at the channels kept."""
    masked = copy.deepcopy(masked)
    for call in range(CALLS):
        x = torch.randn(2 + call, 3, 8, 8, dtype=torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(exported(x), masked(x), rtol=1e-10, atol=1e-10)
        theirs = dict(masked.named_buffers())
        for name, tensor in exported.named_buffers():
            if name in theirs:
                kept = theirs[name]
                for axis, places in cuts.get(name, {}).items():
                    kept = kept.index_select(axis, torch.tensor(places))
                torch.testing.assert_close(tensor, kept, rtol=1e-10, atol=1e-10)


# A capture by torch.export takes a second, and most do the same in either mode.
BY_MODE = [WhileTraining, Norm, NormReadElsewhere, NormForItsStatistics]
CASES = [
    *((kind, decides, False) for kind in KINDS for decides in (False, True)),
    *((kind, False, True) for kind in (Lerp, Bound, *BY_MODE)),
    *((kind, True, True) for kind in (WhileTraining, NormReadElsewhere)),
]


@pytest.mark.parametrize(("kind", "decides", "training"), CASES)
def test_an_export_writes_buffers_as_the_masked_model_does(
    kind: Callable[..., nn.Module], decides: bool, training: bool, tmp_path: Path
) -> None:
    model = made(kind, decides=decides, training=training)
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    selection = random_selection(model, 0.5, 1)
    captured = capture(model, Example.of(x))
    assert decides == any(str(n.target).startswith("aten.") for n in captured.graph.nodes)
    plan = upscale.plan(model, x, selection)
    exported = upscale.export(model, plan)
    masked = upscale.mask(model, selection)
    path = tmp_path / "model.safetensors"
    if decides and kind is WithoutGradients:
        with pytest.raises(StoreError, match="wrap_with_set_grad_enabled"):
            upscale.save(exported, path)
    else:
        upscale.save(exported, path)
        assert_same_for_many_calls(upscale.load(path), masked, plan.weights.cuts)
    assert_same_for_many_calls(exported, masked, plan.weights.cuts)
    written = {name for name, own in made_and_called(kind, decides, training) if own}
    assert written <= {name for name, _ in exported.named_buffers()}
    whole = upscale.undo(exported, model)
    for name in written - plan.weights.cuts.keys():
        assert torch.equal(whole.get_buffer(name), exported.get_buffer(name))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"{name} of the caller's model was changed"


def made_and_called(
    kind: Callable[..., nn.Module], decides: bool, training: bool
) -> list[tuple[str, bool]]:
    """The buffers of a model, and whether a call changes them."""
    model = made(kind, decides=decides, training=training)
    before = copy.deepcopy(dict(model.named_buffers()))
    model(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    return [(name, not torch.equal(own, before[name])) for name, own in model.named_buffers()]


def test_what_meets_a_written_buffer_stays_whole_and_is_reported() -> None:
    model = made(Lerp, decides=False, training=False)
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    plan = upscale.plan(model, x, upscale.Selection(kept={"last": [0, 1]}))
    assert [f.because for f in plan.frozen] == ["it meets a buffer that the model writes to"]
    assert "test_buffer_writes.py:" in plan.frozen[0].source
    exported = upscale.export(model, plan)
    assert exported.get_submodule("first").out_channels == 8
    assert exported.get_submodule("last").in_channels == 2


def test_prune_verifies_a_model_that_writes_and_leaves_it_alone() -> None:
    model = made(Bound, decides=False, training=False)
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    upscale.prune(model, x, amount=0.5)
    upscale.select(model, x, amount=0.5, importance="activation", data=[x, x])
    upscale.survey(model, x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class OfAParameter(Written):
    def write(self, x: Tensor) -> None:
        self.first.weight.data.clamp_(-0.1, 0.1)


class OfAllParameters(Written):
    def write(self, x: Tensor) -> None:
        for parameter in self.last.parameters():
            parameter.data.mul_(0.5)


class OfParametersAnew(Written):
    def write(self, x: Tensor) -> None:
        for parameter in self.last.parameters():
            parameter.data = parameter.data * 0.5


class OfAPlainTensor(Written):
    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.plain = torch.zeros(8, dtype=torch.float64)

    def write(self, x: Tensor) -> None:
        self.plain.add_(x.mean((0, 2, 3)))

    def read(self, x: Tensor) -> Tensor:
        return x * self.plain.view(1, -1, 1, 1)


class OfAPlainTensorUnseen(OfAPlainTensor):
    def write(self, x: Tensor) -> None:
        self.plain.add_(1)


class OtherMemory(Written):
    def write(self, x: Tensor) -> None:
        self.m.data = 0.5 * self.m + 1


class BoundToAnother(Written):
    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.register_buffer("last_m", torch.zeros(8))

    def write(self, x: Tensor) -> None:
        self.last_m = self.m
        self.m = self.m + x.mean((0, 2, 3))


class BoundToAnotherShape(Written):
    def write(self, x: Tensor) -> None:
        self.m = x.mean((2, 3))

    def read(self, x: Tensor) -> Tensor:
        return x * self.m[:, :, None, None]


class BoundToAnotherType(Written):
    def write(self, x: Tensor) -> None:
        self.count = self.count + 0.5

    def read(self, x: Tensor) -> Tensor:
        return x * self.count


class CountsCalls(Written):
    calls = 0

    def write(self, x: Tensor) -> None:
        self.calls += 1

    def read(self, x: Tensor) -> Tensor:
        return x * self.calls


class WarmsUp(CountsCalls):
    def read(self, x: Tensor) -> Tensor:
        return x if self.calls < 100 else x.relu()


class InitialisesItself(Written):
    scale: Any = None

    def write(self, x: Tensor) -> None:
        if self.scale is None:
            self.scale = x.std()

    def read(self, x: Tensor) -> Tensor:
        return x / self.scale


class Listed(Written):
    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.seen: list[int] = []

    def write(self, x: Tensor) -> None:
        self.seen.append(1)

    def read(self, x: Tensor) -> Tensor:
        return x * len(self.seen)


LINE = r"test_buffer_writes.py:\d+"
REFUSED = [
    (OfAParameter, f"the parameter first.weight at {LINE}|first.weight at {LINE}"),
    (OfAPlainTensor, f"the tensor plain at {LINE}, which is no buffer|the attribute plain"),
    (BoundToAnother, "memory that the model keeps by another name|torch.export says"),
    (BoundToAnotherShape, "another shape or type"),
    (BoundToAnotherType, "another shape or type"),
    (OtherMemory, "writes to m in a way that no graph shows"),
    (CountsCalls, f"the attribute calls at {LINE}"),
    (WarmsUp, f"the attribute calls at {LINE}"),
    (InitialisesItself, f"the attribute scale at {LINE}"),
    (Listed, f"the attribute seen at {LINE}"),
    (OfAPlainTensorUnseen, f"the attribute plain at {LINE}"),
    (OfAllParameters, f"writes to last.(bias|weight) at {LINE}"),
    (OfParametersAnew, "writes to last.(bias|weight)"),
]


BY_EXPORT = (OfAParameter, BoundToAnotherType, OtherMemory, CountsCalls, InitialisesItself, Listed)
REFUSALS = [
    *((kind, says, False) for kind, says in REFUSED),
    *((kind, says, True) for kind, says in REFUSED if kind in BY_EXPORT),
]


@pytest.mark.parametrize(("kind", "says", "decides"), REFUSALS)
def test_a_write_that_no_export_can_keep_is_refused_with_its_name(
    kind: type[Written], says: str, decides: bool
) -> None:
    model = made(kind, decides=decides, training=False)
    before = copy.deepcopy(model.state_dict())
    attributes = {name: own for name, own in vars(model).items() if not name.startswith("_")}
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(CaptureError, match=says):
        upscale.plan(model, x, upscale.Selection(kept={"last": [0]}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert attributes == {n: own for n, own in vars(model).items() if not n.startswith("_")}


class CountsForOthers(Written):
    """Attributes that no later call reads, or that come to the same in every call."""

    calls = 0
    shape: Any = None
    grid: Any = None

    def __init__(self, *, decides: bool = False) -> None:
        super().__init__(decides=decides)
        self.tables: dict[str, Tensor] = {}

    def write(self, x: Tensor) -> None:
        self.calls += 1
        self.shape = x.shape
        if "ramp" not in self.tables:
            self.tables["ramp"] = torch.linspace(0, 1, 8, dtype=torch.float64)

    def read(self, x: Tensor) -> Tensor:
        return x.reshape(self.shape) * self.tables["ramp"].view(1, -1, 1, 1)


@pytest.mark.parametrize("decides", [False, True], ids=["fx", "export"])
def test_attributes_that_make_no_difference_to_a_later_call_are_left_out(decides: bool) -> None:
    model = made(CountsForOthers, decides=decides, training=False)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    selection = random_selection(model, 0.5, 1)
    plan = upscale.plan(model, x, selection)
    assert (model.calls, model.tables, model.shape) == (0, {}, None)
    assert_same_for_many_calls(upscale.export(model, plan), upscale.mask(model, selection), {})


def test_onnx_refuses_what_writes_to_buffers_and_torchscript_keeps_it(tmp_path: Path) -> None:
    model = made(Lerp, decides=False, training=False)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    exported = upscale.export(model, upscale.plan(model, x, upscale.Selection(kept={"last": [0]})))
    before = copy.deepcopy(exported.state_dict())
    with pytest.raises(upscale.DeployError, match="writes to m in every call"):
        upscale.deploy.to_onnx(exported, x, tmp_path / "model.onnx")
    upscale.deploy.to_torchscript(exported, x, tmp_path / "model.pt")
    assert all(torch.equal(own, before[name]) for name, own in exported.state_dict().items())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the format is old
        scripted = torch.jit.load(tmp_path / "model.pt")
    for _ in range(CALLS):
        with torch.no_grad():
            torch.testing.assert_close(scripted(x), exported(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("decides", [False, True], ids=["fx", "export"])
def test_what_is_written_without_gradients_has_none_in_the_export(decides: bool) -> None:
    model = made(WithoutGradients, decides=decides, training=True)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        plan = upscale.plan(model, x, upscale.Selection(kept={"last": [0, 1]}))
    exported = upscale.export(model, plan)
    for _ in range(2):
        exported(x).sum().backward()
    assert not any(buffer.requires_grad for buffer in exported.buffers())


def test_buffers_that_share_memory_are_not_written_apart() -> None:
    model = made(Lerp, decides=False, training=False)
    model.register_buffer("part", model.m[:2])
    with pytest.raises(StateError, match="the buffer m, which shares memory with part"):
        upscale.plan(model, torch.randn(1, 3, 8, 8, dtype=torch.float64))
