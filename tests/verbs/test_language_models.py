"""Models of the transformers library, small and with random weights: exact exports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.masks import random_selection
from upscale.tools.optional_packages import import_torchvision
from upscale.tools.quiet import unwarned
from upscale.verify import TOLERANCE

transformers: Any = pytest.importorskip("transformers")
import_torchvision()  # which transformers loads, and cannot beside every torch
with unwarned():  # they load what warns of denormals, which tests have switched off
    BERT, LLAMA = transformers.BertModel, transformers.LlamaForCausalLM

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def bert() -> nn.Module:
    model: nn.Module = BERT(transformers.BertConfig(**SIZES))
    return model


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, use_cache=False)
    model: nn.Module = LLAMA(config)
    return model


def grouped() -> nn.Module:
    """Four heads of queries, two to a head of keys."""
    sizes = {**SIZES, "num_attention_heads": 4}
    model: nn.Module = LLAMA(
        transformers.LlamaConfig(**sizes, num_key_value_heads=2, use_cache=False)
    )
    return model


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(length)
    return {"input_ids": torch.randint(0, 50, (batch, length), generator=generator)}


def masked_tokens(batch: int, length: int) -> dict[str, Tensor]:
    """Tokens that see none that come later.

    The mask is given whole: how one is made of lengths not every version of torch can export.
    """
    mask = torch.full((batch, 1, length, length), -1e4, dtype=torch.float64).triu(1)
    return {**tokens(batch, length), "attention_mask": mask}


# A Llama's norms round to single precision within, whatever the weights are in.
SINGLE = 1e-6


def numbers_in(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize(
    ("make", "given", "tolerance"), [(bert, tokens, TOLERANCE), (llama, masked_tokens, SINGLE)]
)
def test_an_export_equals_the_masked_model(
    make: Any, given: Any, tolerance: float, side: Any
) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    selection = random_selection(model, 0.4, seed=1, side=side, empty=False)
    exported = upscale.export(model, upscale.plan(model, given(1, 7), selection))
    masked = upscale.mask(model, selection)
    assert numbers_in(exported) < numbers_in(model)
    for inputs in (given(1, 7), given(3, 5)):
        assert relative_error(exported, masked, inputs) <= tolerance


@pytest.mark.parametrize(
    ("make", "reads", "queries", "heads"),
    [
        (bert, "encoder.layer.0.attention.output.dense", "attention.self.query", (2, 8)),
        (grouped, "model.layers.0.self_attn.o_proj", "self_attn.q_proj", (4, 4)),
    ],
)
def test_a_head_leaves_with_its_queries(
    make: Any, reads: str, queries: str, heads: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    found = upscale.heads(model, tokens(2, 7))
    assert found.of[reads] == heads
    selection = found.keeping({reads: [1]})
    exported = upscale.export(model, upscale.plan(model, tokens(2, 7), selection))
    named = exported.named_parameters()
    rows = [len(w) for name, w in named if name.endswith(f"0.{queries}.weight")]
    assert rows == [heads[1]]
    assert relative_error(exported, upscale.mask(model, selection), tokens(3, 5)) <= SINGLE


@pytest.mark.parametrize(
    ("make", "given", "reads_hidden"),
    [
        (bert, tokens, "encoder.layer.0.output.dense"),
        (llama, masked_tokens, "model.layers.0.mlp.down_proj"),
    ],
)
def test_hidden_channels_of_the_feed_forward_layers_leave(
    make: Any, given: Any, reads_hidden: str
) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    pruned = upscale.prune(model, given(1, 7), amount=0.5)
    assert pruned.meta["verified"].exact
    held = dict(pruned.named_parameters())
    assert held[f"{reads_hidden}.weight"].shape[1] < SIZES["intermediate_size"]
    assert type(pruned(**given(2, 5))) is type(model(**given(2, 5)))
