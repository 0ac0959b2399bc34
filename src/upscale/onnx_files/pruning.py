"""A file in, a smaller file out: import, prune, edit the file, and hold it against the module."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from upscale.capture import Example
from upscale.errors import OnnxError, UnverifiedWarning, VerificationError
from upscale.onnx_files.importing import from_onnx, given_inputs, source_of
from upscale.onnx_files.reading import onnx, read_model
from upscale.onnx_files.writing import edited
from upscale.pruning.prune import prune
from upscale.selected.selection import Selection
from upscale.tools.atomic import replacing

# How far a runtime in single precision may be from torch: a share of the greatest number, and what
# runtimes themselves round away of numbers between zero and one.
NEAR, ROUNDED = 1e-4, 1e-6
# What one file of this format holds; constants of more lie in a file beside it.
MOST = 2**31 - 2**20

Inputs = Mapping[str, Tensor]


def prune_onnx(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    example: Any = None,
    selection: Selection | None = None,
    **options: Any,
) -> fx.GraphModule:
    """Prune the model of an ONNX file and write a smaller file: `upscale.prune`, file to file.

    The file that is written has the inputs, outputs, free sizes, opset and metadata of the one
    that was read. `example` are inputs, by name if there are several; without them such are drawn
    as the file describes. A `selection` may name initialisers. The options are those of `prune`.
    The module behind the new file is returned.
    """
    shapes = {}
    if example is not None:
        first = onnx_inputs(path)
        given = (
            example
            if isinstance(example, Mapping)
            else dict(zip(first, _listed(example), strict=False))
        )
        shapes = {name: tuple(own.shape) for name, own in given.items()}
    model = from_onnx(path, shapes=shapes)
    inputs = example_of(model) if example is None else _by_argument(model, example)
    if selection is not None:
        options["selection"] = by_layer(model, selection)
    pruned = prune(model, inputs, **options)
    write_onnx(pruned, model, out, example=inputs)
    return pruned


def write_onnx(
    pruned: fx.GraphModule, model: nn.Module, path: str | os.PathLike[str], *, example: Any = None
) -> None:
    """Write what `prune` or `export` made of an imported model, as its file, edited.

    Constants that nothing was taken from stay as they are, byte by byte. What was written is
    checked, and run by ONNX Runtime on the example.
    """
    made = edited(model, pruned)
    inputs = Example.of(example_of(model) if example is None else example)
    with replacing(path) as fresh:
        if made.ByteSize() > MOST:
            onnx().save(made, str(fresh), save_as_external_data=True, location=f"{fresh.name}.data")
        else:
            fresh.write_bytes(made.SerializeToString(deterministic=True))
        _check(fresh, model)
        _compare(pruned, model, fresh, _named(model, inputs))


def onnx_inputs(path: str | os.PathLike[str]) -> list[str]:
    """The names of the inputs of a file."""
    return [own.name for own in given_inputs(read_model(path))]


def example_of(model: nn.Module) -> Any:
    """Inputs of the kind and size that a file describes, drawn at random."""
    drawn = torch.Generator().manual_seed(0)
    made: list[Tensor] = []
    for _, shape, dtype in source_of(model).example:
        if dtype.is_floating_point:
            made.append(torch.randn(shape, generator=drawn).to(dtype))
        else:
            made.append(torch.randint(0, 2, shape, generator=drawn).to(dtype))
    return made[0] if len(made) == 1 else tuple(made)


def by_layer(model: nn.Module, selection: Selection) -> Selection:
    """A selection that names layers, of one that names the initialisers of their weights."""
    layers = {
        held.constant: path.rpartition(".")[0]
        for path, held in source_of(model).held.items()
        if path.endswith(".weight")
    }
    modules = dict(model.named_modules())

    def named(lists: Mapping[str, Any]) -> dict[str, Any]:
        return {
            own if own in modules else layers.get(own, own): kept for own, kept in lists.items()
        }

    return replace(selection, kept=named(selection.kept), windows=named(selection.windows))


def _listed(example: Any) -> list[Any]:
    return list(example) if isinstance(example, (tuple, list)) else [example]


def _by_argument(model: nn.Module, example: Any) -> Any:
    """An example as the module takes it, of one by the names of the file."""
    if not isinstance(example, Mapping):
        return example
    names = [name for name, _, _ in source_of(model).example]
    missing = [name for name in names if name not in example]
    if missing:
        raise OnnxError(
            f"the example has no input {missing[0]!r}; the file takes {', '.join(names)}"
        )
    return tuple(example[name] for name in names)


def _named(model: nn.Module, example: Example) -> dict[str, Tensor]:
    """The inputs of an example by the names that the file has for them."""
    graph: Any = model.graph
    arguments = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    names = [name for name, _, _ in source_of(model).example]
    given = dict(zip(arguments, example.args, strict=False)) | dict(example.kwargs)
    return {name: given[argument] for name, argument in zip(names, arguments, strict=True)}


def _check(path: Path, model: nn.Module) -> None:
    """Raise if a file breaks ONNX's own rules, which the one that was read keeps."""
    checker = onnx().checker
    try:
        checker.check_model(str(path))
    except checker.ValidationError as error:
        with suppress(checker.ValidationError):
            checker.check_model(source_of(model).model)
            raise VerificationError(f"the edited file breaks a rule of ONNX: {error}") from error


def _compare(pruned: fx.GraphModule, model: nn.Module, path: Path, inputs: Inputs) -> None:
    """Raise unless ONNX Runtime gives what the module gives.

    It may be as far from it as NEAR says, or as twice what lies between the two before pruning.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        said = "onnxruntime is not installed: the file was checked, but not run"
        warnings.warn(said, UnverifiedWarning, stacklevel=4)
        return
    apart, most = _distance(pruned, str(path), inputs)
    if apart <= NEAR * most + ROUNDED:
        return
    before, _ = _distance(model, source_of(model).model.SerializeToString(), inputs)
    if not apart <= 2 * before:
        raise VerificationError(
            f"ONNX Runtime gives other numbers for the edited file: {apart:.2g} apart, "
            f"of {most:.2g}"
        )


def _distance(module: nn.Module, file: str | bytes, inputs: Inputs) -> tuple[float, float]:
    """How far ONNX Runtime's answer to a file is from a module's, and how great that is."""
    runtime = importlib.import_module("onnxruntime")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = torch.get_num_threads(), 3
    try:
        session = runtime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
        found = session.run(None, {name: own.cpu().numpy() for name, own in inputs.items()})
    except Exception as error:  # the runtime raises errors of its own
        first = str(error).strip().splitlines()[0]
        raise VerificationError(f"ONNX Runtime does not run the file: {first}") from error
    with torch.no_grad():
        wanted: Any = module(*inputs.values())
    apart = most = 0.0
    for own, want in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        one, other = own.astype(np.float64), want.double().cpu().numpy()
        if one.shape != other.shape:
            said = f"the edited file gives {one.shape} in the place of {other.shape}"
            raise VerificationError(said)
        most = max(most, float(np.abs(other).max(initial=0.0)))
        apart = float(np.maximum(apart, np.abs(one - other).max(initial=0.0)))
    return apart, most
