"""A file that was made to harm is refused, and nothing in it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import upscale
from tests.store.files import pruned_net, rewrite_document

CODE = "__import__('pathlib').Path('harmed').touch()"
Document = dict[str, Any]


def node(document: Document, op: str) -> dict[str, Any]:
    found: dict[str, Any] = next(n for n in document["graph"]["nodes"] if n["op"] == op)
    return found


def rename_module(document: Document, name: str) -> None:
    called = node(document, "call_module")
    document["modules"][name] = document["modules"].pop(called["target"])
    called["target"] = name


def pack_inputs(document: Document, name: str, key: str) -> None:
    document["graph"]["signature"] = {
        "inputs": [name],
        "packed": {"tuple": [{"tuple": []}, {"dict": [[key, "*"]]}]},
        "output": None,
    }


HARM: dict[str, Callable[[Document], object]] = {
    "name of a node": lambda d: node(d, "call_module").update(name=f"x = {CODE}"),
    "name of an input": lambda d: node(d, "placeholder").update(target=f"x={CODE}"),
    "star before an input": lambda d: node(d, "placeholder").update(target="***x"),
    "default of an input": lambda d: node(d, "placeholder").update(args=[{"node": CODE}]),
    "name of the model": lambda d: d.update(name=CODE),
    "function": lambda d: node(d, "call_function").update(target="os.system", args=[CODE]),
    "dotted function": lambda d: node(d, "call_function").update(target="torch.load"),
    "builtin": lambda d: node(d, "call_function").update(target="builtins.eval", args=[CODE]),
    "method": lambda d: node(d, "call_function").update(op="call_method", target=f"add({CODE})"),
    "unsafe method": lambda d: node(d, "call_function").update(op="call_method", target="apply_"),
    "attribute": lambda d: node(d, "call_function").update(
        target="getattr", args=[{"node": "x"}, "__class__"], kwargs={}
    ),
    "attribute by name": lambda d: node(d, "call_function").update(
        target="getattr", args=[{"node": "x"}], kwargs={"name": "__class__"}
    ),
    "argument": lambda d: node(d, "call_module").update(kwargs={f"x={CODE}, y": 1}),
    "path": lambda d: rename_module(d, f'a"), {CODE}, getattr(self, "a'),
    "path to a method": lambda d: rename_module(d, "to_folder"),
    "path within a module": lambda d: rename_module(d, "a.register_forward_hook"),
    "path to the class": lambda d: rename_module(d, "__class__"),
    "path with a keyword": lambda d: rename_module(d, "lambda"),
    "module": lambda d: rename_module(d, "x") or d["modules"]["x"].update({"class": "os.system"}),
    "container": lambda d: d["modules"].update(
        {node(d, "call_module")["target"]: {"class": "nn.Module", "arguments": {}}}
    ),
    "packed name": lambda d: pack_inputs(d, f"x={CODE}", "x"),
    "packed key": lambda d: pack_inputs(d, "x", f"x':{CODE}, 'y"),
    "type": lambda d: node(d, "placeholder").update(type=CODE),
    "device": lambda d: node(d, "call_module").update(args=[{"device": f"cpu {CODE}"}]),
    "constant": lambda d: node(d, "call_module").update(args=[{"constant": "torch.load"}]),
    "named tuple": lambda d: node(d, "call_module").update(args=[{"named": ["os.system", CODE]}]),
    "no output": lambda d: d["graph"]["nodes"].pop(),
    "two of a name": lambda d: d["graph"]["nodes"].insert(1, d["graph"]["nodes"][0]),
    "later node": lambda d: d["graph"]["nodes"].reverse(),
    "tensor over a method": lambda d: d["tensors"].update(
        {"forward": next(iter(d["tensors"].values()))}
    ),
    "tensor nowhere": lambda d: d["tensors"].update(
        {"a.b.c.d": {"role": "buffer", "stored": next(iter(d["tensors"]))}}
    ),
    "missing tensor": lambda d: d["tensors"].pop(next(iter(d["tensors"]))),
    "plan": lambda d: d.update(plan=CODE),
    "masks": lambda d: d["held"].update({node(d, "call_module")["target"]: [10**9]}),
    "more than there is": lambda d: d.update(more=1),
}


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_refused_and_does_nothing(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("Residual")[0], path)
    upscale.load(path)
    rewrite_document(path, HARM[harm])
    with pytest.raises(upscale.StoreError):
        upscale.load(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        ("nn.Linear", {"in_features": 2**40, "out_features": 2**40}),
        ("nn.Linear", {"in_features": 8, "out_features": 8, "device": {"device": "cpu"}}),
        ("nn.LSTM", {"input_size": 1, "hidden_size": 1, "num_layers": 2**40}),
        ("nn.Linear", {"in_features": "8"}),
        ("nn.Embedding", {"num_embeddings": 2, "embedding_dim": 2, "_weight": 1}),
        ("upscale.Constant", {"rows": 1, "axis": 1, "probe": 3}),
    ],
)
def test_a_layer_that_takes_all_memory_or_cannot_be_is_refused(
    layer: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("Residual")[0], path)

    def swap(document: Document) -> None:
        target = node(document, "call_module")["target"]
        document["modules"][target] = {"class": layer, "arguments": arguments}

    rewrite_document(path, swap)
    with pytest.raises(upscale.StoreError):
        upscale.load(path)


def test_texts_in_arguments_stay_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("AsksOfAConcatenation")[0], path)
    text = f"'); {CODE}; ('\"\n{CODE}"

    def swap(document: Document) -> None:
        assertion = next(n for n in document["graph"]["nodes"] if n["target"] == "torch._assert")
        assertion["args"] = [False, text]

    rewrite_document(path, swap)
    with pytest.raises(AssertionError) as raised:
        upscale.load(path)(*pruned_net("AsksOfAConcatenation")[1:])
    assert text in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]


@fx.wrap
def weighed(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


class Closed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(weighed(self.a(x)))
        return out


def test_a_function_nobody_knows_is_refused_when_saving_with_its_node(tmp_path: Path) -> None:
    model, x = Closed().eval(), torch.randn(1, 3, 4, 4)
    pruned = upscale.export(model, upscale.plan(model, x, upscale.Selection(kept={"b": [0, 1]})))
    with pytest.raises(upscale.StoreError, match=r"node weighed .*weighed.* cannot be saved"):
        upscale.save(pruned, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_cannot_hold_is_refused_when_saving(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(upscale.StoreError, match="not Linear"):
        upscale.save(nn.Linear(2, 2), path)  # type: ignore[arg-type]
    pruned, _ = pruned_net("Plain")
    layer = next(n.target for n in pruned.graph.nodes if n.op == "call_module")
    hook = pruned.get_submodule(layer).register_forward_hook(lambda *_: None)
    with pytest.raises(upscale.StoreError, match=f"module {layer} .*hooks"):
        upscale.save(pruned, path)
    hook.remove()
    pruned.get_submodule(layer).extra = "mine"
    with pytest.raises(upscale.StoreError, match=f"module {layer} .*its extra is 'mine'"):
        upscale.save(pruned, path)
    del pruned.get_submodule(layer).extra
    pruned.add_module("more", nn.Linear(2, 2))
    with pytest.raises(upscale.StoreError, match=r"module more .* not called"):
        upscale.save(pruned, path)
    del pruned.more
    upscale.save(pruned, path)


def test_another_model_than_was_saved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    upscale.save(pruned_net("Residual")[0], path)
    with pytest.raises(upscale.StoreError, match="saved from another model"):
        upscale.load(path, nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)))
