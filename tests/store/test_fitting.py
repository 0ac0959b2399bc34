"""Every tensor of a file is one that its layer has; both ways of loading come to one model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from scripts.fuzzing.subjects import Recurrent
from tests.store.files import assert_same, pruned_net, rewrite_document, round_trip
from trials.nets import NETS
from upscale.planning.document import DIGEST, VERSION, digest_of
from upscale.store.container import LENGTH, METADATA, seal


class Around(nn.Module):
    """A layer between two linears, called as such layers are."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(6, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if isinstance(self.layer, nn.MultiheadAttention):
            h = self.layer(h, h.flip(0), h)[0]  # attention to itself would be looked into
        elif isinstance(self.layer, nn.RNNBase):
            h = self.layer(h)[0]
        else:
            h = self.layer(h)
        out: Tensor = self.last(h)
        return out


class Looked(nn.Module):
    """An embedding before a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.layer(x))
        return out


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "LSTM": (lambda: Around(nn.LSTM(8, 8, 2)), lambda: torch.randn(2, 5, 6), "weight_hh_l1"),
    "GRU": (lambda: Around(nn.GRU(8, 8)), lambda: torch.randn(2, 5, 6), "bias_ih_l0"),
    "RNN": (lambda: Around(nn.RNN(8, 8)), lambda: torch.randn(2, 5, 6), "weight_ih_l0"),
    "MultiheadAttention": (
        lambda: Around(nn.MultiheadAttention(8, 2, kdim=8, vdim=8)),
        lambda: torch.randn(2, 5, 6),
        "out_proj.weight",
    ),
    "LayerNorm": (lambda: Around(nn.LayerNorm(8)), lambda: torch.randn(2, 5, 6), "weight"),
    "GroupNorm": (lambda: Around(nn.GroupNorm(2, 8)), lambda: torch.randn(5, 6), "bias"),
    "BatchNorm1d": (lambda: Around(nn.BatchNorm1d(8)), lambda: torch.randn(5, 6), "running_var"),
    "PReLU": (lambda: Around(nn.PReLU(8)), lambda: torch.randn(5, 6), "weight"),
    "Linear": (lambda: Around(nn.Linear(8, 8)), lambda: torch.randn(5, 6), "bias"),
    "Embedding": (Looked, lambda: torch.randint(10, (2, 3)), "weight"),
}


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    content = path.read_bytes()
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    entries = json.loads(content[LENGTH.size : end])
    return json.loads(entries.pop(METADATA)["upscale"]), entries, content[end:]


@pytest.mark.parametrize("kind", LAYERS)
def test_a_tensor_of_another_shape_or_dtype_than_its_layer_has_is_refused(
    kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, example, name = LAYERS[kind]
    model, path = make().eval(), tmp_path / "model.safetensors"
    pruned = upscale.export(model, upscale.plan(model, example(), upscale.Selection(kept={})))
    assert_same(round_trip(pruned, tmp_path), pruned, example())
    document, entries, data = opened(path)
    own = next(entry for key, entry in entries.items() if key == f"layer.{name}")
    begin, end = own["data_offsets"]
    for change in (
        {"shape": [1, *own["shape"]]},
        {"shape": [own["shape"][0] * 2, *own["shape"][1:]], "dtype": "F16"},
        {"dtype": "I32"},
    ):
        forged = entries | {f"layer.{name}": own | change}
        path.write_bytes(b"".join(seal(json.dumps(document), forged, data)))
        with pytest.raises(upscale.StoreError, match="like this has no"):
            upscale.load(path)
    # Shorter than it should be: an LSTM read memory behind such a weight that was not its own.
    rest = {
        key: entry
        | {"data_offsets": [at - (end - begin - 4) * (at >= end) for at in entry["data_offsets"]]}
        for key, entry in entries.items()
    }
    rest[f"layer.{name}"] = {"dtype": "F32", "shape": [1], "data_offsets": [begin, begin + 4]}
    short = data[: begin + 4] + data[end:]
    path.write_bytes(b"".join(seal(json.dumps(document), rest, short)))
    with pytest.raises(upscale.StoreError, match="like this has no"):
        upscale.load(path)


@pytest.mark.parametrize("change", ["role", "dtype"])
def test_a_recurrent_layer_runs_with_the_weights_of_its_file_or_not_at_all(
    change: str, tmp_path: Path
) -> None:
    model, x = Recurrent(nn.GRU(8, 10, batch_first=True)).eval(), torch.randn(2, 5, 6)
    pruned = upscale.prune(model, x, amount=0.5)
    path = tmp_path / "model.safetensors"
    if change == "role":
        upscale.save(pruned, path)
        rewrite_document(
            path, lambda d: d["tensors"]["layer.weight_hh_l0"].update(role="buffer", trained=False)
        )
    else:
        pruned.get_submodule("layer").weight_hh_l0 = nn.Parameter(
            torch.zeros(30, 10, dtype=torch.float64)
        )
        upscale.save(pruned, path)
    with pytest.raises(upscale.StoreError, match="not those of one layer"):
        upscale.load(path)


def test_truth_values_that_are_neither_are_refused(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)
            self.register_buffer("hidden", torch.tensor([True, False, True]))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x).masked_fill(self.hidden, 0.0)

    model, path = Masked().eval(), tmp_path / "model.safetensors"
    pruned = upscale.export(
        model, upscale.plan(model, torch.randn(2, 6), upscale.Selection(kept={}))
    )
    assert_same(round_trip(pruned, tmp_path), pruned, torch.randn(2, 6))
    document, entries, data = opened(path)
    at = entries["hidden"]["data_offsets"][0]
    path.write_bytes(
        b"".join(seal(json.dumps(document), entries, data[:at] + b"\7" + data[at + 1 :]))
    )
    with pytest.raises(upscale.StoreError, match="neither true nor false"):
        upscale.load(path)


def resealed(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    """A plan's document with something else in it, and a digest that fits."""
    fields = json.loads(text)
    version, _ = fields.pop(VERSION), fields.pop(DIGEST)
    change(fields)
    return json.dumps({VERSION: version, DIGEST: digest_of(fields), **fields})


def swap_pieces(plan: dict[str, Any]) -> None:
    edge = next(edge for edge in plan["graph"]["edges"] if edge["pieces"][0]["start"] > 0)
    edge["pieces"][0]["start"] -= 1


def test_a_plan_in_a_file_that_gives_another_model_than_the_file_holds_is_refused(
    tmp_path: Path,
) -> None:
    path, model = tmp_path / "model.safetensors", NETS["Residual"][0]()
    pruned, inputs = pruned_net("Residual")
    upscale.save(pruned, path)
    assert_same(upscale.load(path, model), pruned, inputs)
    rewrite_document(path, lambda d: d.update(plan=resealed(d["plan"], swap_pieces)))
    assert_same(upscale.load(path), pruned, inputs)
    with pytest.raises(upscale.StoreError, match="its plan was changed"):
        upscale.load(path, model)


def test_a_model_with_other_settings_than_the_files_is_refused(tmp_path: Path) -> None:
    def make(slope: float) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(slope), nn.Linear(8, 3)).eval()

    path = tmp_path / "model.safetensors"
    upscale.save(upscale.prune(make(0.1), torch.randn(2, 6), amount=0.5), path)
    upscale.load(path, make(0.1))
    with pytest.raises(upscale.StoreError, match="saved from another model"):
        upscale.load(path, make(0.2))
