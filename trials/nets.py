"""Small networks, each with one thing in it that has broken a pruner somewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Any]]] = {}
TRACED: list[str] = []  # those torch.fx traces; torch.export takes seconds for each of the others


def image(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size)


def net(
    example: Callable[[int, int], Any] = image, *, traced: bool = True
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def register(cls: type[nn.Module]) -> type[nn.Module]:
        NETS[cls.__name__] = (cls, example)
        if traced:
            TRACED.append(cls.__name__)
        return cls

    return register


@torch.fx.wrap
def graded(x: Tensor) -> Tensor:
    return x * torch.arange(1.0, 7.0, dtype=x.dtype, device=x.device).view(1, 6, 1, 1)


@torch.fx.wrap
def windowed(
    x: Tensor,
    qkv_weight: Tensor,
    proj_weight: Tensor,
    window: int,
    shift: list[int],
    heads: int = 2,
    qkv_bias: Tensor | None = None,
    training: bool = False,
) -> Tensor:
    """Attention within windows that are shifted, unless there is only one."""
    b, h, w, c = x.shape
    x = F.pad(x, (0, 0, 0, -w % window, 0, -h % window))
    _, high, wide, _ = x.shape
    shift = shift.copy()
    if window >= high:
        shift[0] = 0
    if window >= wide:
        shift[1] = 0
    if sum(shift) > 0:
        x = torch.roll(x, shifts=(-shift[0], -shift[1]), dims=(1, 2))
    windows = (high // window) * (wide // window)
    x = x.view(b, high // window, window, wide // window, window, c)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(b * windows, window * window, c)
    if qkv_bias is not None:
        qkv_bias = qkv_bias.clone()
        length = qkv_bias.numel() // 3
        qkv_bias[length : 2 * length].zero_()
    qkv = F.linear(x, qkv_weight, qkv_bias)
    qkv = qkv.reshape(x.size(0), x.size(1), 3, heads, c // heads).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    scores = F.normalize(q, dim=-1) @ k.transpose(-2, -1)
    if sum(shift) > 0:
        areas = x.new_zeros((high, wide))
        count = 0
        for rows in ((0, -window), (-window, -shift[0]), (-shift[0], None)):
            for columns in ((0, -window), (-window, -shift[1]), (-shift[1], None)):
                areas[rows[0] : rows[1], columns[0] : columns[1]] = count
                count += 1
        areas = areas.view(high // window, window, wide // window, window)
        areas = areas.permute(0, 2, 1, 3).reshape(windows, window * window)
        apart = areas.unsqueeze(1) - areas.unsqueeze(2)
        mask = apart.masked_fill(apart != 0, -100.0)
        scores = scores.view(b, windows, heads, x.size(1), x.size(1)) + mask.unsqueeze(1)
        scores = scores.view(-1, heads, x.size(1), x.size(1))
    scores = F.dropout(scores.softmax(-1), 0.1, training=training)
    x = F.linear(scores.matmul(v).transpose(1, 2).reshape(x.size(0), x.size(1), c), proj_weight)
    x = x.view(b, high // window, wide // window, window, window, c)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(b, high, wide, c)
    if sum(shift) > 0:
        x = torch.roll(x, shifts=(shift[0], shift[1]), dims=(1, 2))
    return x[:, :h, :w, :].contiguous()


@torch.fx.wrap
def merged(x: Tensor) -> Tensor:
    h, w, _ = x.shape[-3:]
    x = F.pad(x, (0, 0, 0, w % 2, 0, h % 2))
    parts = [x[..., i::2, j::2, :] for j in range(2) for i in range(2)]
    return torch.cat(parts, -1)


@torch.fx.wrap
def split_and_scaled(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.chunk(2, 1)
    a = a * 2
    a += 1
    y = b.clone()
    y[:, 1:3].mul_(3)
    y[..., 0] = scale
    y[:, 0, 0] = y[:, 1, 0]
    return a.relu(), y


def conv(i: int, o: int, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2, **options)


@net()
class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = conv(3, 12), nn.BatchNorm2d(12), conv(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.n(self.a(x))))


@net()
class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv(16, 8), nn.BatchNorm2d(8), nn.ReLU(inplace=True), conv(8, 16))
            for _ in range(4)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


@net()
class InPlaceResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        out = self.a(x)
        out += x
        out = self.relu(out)
        side = self.b(out)
        out = self.relu(self.c(out)).add_(side)
        return out.mul_(2)


@net()
class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 6)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(6 + 4 * i), nn.ReLU(), conv(6 + 4 * i, 4))
            for i in range(4)
        )
        self.head = conv(22, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.head(torch.cat(features, 1))


@net()
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 10)
        self.a, self.b, self.c = conv(10, 6, 1), conv(10, 7), conv(10, 5, 5)
        self.d, self.e, self.f = conv(18, 6, 1), conv(18, 7), conv(18, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = torch.cat([self.a(x), self.b(x), self.c(F.max_pool2d(x, 3, 1, 1))], dim=1)
        return torch.cat([self.d(x), self.e(F.relu(x)), self.f(F.avg_pool2d(x, 3, 1, 1))], 1)


@net()
class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.up, self.head = (
            conv(3, 12),
            conv(12, 4, 1),
            conv(4, 12, 1),
            conv(12, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.stem(x))
        scale = self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))).sigmoid()
        return self.head(x * scale)


@net()
class SqueezeExciteByLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv(3, 12), conv(12, 4)
        self.down, self.up = nn.Linear(12, 4), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, _, _ = x.shape
        scale = self.up(F.relu(self.down(x.mean((2, 3))))).sigmoid().view(b, c, 1, 1)
        return self.head(x * scale.expand_as(x))


@net()
class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 12), conv(6, 6), conv(12, 5)

    @staticmethod
    def shuffle(x: Tensor, groups: int) -> Tensor:
        b, c, h, w = x.size()
        x = x.view(b, groups, c // groups, h, w)
        return torch.transpose(x, 1, 2).contiguous().view(b, c, h, w)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        x = self.shuffle(torch.cat((left, self.a(right)), dim=1), 2)
        left, right = x.chunk(2, dim=1)
        return self.b(self.shuffle(torch.cat((left, self.a(right)), 1), 3))


@net()
class GatedHalves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.side = conv(3, 12), conv(6, 4), conv(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = x.chunk(2, 1)
        return torch.cat((self.head(a * b.sigmoid()), self.side(x)), 1)


@net()
class Glu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mid, self.head = conv(3, 12), conv(6, 8), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.mid(F.glu(self.stem(x), dim=1)), 1))


@net()
class SplitAndSlice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.a, self.b, self.c, self.d = conv(5, 4), conv(11, 4), conv(8, 4), conv(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        a, b = torch.split(x, [5, 11], dim=1)
        odd = x[:, 1::2]
        return self.a(a) + self.b(b) * self.c(odd) - self.d(x[:, 1:-1])


@net()
class FlipAndRoll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 10), conv(10, 4), conv(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = x + x.flip(1)
        return self.a(torch.roll(x, 3, dims=1)) + self.b(y)


@net(lambda b, s: torch.randn(b, 3, 4 * (s // 4), 4 * (s // 4)))
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 12), conv(12, 16)
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.d, self.e = conv(24, 8), conv(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        c = self.up(F.relu(self.c(F.max_pool2d(b, 2))))
        d = self.d(torch.cat([c, b], 1))
        d = F.interpolate(d, scale_factor=2, mode="bilinear", align_corners=False)
        return self.e(torch.cat((d, a), 1))


@net()
class PaddedShortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 8), conv(8, 16, stride=2), conv(16, 16)
        self.head, self.only = nn.Linear(16, 4), conv(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4))
        y = F.relu(self.a(x) + short)
        return self.head((self.b(y) + y).mean((2, 3))) + self.only(short).mean()


@net()
class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again, self.head = conv(3, 8), conv(8, 8), conv(8, 4)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        y = self.norm(self.again(F.relu(x)))
        return self.head(F.relu(self.again(y)))


@net()
class SharedWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.a(x) * 2 + self.b(F.relu(x)))


@net(lambda b, s: torch.randn(b, 12))
class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.code = nn.Linear(12, 10), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return F.linear(self.code(x).relu(), self.code.weight.t()) + x


@net()
class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.used = conv(3, 8), conv(8, 6)
        self.kernel = nn.Parameter(torch.randn(4, 6, 3, 3))
        self.scale = nn.Parameter(torch.randn(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(self.stem(x), self.used.weight, self.used.bias, padding=1)
        return F.conv2d(x * self.scale, self.kernel)


@net()
class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = conv(3, 12), conv(12, 24, groups=12)
        self.groups, self.deep = conv(24, 16, groups=4), conv(16, 16, groups=16)
        self.head = conv(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.wide(self.stem(x)))
        return self.head(F.relu6(self.deep(self.groups(x))))


@net()
class InvertedResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        self.block = nn.Sequential(
            conv(8, 16, 1),
            nn.BatchNorm2d(16),
            nn.Hardswish(inplace=True),
            conv(16, 16, groups=16, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU6(inplace=True),
            conv(16, 8, 1),
        )
        self.head = conv(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.block(x))


@net(lambda b, s: torch.randn(b, s, 16))
class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 16)
        self.n1, self.n2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.n1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.n2(x))
        return self.head(x[:, 0])


@net(lambda b, s: torch.randn(b, s, 12))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.proj = nn.Linear(12, 12), nn.Linear(12, 36), nn.Linear(12, 12)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, 3, c // 3).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-2, -1) * 0.5).softmax(dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(b, n, c)
        return self.head(x + self.proj(y))


@net()
class ChannelsLastBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = conv(3, 8), conv(8, 8, 7, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma = nn.Parameter(torch.randn(8, 1, 1))
        self.head = conv(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return self.head(x + y * self.gamma)


@net(lambda b, s: torch.randn(b, 3, 8, 8))
class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 5)
        self.fc1, self.fc2 = nn.Linear(5 * 16, 20), nn.Linear(20, 4)
        self.last = nn.Linear(6 * 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = F.max_pool2d(self.b(x), 2)
        y = F.relu(self.fc1(F.dropout(y.view(-1, 5 * 16), 0.5, self.training)))
        return self.fc2(y) + self.last(x.permute(0, 2, 3, 1).reshape(x.shape[0], -1))


@net()
class GroupNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = conv(3, 8), nn.GroupNorm(4, 8), conv(8, 8)
        self.m, self.c = nn.GroupNorm(1, 8), conv(8, 4)
        self.i, self.d = nn.InstanceNorm2d(4, affine=True), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.i(self.c(self.m(self.b(F.relu(self.n(self.a(x))))))))


@net()
class SpatialAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.head = conv(3, 8), conv(2, 1, 7), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)
        return self.head(x * self.gate(seen).sigmoid())


@net(lambda b, s: torch.randn(b, 3, 2 * (s // 2), 2 * (s // 2)))
class PixelShuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 16), conv(4, 4), conv(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(F.relu(F.pixel_shuffle(self.a(x), 2)))
        return self.c(F.pixel_unshuffle(x, 2))


@net(lambda b, s: torch.randn(b, 4, 3 * s))
class OneDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 8, 3), nn.Conv1d(8, 8, 5, padding=2)
        self.n, self.c = nn.BatchNorm1d(8), nn.ConvTranspose1d(8, 3, 4, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(F.leaky_relu(self.n(self.b(x)) + x))


@net(lambda b, s: torch.randn(b, 2, 6, 8, 8))
class ThreeDimensional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(2, 6, 3), nn.Conv3d(6, 4, 1)
        self.n = nn.BatchNorm3d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.adaptive_avg_pool3d(F.elu(self.n(self.a(x))), 2))


@net(lambda b, s: {"image": torch.randn(b, 3, s, s), "text": torch.randn(b, 8)})
class SeveralInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.read, self.head = conv(3, 8), nn.Linear(8, 8), conv(8, 4)

    def forward(
        self, image: Tensor, text: Tensor, mask: Tensor | None = None, scale: float = 2.0
    ) -> dict[str, Any]:
        seen = self.stem(image)
        if mask is not None:
            seen = seen * mask
        both = seen + self.read(text)[:, :, None, None] * scale
        return {"out": self.head(both), "aux": (seen.mean((2, 3)), None)}


@net()
class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = torch.cumsum(self.a(x), dim=1)
        return self.c(self.b(y) + x)


@net()
class NormalisedChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 8), conv(8, 6), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.a(x.softmax(dim=1)).mean(1, keepdim=True) * self.b(F.normalize(x, dim=1))


@net()
class ReadBeforeOverwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3, 8), conv(8, 6), conv(14, 4), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        both = torch.cat([x, self.a(x)], 1)
        x.relu_()
        return self.b(both) + self.c(x)


@net()
class Activations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 8), conv(8, 8), conv(8, 8), conv(8, 4)
        self.slope = nn.PReLU(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.a(x))
        x = torch.where(x > 0.1, x, F.mish(x)).clamp(-2, 2)
        x = F.softplus(self.b(x)) ** 2 / (1 + x.abs()) - 0.5
        return self.d(F.hardtanh(torch.maximum(self.c(x), x)))


@net()
class ReflectPadded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.b = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
        self.c = nn.Conv2d(8, 4, 3, padding="same")
        self.d = nn.Conv2d(8, 8, 3, padding=1, groups=4, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.d(F.relu(self.b(self.a(x)))))


class StandardisedConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        mean = weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight - mean, self.bias, self.stride, self.padding)


@net()
class WeightStandardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), StandardisedConv2d(8, 8, 3, padding=1), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(F.relu(self.b(x)) + x)


@net()
class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = conv(3, 8), conv(8, 4)
        self.b = nn.utils.parametrizations.weight_norm(conv(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


@net(lambda b, s: torch.randint(0, 20, (b, s)))
class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.b(F.relu(self.a(self.embed(tokens))))


@net()
class NobodyReads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        self.b(x)
        return self.c(x)


@net()
class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.c = conv(3, 8), conv(8, 6), conv(8, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        both = torch.stack([self.a(x), self.b(x)], dim=0)
        return self.c(both.sum(0)) + self.c(both[1])


@net()
class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 4), conv(12, 6), conv(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.a(x.repeat(1, 3, 1, 1)) + self.b(torch.cat([x, x], 1))


@net()
class OneChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 1), conv(1, 1), conv(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(x + self.b(x))


@net(lambda b, s: (torch.randn(b, 5, 12),))
class TokenMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 8)
        self.t1, self.t2 = nn.Linear(5, 7), nn.Linear(7, 5)
        self.c1, self.c2 = nn.Linear(8, 10), nn.Linear(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.t2(F.gelu(self.t1(x.transpose(1, 2)))).transpose(1, 2)
        return x + self.c2(F.gelu(self.c1(x)))


@net()
class FeaturesOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 8), conv(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        a = F.relu(self.a(x))
        b = F.relu(self.b(a) + a)
        return self.c(b), [a, b]


@net(lambda b, s: torch.randn(b, 3, 4 * (s // 4), 4 * (s // 4)))
class WindowAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = conv(3, 12), nn.LayerNorm(12)
        self.to_qkv, self.merge, self.head = nn.Linear(12, 36), nn.Linear(12, 12), conv(12, 3)
        self.bias = nn.Parameter(torch.randn(1, 1, 3, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        y = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
        y = self.norm(y.reshape(b, (h // 4) * (w // 4), 16, c))
        b, g, p, d = y.shape
        q, k, v = torch.chunk(self.to_qkv(y), 3, dim=-1)
        q = q.reshape(b, g, p, 3, 4).permute(0, 1, 3, 2, 4)
        k = k.reshape(b, g, p, 3, 4).permute(0, 1, 3, 2, 4) * 0.5
        v = v.reshape(b, g, p, 3, 4).permute(0, 1, 3, 2, 4)
        scores = torch.einsum("B G H I D, B G H J D -> B G H I J", q, k) + self.bias
        out = torch.einsum("B G H I J, B G H J D -> B G H I D", scores.softmax(dim=-1), v)
        y = self.merge(out.permute(0, 1, 3, 2, 4).reshape(b, g, p, d))
        y = y.reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
        return self.head(x + y)


@net(lambda b, s: torch.randn(b, s, 16))
class FusedHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.proj = nn.Linear(16, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q * 1.5, k, F.dropout(v, 0.1, self.training))
        y = F.relu(y).transpose(1, 2).reshape(b, n, c)
        return self.head(x + F.relu(self.proj(y)))


@net(lambda b, s: torch.randn(b, 3, 4, 4))
class BuffersAndConstants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 4)
        self.table = nn.Parameter(torch.randn(7, 16))
        self.register_buffer("index", torch.randint(0, 7, (3, 2)))
        self.register_buffer("scale", torch.rand(6, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        bias = self.table[self.index.view(-1)].view(6, 4, 4)
        x = self.a(x) * self.scale + bias
        return self.b(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


@net()
class CalledTwiceOnceForNothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm, self.head = conv(3, 6), conv(3, 6), nn.BatchNorm2d(6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.norm(self.a(x))
        return self.head(self.norm(self.b(x)))


@net()
class ReflectCalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side = conv(3, 6), conv(6, 4)
        self.again = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.again(self.stem(x)))
        return self.again(x), self.side(x)


@net()
class PaddedSlice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = conv(3, 4), conv(3, 4), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.a(x), self.b(x)], 1)[:, 4:]
        return self.head(F.pad(x, (0, 0, 0, 0, 1, 1)))


@net()
class BatchTimesChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        b, c, h, w = x.shape
        return self.b(x.reshape(b * c, h, w).relu().view(b, c, h, w))


@net()
class AsksOfAConcatenation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 5), conv(5, 4), conv(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.a(x)], 1)
        torch._assert(x.ndim == 4, "images come in batches")
        y = torch.cat([x, self.b(x)], 1)
        return self.c(y).to(y.dtype) * y.size(2) / y.shape[1]


@net()
class ShuffledByAModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 2), conv(2, 6), conv(6, 4)
        self.two, self.three = nn.ChannelShuffle(2), nn.ChannelShuffle(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.three(self.b(self.two(self.a(x)))))


@net()
class WrappedFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(graded(self.a(x)))


@net()
class WrappedWindows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = conv(3, 8, 1), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)
        self.reduce, self.head = nn.Linear(32, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        weights = (self.qkv.weight, self.proj.weight)
        x = x + windowed(self.norm(x), *weights, 4, [0, 0], training=self.training)
        y = windowed(x, *weights, 4, shift=[2, 2], qkv_bias=self.qkv.bias)
        return self.head(F.relu(self.reduce(merged(x + y))))


@net(traced=False)
class WrappedSplit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 12), conv(6, 5), conv(6, 5), conv(5, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        one, other = split_and_scaled(self.a(x), self.scale)
        return self.d(self.b(one) + self.c(other))


@net()
class ComputedBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(3, 8), conv(8, 10), nn.Linear(10, 4)
        self.dense, self.share = nn.Linear(10, 6, bias=False), nn.Linear(3, 10)
        self.first, self.last = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2))
        self.level = nn.Parameter(torch.randn(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.conv2d(self.a(x), self.b.weight, self.share(self.level)).mean((2, 3))
        bias = torch.cat((self.first, self.last))
        return self.c(y), self.head(F.relu(F.linear(y, self.dense.weight, bias)))


class FusedAttention(nn.Module):
    """Three heads; how queries, keys and values are told apart is up to `parts`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.proj = nn.Linear(12, 12), nn.Linear(12, 36), nn.Linear(12, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        b, n, c = x.shape
        q, k, v = self.parts(self.qkv(x), b, n)
        y = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        return self.head(x + self.proj(y.transpose(1, 2).reshape(b, n, c)))

    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        raise NotImplementedError


def sequence(batch: int, size: int) -> Tensor:
    return torch.randn(batch, size, 12)


@net(sequence)
class FusedByIndex(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        qkv = qkv.reshape(b, n, 3, 3, 4).permute(2, 0, 3, 1, 4).contiguous()
        return qkv[0], qkv[1], qkv[2]


@net(sequence)
class FusedByInnerIndex(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        qkv = qkv.unflatten(-1, (3, 3, 4))
        return [qkv[..., i, :, :].transpose(1, 2) for i in range(3)]


@net(sequence)
class FusedByChunks(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        q, k, v = qkv.reshape(b, n, 3, 3, 4).chunk(3, 2)
        q, k = q.squeeze(2), k[:, :, 0]
        return [part.transpose(1, 2) for part in (q, k, v.reshape(b, n, 3, 4))]


@net(sequence)
class FusedBySelect(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        qkv = qkv.view(b, n, 3, 4, 3).movedim(-1, 1)
        return [qkv.select(1, i).transpose(1, 2) for i in range(3)]


@net(sequence)
class FusedWithinHeads(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        q, k, v = qkv.reshape(b, n, 3, 12).transpose(1, 2).split(4, -1)
        return q, k, v


@net(sequence)
class FusedInTwoSteps(FusedAttention):
    def parts(self, qkv: Tensor, b: int, n: int) -> Any:
        qkv = qkv.reshape(b, n, 3, 12).permute(2, 0, 1, 3)
        return qkv.reshape(3, b, n, 3, 4).transpose(2, 3).unbind(0)
