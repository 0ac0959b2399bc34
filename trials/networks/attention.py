"""Random attention blocks: heads, groups, rotation, masks and norms, in the spellings in use.

A `Block` is plain data, and prints as the call that makes it; `Attention(block)` is the module.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.comparing import relative_error
from trials.masks import random_selection
from trials.networks.network import told_apart
from upscale.verify import TOLERANCE

STREAM, PLACES = 10, 5


@dataclass(frozen=True)
class Block:
    """How one block attends, and what its layers keep."""

    heads: int  # of keys and values
    group: int  # queries to a key
    width: int
    fused: str  # apart, chunk, parts or interleaved
    score: str  # fused, causal, query, matmul or einsum
    rotated: str  # no, whole or part
    repeated: str  # expand or interleave, where groups are larger than one
    masked: str  # no, all or each
    normed: str  # no, layer or root
    bias: bool
    cross: bool
    sides: tuple[str, ...]
    whole_heads: bool
    seed: int

    def selections(self, model: nn.Module) -> list[upscale.Selection]:
        """Random masks; some of them of whole heads."""
        rng = random.Random(self.seed)
        share = rng.choice((0.25, 0.5, 0.75))
        made = [random_selection(model, share, rng, side=side) for side in self.sides]
        if self.whole_heads and self.sides[0] == "input":
            heads = [h for h in range(self.heads * self.group) if rng.random() < share]
            kept = [head * self.width + i for head in heads for i in range(self.width)]
            made[0] = made[0].with_kept({"project": kept})
        return made


def blocks(sides: tuple[str, ...] = ("input", "output")) -> st.SearchStrategy[Block]:
    """Every kind of block, with masks on these sides."""
    choose = st.sampled_from
    return st.builds(
        Block,
        heads=st.integers(1, 3),
        group=st.integers(1, 3),
        width=choose((2, 4, 6)),
        fused=choose(("apart", "chunk", "parts", "interleaved")),
        score=choose(("fused", "causal", "query", "matmul", "einsum")),
        rotated=choose(("no", "whole", "part")),
        repeated=choose(("expand", "interleave")),
        masked=choose(("no", "all", "each")),
        normed=choose(("no", "layer", "root")),
        bias=st.booleans(),
        cross=st.booleans(),
        sides=choose((*((side,) for side in sides), sides)),
        whole_heads=st.booleans(),
        seed=st.integers(0, 1000),
    )


class Attention(nn.Module):
    """Attention between two linears, as a block says."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = b = block
        self.apart = b.fused == "apart" or b.group > 1 or b.cross
        queries, keys = b.heads * b.group * b.width, b.heads * b.width
        self.begin = nn.Linear(7, STREAM)
        if self.apart:
            self.query = nn.Linear(STREAM, queries, b.bias)
            self.key = nn.Linear(STREAM, keys, b.bias)
            self.value = nn.Linear(STREAM, keys, b.bias)
        else:
            self.qkv = nn.Linear(STREAM, 3 * queries, b.bias)
        if b.normed == "layer":
            self.norm = nn.LayerNorm(b.width)
        self.scale = nn.Parameter(torch.rand(b.width) + 0.5)
        self.slopes = nn.Parameter(torch.rand(b.heads * b.group, 1, 1))
        self.project = nn.Linear(queries, STREAM, b.bias)
        self.end = nn.Linear(STREAM, 4)

    def forward(self, x: Tensor) -> Tensor:
        b = self.block
        x = torch.relu(self.begin(x))
        query, key, value = self._apart(x) if self.apart else self._fused(x)
        query, key = (self._rotated(self._normed(each)) for each in (query, key))
        if b.group > 1:
            key, value = self._repeated(key), self._repeated(value)
        seen = self._attend(query, key, value).transpose(1, 2)
        merged = seen.reshape(x.shape[0], x.shape[1], b.heads * b.group * b.width)
        made: Tensor = self.end(self.project(merged) + x)
        return made

    def _apart(self, x: Tensor) -> list[Tensor]:
        source = x.flip(1) if self.block.cross else x
        made = self.query(x), self.key(source), self.value(source)
        return [
            each.view(x.shape[0], x.shape[1], -1, self.block.width).transpose(1, 2) for each in made
        ]

    def _fused(self, x: Tensor) -> Any:
        b, (images, places, _) = self.block, x.shape
        made = self.qkv(x)
        if b.fused == "chunk":
            return [
                each.unflatten(-1, (b.heads, b.width)).transpose(1, 2) for each in made.chunk(3, -1)
            ]
        if b.fused == "parts":
            parts = made.reshape(images, places, 3, b.heads, b.width)
            return parts.permute(2, 0, 3, 1, 4).unbind(0)
        parts = made.view(images, places, b.heads, 3 * b.width).transpose(1, 2)
        return parts.chunk(3, -1)

    def _normed(self, x: Tensor) -> Tensor:
        if self.block.normed == "layer":
            normed: Tensor = self.norm(x)
            return normed
        if self.block.normed == "root":
            return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        return x

    def _rotated(self, x: Tensor) -> Tensor:
        if self.block.rotated == "no":
            return x
        width = self.block.width // (1 if self.block.rotated == "whole" else 2)
        turning, rest = x[..., :width], x[..., width:]
        place = torch.arange(x.shape[2], dtype=x.dtype)[:, None]
        angle = place * torch.ones(width, dtype=x.dtype)
        half = width // 2
        other = torch.cat((-turning[..., half:], turning[..., :half]), -1)
        turned = turning * angle.cos() + other * angle.sin()
        return torch.cat((turned, rest), -1)

    def _repeated(self, x: Tensor) -> Tensor:
        if self.block.repeated == "interleave":
            return x.repeat_interleave(self.block.group, 1)
        images, heads, places, width = x.shape
        wide = x[:, :, None, :, :].expand(images, heads, self.block.group, places, width)
        return wide.reshape(images, heads * self.block.group, places, width)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        b, mask = self.block, None
        if b.masked != "no":
            place = torch.arange(query.shape[2], dtype=query.dtype)
            mask = -(place[:, None] - place[None, :]).abs()
            mask = mask * self.slopes if b.masked == "each" else mask
        if b.score in ("fused", "causal"):
            causal = b.score == "causal" and mask is None
            return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        if b.score == "query":
            query = query * b.width**-0.5
        if b.score == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", query, key)
        else:
            scores = query @ key.transpose(-1, -2)
        scores = scores if b.score == "query" else scores / b.width**0.5
        scores = scores if mask is None else scores + mask
        weights = scores.softmax(-1)
        if b.score == "einsum":
            return torch.einsum("bhqk,bhkd->bhqd", weights, value)
        return weights @ value


def made(block: Block) -> nn.Module:
    """The module of a block, in double precision, with the same weights every time."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(block.seed)
        return told_apart(Attention(block)).double()


def tokens(images: int, places: int, seed: int = 0) -> Tensor:
    """What a block is given."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, places, 7, dtype=torch.float64, generator=generator)


def assert_block_exports_exactly(block: Block) -> None:
    """Raise unless a block's export equals its masked model, at two sizes."""
    model, example = made(block), tokens(2, PLACES)
    selections = block.selections(model)
    plan = upscale.plan(model, example, selections)
    exported = upscale.export(model, plan)
    masked = upscale.mask(model, selections, example=example)
    for given in (example, tokens(1, PLACES + 2, 1)):
        error = relative_error(exported, masked, given)
        assert error <= TOLERANCE, f"relative error {error:.1e} on {tuple(given.shape)}"
