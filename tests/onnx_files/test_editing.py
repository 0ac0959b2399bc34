"""Out: the file's own graph, edited. It computes what the masked file computes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import upscale
from tests.onnx_files.making import answers, assert_as_runtime, file_of, saved
from trials.masks import random_selection
from upscale import Selection


def weights(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


def residual(opset: int = 17) -> Any:
    """Conv, Relu, a sum, pooling, Flatten and Gemm, with free batch and image sizes."""
    nodes = [
        helper.make_node("Conv", ["x", "stem.weight"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "body.weight", "body.bias"], ["c"], pads=[1] * 4),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Conv", ["d", "last::w"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("Gemm", ["g", "head", "head.b"], ["y"]),
    ]
    constants = {
        "stem.weight": weights(8, 3, 3, 3, seed=1),
        "body.weight": weights(8, 8, 3, 3, seed=2),
        "body.bias": weights(8, seed=3),
        "last::w": weights(12, 8, 1, 1, seed=4),
        "head": weights(12, 5, seed=5),
        "head.b": weights(5, seed=6),
    }
    made = file_of(
        nodes, {"x": (("n", 3, "h", "w"), np.float32)}, {"y": np.float32}, constants, opset=opset
    )
    made.producer_name = "by hand"
    helper.set_model_props(made, {"labels": "a b c"})
    return made


KEPT = {"body": (0, 2, 5), "last::w": (2, 3, 5, 7), "head": (0, 1, 4, 5, 8, 11)}


def masked_file(model: Any, kept: dict[str, tuple[tuple[int, ...], int]]) -> Any:
    """The file with all columns zero that are not kept, along the axis that is told."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for own in made.graph.initializer:
        if own.name in kept:
            stay, axis = kept[own.name]
            array = numpy_helper.to_array(own).copy()
            gone = [i for i in range(array.shape[axis]) if i not in stay]
            np.moveaxis(array, axis, 0)[gone] = 0
            own.CopyFrom(numpy_helper.from_array(array, own.name))
    return made


@pytest.mark.parametrize("opset", [9, 11, 13, 22])
def test_the_edited_file_computes_what_the_masked_file_does(tmp_path: Path, opset: int) -> None:
    model = residual(opset)
    saved(model, tmp_path / "in.onnx")
    upscale.prune_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", selection=Selection(kept=KEPT))
    axes = {
        "body.weight": (KEPT["body"], 1),
        "last::w": (KEPT["last::w"], 1),
        "head": (KEPT["head"], 0),
    }
    for shape in ((1, 3, 7, 9), (4, 3, 16, 5)):
        x = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        (want,) = answers(masked_file(model, axes), x)
        (found,) = answers((tmp_path / "out.onnx").read_bytes(), x)
        np.testing.assert_allclose(found, want, atol=1e-5)
    small = onnx.load(tmp_path / "out.onnx")
    sizes = {own.name: tuple(own.dims) for own in small.graph.initializer}
    assert sizes["last::w"][0] == 6
    assert sizes["head"] == (6, 5)


def test_what_nothing_was_taken_from_stays_byte_by_byte(tmp_path: Path) -> None:
    saved(residual(), tmp_path / "in.onnx")
    upscale.prune_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", selection=Selection(kept=KEPT))
    before, after = onnx.load(tmp_path / "in.onnx"), onnx.load(tmp_path / "out.onnx")
    for part in ("input", "output"):
        assert list(getattr(before.graph, part)) == list(getattr(after.graph, part))
    assert list(before.opset_import) == list(after.opset_import)
    assert list(before.metadata_props) == list(after.metadata_props)
    assert (before.producer_name, before.ir_version) == (after.producer_name, after.ir_version)
    old = {own.name: own.SerializeToString() for own in before.graph.initializer}
    new = {own.name: own.SerializeToString() for own in after.graph.initializer}
    assert old["head.b"] == new["head.b"]
    assert old["last::w"] != new["last::w"]


def test_amount_zero_gives_the_same_graph(tmp_path: Path) -> None:
    saved(residual(), tmp_path / "in.onnx")
    upscale.prune_onnx(tmp_path / "in.onnx", tmp_path / "out.onnx", amount=0.0)
    assert onnx.load(tmp_path / "in.onnx") == onnx.load(tmp_path / "out.onnx")


def test_a_selection_of_one_name_may_be_a_layer_or_an_initialiser(tmp_path: Path) -> None:
    model = upscale.from_onnx(saved(residual(), tmp_path / "in.onnx"))
    names = dict(model.named_parameters())
    assert {"stem.weight", "body.weight", "body.bias", "last::w.weight", "head.weight"} <= set(
        names
    )
    for name in ("body", "body.weight"):
        upscale.prune_onnx(
            tmp_path / "in.onnx",
            tmp_path / f"{name}.onnx",
            selection=Selection(kept={name: (1, 2)}),
        )
    one, other = ((tmp_path / f"{name}.onnx").read_bytes() for name in ("body", "body.weight"))
    assert one == other


class Block(nn.Module):
    """Branches, a concatenation, a depthwise convolution, a gate and a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.left, self.right = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 3, padding=1)
        self.wise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Sigmoid())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.wise(torch.cat([self.left(x), self.right(x)], 1)) + x
        x = torch.relu(x * self.gate(x))
        return self.head(x.flatten(2).transpose(1, 2))


class Attends(nn.Module):
    """A token mixer with heads, as transformers write it."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.back = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        q, k, v = self.make(self.norm(x)).reshape(n, t, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        x = x + self.back(y.transpose(1, 2).reshape(n, t, 16))
        return x + self.down(nn.functional.gelu(self.up(x)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", [Block, Attends])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_torch_exports_comes_back_and_is_pruned_in_its_file(
    tmp_path: Path, kind: Any, dynamo: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(seed)
    model = kind().eval()
    x = torch.randn(2, 3, 8, 10) if kind is Block else torch.randn(2, 6, 16)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    path = tmp_path / "in.onnx"
    torch.onnx.export(model, (x,), str(path), dynamo=dynamo)
    module = upscale.from_onnx(path)
    held = onnx.load(path)
    names = [
        own.name
        for own in held.graph.input
        if own.name not in {i.name for i in held.graph.initializer}
    ]
    assert_as_runtime(module, str(path), {names[0]: x.numpy()})
    selection = random_selection(module, 0.4, seed, empty=seed == 2)
    masked = upscale.mask(module, selection)
    pruned = upscale.prune_onnx(path, tmp_path / "out.onnx", selection=selection, example=x)
    (found,) = answers(str(tmp_path / "out.onnx"), {names[0]: x.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, masked(x).numpy(), atol=1e-5)
    before, after = (sum(p.numel() for p in own.parameters()) for own in (module, pruned))
    assert after < before


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("seed", range(4))
def test_outputs_are_pruned_in_the_file_too(tmp_path: Path, side: str, seed: int) -> None:
    path = saved(residual(), tmp_path / "in.onnx")
    upscale.prune_onnx(
        path, tmp_path / "out.onnx", amount=0.3 + 0.1 * seed, side=side, importance="random"
    )
    assert (tmp_path / "out.onnx").stat().st_size < path.stat().st_size
