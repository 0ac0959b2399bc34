"""Every flow rule says, of a graph of a few nodes, the relations that hold there."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.ops.tiny import Made, said

MIXED = "channels are multiplied with channels, as queries with keys: it needs them all"
SPREAD = "its channels are spread over several axes"


def _heads(y: torch.Tensor) -> torch.Tensor:
    """Two heads of two channels, at 24 places: (images, heads, width, places)."""
    return y.flatten(2).reshape(2, 2, 2, 24)


def _values(y: torch.Tensor) -> torch.Tensor:
    """The same as attention wants it: (images, heads, places, width)."""
    return _heads(y).transpose(2, 3)


ROWS: dict[str, tuple[Made, str]] = {
    # On each element alone.
    "relu": (lambda m, y: torch.relu(y), "out.1 ties conv.1"),
    "a sum with a parameter": (lambda m, y: y + m.scale, "out.1 ties conv.1 @scale.0"),
    "a sum with itself": (lambda m, y: y + y, "out.1 ties conv.1"),
    "a slope for all": (lambda m, y: F.prelu(y, m.slope), "out.1 ties conv.1"),
    "a slope each": (lambda m, y: F.prelu(y, m.each), "out.1 ties conv.1 @each.0"),
    # Over space.
    "pooling": (lambda m, y: F.max_pool2d(y, 2), "out.1 ties conv.1"),
    "pooling that says where": (
        lambda m, y: torch.ops.aten.max_pool2d_with_indices(y, [2, 2])[0],
        "out.1 ties conv.1; out:1.1 ties conv.1",
    ),
    "pooling over channels": (
        lambda m, y: F.avg_pool3d(y, 2),
        "needs all: avg_pool3d works along the channels",
    ),
    "resizing": (
        lambda m, y: torch.ops.aten._upsample_nearest_exact2d(y, [8, 12]),
        "out.1 ties conv.1",
    ),
    "padding space": (lambda m, y: F.pad(y, (1, 1)), "out.1 ties conv.1"),
    "padding channels": (
        lambda m, y: F.pad(y, (0, 0, 0, 0, 1, 2)),
        "out.1 takes - conv.1:0 1 2 3 - -",
    ),
    "padding channels with ones": (
        lambda m, y: F.pad(y, (0, 0, 0, 0, 1, 2), value=1.0),
        "needs all: pads channels with a value other than zero",
    ),
    "cropping channels": (
        lambda m, y: F.pad(y, (0, 0, 0, 0, -1, 0)),
        "needs all: crops channels by negative padding",
    ),
    "padding both": (
        lambda m, y: F.pad(y, (1, 1, 0, 0, 1, 1)),
        "needs all: pads channels and space at once",
    ),
    # Reductions, and along one axis.
    "a mean over places": (lambda m, y: y.mean((2, 3)), "out.1 ties conv.1"),
    "a sum over images": (lambda m, y: y.sum(0), "out.0 ties conv.1"),
    "a mean over channels": (lambda m, y: y.mean(1), "absorbs conv.1"),
    "a sum over all": (lambda m, y: y.sum(), "absorbs conv.1"),
    "a softmax over channels": (lambda m, y: y.softmax(1), "out.1 ties conv.1 whole"),
    "a softmax over places": (lambda m, y: y.softmax(-1), "out.1 ties conv.1"),
    "a running sum of places": (lambda m, y: y.cumsum(2), "out.1 ties conv.1"),
    "a running sum of channels": (
        lambda m, y: y.cumsum(1),
        "needs all: cumsum along channels depends on their order",
    ),
    # Normalisations.
    "batch norm": (
        lambda m, y: F.batch_norm(y, m.each, m.each, m.each, m.each),
        "out.1 ties conv.1 @each.0",
    ),
    "layer norm over places": (lambda m, y: F.layer_norm(y, (6,)), "out.1 ties conv.1"),
    "layer norm over channels": (
        lambda m, y: F.layer_norm(y.permute(0, 2, 3, 1), (4,), m.each),
        "out.3 ties permute.3 @each.0 whole",
    ),
    "group norm of one group": (
        lambda m, y: F.group_norm(y, 1, m.each),
        "out.1 ties conv.1 @each.0 whole",
    ),
    "group norm of more": (
        lambda m, y: F.group_norm(y, 2),
        "needs all: group_norm mixes channels within its groups",
    ),
    # Layers.
    "a convolution": (lambda m, y: F.conv2d(y, m.filters), "out.1 reduces conv.1"),
    "a depthwise convolution": (
        lambda m, y: F.conv2d(y, m.token.transpose(0, 1), groups=4),
        "out.1 reduces conv.1 each",
    ),
    "a transposed convolution": (
        lambda m, y: F.conv_transpose2d(y, m.filters.transpose(0, 1)),
        "out.1 reduces conv.1",
    ),
    "a grouped transposed convolution": (
        lambda m, y: F.conv_transpose2d(y, m.filters[:4], groups=2),
        "needs all: a grouped transposed convolution tells its groups apart by place",
    ),
    "a linear layer over places": (
        lambda m, y: F.linear(y, m.wide),
        "out.1 ties conv.1; out.3 reduces conv.3",
    ),
    "a product with a matrix of parameters": (
        lambda m, y: y @ m.wide.t(),
        "out.1 ties conv.1; out.3 reduces conv.3",
    ),
    "a linear layer with its weight the other way round": (
        lambda m, y: torch.addmm(m.each, y.flatten(1), m.many),
        "out.1 reduces flatten.1",
    ),
    "a product that is scaled": (
        lambda m, y: torch.addmm(m.each, y.flatten(1), m.many, alpha=2),
        f"needs all: {MIXED}",
    ),
    "looking words up": (
        lambda m, y: F.embedding(torch.tensor([[0, 1], [2, 4]]), m.wide),
        "out.2 ties @wide.1",
    ),
    # Several channels of one tensor.
    "a gated half": (lambda m, y: F.glu(y, 1), "out.1 folds conv.1 0+2 1+3"),
    "a gated half of places": (lambda m, y: F.glu(y, 3), "out.1 ties conv.1"),
    "pixels from channels": (lambda m, y: F.pixel_shuffle(y, 2), "out.1 folds conv.1 0+1+2+3"),
    # Moving data.
    "permuting": (lambda m, y: y.permute(0, 2, 3, 1), "out.3 ties conv.1"),
    "flattening": (lambda m, y: y.flatten(1), "out.1 carries conv.1 1x24"),
    "flattening into images": (
        lambda m, y: y.flatten(0, 1),
        "needs all: it merges channels with the batch",
    ),
    "reading other bits": (
        lambda m, y: y.view(torch.int32),
        "needs all: it reads the bits of another type",
    ),
    "repeating": (lambda m, y: y.repeat(1, 2, 1, 1), "out.1 takes conv.1:0 1 2 3 0 1 2 3"),
    "shuffling": (lambda m, y: F.channel_shuffle(y, 2), "out.1 takes conv.1:0 2 1 3"),
    "channels from pixels": (
        lambda m, y: F.pixel_unshuffle(y, 2),
        "out.1 carries conv.1 1x4",
    ),
    "expanding a parameter": (
        lambda m, y: torch.relu(m.token.expand(2, -1, 4, 6)) + y,
        "out.1 ties relu.1 conv.1",
    ),
    "joining": (lambda m, y: torch.cat([y, y], 1), "out.1 takes conv.1:0 1 2 3 conv.1:0 1 2 3"),
    "joining images": (lambda m, y: torch.cat([y, y], 0), "out.1 ties conv.1"),
    "stacking": (lambda m, y: torch.stack([y, y], 1), "out.2 ties conv.1"),
    "cutting": (
        lambda m, y: y.split([1, 3], 1),
        "out.1 takes conv.1:0; out:1.1 takes conv.1:1 2 3",
    ),
    "turning round": (lambda m, y: y.flip(1), "out.1 takes conv.1:3 2 1 0"),
    "turning round two axes": (
        lambda m, y: y.flip([1, 2]),
        "out.1 takes conv.1:3 2 1 0",
    ),
    "rolling everything": (lambda m, y: y.roll(1), "needs all: roll over all axes at once"),
    "picking an image": (lambda m, y: y.select(0, 1), "out.0 ties conv.1"),
    "picking a channel": (
        lambda m, y: y.select(1, 0),
        "needs all: select picks single channels by number",
    ),
    "picking places by index": (
        lambda m, y: y.index_select(3, torch.tensor([0, 2])),
        "out.1 ties conv.1",
    ),
    # Spread over several axes.
    "making heads": (lambda m, y: _heads(y), "out.-1 takes flatten.1:0 1 2 3"),
    "merging heads again": (
        lambda m, y: _heads(y).flatten(1, 2),
        "out.1 takes flatten.1:0 1 2 3",
    ),
    "exchanging head and width": (
        lambda m, y: _heads(y).transpose(1, 2).flatten(1, 2),
        "out.1 takes flatten.1:0 2 1 3",
    ),
    "picking a head": (
        lambda m, y: _heads(y).select(1, 1),
        "out.-1 takes flatten.1:2 3",
    ),
    "picking a channel of a head": (
        lambda m, y: _heads(y).select(1, 1).select(1, 0),
        "needs all: select picks single channels by number",
    ),
    "computing on heads": (
        lambda m, y: torch.relu(_heads(y)),
        "out.-1 ties reshape.-1",
    ),
    "picking a computed head": (
        lambda m, y: torch.relu(_heads(y)).select(1, 1),
        f"needs all: {SPREAD}",
    ),
    "rolling heads": (
        lambda m, y: _heads(y).roll(1, 1),
        f"needs all: {SPREAD}",
    ),
    "other bits of heads": (
        lambda m, y: _heads(y).view(torch.int32),
        "needs all: it reads the bits of another type",
    ),
    "heads in their order again": (
        lambda m, y: torch.relu(_heads(y)).reshape(2, 2, 2, 24),
        "out.-1 ties relu.-1",
    ),
    "one head of all channels": (
        lambda m, y: y.flatten(2).unflatten(1, (1, 4)),
        "out.-1 takes flatten.1:0 1 2 3",
    ),
    "an alias of heads": (lambda m, y: _heads(y).detach(), "out.-1 takes flatten.1:0 1 2 3"),
    "an axis between heads and width": (
        lambda m, y: _heads(y).unsqueeze(2),
        "out.-1 takes flatten.1:0 1 2 3",
    ),
    "heads repeated": (
        lambda m, y: _heads(y).unsqueeze(2).expand(-1, -1, 2, -1, -1),
        "out.-1 takes flatten.1:0 1 0 1 2 3 2 3",
    ),
    "heads repeated one by one": (
        lambda m, y: _heads(y).repeat_interleave(2, 1),
        "out.-1 takes flatten.1:0 1 0 1 2 3 2 3",
    ),
    "computed heads repeated": (
        lambda m, y: torch.relu(_heads(y)).repeat_interleave(2, 1),
        f"needs all: {SPREAD}",
    ),
    "channels repeated one by one": (
        lambda m, y: y.repeat_interleave(2, 1),
        "out.1 takes conv.1:0 0 1 1 2 2 3 3",
    ),
    "places repeated one by one": (lambda m, y: y.repeat_interleave(2, 3), "out.1 ties conv.1"),
    "all numbers repeated": (
        lambda m, y: y.repeat_interleave(2),
        "needs all: how often each is repeated is computed, or it is over all axes at once",
    ),
    "expanding as another": (
        lambda m, y: y.mean(3, keepdim=True).expand_as(y),
        "out.1 ties mean.1 conv.1",
    ),
    # Products of what is computed.
    "queries by keys": (
        lambda m, y: torch.matmul(y.flatten(2).transpose(1, 2), y.flatten(2)),
        f"needs all: {MIXED}",
    ),
    "queries by keys, in heads": (
        lambda m, y: torch.matmul(_values(y), _heads(y)),
        "out.1 of transpose.-1 reshape_1.-1",
    ),
    "rotating heads": (
        lambda m, y: _values(y) * torch.ones(24, 2),
        "out.1 of transpose.-1",
    ),
    "joining halves of heads": (
        lambda m, y: torch.cat([-_values(y), _values(y)], -1),
        "out.1 of neg.-1 transpose_1.-1",
    ),
    "a mean over each head": (
        lambda m, y: _values(y).mean(-1, keepdim=True),
        "out.1 of transpose.-1",
    ),
    "a mean over heads": (lambda m, y: _values(y).mean(1), f"needs all: {SPREAD}"),
    "a norm over each head": (
        lambda m, y: F.layer_norm(_values(y), (2,)),
        "out.1 of transpose.-1",
    ),
    "nothing of each head": (
        lambda m, y: _values(y)[..., 2:],
        "out.1 of transpose.-1",
    ),
    "joining heads": (
        lambda m, y: torch.cat([_values(y), _values(y)], 1),
        f"needs all: {SPREAD}",
    ),
    "weights by values": (
        lambda m, y: torch.matmul(torch.ones(2, 2, 24, 24), _values(y)),
        "_tensor_constant0.1 serves out.-1; out.-1 ties transpose.-1",
    ),
    "attention": (
        lambda m, y: F.scaled_dot_product_attention(_values(y), _values(y), _values(y)),
        "transpose.-1 transpose_1.-1 serves out.-1; out.-1 ties transpose_2.-1",
    ),
    "queries by keys, as einsum": (
        lambda m, y: torch.einsum("bhqd,bhkd->bhqk", _values(y), _values(y)),
        "out.1 of transpose.-1 transpose_1.-1",
    ),
    "weights by values, as einsum": (
        lambda m, y: torch.einsum("bhqk,bhkd->bhqd", torch.ones(2, 2, 24, 24), _values(y)),
        "_tensor_constant0.1 serves out.-1; out.-1 ties transpose.-1",
    ),
    # What nobody vouches for.
    "no rule": (lambda m, y: torch.sinc(y), "needs all: no rule for this operation"),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_rule_states_what_its_operation_does_to_channels(row: str) -> None:
    made, expected = ROWS[row]
    assert said(made) == expected
