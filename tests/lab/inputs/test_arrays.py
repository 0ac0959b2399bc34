"""Arrays of inputs are read as they are, row by row, and nothing in them runs."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from upscale.lab.inputs import Arrays, Batches, draw, find_samples
from upscale.lab.sources import SourceError


def nothing() -> Any:
    pytest.fail("arrays need no preparation")


def found(path: Path, dtype: torch.dtype = torch.float32) -> Arrays:
    samples = find_samples(str(path), nothing, dtype, 100)
    assert isinstance(samples, Arrays)
    return samples


@pytest.mark.parametrize("kind", ["<f8", ">f4", "<f2"])
def test_numbers_come_out_as_they_are_in_the_type_of_the_model(kind: str, tmp_path: Path) -> None:
    numbers = np.arange(24).reshape(4, 2, 3).astype(kind)
    np.save(tmp_path / "x.npy", numbers)
    samples = found(tmp_path / "x.npy")
    batch, taken = samples.take([3, 1])
    assert (len(samples), taken, batch.dtype) == (4, [3, 1], torch.float32)
    torch.testing.assert_close(batch, torch.from_numpy(numbers.astype("f4"))[[3, 1]])
    assert samples.classes(10) is None


def test_named_tensors_are_keyword_inputs_and_labels_are_labels(tmp_path: Path) -> None:
    ids, mask = torch.arange(12).reshape(4, 3).int(), torch.rand(4, 3)
    labels = torch.tensor([1, 0, 2, 1])
    save_file({"ids": ids, "mask": mask, "labels": labels}, tmp_path / "x.safetensors")
    samples = found(tmp_path / "x.safetensors", torch.float64)
    assert samples.classes(3) == (1, 0, 2, 1)
    assert samples.classes(2) is None
    (batch, classes), *rest = Batches(samples, (2, 0, 3), 2, samples.classes(3))
    assert len(rest) == 1
    assert torch.equal(batch["ids"], ids[[2, 0]].long())
    assert torch.equal(batch["mask"], mask[[2, 0]].double())
    assert classes.tolist() == [2, 1]
    save_file({"only": mask}, tmp_path / "y.safetensors")
    assert torch.equal(found(tmp_path / "y.safetensors").take([1])[0], mask[1:2])


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.system, ("touch harmed",)


def test_files_that_hold_no_inputs_are_errors_of_ours_and_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "pickled.npy", np.array([Harmful()], dtype=object), allow_pickle=True)
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    np.save(tmp_path / "scalar.npy", np.array(3.0))
    np.save(tmp_path / "cut.npy", np.zeros((9, 9)))
    cut = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(cut[:200])
    (tmp_path / "torn.npy").write_bytes(cut.replace(b"}", b"{"))
    (tmp_path / "none.npy").write_bytes(b"")
    (tmp_path / "none.safetensors").write_bytes(b"")
    head = json.dumps({"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}).encode()
    (tmp_path / "lies.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    save_file({"labels": torch.zeros(3).long()}, tmp_path / "labels.safetensors")
    save_file({"a": torch.zeros(3, 2), "b": torch.zeros(4, 2)}, tmp_path / "uneven.safetensors")
    save_file({"a": torch.zeros(3), "labels": torch.zeros(3)}, tmp_path / "soft.safetensors")
    files = sorted([*tmp_path.glob("*.npy"), *tmp_path.glob("*.safetensors")])
    assert len(files) == 12
    for path in files:
        with pytest.raises(SourceError, match=path.name):
            found(path)
    assert not (tmp_path / "harmed").exists()


def test_a_draw_is_the_same_again_and_leaves_some_for_the_test() -> None:
    fitted, tested = draw(1000, 256, 100, seed=3)
    assert (fitted, tested) == draw(1000, 256, 100, seed=3) != draw(1000, 256, 100, seed=4)
    assert (len(fitted), len(tested)) == (256, 100)
    assert not set(fitted) & set(tested)
    assert [len(part) for part in draw(10, 256, 256, seed=0)] == [8, 2]
    assert [len(part) for part in draw(10, 256, 0, seed=0)] == [10, 0]
    assert [len(part) for part in draw(10, 0, 256, seed=0)] == [0, 10]


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "is not there"), ("plain.bin", "is no zip"), ("bare", "holds no image")],
)
def test_a_source_that_holds_nothing_says_what_could_be_given(
    name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "plain.bin").write_bytes(b"nothing")
    (tmp_path / "bare").mkdir()
    with pytest.raises(SourceError, match=f"{said}.*a folder of images"):
        find_samples(str(tmp_path / name), nothing, torch.float32, 10)


def test_a_zip_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "later.zip"
    with zipfile.ZipFile(file, "w") as held:
        held.writestr("1.png", b"")
    data = bytearray(file.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 255  # the version that is needed to read it
    file.write_bytes(data)
    with pytest.raises(SourceError, match=r"later\.zip cannot be read: zip file version"):
        find_samples(str(file), nothing, torch.float32, 10)


def test_what_sweeps_take_is_taken_here_too() -> None:
    samples = find_samples("upscale:digits", nothing, torch.float32, 40)
    assert isinstance(samples, Arrays)
    assert samples.take([0, 1])[0].shape == (2, 1, 8, 8)
    assert len(samples) == 40
    assert samples.classes(10) is not None
