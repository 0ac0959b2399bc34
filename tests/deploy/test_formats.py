"""Every format computes what the export computes, at another batch than the example's too."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from tests.deploy.running import assert_close, needs_onnx, old_format, run_onnx
from tests.store.files import outputs
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS

# One network for each thing that exporters trip over.
NAMES = (
    *("Residual", "Dense", "Shuffle", "UNet", "TransformerBlock", "Flattened", "OneChannel"),
    *("Grouped", "SeveralInputs", "WrappedWindows", "WrappedSplit", "WeightNormed", "FeaturesOut"),
)


def pruned_net(name: str) -> tuple[torch.fx.GraphModule, Any, Any]:
    """An export, the example it was made with (a batch of one) and other inputs."""
    torch.manual_seed(0)
    make, example = NETS[name]
    model, one, several = calm(make()), example(1, 16), example(3, 16)
    plan = upscale.plan(model, one, random_selection(model, 0.3, seed=3))
    return upscale.export(model, plan), one, several


@pytest.mark.parametrize("name", NAMES)
def test_pt2_computes_the_same(name: str, tmp_path: Path) -> None:
    pruned, one, several = pruned_net(name)
    upscale.deploy.to_exported(pruned, one, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_close(outputs(loaded, several), outputs(pruned, several), 1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


@old_format
@pytest.mark.parametrize("name", [name for name in NAMES if name != "WrappedSplit"])
def test_torchscript_computes_the_same(name: str, tmp_path: Path) -> None:
    pruned, one, several = pruned_net(name)
    upscale.deploy.to_torchscript(pruned, one, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert_close(outputs(loaded, several), outputs(pruned, several), 1e-6)


@needs_onnx
@pytest.mark.parametrize("name", NAMES)
def test_onnx_runtime_computes_the_same(name: str, tmp_path: Path) -> None:
    pruned, one, several = pruned_net(name)
    upscale.deploy.to_onnx(pruned, one, tmp_path / "model.onnx")
    assert_close(run_onnx(tmp_path / "model.onnx", several), outputs(pruned, several), 1e-5)


@needs_onnx
def test_onnx_has_the_opset_and_the_batch_asked_for(tmp_path: Path) -> None:
    onnx = importlib.import_module("onnx")
    pruned, one, several = pruned_net("Residual")
    path = tmp_path / "model.onnx"
    for opset in (18, 20):
        upscale.deploy.to_onnx(pruned, one, path, opset=opset, dynamic_batch=False)
        written = onnx.load(path)
        assert [entry.version for entry in written.opset_import if not entry.domain] == [opset]
        (shape,) = (entry.type.tensor_type.shape for entry in written.graph.input)
        assert [axis.dim_value for axis in shape.dim] == list(one.shape)
    with pytest.raises(Exception, match="dimension"):
        run_onnx(path, several)


@old_format
def test_a_loaded_model_deploys(tmp_path: Path) -> None:
    pruned, one, several = pruned_net("Residual")
    upscale.save(pruned, tmp_path / "model.safetensors")
    loaded = upscale.load(tmp_path / "model.safetensors")
    upscale.deploy.to_torchscript(loaded, one, tmp_path / "model.pt")
    scripted = torch.jit.load(tmp_path / "model.pt")
    assert_close(outputs(scripted, several), outputs(pruned, several), 1e-6)


def test_what_torchs_tracer_fails_on_is_refused(tmp_path: Path) -> None:
    pruned, one, _ = pruned_net("WrappedSplit")  # it fills a tensor with a tensor
    with pytest.raises(upscale.DeployError, match="neither as a script"):
        upscale.deploy.to_torchscript(pruned, one, tmp_path / "model.pt")
    assert list(tmp_path.iterdir()) == []


class Refuses(nn.Module):
    def forward(self, *x: Tensor) -> Tensor:
        raise TypeError("not this")


@pytest.mark.parametrize(
    "write", [upscale.deploy.to_exported, upscale.deploy.to_torchscript], ids=["pt2", "script"]
)
def test_what_a_format_cannot_hold_is_refused(write: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(upscale.DeployError):
        write(Refuses(), torch.ones(2, 2), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_onnx_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(upscale.UpscaleError, match=r"pip install 'upscale\[onnx\]'"):
        upscale.deploy.to_onnx(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "model.onnx")


class Biases(nn.Module):
    """Convolutions without a bias, and with one that is all zeros and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bare, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.back, self.own = nn.ConvTranspose2d(8, 4, 3, bias=False), nn.Conv2d(4, 4, 1)
        nn.init.zeros_(self.own.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.back(torch.relu(self.norm(self.bare(x)))))


@needs_onnx
def test_convolutions_without_a_bias_have_none_in_onnx(tmp_path: Path) -> None:
    """A bias that the graph computes keeps ONNX Runtime from folding the BatchNorm behind."""
    model, x = calm(Biases()).float().eval(), torch.randn(1, 3, 8, 8)
    upscale.deploy.to_onnx(model, x, tmp_path / "model.onnx")
    nodes = importlib.import_module("onnx").load(tmp_path / "model.onnx").graph.node
    assert [node.op_type for node in nodes if node.op_type in ("Expand", "Cast", "CastLike")] == []
    given = [len(node.input) for node in nodes if node.op_type.startswith("Conv")]
    assert given == [2, 2, 3]
    several = torch.randn(3, 3, 8, 8)
    assert_close(run_onnx(tmp_path / "model.onnx", several), [model(several).detach()], 1e-5)
