"""The data: made from an archive or a folder, and read again, pixel by pixel."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.data import DEVIATION, MEAN, Pixels, imagenet, images, mosaics
from paper import make_data


def pictures(count: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, held in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(held)
            tar.addfile(member, io.BytesIO(held))
    return path


def binary(pixels: Pixels, classes: list[int]) -> bytes:
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    return np.column_stack([np.asarray(classes, np.uint8), planes]).tobytes()


def batches() -> dict[str, bytes]:
    return {
        **{f"x/data_batch_{n}.bin": binary(pictures(2, n), [n, n + 1]) for n in range(1, 6)},
        "x/test_batch.bin": binary(pictures(3), [9, 0, 4]),
    }


def make(source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_data", str(source), "--out", str(out)])
    make_data.main()


def test_the_binary_archive_comes_back_pixel_by_pixel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"../outside.bin": b"x", **batches()}
    make(archive(tmp_path / "a.tar.gz", files), tmp_path / "data", monkeypatch)
    assert "10 train, 3 test images" in capsys.readouterr().out
    pixels, classes = mosaics(tmp_path / "data", "train")
    assert np.array_equal(pixels, np.concatenate([pictures(2, n) for n in range(1, 6)]))
    assert classes.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    pixels, classes = mosaics(tmp_path / "data", "test")
    assert np.array_equal(pixels, pictures(3))
    assert classes.tolist() == [9, 0, 4]
    # Nothing of the archive is written by its own name, and no part is left behind.
    assert sorted(own.name for own in tmp_path.iterdir()) == ["a.tar.gz", "data"]
    assert [own.name for own in (tmp_path / "data").iterdir()] == ["cifar10"]


def test_a_folder_of_images_comes_back_pixel_by_pixel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = pictures(20)
    for split, offset in (("train", 0), ("test", 10)):
        for number in range(10):
            folder = tmp_path / "images" / split / f"class-{number}"
            folder.mkdir(parents=True)
            Image.fromarray(pixels[offset + number]).save(folder / "one.png")
    make(tmp_path / "images", tmp_path / "data", monkeypatch)
    read, classes = mosaics(tmp_path / "data", "test")
    assert np.array_equal(read, pixels[10:])
    assert classes.tolist() == list(range(10))
    with pytest.raises(SystemExit, match="there already"):
        make(tmp_path / "images", tmp_path / "data", monkeypatch)
    Image.new("RGB", (40, 32)).save(tmp_path / "images/train/class-3/two.png")
    with pytest.raises(SystemExit, match=r"two\.png is 40 x 32"):
        make_data.from_folder(tmp_path / "images")
    (tmp_path / "images/test/class-x").mkdir()
    with pytest.raises(SystemExit, match="the same 10 folders"):
        make_data.from_folder(tmp_path / "images")


class Trap:
    """Unpickled, it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_the_python_version_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    source = archive(tmp_path / "a.tar.gz", {"x/data_batch_1": pickle.dumps(Trap(sprung))})
    with pytest.raises(SystemExit, match=r"pickles.*cifar-10-binary\.tar\.gz"):
        make_data.from_archive(source)
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"x/test_batch.bin": b"short"}, "no whole number of pictures"),
        ({"x/test_batch.bin": binary(pictures(1), [10])}, "a class is 10"),
        ({"x/test_batch.bin": None}, "has no test_batch.bin"),
    ],
)
def test_an_archive_of_something_else_is_refused(
    tmp_path: Path, changed: dict[str, bytes | None], told: str
) -> None:
    files = {name: own for name, own in (batches() | changed).items() if own is not None}
    with pytest.raises(SystemExit, match=told):
        make_data.from_archive(archive(tmp_path / "a.tar.gz", files))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"no archive")
    with pytest.raises(SystemExit, match="cannot be read"):
        make_data.from_archive(tmp_path / "a.tar.gz")


def test_more_pictures_than_a_mosaic_holds_go_into_several_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_data, "ACROSS", 2)
    pixels, classes = pictures(43), np.arange(43)
    make_data.write({"train": (pixels, classes), "test": (pixels[:1], classes[:1])}, tmp_path)
    # Eleven files: by name the tenth would come before the second.
    assert (tmp_path / "cifar10/train-11.webp").is_file()
    assert (tmp_path / "cifar10/test.webp").is_file()
    read, numbers = mosaics(tmp_path, "train")
    assert np.array_equal(read, pixels)
    assert np.array_equal(numbers, classes)


def test_images_are_drawn_by_a_seed_and_normalised(tmp_path: Path) -> None:
    pixels, classes = pictures(10), np.arange(10)
    make_data.write({"train": (pixels, classes), "test": (pixels, classes)}, tmp_path)
    some, labels = images(tmp_path, "test", 4)
    assert some.shape == (4, 3, 32, 32)
    assert torch.equal(some, images(tmp_path, "test", 10)[0][:4])
    assert labels.tolist() != images(tmp_path, "test", 4, seed=1)[1].tolist()
    mean, deviation = (torch.tensor(own)[:, None, None] for own in (MEAN, DEVIATION))
    expected = torch.from_numpy(pixels[labels[0]]).permute(2, 0, 1) / 255
    torch.testing.assert_close(some[0] * deviation + mean, expected)


def test_data_that_is_not_there_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"docs/data\.md"):
        mosaics(tmp_path, "test")
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10/labels.json").write_text(json.dumps({"test": [1, 2]}))
    with pytest.raises(SystemExit, match="2 classes of test images, but 0 images"):
        mosaics(tmp_path, "test")


def test_imagenets_images_are_the_middle_of_those_classes(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "imagenet-1000.zip", "w") as held:
        for number in (0, 7, 999):
            picture = Image.new("RGB", (256, 256), "white")
            picture.paste((10 * number % 256, 0, 0), (16, 16, 240, 240))
            stream = io.BytesIO()
            picture.save(stream, "JPEG", quality=100, subsampling=0)
            held.writestr(f"{number:03d}-n{number:08d}.jpg", stream.getvalue())
        held.writestr("README.md", "no image")
    read, classes = imagenet(tmp_path, (7, 999))
    assert classes.tolist() == [7, 999]
    assert read.shape == (2, 3, 224, 224)
    red = read[0, 0] * DEVIATION[0] + MEAN[0]
    assert (red - 70 / 255).abs().max() < 0.1  # the white border is cut off
