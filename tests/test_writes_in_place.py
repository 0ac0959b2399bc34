"""Writes in place that only `torch.export` captures: the export still equals the masked model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from tests.masks import calm, random_selection
from tests.nets import conv
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


@pytest.mark.parametrize(
    "kind", [WrittenBehindDropout, AttentionBesideAWrite, ReturnedViewOfWhatIsWritten]
)
def test_an_export_equals_the_masked_model_where_memory_is_shared(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = calm(kind())
    selection = random_selection(model, 0.5, 0)
    plan = upscale.plan(model, torch.randn(1, 3, 12, 12), selection)
    exported, masked = upscale.export(model, plan), upscale.mask(model, selection)
    for shape in ((1, 3, 12, 12), (3, 3, 16, 16)):
        example = Example.of(torch.randn(shape))
        assert compare(exported, masked, example).relative_error <= 1e-10
