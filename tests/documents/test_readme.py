"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import upscale

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_python_runs_and_exports_what_it_masks() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block, names)
    images = names["images"][:8]
    exported, masked = names["pruned"](images), names["masked"](images)
    assert (exported - masked).abs().max() <= 1e-4 * masked.abs().max()


def test_the_readmes_figures_of_recovery_are_those_of_its_first_example() -> None:
    text = README.read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    model, images, labels = names["model"], names["images"], names["data"].held_out_labels
    plain = upscale.prune(model, images[:1], amount=0.7)

    def right(module: nn.Module) -> float:
        with torch.inference_mode():
            return 100 * float((module(images).argmax(1) == labels).float().mean())

    said = re.search(r"answers ([\d.]+)% of (\d+) held-out.*?, ([\d.]+)%\.\n", text, re.DOTALL)
    assert said is not None
    assert int(said[2]) == len(labels)
    # Two images more or less, for processors round differently.
    assert float(said[1]) == pytest.approx(right(names["pruned"]), abs=0.6)
    assert float(said[3]) == pytest.approx(right(plain), abs=0.6)
    assert right(model) == 100


def test_every_file_the_readme_links_is_there() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert linked
    for path in linked:
        assert (README.parent / path).exists(), path
