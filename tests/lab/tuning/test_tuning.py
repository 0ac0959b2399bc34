"""Fine-tuning through Accelerate: masks hold, what was stopped goes on, processes agree.

`make tuning` installs Accelerate and runs these.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import upscale
from upscale.tuning import Epoch, Recipe, TuningError, batches, tune
from upscale.zoo import digits, digits_data

accelerated = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="Accelerate is not installed"
)
others_warnings = pytest.mark.filterwarnings("ignore")
RECIPE = Recipe(epochs=3, rate=0.05, batch=64)
ROOT = Path(__file__).resolve().parents[3]


def images(count: int = 512) -> tuple[TensorDataset, TensorDataset]:
    data = digits_data()
    train = TensorDataset(data.train_images[:count], data.train_labels[:count])
    return train, TensorDataset(data.held_out_images, data.held_out_labels)


def masked_digits() -> tuple[nn.Module, upscale.Selection]:
    model = digits()
    selection = upscale.select(model, torch.zeros(1, 1, 8, 8), amount=0.6)
    return upscale.mask(model, selection), selection


def masked_plain() -> tuple[nn.Module, upscale.Selection]:
    """A network without BatchNorm, which would look at each process's part of a batch alone."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(256, 10)).eval()
    selection = upscale.select(model, torch.zeros(1, 1, 8, 8), amount=0.4)
    return upscale.mask(model, selection), selection


def gone_weights(model: nn.Module, selection: upscale.Selection) -> list[float]:
    """The largest of the weights that should be zero, by layer."""
    found = []
    for name, kept in selection.kept.items():
        weight: Any = model.get_submodule(name).weight
        gone = [n for n in range(weight.shape[1]) if n not in set(kept)]
        found.append(float(weight.detach()[:, gone].abs().sum()))
    return found


def test_every_epoch_has_an_order_of_its_own_and_the_same_one_again() -> None:
    first, second, again = (torch.cat(batches(512, RECIPE, n)) for n in (1, 2, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert sorted(first.tolist()) == list(range(512))


def test_the_rate_falls_to_nothing() -> None:
    rates = [Recipe(rate=0.1).rate_at(done / 10) for done in range(11)]
    assert rates[0] == 0.1
    assert rates[-1] == 0.0
    assert rates == sorted(rates, reverse=True)


def test_without_accelerate_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    train, test = images(64)  # before: these import too
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(TuningError, match=r"upscale\[tune\]"):
        tune(nn.Linear(1, 2), train, test, RECIPE)


@accelerated
@others_warnings
def test_masks_hold_and_accuracy_is_told_for_each_epoch() -> None:
    masked, selection = masked_digits()
    told: list[Epoch] = []
    epochs = tune(masked, *images(), RECIPE, tell=told.append)
    assert [epoch.number for epoch in epochs] == [1, 2, 3]
    assert tuple(told) == epochs
    assert epochs[-1].loss < epochs[0].loss
    assert not any(gone_weights(masked, selection))
    assert not masked.training


@accelerated
@others_warnings
@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole, _ = masked_digits()
    uninterrupted = tune(whole, *images(), RECIPE)

    class Killed(Exception):
        pass

    def kill(epoch: Epoch) -> None:
        if epoch.number == stop:
            raise Killed

    stopped, _ = masked_digits()
    with pytest.raises(Killed):
        tune(stopped, *images(), RECIPE, checkpoints=tmp_path, tell=kill)
    resumed, _ = masked_digits()
    epochs = tune(resumed, *images(), RECIPE, checkpoints=tmp_path)
    outcome = [(own.number, own.loss, own.top1_percent) for own in epochs]
    assert outcome == [(own.number, own.loss, own.top1_percent) for own in uninterrupted]
    for name, own in whole.state_dict().items():
        assert torch.equal(own, resumed.state_dict()[name]), name
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-3"]


@accelerated
@others_warnings
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    masked, _ = masked_digits()
    tune(masked, *images(128), Recipe(batch=64), checkpoints=tmp_path)
    with pytest.raises(TuningError, match="another recipe"):
        tune(masked, *images(128), Recipe(batch=32), checkpoints=tmp_path)


SCRIPT = """
import json, os, sys
from pathlib import Path
from tests.lab.tuning.test_tuning import RECIPE, gone_weights, images, masked_plain
from upscale.tuning import tune

masked, selection = masked_plain()
epochs = tune(masked, *images(), RECIPE)
told = {
    "losses": [epoch.loss for epoch in epochs],
    "top1": epochs[-1].top1_percent,
    "gone": gone_weights(masked, selection),
    "weights": [float(own.detach().double().sum()) for own in masked.parameters()],
}
Path(sys.argv[1], os.environ.get("RANK", "0") + ".json").write_text(json.dumps(told))
"""


@accelerated
@others_warnings
def test_two_processes_keep_the_masks_and_learn_like_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run([*command, script, tmp_path], check=True, env=environment, timeout=600)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["losses"] == second["losses"]
    assert first["weights"] == second["weights"]
    assert not any(first["gone"] + second["gone"])
    alone, _ = masked_plain()
    epochs = tune(alone, *images(), RECIPE)
    assert first["losses"] == pytest.approx([epoch.loss for epoch in epochs], rel=1e-3)
    assert first["top1"] == pytest.approx(epochs[-1].top1_percent, abs=1)
