"""A file costs no more time and memory than its size explains, whatever it says."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from scripts.fuzzing.watching import MEGABYTE, forget_peak, memory
from tests.store.files import assert_same, pruned_net, rewrite_document
from trials.nets import NETS
from upscale.store import container
from upscale.store.checks import most_values
from upscale.store.container import LENGTH

Document = dict[str, Any]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("Residual")[0], path)
    return path


def refused(path: Path, model: nn.Module | None = None) -> str:
    """What a file is refused with: at once, and without memory."""
    forget_peak()
    before, began = memory("VmRSS"), time.process_time()
    with pytest.raises(upscale.StoreError) as error:
        upscale.load(path, model)
    assert time.process_time() - began < 5
    size = path.stat().st_size if path.is_file() else 0
    assert memory("VmHWM") - before < 10 * size + 200 * MEGABYTE
    return str(error.value)


def first_called(document: Document) -> str:
    called = next(n for n in document["graph"]["nodes"] if n["op"] == "call_module")
    return str(called["target"])


def many_lists(document: Document) -> None:
    document["graph"]["nodes"][1]["args"] = [[[] for _ in range(most_values(10**6))]]


def many_layers(document: Document) -> None:
    spec = {"class": "nn.MultiheadAttention", "arguments": {"embed_dim": 8, "num_heads": 2}}
    document["modules"].update({f"more{number}": spec for number in range(10_000)})


def many_names(document: Document) -> None:
    """Modules that hold the next one twice, which holds the next one twice, and so on."""
    nodes = document["graph"]["nodes"]
    at = nodes.index(next(n for n in nodes if n["op"] == "call_module"))
    names = ["m"]
    document["modules"]["m"] = {"class": "nn.ReLU", "arguments": {}}
    for depth in range(30):
        names += [f"{names[-1]}.a", f"m{'.a' * depth}.b"]
        for name in names[-2:]:
            document["modules"][name] = {"same": "m"}
        names.pop()
    for number, name in enumerate(document["modules"].keys() - {n["target"] for n in nodes}):
        args = list(nodes[at]["args"])
        nodes.insert(
            at, {"op": "call_module", "name": f"more{number}", "target": name, "args": args}
        )


def recurrent(**arguments: int | bool) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        given = {"input_size": 1, "hidden_size": 1, **arguments}
        document["modules"][first_called(document)] = {"class": "nn.LSTM", "arguments": given}

    return change


def large_example(document: Document) -> None:
    document["example"]["leaves"][0]["shape"] = [2**14, 2**14]


def deep(document: Document) -> None:
    inner: list[Any] = []
    for _ in range(400):
        inner = [inner]
    document["graph"]["nodes"][1]["args"] = inner


def wide_infill(document: Document) -> None:
    arguments = {"axis": 0, "indices": {"tuple": []}, "axes": 2**40}
    document["modules"][first_called(document)] = {"class": "upscale.Infill"} | {
        "arguments": arguments
    }


GREED: dict[str, Callable[[Document], None]] = {
    "10,000 layers of an LSTM": recurrent(num_layers=10_000),
    "LSTM without end": recurrent(num_layers=2**40, bidirectional=True),
    "layers nobody calls": many_layers,
    "lists without end": many_lists,
    "names without end": many_names,
    "example of 2^28 numbers": large_example,
    "lists in lists": deep,
    "an axis that no tensor has": wide_infill,
}


@pytest.mark.parametrize("greed", GREED)
def test_a_file_that_asks_for_more_than_its_size_explains_is_refused(
    greed: str, saved: Path
) -> None:
    rewrite_document(saved, GREED[greed])
    for model in (None, NETS["Residual"][0]()):
        refused(saved, model)


def test_loading_with_a_model_takes_no_memory_for_the_example(tmp_path: Path) -> None:
    path, model = (
        tmp_path / "model.safetensors",
        nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 2, 1)),
    )
    upscale.save(upscale.prune(model, torch.randn(1, 3, 8, 8), amount=0.5), path)

    def enlarge(document: Document) -> None:
        document["example"]["leaves"][0]["shape"] = [4, 3, 1024, 1024]  # 50 MB, activations 1 GB

    rewrite_document(path, enlarge)
    forget_peak()
    before = memory("VmRSS")
    loaded = upscale.load(path, model)
    assert memory("VmHWM") - before < 200 * MEGABYTE
    assert_same(loaded, upscale.load(path), torch.randn(1, 3, 8, 8))


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(refused(tmp_path / "pipe")), daemon=True)
    thread.start()
    thread.join(timeout=20)
    assert found
    assert "no regular file" in found[0]


def test_devices_directories_and_links_in_a_circle_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "cannot be read" in refused(tmp_path / "a")
    assert "no regular file" in refused(Path("/dev/zero"))
    assert "directory" in refused(tmp_path)
    assert "cannot be loaded" in refused(tmp_path / "with\0nothing")


def test_a_sparse_terabyte_is_refused_at_once(saved: Path) -> None:
    content = saved.read_bytes()
    with saved.open("r+b") as file:
        file.truncate(2**40)
    assert "do not fill it" in refused(saved)
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    document = container.json.loads(content[LENGTH.size : end])[container.METADATA]["upscale"]
    size = 2**40
    entries = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    metadata = {container.DOCUMENT: document, container.DIGEST: ""}
    header = container.json.dumps({container.METADATA: metadata, **entries}).encode()
    saved.write_bytes(LENGTH.pack(len(header)) + header)
    os.truncate(saved, LENGTH.size + len(header) + size)
    assert "were ever written" in refused(saved)


def test_the_body_is_not_read_before_the_header_is_checked(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> int:
        raise AssertionError("the body was read")

    monkeypatch.setattr(container, "_check_room", read)  # the last before it
    content = bytearray(saved.read_bytes())
    at = content.index(b'"data_offsets":[0,') + len(b'"data_offsets":[')
    content[at] = ord("1")
    saved.write_bytes(content)
    assert "size" in refused(saved)


def test_what_cannot_be_foreseen_is_an_error_of_ours(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Tensor:
        raise MemoryError("no memory for that")

    monkeypatch.setattr(container, "_tensor", fail)
    assert "no memory for that" in refused(saved)


def test_an_example_that_load_would_refuse_is_refused_when_saving(tmp_path: Path) -> None:
    pruned, _ = pruned_net("Plain")
    example = pruned.meta["example"]
    pruned.meta["example"] = example.map(lambda x: torch.empty(2**14, 2**14, device="meta"))
    with pytest.raises(upscale.StoreError, match="fewer samples"):
        upscale.save(pruned, tmp_path / "model.safetensors")
