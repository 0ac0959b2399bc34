"""A checkpoint is gone on from by the run that it is of, and by no other: the error names both."""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import upscale
from upscale.lab.tuning.identity import conditions, differences, state
from upscale.tuning import Epoch, Recipe, TuningError, tune

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("accelerate") is None, reason="Accelerate is not installed"
    ),
    pytest.mark.filterwarnings("ignore"),
]
RECIPE = Recipe(epochs=2, rate=0.05, batch=16)
X = torch.zeros(1, 1, 4, 4)


class Net(nn.Module):
    """A small classifier whose activation no parameter and no module tells of."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(8), nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)
        self.activation = [activation]

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation[0](self.norm(self.two(self.activation[0](self.one(x)))))
        return self.head(self.drop(x.mean(dim=(2, 3))))


def masked(net: nn.Module | None = None, side: str = "input", channel: int = 2) -> nn.Module:
    kept = [n for n in range(8) if n not in (channel, 5)]
    selection = upscale.Selection(kept={"two": kept}, side=side)
    return upscale.mask((net or Net()).eval(), selection, example=X)


def data(count: int = 64, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 4, 4, generator=generator)
    return TensorDataset(images, torch.randint(3, (count,), generator=generator))


def flipped(own: TensorDataset) -> TensorDataset:
    images, labels = own.tensors
    return TensorDataset(images, (labels + 1) % 3)


def softer() -> nn.Module:
    model = masked()
    model.get_submodule("drop").p = 0.1
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that came as far as its first epoch."""
    path: Path = tmp_path_factory.mktemp("run")
    stopped(masked(), path)
    return path


class Killed(Exception):
    pass


def stopped(model: nn.Module, path: Path, train: Dataset[Any] | None = None) -> None:
    def kill(epoch: Epoch) -> None:
        raise Killed

    with pytest.raises(Killed):
        tune(model, train or data(), data(32, 2), RECIPE, checkpoints=path, tell=kill)


def outcome(epochs: tuple[Epoch, ...]) -> list[tuple[int, float, float]]:
    return [(own.number, own.loss, own.top1_percent) for own in epochs]


OTHERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "wider": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 3))}, "another model", "Seq"),
    "dropout": ({"model": softer()}, "another model", "Net of"),
    "sigmoid": ({"model": masked(Net(torch.sigmoid))}, "computes something else", "outputs ["),
    "unmasked": ({"model": Net()}, "another mask", "no mask"),
    "other columns": ({"model": masked(channel=3)}, "another mask", "1 masks"),
    "other side": ({"model": masked(side="output")}, "another mask", "1 masks"),
    "other weights": ({"model": masked(Net(seed=1))}, "other weights", "weights ["),
    "recipe": ({"recipe": replace(RECIPE, rate=0.01)}, "another recipe", "rate=0.01"),
    "longer": ({"train": data(80)}, "other training data", "TensorDataset of 80 images"),
    "other images": ({"train": data(64, 7)}, "other training data", "of 64 images"),
    "other labels": ({"train": flipped(data())}, "other training data", "of 64 images"),
    "other test": ({"test": flipped(data(32, 2))}, "other test data", "of 32 images"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_with_both_named(case: str, folder: Path) -> None:
    other, said, named = OTHERS[case]
    own = {"model": masked(), "train": data(), "test": data(32, 2), "recipe": RECIPE, **other}
    with pytest.raises(TuningError) as caught:
        tune(own["model"], own["train"], own["test"], own["recipe"], checkpoints=folder)
    told = str(caught.value)
    assert said in told
    there, here = told.split("there ", 1)[1].split(", here ", 1)
    assert named in here
    assert there != here.split(". Take")[0]
    assert "another folder" in told


def test_a_refusal_leaves_the_model_and_the_checkpoint_alone(folder: Path) -> None:
    model = masked(channel=3)
    before = copy.deepcopy(model.state_dict())
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(TuningError):
        tune(model, data(), data(32, 2), RECIPE, checkpoints=folder)
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def test_the_model_in_memory_goes_on_from_where_its_checkpoint_left_it(tmp_path: Path) -> None:
    whole = tune(masked(), data(), data(32, 2), RECIPE)
    model = masked()
    stopped(model, tmp_path)
    again = tune(model, data(), data(32, 2), RECIPE, checkpoints=tmp_path)
    assert outcome(again) == outcome(whole)
    over = tune(model, data(), data(32, 2), RECIPE, checkpoints=tmp_path)
    assert outcome(over) == outcome(whole)


def test_rounding_is_no_other_run() -> None:
    model = masked()
    with torch.no_grad():
        for own in model.parameters():
            own.mul_(1 + 1e-7)
    there = conditions(masked(), data(), data(32, 2), RECIPE) | state(masked(), data(32, 2))
    here = conditions(model, data(), data(32, 2), RECIPE) | state(model, data(32, 2))
    assert there["weights"].facts != here["weights"].facts
    assert differences(there, here) == []


def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    last = tmp_path / "epoch-1"
    last.mkdir()
    told = json.loads((folder / "epoch-1" / "progress.json").read_text())
    old = {"recipe": {"epochs": 2}, "epochs": told["epochs"]}
    for content, said in (
        (old, "does not say which model, masks and data it is of"),
        ({**told, "begun": 3}, "is no record of ours"),
        ([], "is no record of ours"),
    ):
        (last / "progress.json").write_text(json.dumps(content))
        with pytest.raises(TuningError, match=said):
            tune(masked(), data(), data(32, 2), RECIPE, checkpoints=tmp_path)
    (last / "progress.json").write_text(json.dumps(told))
    with pytest.raises(TuningError, match="is damaged"):
        tune(masked(), data(), data(32, 2), RECIPE, checkpoints=tmp_path)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images that every look changes, by all the generators that datasets draw from."""

    def __init__(self, own: TensorDataset) -> None:
        self.own = own
        held = torch.Generator().manual_seed(3)
        self.steps = [lambda x: x * (1 + torch.rand(1, generator=held))]
        self.numbers, self.old = np.random.default_rng(4), np.random.RandomState(5)
        self.dice = random.Random(6)

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.own[index]
        for step in self.steps:
            x = step(x)
        drawn = self.numbers.random() + self.old.rand() + self.dice.random()
        drawn += random.random() + np.random.rand()
        return (x + drawn + torch.rand(1)).float(), y


def drawn_from(own: Dataset[Any]) -> Tensor:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    return torch.cat([own[index][0] for index in range(3)])


def test_randomly_augmented_data_is_known_again() -> None:
    test, model = data(32, 2), masked()
    first = conditions(model, Augmented(data()), test, RECIPE)
    used = Augmented(data())
    drawn_from(used)
    assert differences(first, conditions(model, used, test, RECIPE)) == []
    other = conditions(model, Augmented(data(64, 7)), test, RECIPE)
    assert [told.split(":")[0] for told in differences(first, other)] == ["other training data"]


def test_looking_at_data_disturbs_nothing_that_is_random() -> None:
    model, looked_at = masked(), Augmented(data())
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    conditions(model, looked_at, looked_at, RECIPE)
    state(model, looked_at)
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    assert before == after
    assert torch.equal(drawn_from(looked_at), drawn_from(Augmented(data())))


class Untamed(Dataset[tuple[Tensor, Tensor]]):
    """Images of which no two looks are the same, whatever is seeded."""

    def __init__(self, own: TensorDataset) -> None:
        self.own = own

    def __len__(self) -> int:
        return len(self.own)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.own[index]
        return x + random.SystemRandom().random(), y


def test_of_data_that_is_never_twice_the_same_the_labels_are_looked_at() -> None:
    test = data(32, 2)
    first = conditions(masked(), Untamed(data()), test, RECIPE)
    assert differences(first, conditions(masked(), Untamed(data()), test, RECIPE)) == []
    other = conditions(masked(), Untamed(flipped(data())), test, RECIPE)
    assert "other training data" in differences(first, other)[0]


class Moody(Net):
    """A model that writes to a buffer whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_looking_at_a_model_leaves_its_buffers_and_modes_alone() -> None:
    model = Moody().train()
    model.norm.eval()
    state(model, data(32, 2))
    assert model.calls == 0
    assert [own.training for own in (model, model.norm, model.drop)] == [True, False, True]


def test_data_without_a_length_is_an_error_of_ours() -> None:
    class Stream(Dataset[Any]):
        pass

    with pytest.raises(TuningError, match="Stream has no length"):
        tune(masked(), Stream(), data(32, 2), RECIPE)
