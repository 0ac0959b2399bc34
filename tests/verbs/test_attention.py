"""Attention: random blocks export exactly, and whole heads leave with all that makes them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.comparing import relative_error
from trials.networks.attention import Attention, Block, assert_block_exports_exactly, blocks, made
from trials.networks.attention import tokens as places
from upscale.errors import SelectionError
from upscale.verify import TOLERANCE

COUNT = int(os.environ.get("UPSCALE_BLOCKS", "40"))


@settings(max_examples=COUNT, suppress_health_check=list(HealthCheck))
@given(blocks())
def test_an_export_of_random_attention_equals_the_masked_model(block: Block) -> None:
    assert_block_exports_exactly(block)


PLAIN: dict[str, Any] = {
    "heads": 3,
    "group": 1,
    "width": 4,
    "fused": "apart",
    "score": "fused",
    "rotated": "no",
    "repeated": "expand",
    "masked": "no",
    "normed": "no",
    "bias": True,
    "cross": False,
    "sides": ("input",),
    "whole_heads": False,
    "seed": 0,
}
SPELLINGS = {
    "fused attention": {},
    "a product by hand": {"score": "matmul"},
    "queries scaled": {"score": "query"},
    "einsum": {"score": "einsum"},
    "rotated": {"rotated": "whole"},
    "rotated in part": {"rotated": "part", "score": "matmul"},
    "a norm over each head": {"normed": "layer"},
    "a root norm over each head": {"normed": "root", "rotated": "whole"},
    "a mask for each head": {"masked": "each"},
    "parts of one projection": {"fused": "parts"},
    "chunks of one projection": {"fused": "chunk", "score": "matmul"},
    "parts side by side in each head": {"fused": "interleaved"},
    "other tokens": {"cross": True},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_head_leaves_with_its_queries_keys_and_values(spelling: str) -> None:
    model = made(Block(**PLAIN | SPELLINGS[spelling]))
    found = upscale.heads(model, places(2, 5))
    assert dict(found.of) == {"project": (3, 4)}
    selection = found.keeping({"project": [0, 2]})
    exported = upscale.export(model, upscale.plan(model, places(2, 5), selection))
    masked = upscale.mask(model, selection)
    held = dict(exported.named_parameters())
    assert held["project.weight"].shape == (10, 8)
    rows = {name: len(weight) for name, weight in held.items() if weight.ndim == 2}
    if isinstance(model, Attention) and model.apart:
        assert (rows["query.weight"], rows["key.weight"], rows["value.weight"]) == (8, 8, 8)
    else:
        assert rows["qkv.weight"] == 24
    for given_ in (places(2, 5), places(3, 4)):
        assert relative_error(exported, masked, given_) <= TOLERANCE


@pytest.mark.parametrize("repeated", ["expand", "interleave"])
@pytest.mark.parametrize("rotated", ["no", "whole"])
def test_a_group_leaves_when_all_its_heads_do(repeated: str, rotated: str) -> None:
    changes = {"heads": 2, "group": 2, "repeated": repeated, "rotated": rotated}
    model = made(Block(**PLAIN | changes))
    found = upscale.heads(model, places(2, 5))
    assert dict(found.of) == {"project": (4, 4)}
    for kept, queries, keys in (([0, 1], 8, 4), ([0], 4, 4), ([0, 3], 8, 8)):
        selection = found.keeping({"project": kept})
        exported = upscale.export(model, upscale.plan(model, places(2, 5), selection))
        held = dict(exported.named_parameters())
        assert len(held["query.weight"]) == queries
        assert len(held["key.weight"]) == len(held["value.weight"]) == keys
        masked = upscale.mask(model, selection)
        assert relative_error(exported, masked, places(3, 4)) <= TOLERANCE


def test_heads_of_which_some_channels_stay_keep_equally_many() -> None:
    model = made(Block(**PLAIN))
    selection = upscale.Selection(kept={"project": [0, 8, 9]})
    exported = upscale.export(model, upscale.plan(model, places(2, 5), selection))
    held = dict(exported.named_parameters())
    assert (len(held["query.weight"]), len(held["value.weight"])) == (8, 4)


class Merged(nn.Module):
    """Heads that are merged with the batch, which nobody follows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.project = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        images, count, _ = x.shape
        made = self.qkv(x).reshape(images, count, 3, 2, 4).permute(2, 0, 3, 1, 4)
        parts = made.reshape(3, images * 2, count, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        merged = seen.reshape(images, 2, count, 4).transpose(1, 2).reshape(images, count, 8)
        return self.project(merged)


def test_heads_that_nobody_vouches_for_are_not_offered() -> None:
    assert dict(upscale.heads(Merged().eval(), torch.randn(2, 5, 8)).of) == {}


@pytest.mark.parametrize("first", [False, True])
def test_heads_leave_an_encoder_of_torchs_own(first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, norm_first=first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.Sequential(nn.Linear(7, 16), encoder).double().eval()
    found = upscale.heads(model, places(2, 5))
    selection = found.keeping({"1.layers.0": [0, 3], "1.layers.1": [1]})
    exported = upscale.export(model, upscale.plan(model, places(2, 5), selection))
    held = dict(exported.named_parameters())
    rows = [len(held[f"1.layers.{index}.self_attn.in_proj_weight"]) for index in (0, 1)]
    assert rows == [24, 12]
    for batch, count in ((2, 5), (3, 4)):
        given_ = places(batch, count)
        assert relative_error(exported, upscale.mask(model, selection), given_) <= TOLERANCE


def test_a_survey_counts_heads_and_a_constraint_takes_them_whole() -> None:
    model = made(Block(**PLAIN | {"heads": 4}))
    found = upscale.survey(model, places(2, 5))
    assert found.heads == 4
    assert "4 heads of attention can leave whole." in str(found)
    selection = upscale.select(model, places(2, 5), amount=0.5, constraint="heads")
    assert upscale.heads(model, places(2, 5)).kept_by(selection)["project"] == tuple(
        sorted({column // 4 for column in selection.kept["project"]})
    )
    assert len(selection.kept["project"]) == 8
    assert len({column // 4 for column in selection.kept["project"]}) == 2


def test_heads_that_are_not_there_are_refused() -> None:
    found = upscale.Heads({"a.project": (2, 3), "b.project": (2, 3)})
    assert found.keeping({"a": [0]}).kept["a.project"] == (0, 1, 2)
    for wrong, says in (
        ({"c": [0]}, "reads no heads"),
        ({"a": [2]}, "out of range"),
        ({"a": [-1]}, "out of range"),
        ({"a": [0, 0]}, "twice"),
        ({"a": [0.5]}, "list of integers"),
        ({"a": [0], "a.project": [1]}, "before"),
    ):
        with pytest.raises(SelectionError, match=says):
            found.keeping(wrong)
