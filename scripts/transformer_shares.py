"""How much of a transformer can be pruned: small configurations of the transformers library.

    python -m scripts.transformer_shares [NAME ...]

For each model: the share of its weights, without embeddings, that belong to layers whose inputs or
outputs can leave; the layers whose outputs stay, by reason; and at random masks of 25% how many
rows of the value projections leave, and whether the export equals the masked model. Needs
transformers 5.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.masks import random_selection
from upscale.tools.optional_packages import import_torchvision

WIDTH, LAYERS, HEADS, WORDS = 32, 2, 4, 60
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
DECODER = {
    **COMMON,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PICTURE = {key: size for key, size in COMMON.items() if key != "vocab_size"}
PICTURE |= {"image_size": 16, "patch_size": 4, "num_channels": 3}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "window_size": 4,
    "torch_dtype": "float64",
}


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    """Words drawn at random."""
    return {"input_ids": torch.randint(3, WORDS, (batch, length))}


def seen_before(batch: int, length: int) -> dict[str, Tensor]:
    """Words that see none that come later, by a mask given whole."""
    mask = torch.full((batch, 1, length, length), -1e4, dtype=torch.float64).triu(1)
    return {**tokens(batch, length), "attention_mask": mask}


def questions(batch: int, length: int) -> dict[str, Tensor]:
    """Words for an encoder, and words for its decoder."""
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(3, WORDS, (batch, 4))}


def pictures(size: int) -> Callable[[int, int], dict[str, Tensor]]:
    """Pictures of one size."""
    return lambda batch, _: {"pixel_values": torch.randn(batch, 3, size, size).double()}


@dataclass(frozen=True)
class Trial:
    """A model, how it is configured, what it is given, and the names of its value projections."""

    model: str
    configuration: str
    sizes: dict[str, Any]
    given: Callable[[int, int], dict[str, Tensor]]
    values: str


TRIALS = {
    "llama": Trial("LlamaForCausalLM", "LlamaConfig", DECODER, seen_before, r"v_proj"),
    "qwen2": Trial("Qwen2ForCausalLM", "Qwen2Config", DECODER, seen_before, r"v_proj"),
    "qwen3": Trial(
        "Qwen3ForCausalLM", "Qwen3Config", {**DECODER, "head_dim": 8}, seen_before, r"v_proj"
    ),
    "mistral": Trial("MistralForCausalLM", "MistralConfig", DECODER, seen_before, r"v_proj"),
    "gemma": Trial(
        "GemmaForCausalLM", "GemmaConfig", {**DECODER, "head_dim": 8}, seen_before, r"v_proj"
    ),
    "phi3": Trial("Phi3ForCausalLM", "Phi3Config", DECODER, seen_before, r"qkv_proj"),
    "bert": Trial("BertModel", "BertConfig", COMMON, tokens, r"self\.value"),
    "roberta": Trial("RobertaModel", "RobertaConfig", COMMON, tokens, r"self\.value"),
    "distilbert": Trial(
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": WORDS, "dim": WIDTH, "hidden_dim": 48, "n_layers": LAYERS, "n_heads": HEADS},
        tokens,
        r"v_lin",
    ),
    "t5": Trial(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": WORDS,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
        questions,
        r"Attention\.v",
    ),
    "vit": Trial("ViTModel", "ViTConfig", PICTURE, pictures(16), r"value|v_proj"),
    "dinov2": Trial(
        "Dinov2Model", "Dinov2Config", {**PICTURE, "mlp_ratio": 2}, pictures(16), r"value|v_proj"
    ),
    "swin": Trial(
        "SwinModel", "SwinConfig", {**SWIN, "num_heads": [2, 4]}, pictures(32), r"value|v_proj"
    ),
    "gpt2": Trial(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": WORDS,
            "n_embd": WIDTH,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "use_cache": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        tokens,
        r"c_attn",
    ),
}


def make(trial: Trial) -> nn.Module:
    """The model of a trial, with random weights, in double precision."""
    import_torchvision()  # which transformers loads, and cannot beside every torch
    library: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = getattr(library, trial.configuration)(**trial.sizes)
    model: nn.Module = getattr(library, trial.model)(config)
    with torch.no_grad():  # as they are drawn, such models hardly answer what they are given
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter[0].numel()))
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    return model.double().eval()


def prunable(model: nn.Module, found: upscale.Survey) -> float:
    """The share of all weights, without embeddings, in layers whose inputs or outputs can leave.

    Embeddings are what is looked up, what is added to it, and a layer that reads the model's input.
    """
    tables = (m.weight for m in model.modules() if isinstance(m, nn.Embedding))
    looked_up = {id(weight) for weight in tables}
    leaving = total = 0
    counted = set()
    for each in (*found.layers, *found.beside):
        weight = model.get_parameter(
            each.name if each.kind == "parameter" else f"{each.name}.weight"
        )
        if id(weight) not in looked_up and each.why_inputs != "they are the model's input":
            counted.add(id(weight))
            total += each.weights
            named = each.kind != "parameter"  # the others no selection can name
            leaving += each.weights if named and (each.inputs_leave or each.outputs_leave) else 0
    for module in model.modules():  # what a survey does not see at all is not prunable
        own = getattr(module, "weight", None)
        known = counted | looked_up
        if isinstance(own, Tensor) and own.ndim == 2 and id(own) not in known:
            total += own.numel()
    return leaving / total


def rows(model: nn.Module, pattern: str) -> int:
    """How many numbers the weights of the value projections hold."""
    named = model.named_parameters()
    return sum(p.numel() for n, p in named if re.search(rf"({pattern})\.weight$", n))


def tried(name: str) -> str:
    """A line of the table, and why what stays does."""
    trial = TRIALS[name]
    model = make(trial)
    example = trial.given(2, 6)
    began = time.process_time()
    found = upscale.survey(model, example)
    both = sum(v.weights for v in found.layers if v.outputs_leave)
    output_share = both / max(1, sum(v.weights for v in found.layers))
    selection = random_selection(model, 0.25, seed=0, empty=False)
    plan = upscale.plan(model, example, selection)
    exported = upscale.export(model, plan)
    error = relative_error(exported, upscale.mask(model, selection), example)
    held, whole = rows(exported, trial.values), rows(model, trial.values)
    size = sum(p.numel() for p in exported.parameters())
    share = size / sum(p.numel() for p in model.parameters())
    seconds = time.process_time() - began
    return (
        f"| {name} | {prunable(model, found):.1%} | {output_share:.1%} "
        f"| {1 - held / whole:.1%} | {share:.3f} | {error:.1e} | {seconds:.0f} |\n{found}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*TRIALS, []], metavar="NAME")
    parser.add_argument("--why", action="store_true", help="print each model's survey too")
    options = parser.parse_args(arguments)
    print("| model | prunable | outputs leave | of v gone | left | error | seconds |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in options.names or TRIALS:
        row, _, why = tried(name).partition("\n")
        print(row, flush=True)
        if options.why:
            print(why)


if __name__ == "__main__":
    main()
