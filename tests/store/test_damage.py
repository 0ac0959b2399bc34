"""A file that is not whole gives our own error, whatever happened to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import upscale
from scripts.fuzz_store import fuzz
from tests.store.files import pruned_net, rewrite_document
from upscale.store.checks import LONGEST_HEADER
from upscale.store.container import LENGTH


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("Residual")[0], path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(upscale.StoreError) as error:
        upscale.load(path)
    return str(error.value)


def test_a_file_that_is_cut_off_anywhere_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    for end in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:end])
        assert "cut off" in refused(saved) or "no safetensors file" in refused(saved)


def test_a_file_with_something_behind_it_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"more")
    assert "do not fill it" in refused(saved)


def test_a_turned_bit_anywhere_in_the_weights_is_found(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[-3] ^= 1
    saved.write_bytes(content)
    assert "damaged" in refused(saved)


def test_a_header_longer_than_any_is_refused_unread(saved: Path) -> None:
    with saved.open("r+b") as file:
        file.write(LENGTH.pack(LONGEST_HEADER + 1))
        file.truncate(LONGEST_HEADER + 100)  # the file is sparse: it takes no space
    assert "cut off, or no safetensors file" in refused(saved)


def test_a_file_of_the_future_says_so(saved: Path) -> None:
    rewrite_document(saved, lambda document: document.update(version=2))
    assert "a newer upscale reads it" in refused(saved)


def test_other_files_and_no_files_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "missing")
    assert "cannot be read" in refused(tmp_path)
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "plain.safetensors")
    assert "holds tensors alone" in refused(tmp_path / "plain.safetensors")
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle.pt")
    refused(tmp_path / "pickle.pt")


def test_mutated_files_and_plans_are_the_same_or_refused() -> None:
    faults: list[str] = []
    names = ("Residual", "TiedAutoencoder", "OneChannel", "Lstm")
    tally = fuzz(160, seed=1, names=names, documents=60, say=faults.append)
    assert faults == []
    assert sum(times for kind, times in tally.items() if "refused" in kind) > 100
    assert any("another" in kind for kind in tally), "no forged file was read to its end"
    assert any("plan: same" in kind for kind in tally), "no forged plan was read to its end"


def test_nothing_can_be_written_where_there_is_no_place(tmp_path: Path) -> None:
    pruned, _ = pruned_net("Residual")
    with pytest.raises(upscale.StoreError, match="cannot be written"):
        upscale.save(pruned, tmp_path / "missing" / "model.safetensors")


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(upscale.StoreError, match="No space left"):
        upscale.save(pruned_net("Dense")[0], saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch, upscale
from torch import nn

path, rng = Path(sys.argv[1]), random.Random(0)
torch.set_num_threads(1)
x = torch.randn(1, 512)
models = []
for seed in (1, 2):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 512))
    models.append(upscale.prune(net, x, amount=0.1, verify=False))
outputs = [model(x) for model in models]
began = time.perf_counter()
upscale.save(models[0], path)
once = time.perf_counter() - began
seen, halfway = set(), 0
for round in range(50):
    child = os.fork()
    if child == 0:
        while True:
            for model in models[:: 1 if round % 2 else -1]:
                upscale.save(model, path)
    time.sleep(rng.uniform(0, 2 * once))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = upscale.load(path)(x)
    which = [number for number, output in enumerate(outputs) if torch.equal(found, output)]
    assert len(which) == 1, "neither the old file nor the new one"
    seen.update(which)
    halfway += any(place.is_dir() for place in path.parent.iterdir())
print(len(seen), halfway)
"""


def test_killed_while_saving_fifty_times_a_file_is_the_old_one_or_the_new_one(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "model.safetensors")],
        env={**os.environ, "PYTHONPATH": str(Path(upscale.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    versions, halfway = map(int, done.stdout.split())
    assert versions == 2
    assert halfway > 0, "no save was under way when it was killed"
