"""Where models and data come from: a library's name, an import path, or files."""

from __future__ import annotations

import importlib
import sys
import traceback
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from upscale.errors import UpscaleError
from upscale.lab.zoo import digits, digits_data, import_torchvision, torchvision_model
from upscale.model.accepting import checked
from upscale.onnx_files import from_onnx
from upscale.store import load

HELP = (
    "torchvision:NAME, timm:NAME, upscale:digits, package.module:callable (called without "
    "arguments; the current directory is searched first), a file that `upscale prune` wrote, or an "
    "ONNX file"
)


class SourceError(UpscaleError):
    """A model, its weights or a function cannot be had from where the user says."""


def is_onnx(source: str | Path) -> bool:
    """Whether a source is an ONNX file, by its name."""
    return Path(source).suffix == ".onnx"


def find_model(source: str, weights: Path | None) -> nn.Module:
    """The model that a source names, in evaluation mode, with weights from a file if given."""
    library, colon, name = source.partition(":")
    if not colon:
        if not Path(source).is_file():
            raise SourceError(f"{source!r} is no file, and no source: give {HELP}")
        model: nn.Module = from_onnx(source) if is_onnx(source) else load(source)
    elif library == "torchvision":
        model = torchvision_model(name)
    elif library == "timm":
        model = _timm_model(name)
    elif source == "upscale:digits":
        model = digits()
    else:
        model = _built(source)
    if weights is not None:
        _load_weights(model, weights)
    if is_onnx(source):
        return model  # in evaluation mode already, and still the module of its file
    return checked(model).eval()


def _timm_model(name: str) -> nn.Module:
    import_torchvision()
    try:
        timm = importlib.import_module("timm")
        model: nn.Module = timm.create_model(name, pretrained=False)
    except ModuleNotFoundError as error:
        raise SourceError(f"timm is not installed ({error}): pip install timm") from error
    except RuntimeError as error:
        raise SourceError(f"timm has no model {name!r}: {error}") from error
    return model


def imported(path: str) -> Any:
    """What an import path names; the current directory is searched first.

    >>> imported("math:sqrt")(4)
    2.0
    """
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(f"{path} cannot be imported: {error}") from error


def _built(path: str) -> nn.Module:
    """What a callable of the user's own returns."""
    model = imported(path)
    if not isinstance(model, nn.Module):
        try:
            model = model()
        except Exception as error:  # it is the user's own code, and may raise anything
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise SourceError(
                f"{path} raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            ) from error
    if not isinstance(model, nn.Module):
        raise SourceError(f"{path} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _load_weights(model: nn.Module, path: Path) -> None:
    """Load a state from a safetensors file, or from a checkpoint that holds weights alone."""
    try:
        safe = path.suffix == ".safetensors"
        state: Any = load_file(path) if safe else torch.load(path, "cpu", weights_only=True)
        for key in ("state_dict", "model"):
            if isinstance(state, dict) and isinstance(state.get(key), dict):
                state = state[key]
        if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
            raise ValueError("it holds no weights by name")
        model.load_state_dict(state)
    except (OSError, RuntimeError, SafetensorError, ValueError, EOFError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(f"{path} does not fit: {' '.join(first[:2])}") from error
    except Exception as error:  # torch.load raises what pickle does
        raise SourceError(f"{path} is no checkpoint of weights alone: {error}") from error


BATCH = 250
DATA_HELP = (
    "upscale:digits, package.module:callable (which gives batches of inputs and labels), or an "
    ".npz file, or a folder of them, with the arrays `images` and `labels`"
)

Pairs = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Loaded:
    """Batches of a loader, which may be more than memory holds: loaded anew at every turn."""

    source: str
    loader: Iterable[Any]
    images: int | None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return _counted(self.source, self.loader, self.images)


def find_data(source: str, images: int | None = None) -> Pairs:
    """The batches that a source names; of so many images in all, if a number is given.

    Images are taken as they are: a model's normalisation has to be done before.
    """
    path = Path(source)
    if source == "upscale:digits":
        held = digits_data()
        found: Iterable[Any] = _split(held.held_out_images, held.held_out_labels)
    elif path.is_file() or path.is_dir():
        files = [path] if path.is_file() else sorted(path.glob("*.npz"))
        if not files:
            raise SourceError(f"{source} holds no .npz file; data is {DATA_HELP}")
        found = (pair for file in files for pair in _split(*_arrays(file)))
    elif ":" in source:
        given = imported(source)
        found = given() if callable(given) else given
        if isinstance(found, DataLoader):
            return Loaded(source, found, images)
    else:
        raise SourceError(f"data is {source!r}, which is not there; give {DATA_HELP}")
    return list(_counted(source, found, images))


def _split(pictures: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(pictures.split(BATCH), labels.split(BATCH), strict=True)


def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as held:
            images, labels = held["images"], held["labels"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path} is no .npz with `images` and `labels`: {error}") from error
    if images.ndim < 2 or labels.shape != images.shape[:1]:
        raise SourceError(
            f"{path} has images of shape {images.shape} and labels of shape {labels.shape}; "
            "it must be one label for each image"
        )
    return torch.from_numpy(images).float(), torch.from_numpy(labels.astype(np.int64))


def _counted(source: str, found: Iterable[Any], images: int | None) -> Iterator[Any]:
    left = images
    try:
        for pair in found:
            paired = isinstance(pair, (tuple, list)) and len(pair) == 2
            if not paired or not all(isinstance(own, Tensor) for own in pair):
                raise SourceError(f"{source} gives batches that are no pairs of tensors")
            inputs, labels = pair
            yield (inputs, labels) if left is None else (inputs[:left], labels[:left])
            left = None if left is None else left - len(labels)
            if left is not None and left <= 0:
                return
    except TypeError as error:
        raise SourceError(f"{source} gives no batches: {error}") from error
