"""What is loaded is what was saved: the same code, tensors, modes and numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import upscale
from tests.store.files import assert_same, outputs, pruned_net, round_trip
from trials.lively import calm
from trials.nets import NETS
from trials.networks import SIZE, Network, build, networks
from upscale.rewrite.constant import Constant
from upscale.rewrite.gather import Gather
from upscale.zoo import torchvision_model


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("name", NETS)
def test_a_network_comes_back_without_and_with_its_class(
    name: str, side: str, tmp_path: Path
) -> None:
    pruned, inputs = pruned_net(name, side)
    loaded = round_trip(pruned, tmp_path)
    assert loaded.code == pruned.code
    assert_same(loaded, pruned, inputs)
    torch.manual_seed(7)  # other weights than were pruned
    applied = upscale.load(tmp_path / "model.safetensors", NETS[name][0]())
    assert applied.code == pruned.code
    assert_same(applied, pruned, inputs)


def test_the_networks_hold_modules_of_ours() -> None:
    kinds = {type(m) for name in NETS for m in pruned_net(name)[0].modules()}
    assert {Gather, Constant, nn.LayerNorm} <= kinds


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(networks())
def test_any_network_comes_back(network: Network) -> None:
    model, example = build(network), network.example(network.batch, SIZE)
    try:
        plan = upscale.plan(model, example, network.selections, order="none")
    except upscale.CaptureError:
        return
    pruned = upscale.export(model, plan)
    with TemporaryDirectory() as place:
        assert_same(round_trip(pruned, Path(place)), pruned, example)
        applied = upscale.load(Path(place) / "model.safetensors", build(network))
        assert_same(applied, pruned, example)


def small() -> nn.Module:
    torch.manual_seed(0)
    return calm(
        nn.Sequential(
            *(
                nn.Conv2d(3, 8, 3),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 8, 1),
                nn.Dropout(0.5),
            ),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
        )
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_survives(dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = small().to(dtype), torch.randn(2, 3, 8, 8, dtype=dtype)
    pruned = upscale.prune(model, x, amount=0.4, verify=False)
    loaded = round_trip(pruned, tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    assert_same(loaded, pruned, x)


def test_memory_format_survives(tmp_path: Path) -> None:
    model = small().to(memory_format=torch.channels_last)
    pruned = upscale.prune(model, torch.randn(1, 3, 8, 8), amount=0.4)
    loaded = round_trip(pruned, tmp_path)
    weight = loaded.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert_same(loaded, pruned, torch.randn(2, 3, 8, 8))


def test_shared_parameters_stay_shared_and_are_stored_once(tmp_path: Path) -> None:
    pruned, _ = pruned_net("SharedWeight")
    loaded = round_trip(pruned, tmp_path)

    def shared(model: nn.Module) -> list[list[str]]:
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return sorted(names.values())

    assert shared(loaded) == shared(pruned)
    assert any(len(names) > 1 for names in shared(loaded))
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert len([name for name in stored if name.endswith("weight")]) == sum(
        names[0].endswith("weight") for names in shared(pruned)
    )


def test_modes_buffers_and_frozen_parameters_survive(tmp_path: Path) -> None:
    model, x = small(), torch.randn(2, 3, 8, 8)
    pruned = upscale.export(
        model, upscale.plan(model, x, upscale.Selection(kept={"3": [0, 2, 5, 7], "7": [1, 3, 6]}))
    )
    pruned.train()
    pruned.get_submodule("1").eval()
    pruned.get_parameter("3.weight").requires_grad_(False)
    loaded = round_trip(pruned, tmp_path)
    assert [m.training for m in loaded.modules()] == [m.training for m in pruned.modules()]
    assert not loaded.get_parameter("3.weight").requires_grad
    assert loaded.get_parameter("0.weight").requires_grad
    kept = [n for n, m in pruned.named_modules() if m._non_persistent_buffers_set]
    assert kept == [n for n, m in loaded.named_modules() if m._non_persistent_buffers_set]
    assert_same(loaded.eval(), pruned.eval(), x)


def test_masks_that_are_held_at_run_time_survive(tmp_path: Path) -> None:
    torch.manual_seed(0)

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.c(self.b(self.a(x)).relu())
            return out

    model, x = Held().eval(), torch.randn(2, 4, 5, 5)
    # The other reader of the weight is not masked, so zeros cannot be written into it.
    selection = upscale.Selection(kept={"a": [0, 2, 3]}, side="output")
    plan = upscale.plan(model, x, selection)
    assert plan.held
    pruned = upscale.export(model, plan)
    loaded = round_trip(pruned, tmp_path)
    assert_same(loaded, pruned, x)
    masked = upscale.mask(model, selection)
    torch.testing.assert_close(outputs(loaded, x)[0], outputs(masked, x)[0])
    assert_same(upscale.load(tmp_path / "model.safetensors", Held()), pruned, x)


def test_a_loaded_model_trains_and_saves_the_same_file_again(tmp_path: Path) -> None:
    pruned, inputs = pruned_net("Residual")
    loaded = round_trip(pruned, tmp_path)
    first = (tmp_path / "model.safetensors").read_bytes()
    round_trip(loaded, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == first
    loaded(inputs).sum().backward()
    torch.optim.SGD(loaded.parameters(), lr=0.1).step()
    assert_same(round_trip(loaded, tmp_path), loaded, inputs)


def test_a_file_loads_where_the_model_is_not_known(tmp_path: Path) -> None:
    pruned, inputs = pruned_net("WrappedWindows")
    upscale.save(pruned, tmp_path / "model.safetensors")
    torch.save((inputs, outputs(pruned, inputs)[0]), tmp_path / "expected.pt")
    script = (
        "import sys, torch, upscale\n"
        "model = upscale.load(sys.argv[1])\n"
        "inputs, expected = torch.load(sys.argv[2])\n"
        # Another process may lay out its memory, and so round, otherwise.
        "torch.testing.assert_close(model(inputs), expected, rtol=1e-5, atol=1e-5)\n"
        "assert not any(name.startswith(('tests', 'torchvision')) for name in sys.modules)\n"
    )
    files = [str(tmp_path / name) for name in ("model.safetensors", "expected.pt")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *files],
        env={**os.environ, "PYTHONPATH": str(Path(upscale.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_model_that_trains_with_torchvisions_own_functions_comes_back(tmp_path: Path) -> None:
    model, x = torchvision_model("efficientnet_b0").train(), torch.randn(2, 3, 32, 32)
    pruned = upscale.export(model, upscale.plan(model, x, upscale.Selection(kept={})))
    # It is looked into where torch can, and is called as it is elsewhere.
    assert ("stochastic_depth" in pruned.code) != ("bernoulli_" in pruned.code)
    loaded = round_trip(pruned, tmp_path)
    assert loaded.code == pruned.code
    torch.manual_seed(0)
    expected = pruned(x)
    torch.manual_seed(0)
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)


def test_layers_named_like_parts_of_every_graph_module_come_back(tmp_path: Path) -> None:
    names = ("meta", "graph", "shape_env", "code", "features-1")
    layers = [nn.Linear(6, 6) for _ in names]
    model, x = nn.Sequential(OrderedDict(zip(names, layers, strict=True))), torch.randn(2, 6)
    pruned = upscale.prune(model, x, amount=0.5)
    assert_same(round_trip(pruned, tmp_path), pruned, x)
    assert_same(upscale.load(tmp_path / "model.safetensors", model), pruned, x)


def test_the_weights_are_readable_by_safetensors_alone(tmp_path: Path) -> None:
    pruned, _ = pruned_net("Residual")
    upscale.save(pruned, tmp_path / "model.safetensors")
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    for name, parameter in pruned.named_parameters():
        assert torch.equal(stored[name], parameter)
