"""Training the subjects: it goes on where it was stopped, and shows pictures as it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.data import normalised
from paper import lossless, subjects, train_subjects
from paper.lossless import Shaken
from paper.train_subjects import Shuffled, answers, rate_at, side_at, taught_loss, train


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return subjects.Classifier(subjects.ConvNorm(3, 4, stride=4), 4)


def pictures(count: int = 256) -> Shuffled:
    drawn = np.random.default_rng(0)
    pixels = drawn.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return Shuffled(pixels, drawn.integers(0, 10, count), torch.zeros(2, count, 10), seed=0)


def test_training_that_was_stopped_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    images = pictures()
    whole, stopped, resumed = net(), net(), net()
    losses = [spent.loss for spent in train(whole, images, 3, tmp_path / "whole.pt")]
    first = next(train(stopped, images, 3, tmp_path / "stopped.pt"))
    again = list(train(resumed, images, 3, tmp_path / "stopped.pt"))
    assert [spent.loss for spent in again] == losses
    assert again[0] == first
    for name, own in whole.state_dict().items():
        assert torch.equal(own, resumed.state_dict()[name]), name


def test_seconds_of_a_stopped_run_count(tmp_path: Path) -> None:
    images, state = pictures(), tmp_path / "net.pt"
    next(train(net(), images, 2, state))
    held = torch.load(state, weights_only=True)
    torch.save({**held, "seconds": 1000.0}, state)
    assert [spent.seconds > 1000 for spent in train(net(), images, 2, state)] == [False, True]


def test_the_state_of_another_network_is_refused(tmp_path: Path) -> None:
    images, state = pictures(), tmp_path / "net.pt"
    next(train(net(), images, 2, state))
    wider = subjects.Classifier(subjects.ConvNorm(3, 5, stride=4), 5)
    with pytest.raises(SystemExit, match="another network"):
        next(train(wider, images, 2, state))
    with pytest.raises(SystemExit, match="count of epochs"):
        next(train(net(), images, 3, state))


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_state(tmp_path: Path) -> None:
    model, state = net(), tmp_path / "net.pt"
    torch.nn.init.constant_(next(model.parameters()), torch.nan)
    with pytest.raises(SystemExit, match="not a number"):
        next(train(model, pictures(), 1, state))
    assert not state.exists()


def test_the_rate_rises_to_its_peak_and_falls_to_nothing() -> None:
    assert rate_at(0) == pytest.approx(0.1 * train_subjects.RATE)
    assert rate_at(train_subjects.RISE) == pytest.approx(train_subjects.RATE)
    assert rate_at(1) == 0
    assert [side_at(done, 32) for done in (0.0, 0.49, 0.5)] == [24, 24, 32]


def test_every_epoch_shows_every_picture_moved_and_every_other_mirrored() -> None:
    """A picture's columns count up, or down where it is mirrored; its rows say where it lies."""
    columns = np.broadcast_to(np.arange(8)[:, None], (128, 8, 8, 3)).astype(np.uint8)
    classes = np.arange(128)
    told = torch.stack([torch.arange(128), -torch.arange(128)])[:, :, None]
    images = Shuffled(columns, classes, told, seed=0)
    falls: list[dict[int, bool]] = []
    for epoch in range(2):
        ((taken, labels, answer),) = images.batches(epoch, 8)
        assert taken.shape == (128, 3, 8, 8)
        assert sorted(labels.tolist()) == classes.tolist()
        # Moved by up to four, half of it is the picture itself and the rest its reflection.
        middle = taken[:, 0, 0, 3:5].diff(dim=1)[:, 0]
        falls.append(dict(zip(labels.tolist(), (middle < 0).tolist(), strict=True)))
        # The teacher's answer is that of the same picture, the same way round.
        assert answer[:, 0].abs().tolist() == labels.tolist()
        mirrored = (images.coins[labels] + epoch) % 2 == 1
        assert torch.equal(answer[:, 0] < 0, torch.from_numpy(mirrored) & (labels > 0))
    assert falls[0] != falls[1]
    ((small, *_),) = images.batches(0, 6)
    assert small.shape == (128, 3, 6, 6)
    again = next(images.batches(0, 6))
    assert torch.equal(small, again[0])


def test_the_teacher_answers_for_each_picture_and_its_mirror_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 8, 8, 3), dtype=np.uint8)
    model = net().eval()
    both = answers(model, pixels)
    assert both.shape == (2, 150, 10)
    torch.testing.assert_close(both[0], model(normalised(pixels)).detach())
    torch.testing.assert_close(both[1], model(normalised(pixels).flip(-1)).detach())


def test_the_loss_is_least_where_teacher_and_label_agree_with_the_answer() -> None:
    answer = torch.tensor([[4.0, 0.0, -1.0]])
    right, wrong = torch.tensor([0]), torch.tensor([1])
    assert taught_loss(answer, right, answer) < taught_loss(answer, wrong, answer)
    assert taught_loss(answer, right, answer) < taught_loss(answer.flip(1), right, answer)


def test_a_picture_that_is_not_moved_is_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    shaken = Shaken(pixels, np.arange(3))
    monkeypatch.setattr(torch, "randint", lambda *_: torch.tensor([lossless.PADDING] * 2))
    monkeypatch.setattr(torch, "rand", lambda *_: torch.tensor(0.9))
    picture, label = shaken[1]
    assert torch.equal(picture, normalised(pixels)[1])
    assert label == 1
    monkeypatch.setattr(torch, "rand", lambda *_: torch.tensor(0.1))
    assert torch.equal(shaken[1][0], picture.flip(-1))


@pytest.mark.parametrize("name", subjects.trained_names())
def test_what_is_said_of_trained_weights_is_true_of_their_file(name: str) -> None:
    how = subjects.training_of(name)
    assert how.bytes == subjects.weights_of(name).stat().st_size <= 2_000_000
    assert 0 < how.top1 <= 100
    assert how.minutes > 0
    subjects.trained(name)


def test_a_network_without_an_account_of_its_training_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "WEIGHTS", tmp_path)
    (tmp_path / "densenet-cifar10.safetensors").touch()
    assert subjects.trained_names() == []
    told = {"epochs": 1, "minutes": 2.5, "top1": 90.0, "bytes": 3}
    (tmp_path / "densenet-cifar10.json").write_text(json.dumps(told))
    assert subjects.trained_names() == ["densenet"]
    assert subjects.training_of("densenet") == subjects.Training(1, 2.5, 90.0, 3)
