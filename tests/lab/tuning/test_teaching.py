"""A masked model learns from a teacher, with labels or without, and resumes with the same one only.

`make tuning` installs Accelerate and runs these.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import upscale
from upscale.lab.tuning.identity import conditions, differences, json_to_parts, parts_to_json
from upscale.tuning import Epoch, Recipe, Teacher, TuningError, tune

accelerated = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="Accelerate is not installed"
)
pytestmark = pytest.mark.filterwarnings("ignore")
RECIPE = Recipe(epochs=3, rate=0.02, batch=32)
ROOT = Path(__file__).resolve().parents[3]
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(256, 6, generator=GENERATOR)


class Net(nn.Module):
    """A small classifier; `kind` says what becomes of its logits."""

    def __init__(self, kind: str = "logits") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.kind = [kind]

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.two(torch.relu(self.one(x))))
        logits = 4 * self.head(hidden)
        if self.kind[0] == "probabilities":
            return torch.softmax(logits, dim=1)
        return {"logits": logits, "hidden": hidden} if self.kind[0] == "several" else logits


def pruned(net: nn.Module) -> nn.Module:
    kept = upscale.Selection(kept={"two": [0, 1, 3, 4, 5, 7, 9, 11, 12]})
    return upscale.mask(net.eval(), kept)


def inputs(count: int = 256) -> TensorDataset:
    return TensorDataset(X[:count])


def labelled(net: nn.Module, count: int = 256) -> TensorDataset:
    """Inputs and the classes that a network takes them for."""
    with torch.no_grad():
        return TensorDataset(X[:count], net(X[:count]).argmax(dim=1))


def first_loss(student: nn.Module, teacher: Teacher, labels: Tensor | None = None) -> Tensor:
    ready = teacher.prepared(teacher.model(X), torch.device("cpu"))
    return ready.loss_of(student(X), ready.answer(X), labels)


def test_the_loss_is_that_of_softened_targets_or_of_squares() -> None:
    net, student = Net().eval(), pruned(Net())
    own, known = student(X).detach(), net(X).detach()
    warm = torch.softmax(known / 3, dim=1)
    soft = 9 * (warm * (warm.log() - torch.log_softmax(own / 3, dim=1))).sum(dim=1).mean()
    torch.testing.assert_close(first_loss(student, Teacher(net, temperature=3)).detach(), soft)
    squares = (own - known).square().mean()
    found = first_loss(student, Teacher(net, loss="squares")).detach()
    torch.testing.assert_close(found, squares)
    labels = known.argmax(dim=1)
    mixed = first_loss(student, Teacher(net, temperature=3, labels=0.25), labels).detach()
    torch.testing.assert_close(mixed, 0.25 * F.cross_entropy(own, labels) + 0.75 * soft)
    assert float(first_loss(copy.deepcopy(net), Teacher(net)).detach()) == pytest.approx(
        0, abs=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "loss"), [("logits", "soft"), ("probabilities", "squares"), ("several", "squares")]
)
def test_squares_are_taken_where_outputs_are_no_logits(kind: str, loss: str) -> None:
    net = Net(kind).eval()
    assert Teacher(net).prepared(net(X), torch.device("cpu")).loss == loss


def test_a_teacher_is_copied_and_gets_no_gradients() -> None:
    net = Net().train()
    ready = Teacher(net).prepared(net(X), torch.device("cpu"))
    assert net.training
    assert not ready.model.training
    assert all(own.requires_grad for own in net.parameters())
    assert not any(own.requires_grad for own in ready.model.parameters())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Teacher(3), "not a torch.nn.Module"),
        (lambda: Teacher(Net(), loss="hard"), "loss is 'hard'"),
        (lambda: Teacher(Net(), temperature=0), "temperature is 0"),
        (lambda: Teacher(Net(), labels=1.0), "labels is 1.0"),
        (lambda: first_loss(Net(), Teacher(Net("several"), loss="soft")), "take the loss"),
        (lambda: first_loss(Net(), Teacher(Net("several"), labels=0.5)), "take the loss"),
        (lambda: first_loss(Net(), Teacher(Net(), labels=0.5)), "the training data has none"),
        (lambda: first_loss(Net("several"), Teacher(Net())), "both must give alike"),
    ],
)
def test_what_cannot_be_taught_is_told(make: Any, said: str) -> None:
    with pytest.raises(TuningError, match=said):
        make()


@accelerated
@pytest.mark.parametrize("kind", ["logits", "probabilities", "several"])
@pytest.mark.parametrize("labels", [False, True])
def test_a_masked_model_comes_closer_to_its_teacher_without_labels(kind: str, labels: bool) -> None:
    net = Net(kind).eval()
    before = copy.deepcopy(net.state_dict())
    student = pruned(net)
    data = TensorDataset(X, torch.arange(256) % 4) if labels else inputs()
    recipe = Recipe(epochs=4, rate=0.5 if kind == "probabilities" else 0.02, batch=32, decay=0)
    epochs = tune(student, data, data, recipe, teacher=net)
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4]
    apart = [epoch.apart for epoch in epochs]
    with torch.no_grad():
        first, second = (torch.cat(_tensors(model(X)), 1) for model in (net, pruned(net)))
        unlearned = float((first - second).square().sum() / first.square().sum())
    assert apart[-1] < 0.7 * unlearned
    assert all(torch.equal(own, before[name]) for name, own in net.state_dict().items())
    assert not student.get_submodule("two").weight[:, [2, 6, 8]].any()
    top1 = epochs[-1].top1_percent
    if kind == "several":
        assert top1 is None
    else:
        # Labels at random: whoever learns from the teacher does not learn them.
        assert top1 < 50 if labels else top1 > 80


def _tensors(made: Any) -> list[Tensor]:
    return list(made.values()) if isinstance(made, dict) else [made]


@accelerated
def test_labels_have_the_share_that_is_asked_for() -> None:
    net = Net().eval()
    wrong = TensorDataset(X, (net(X).argmax(dim=1) + 1) % 4)
    right: list[float | None] = []
    for share in (0.0, 0.95):
        teacher = Teacher(net, labels=share)
        epochs = tune(pruned(net), wrong, wrong, RECIPE, teacher=teacher)
        right.append(epochs[-1].top1_percent)
    assert right[0] < 20 < 60 < right[1]


@accelerated
def test_without_labels_and_without_a_teacher_there_is_nothing_to_learn() -> None:
    net = Net().eval()
    with pytest.raises(TuningError, match="give a teacher"):
        tune(pruned(net), inputs(), inputs(), RECIPE)
    with pytest.raises(TuningError, match="the model itself"):
        tune(net, inputs(), inputs(), RECIPE, teacher=net)
    three = TensorDataset(X, X, X)
    with pytest.raises(TuningError, match="a batch of the data is"):
        tune(pruned(net), three, three, RECIPE, teacher=net)


class Killed(Exception):
    pass


def stopped(path: Path, teacher: nn.Module | Teacher | None, data: TensorDataset) -> None:
    def kill(epoch: Epoch) -> None:
        raise Killed

    with pytest.raises(Killed):
        tune(pruned(Net()), data, data, RECIPE, teacher=teacher, checkpoints=path, tell=kill)


@accelerated
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, resumed = pruned(Net()), pruned(Net())
    expected = tune(whole, inputs(), inputs(), RECIPE, teacher=Net())
    stopped(tmp_path, Net(), inputs())
    found = tune(resumed, inputs(), inputs(), RECIPE, teacher=Net(), checkpoints=tmp_path)
    assert [(own.loss, own.top1_percent, own.apart) for own in found] == [
        (own.loss, own.top1_percent, own.apart) for own in expected
    ]
    for name, own in whole.state_dict().items():
        assert torch.equal(own, resumed.state_dict()[name]), name


def nudged() -> Net:
    net = Net()
    with torch.no_grad():
        net.head.bias += 0.5
    return net


OTHERS: dict[str, tuple[Any, str]] = {
    "none": (None, "no teacher"),
    "other weights": (nudged(), "another teacher"),
    "another way": (Teacher(Net(), temperature=5), "temperature 5"),
    "a share for labels": (Teacher(Net(), labels=0.5), "labels 0.5"),
    "another loss": (Teacher(Net(), loss="squares"), "loss squares"),
    "a masked one": (pruned(Net()), "another teacher"),
    "something else": (Net("probabilities"), "another teacher|computes something else"),
}


@accelerated
@pytest.mark.parametrize("case", OTHERS)
def test_a_checkpoint_of_another_teacher_is_refused(case: str, tmp_path: Path) -> None:
    other, said = OTHERS[case]
    data = labelled(Net().eval(), 64)
    stopped(tmp_path, Net(), data)
    with pytest.raises(TuningError, match=said):
        tune(pruned(Net()), data, data, RECIPE, teacher=other, checkpoints=tmp_path)


@accelerated
def test_a_checkpoint_from_before_there_were_teachers_had_none(tmp_path: Path) -> None:
    data = labelled(Net().eval(), 64)
    stopped(tmp_path, None, data)
    record = tmp_path / "epoch-1" / "progress.json"
    told = json.loads(record.read_text())
    for name in ("teacher", "answers"):
        del told["fixed"][name]
    for epoch in told["epochs"]:
        del epoch["apart"]
    record.write_text(json.dumps(told))
    with pytest.raises(TuningError, match="another teacher: there no teacher"):
        tune(pruned(Net()), data, data, RECIPE, teacher=Net(), checkpoints=tmp_path)
    found = tune(pruned(Net()), data, data, RECIPE, checkpoints=tmp_path)
    assert len(found) == 3


def test_a_teacher_that_computes_something_else_with_the_same_weights_is_another() -> None:
    data = inputs(64)
    there, here = (
        conditions(pruned(Net()), data, data, RECIPE, Teacher(Net(kind), "squares"))
        for kind in ("logits", "probabilities")
    )
    again = json_to_parts(json.loads(json.dumps(parts_to_json(there))), tuple(there))
    assert differences(again, there) == []
    told = differences(there, here)
    assert [own.partition(":")[0] for own in told] == ["a teacher that computes something else"]


SCRIPT = """
import json, os, sys
from pathlib import Path
from tests.lab.tuning.test_teaching import Net, RECIPE, inputs, pruned
from upscale.tuning import tune

student = pruned(Net())
epochs = tune(student, inputs(), inputs(), RECIPE, teacher=Net())
told = {
    "losses": [epoch.loss for epoch in epochs],
    "tests": [[epoch.top1_percent, epoch.apart] for epoch in epochs],
    "weights": [float(own.detach().double().sum()) for own in student.parameters()],
}
Path(sys.argv[1], os.environ.get("RANK", "0") + ".json").write_text(json.dumps(told))
"""


@accelerated
def test_two_processes_learn_like_one(tmp_path: Path) -> None:
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
    assert first == second
    alone = tune(pruned(Net()), inputs(), inputs(), RECIPE, teacher=Net())
    assert first["losses"] == pytest.approx([epoch.loss for epoch in alone], rel=1e-3)
    for (top1, apart), epoch in zip(first["tests"], alone, strict=True):
        assert top1 == pytest.approx(epoch.top1_percent, abs=1)
        assert apart == pytest.approx(epoch.apart, rel=1e-2)
