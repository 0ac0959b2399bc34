"""Writes in place: the export still equals the masked model, and writes where the model does."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import conv
from upscale.capture import Example
from upscale.verify import compare


class WrittenBehindDropout(nn.Module):
    """Dropout that drops nothing hands back what it was given, so this writes into both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 6), conv(6, 4), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        dropped = F.dropout(x, 0.5, self.training)
        x.mul_(0.5).relu_()
        return self.b(x) + self.c(dropped)


class AttentionBesideAWrite(nn.Module):
    """`torch.export` views attention's result as it lay in the example."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(3, 4)
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(y).reshape(b, h * w, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        x = x + self.out(y).transpose(1, 2).reshape(b, c, h, w)
        part = x[:, :3].relu_()
        return self.b(part) + x.mean(1, keepdim=True)


class ReturnedViewOfWhatIsWritten(nn.Module):
    """A view is returned whose memory was written into after it was taken."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x.permute(0, 2, 3, 1))
        view = x.permute(0, 3, 1, 2)
        return view, self.b(F.relu_(x))


class WrittenHalf(nn.Module):
    """One half of a tensor is written into while the other is read: they share no element."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 8)
        self.b, self.c = conv(4, 4), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x).chunk(2, 1)
        left.relu_()
        return self.b(left) + self.c(right)


class WrittenOverlap(WrittenHalf):
    """A part of a tensor is written into, and another part that overlaps it is read."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        left, middle = x[:, :4], x[:, 2:6]
        left.relu_()
        return self.b(left) + self.c(middle)


SHARING = (WrittenBehindDropout, AttentionBesideAWrite, ReturnedViewOfWhatIsWritten)


@pytest.mark.parametrize("kind", [*SHARING, WrittenHalf, WrittenOverlap])
def test_an_export_equals_the_masked_model_where_memory_is_shared(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = calm(kind())
    selection = random_selection(model, 0.5, 0)
    plan = upscale.plan(model, torch.randn(1, 3, 12, 12), selection)
    exported, masked = upscale.export(model, plan), upscale.mask(model, selection)
    for shape in ((1, 3, 12, 12), (3, 3, 16, 16)):
        example = Example.of(torch.randn(shape))
        assert compare(exported, masked, example).relative_error <= 1e-10


class Augmented(nn.Module):
    """Writes into what is of no other use, and into what is read later, by that name or another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 6), conv(6, 6), conv(6, 6), conv(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        first = self.b(x)
        first += x
        second = torch.sigmoid(self.c(first))
        second -= first
        third = self.d(second)
        view = third[:, :3]
        same = third
        same += second
        return torch.cat((same, self.d(third), view), 1)


def test_an_augmented_assignment_is_seen_by_all_that_share_the_memory() -> None:
    torch.manual_seed(0)
    model = calm(Augmented()).double()
    example = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    for seed in range(3):
        selection = random_selection(model, 0.25, seed)
        exported = upscale.export(model, upscale.plan(model, example, selection))
        masked = upscale.mask(model, selection)
        assert compare(exported, masked, Example.of(example)).relative_error < 1e-10


class Branches(nn.Module):
    """Adds to a branch in place, and in training that is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 6), conv(6, 6), conv(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        first = self.b(x)
        first += x
        return torch.sigmoid(self.c(first)) + first


def test_an_augmented_assignment_writes_where_that_is_safe_to_run_and_to_train() -> None:
    torch.manual_seed(0)
    model = calm(Branches()).double()
    example = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    selection = random_selection(model, 0.25, 0)
    exported = upscale.export(model, upscale.plan(model, example.detach(), selection))
    written = [node.args[0] for node in exported.graph.nodes if node.target is operator.iadd]
    assert [str(node) for node in written] == ["b"]
    (ours,) = torch.autograd.grad(exported(example).sum(), example)
    (expected,) = torch.autograd.grad(upscale.mask(model, selection)(example).sum(), example)
    assert torch.allclose(ours, expected)
