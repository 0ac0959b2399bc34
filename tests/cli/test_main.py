"""The command line: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import upscale
from upscale.cli import main
from upscale.cli.progress import Progress
from upscale.targets.racing import Measurement
from upscale.zoo import digits

DIGITS = ("upscale:digits", "--shape", "2,1,8,8", "--quiet")


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_prune_writes_files_that_compute_what_the_masked_model_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, script = tmp_path / "small.safetensors", tmp_path / "small.pt"
    options = ("--amount", "0.5", "--out", str(out), "--torchscript", str(script))
    assert main(["prune", *DIGITS, *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parameters_after"] < told["parameters_before"]
    assert told["files"] == [str(out), str(script)]
    model, x = digits(), torch.randn(3, 1, 8, 8)
    masked = upscale.mask(model, upscale.select(model, x, amount=0.5))
    torch.testing.assert_close(upscale.load(out)(x), masked(x))
    torch.testing.assert_close(torch.jit.load(script)(x), masked(x))


def test_what_prune_wrote_can_be_inspected_and_raced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "small.safetensors")
    assert main(["prune", *DIGITS, "--parameters", "0.3", "--out", out]) == 0
    assert main(["inspect", out, "--shape", "2,1,8,8", "--quiet"]) == 0
    assert "layers can drop input channels" in capsys.readouterr().out

    def told(contestants: dict[str, object], **options: object) -> dict[str, Measurement]:
        times = {"unpruned": 2.0, "pruned": ratio * 2.0}
        return {n: Measurement(times[n], 0, 0, 1, 0, 1, 0, "") for n in contestants}

    monkeypatch.setattr("upscale.targets.racing.race", told)
    for ratio, status in ((0.5, 0), (1.5, 3)):
        assert main(["bench", *DIGITS, "--against", out, "--json"]) == status
        assert json.loads(capsys.readouterr().out)["ratio"] == ratio


def test_a_file_that_does_not_fit_the_shape_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "small.safetensors")
    assert main(["prune", *DIGITS, "--amount", "0.3", "--out", out]) == 0
    arguments = ("torchvision:squeezenet1_1", "--shape", "1,3,32,32", "--against", out, "--quiet")
    assert main(["bench", *arguments]) == 1
    told = capsys.readouterr().err
    assert "the pruned model does not take an input of shape (1, 3, 32, 32)" in told
    assert len(told.splitlines()) == 1


def test_inspect_says_what_stays_whole_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *DIGITS]) == 0
    told = capsys.readouterr().out
    assert "layers can drop output channels. This one keeps all:" in told
    assert "\n  stem.conv: they are the model's input.\n" in told
    assert "\n  head: they are the model's output.\n" in told
    assert "Expect, by estimate, if channels go at random: " in told
    assert main(["inspect", *DIGITS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "DigitsNet"


def test_attention_is_explained_in_plain_words() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(x)
            return x + self.attention(x, x, x, need_weights=False)[0]

    model = nn.Sequential(nn.Linear(4, 16), Block(), nn.LayerNorm(16), nn.Linear(16, 2)).eval()
    told = str(upscale.survey(model, torch.randn(1, 5, 4)))
    assert "0, 1.attention.out_proj: LayerNorm normalises over all of them" in told
    assert "belongs to no layer that a selection can name:\n  1.attention.in_proj_weight: " in told
    assert "2 heads of attention can leave whole." in told


def test_a_frozen_module_is_called_by_its_name() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.first = nn.Embedding(9, 4), nn.Linear(4, 8)
            self.memory, self.last = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.memory(self.first(self.words(x)))[0])

    told = str(upscale.survey(Recurrent().eval(), torch.zeros(1, 5, dtype=torch.long)))
    assert "\n  first: LSTM at test_main.py:" in told
    assert "\n  last: LSTM at test_main.py:" in told


def test_what_reads_a_frozen_tensor_is_told_what_froze_it() -> None:
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    told = str(upscale.survey(block, torch.randn(1, 5, 16)))
    assert "layer_norm normalises over all of them" in told
    assert "self_attn.out_proj: reshape: its channels are spread over several axes" in told


def test_every_layer_that_keeps_its_inputs_is_told_why() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.each = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8)
            self.bias = nn.Linear(2, 8)
            self.register_buffer("table", torch.ones(1, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.each(self.first(x)) + self.bias(self.table)[:, :, None, None]

    views = upscale.survey(Tables().eval(), torch.randn(1, 3, 8, 8)).layers
    assert {view.name: view.why_inputs for view in views} == {
        "first": "they are the model's input",
        "each": "each belongs to one output, and leaves with it",
        "bias": "no convolution or linear makes them",
    }


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["inspect", "torchvision:resnet1"], 1, "torchvision has no model 'resnet1'"),
        (["inspect", "nowhere.safetensors"], 1, "is no file"),
        (["inspect", "no.such.module:model"], 1, "cannot be imported"),
        (["inspect", "os:getcwd"], 1, "not a torch.nn.Module"),
        (["inspect", "upscale:digits", "--shape", "1,a"], 2, "--shape is '1,a'"),
        (["inspect", "upscale:digits", "--shape", "1,3,8,8"], 1, "at stem.conv"),
        (["inspect", "upscale:digits", "--threads", "0"], 2, "--threads: it is '0'"),
        (["prune", *DIGITS, "--amount", "2", "--out", "x"], 2, "amount is 2.0"),
        (["prune", *DIGITS, "--latency", "0", "--out", "x"], 2, "latency is 0.0"),
        (["prune", *DIGITS, "--amount", "half", "--out", "x"], 2, "invalid float value: 'half'"),
        (["prune", *DIGITS, "--amount", "0.1"], 2, "--out"),
        (["prune", *DIGITS, "--amount", "0.1", "--round-to", "-1", "--out", "x"], 2, "--round-to"),
        (["bench", *DIGITS, "--runs", "0"], 2, "--runs"),
        (["inspect", *DIGITS, "--dtype", "int3"], 2, "invalid choice: 'int3'"),
        (["inspect", *DIGITS, "--nonsense"], 2, "unrecognized arguments: --nonsense"),
        (["calibrate", "--threads", "x"], 2, "--threads"),
        (["fly"], 2, "invalid choice: 'fly'"),
        (["prune", *DIGITS, "--amount", "0.1", "--out", "no/such/place"], 1, "No such file"),
        (["prune", *DIGITS, "--amount", "0.1", "--weights", "none.pt", "--out", "x"], 1, "none.pt"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str],
    status: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--quiet"]) == status
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_weights_come_from_safetensors_and_checkpoints(tmp_path: Path) -> None:
    model = digits()
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": state}, tmp_path / "w.pt")
    for name in ("w.safetensors", "w.pt"):
        out = tmp_path / f"{name}.out"
        options = ("--weights", str(tmp_path / name), "--amount", "0", "--out", str(out))
        assert main(["prune", *DIGITS, *options, "--no-verify"]) == 0
        loaded = dict(upscale.load(out).named_parameters())
        assert torch.equal(loaded["head.bias"], state["head.bias"])


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch harmed",)


def test_a_checkpoint_cannot_run_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Harmful()}, tmp_path / "bad.pt")
    options = ("--weights", "bad.pt", "--amount", "0.1", "--out", "x")
    assert main(["prune", *DIGITS, *options]) == 1
    assert "no checkpoint of weights alone" in capsys.readouterr().err
    assert not (tmp_path / "harmed").exists()


def test_an_import_path_is_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_of_this_test.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "mine_of_this_test:build", "--shape", "1,4", "--quiet"]) == 0
    assert "Sequential: 2 layers" in capsys.readouterr().out


def test_the_module_runs_as_a_program_and_has_help() -> None:
    command = [sys.executable, "-m", "upscale"]
    told = subprocess.run([*command, "prune", "--help"], capture_output=True, text=True, check=True)
    assert "examples:" in told.stdout
    wrong = subprocess.run([*command, "prune"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "slow_of_this_test.py").write_text(
        "import time\nfrom upscale.zoo import digits\n"
        "def build():\n    print('begun', flush=True)\n    time.sleep(30)\n    return digits()\n"
    )
    command = [sys.executable, "-m", "upscale", "prune", "slow_of_this_test:build"]
    with subprocess.Popen(
        [*command, "--shape", "1,1,8,8", "--amount", "0.1", "--out", "x"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has interrupts ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in told
    assert not (tmp_path / "x").exists()


def test_progress_shows_itself_only_when_something_is_slow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upscale.cli.progress.EVERY", 0.01)
    with Progress(2) as progress:
        progress.step("quick")
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("upscale.cli.progress.SLOW", 0.02)
    with Progress(2) as progress:
        progress.step("slow")
        time.sleep(0.2)
    assert capsys.readouterr().err == "[1/2] slow\n"


def test_progress_tells_of_many_quick_steps_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upscale.cli.progress.EVERY", 0.01)
    monkeypatch.setattr("upscale.cli.progress.SILENT", 0.1)
    start = time.monotonic()
    with Progress(50) as progress:
        for step in range(50):
            progress.step(f"step {step}")
            time.sleep(0.01)
    lines = capsys.readouterr().err.splitlines()
    # One line for every tenth of a second at most, however busy the machine is.
    assert 1 <= len(lines) <= 1 + (time.monotonic() - start) / 0.1
    assert lines == sorted(lines, key=lambda line: int(line.rpartition(" ")[2]))


@pytest.mark.parametrize("other", ["p", "./p", "link", "up/../p"])
def test_two_files_under_one_path_are_refused_before_any_work(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "p")
    (tmp_path / "up").mkdir()
    module = sys.modules["upscale.cli.main"]  # the name leads to the function
    monkeypatch.setattr(module, "find_model", lambda *_: pytest.fail("work was begun"))
    for option in ("--onnx", "--pt2", "--torchscript"):
        assert main(["prune", *DIGITS, "--amount", "0.5", "--out", "p", option, other]) == 2
        assert f"--out and {option} name the same file" in capsys.readouterr().err
    options = ("--amount", "0.5", "--out", "q", "--onnx", "p", "--pt2", other)
    assert main(["prune", *DIGITS, *options]) == 2
    assert not (tmp_path / "p").exists()
