"""`upscale prune --data`: images and arrays, recovery, accuracy before and after, a selection."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import upscale
from upscale.cli import main
from upscale.cli.progress import Progress
from upscale.zoo import digits, digits_data

DIGITS = ("prune", "upscale:digits", "--shape", "1,1,8,8", "--quiet", "--json")
PIXELS = ("--mean", "0", "--deviation", "1")
COUNT = 200


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of digits as images, those of a class in a folder of its name."""
    root: Path = tmp_path_factory.mktemp("digits")
    data = digits_data()
    for number in range(COUNT):
        name = root / f"digit-{int(data.train_labels[number])}" / f"{number}.png"
        name.parent.mkdir(exist_ok=True)
        pixels = (data.train_images[number, 0] * 255).round().to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(name)
    return root


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(arguments) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_recovery_on_a_folder_of_images_keeps_the_accuracy(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.safetensors"
    given = [*DIGITS, "--amount", "0.7", "--data", str(pictures), *PIXELS, "--out", str(out)]
    plain, norms, whole = (
        run([*given, *how], capsys) for how in ([], ["--recover", "norms"], ["--recover"])
    )
    assert plain["data"] == {
        "source": str(pictures),
        "samples": COUNT,
        "drawn": 0,
        "unreadable": {},
    }
    assert plain["answers"]["samples"] == COUNT
    assert whole["data"]["drawn"] == 160
    assert whole["answers"]["samples"] == 40
    assert plain["answers"]["accuracy_before"] > 0.97
    after = [told["answers"]["accuracy_after"] for told in (plain, norms, whole)]
    assert after[0] < after[2]
    assert after[1] <= after[2]
    assert whole["answers"]["relative_error"] < norms["answers"]["relative_error"]
    assert whole["verified"]
    data = digits_data()
    with torch.inference_mode():
        right = upscale.load(out)(data.held_out_images).argmax(1) == data.held_out_labels
    assert abs(float(right.float().mean()) - after[2]) < 0.15


def test_a_zip_and_arrays_of_the_same_images_give_the_same_model(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path.relative_to(pictures) for path in pictures.rglob("*.png"))
    with zipfile.ZipFile(tmp_path / "digits.zip", "w") as held:
        for path in files:
            held.write(pictures / path, f"all/{path}")
    images = torch.stack(
        [torch.from_numpy(np.array(Image.open(pictures / path)))[None] / 255 for path in files]
    )
    np.save(tmp_path / "digits.npy", images.numpy())
    labels = torch.tensor([int(path.parts[0].removeprefix("digit-")) for path in files])
    save_file({"images": images, "labels": labels}, tmp_path / "digits.safetensors")
    options = ["--amount", "0.5", "--recover", "--images", "64", "--test-images", "50"]
    found = {}
    for name in ("digits.zip", "digits.npy", "digits.safetensors"):
        out = tmp_path / f"{name}.out"
        given = [*DIGITS, *options, "--data", str(tmp_path / name), "--out", str(out)]
        told = run([*given, *(PIXELS if name == "digits.zip" else ())], capsys)
        found[name] = (told["answers"], upscale.load(out)(images[:20]))
    zipped, plain, labelled = found.values()
    torch.testing.assert_close(zipped[1], plain[1])
    torch.testing.assert_close(plain[1], labelled[1])
    assert zipped[0]["accuracy_after"] == labelled[0]["accuracy_after"] is not None
    assert plain[0]["accuracy_after"] is None
    assert plain[0]["agreement"] == labelled[0]["agreement"] > 0.5


def test_what_is_said_of_data_is_said_in_words_too(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in sorted(pictures.rglob("*.png"))[:20]:
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "bad.png").write_bytes(b"no image")
    given = ["--amount", "0.3", "--data", str(damaged), *PIXELS, "--out", str(tmp_path / "s")]
    words = [own for own in DIGITS if own != "--json"]
    assert main([*words, *given]) == 0
    told = capsys.readouterr().out
    assert "1 files could not be read and were left out. bad.png: " in told
    assert "On 20 samples that nothing was fitted to: " in told
    assert "accuracy" not in told
    assert "of answers as before" in told


@pytest.mark.parametrize("importance", ["activation", "hrank", "taylor", "reconstruction"])
def test_criteria_that_need_data_can_be_had(
    importance: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "s.safetensors"
    options = ["--amount", "0.5", "--importance", importance, "--images", "32", "--seed", "1"]
    told = run([*DIGITS, *options, "--data", str(pictures), *PIXELS, "--out", str(out)], capsys)
    assert told["data"]["drawn"] == 32
    assert told["parameters_after"] < told["parameters_before"]


def test_steps_recover_each_on_the_command_line_too(
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loud = [own for own in DIGITS if own not in ("--quiet", "--json")]
    options = ["--amount", "0.6", "--steps", "2", "--recover", "--images", "32"]
    out = ["--out", str(tmp_path / "s")]
    assert main([*loud, *options, "--data", str(pictures), *PIXELS, *out]) == 0
    told = capsys.readouterr().err
    assert "step 1 of 2" in told
    assert told.index("step 2 of 2") < told.rindex("refitting: ")
    assert told.count("refitting: ") == 2


def test_a_refit_adds_biases_if_it_is_told_to(
    pictures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "import torch",
        "from torch import nn",
        "def build():",
        "    torch.manual_seed(0)",
        "    conv, head = nn.Conv2d(1, 16, 3, bias=False), nn.Linear(16, 10, bias=False)",
        "    return nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)",
    ]
    (tmp_path / "without_biases.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    given = ["prune", "without_biases:build", *DIGITS[2:], "--amount", "0.5", "--recover"]
    given += ["--data", str(pictures), *PIXELS]
    plain, biased = (
        run([*given, *how, "--out", f"{len(how)}.safetensors"], capsys) for how in ([], ["--bias"])
    )
    assert biased["verified"]
    assert biased["parameters_after"] == plain["parameters_after"] + 8 + 10
    assert upscale.load(tmp_path / "1.safetensors").state_dict()["4.bias"].all()
    without = [own for own in given if own != "--recover"]
    assert main([*without, "--bias", "--out", "x.safetensors"]) != 0
    assert "recover" in capsys.readouterr().err


def test_a_selection_in_a_file_is_pruned_to(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = digits(), tmp_path / "s.safetensors"
    x = torch.randn(3, 1, 8, 8)
    selection = upscale.select(model, x, amount=0.6, importance="l1")
    file = tmp_path / "kept.json"
    file.write_text(selection.to_json())
    run([*DIGITS, "--selection", str(file), "--out", str(out)], capsys)
    torch.testing.assert_close(upscale.load(out)(x), upscale.mask(model, selection)(x))
    given = ["--data", str(pictures), *PIXELS, "--recover", "--images", "64"]
    told = run([*DIGITS, "--selection", str(file), *given, "--out", str(out)], capsys)
    assert told["answers"]["accuracy_after"] is not None
    assert not torch.allclose(upscale.load(out)(x), upscale.mask(model, selection)(x))


def test_arrays_say_the_shape_of_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words_of_this_test.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.a = nn.Embedding(9, 6), nn.Linear(6, 8)\n"
        "        self.b = nn.Linear(8, 3)\n"
        "    def forward(self, ids, weight):\n"
        "        return self.b(torch.relu(self.a(self.words(ids) * weight[:, :, None]))).mean(1)\n"
    )
    monkeypatch.chdir(tmp_path)
    ids, weight = torch.randint(0, 9, (90, 4)), torch.rand(90, 4)
    save_file({"ids": ids, "weight": weight}, tmp_path / "x.safetensors")
    given = ["prune", "words_of_this_test:Net", "--amount", "0.3", "--quiet", "--json"]
    told = run([*given, "--data", "x.safetensors", "--recover", "--out", "s"], capsys)
    assert told["answers"]["samples"] == 18
    assert told["answers"]["agreement"] is not None
    small = upscale.load(tmp_path / "s")
    assert small(ids=ids[:2], weight=weight[:2]).shape == (2, 3)


def png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--amount", "0.1", "--recover"], 2, "--recover needs data: give --data too"),
        (["--amount", "0.1", "--images", "3"], 2, "--images needs data"),
        (["--amount", "0.1", "--mean", "0"], 2, "--mean needs data"),
        (["--amount", "0.1", "--importance", "hrank"], 2, "--importance hrank needs data"),
        (["--amount", "0.1", "--recover", "all_of_it"], 2, "invalid choice"),
        (["--amount", "0.1", "--data", "nowhere"], 1, "is not there"),
        (["--amount", "0.1", "--data", "bare"], 1, "holds no image"),
        (["--amount", "0.1", "--data", "text.zip"], 1, "is no zip"),
        (["--amount", "0.1", "--data", "bad", "--recover"], 1, "no image of bad can be read"),
        (["--amount", "0.1", "--data", "good", "--mean", "0,0,0"], 2, "--mean has 3 numbers"),
        (["--amount", "0.1", "--data", "good", "--mean", "x"], 2, "--mean: it is 'x'"),
        (["--amount", "0.1", "--data", "good", "--deviation", "0"], 2, "--deviation: it is '0'"),
        (["--amount", "0.1", "--data", "good", "--size", "8,0"], 2, "--size: it is '8,0'"),
        (["--amount", "0.1", "--data", "good", "--images", "0"], 2, "--images: it is '0'"),
        (["--amount", "0.1", "--data", "good", "--importance", "taylor"], 1, "needs labels"),
        (["--amount", "0.1", "--selection", "kept.json"], 2, "not allowed with"),
        (["--selection", "kept.json", "--scope", "global"], 2, "--scope has no say"),
        (["--selection", "kept.json", "--steps", "2"], 2, "--steps has no say"),
        (["--selection", "text.zip"], 1, "text.zip holds no selection"),
        (["--selection", "kept.json"], 1, "no convolution or linear layer named 'nowhere'"),
        (["--selection", "missing.json"], 1, "No such file"),
    ],
)
def test_a_mistake_about_data_is_one_line(
    arguments: list[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, held in (("bare", None), ("bad", b"bad"), ("good", png(8))):
        (tmp_path / folder).mkdir()
        if held is not None:
            (tmp_path / folder / "1.png").write_bytes(held)
    (tmp_path / "text.zip").write_bytes(b"text")
    (tmp_path / "kept.json").write_text('{"kept": {"nowhere": [0]}}')
    before = sorted(tmp_path.rglob("*"))
    words = [own for own in DIGITS if own != "--json"]
    assert main([*words, *arguments, "--out", "x"]) == status
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_time_left_is_drawn_in_the_bar_and_stays_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("upscale.cli.progress.EVERY", 0.01)
    monkeypatch.setattr("upscale.cli.progress.SLOW", 0.0)
    for stream in (Terminal(), io.StringIO()):
        with Progress(1, stream=stream) as progress:
            progress.step("pruning")
            progress.tell("trial 1 of 2: 90%")
            progress.tell("trial 2 of 2: 80%")
            for done in range(1, 20):
                progress.tell(f"refitting: {done} of 19 operations")
            progress._stop.wait(0.1)
        told = stream.getvalue()
        stay = [line for line in told.replace("\r\x1b[K", "\n").splitlines() if line[:1] != "["]
        assert [line for line in stay if line] == [
            "trial 1 of 2: 90%",
            "trial 2 of 2: 80%",
            "refitting: 1 of 19 operations",
        ]
        assert ("] pruning, 0 s; refitting: 19 of 19 operations" in told) == stream.isatty()
