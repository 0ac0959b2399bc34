"""Where models come from: a library's name, an import path, or a file of ours."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from upscale.errors import UpscaleError
from upscale.lab.zoo import digits, import_torchvision, torchvision_model
from upscale.model.accepting import checked
from upscale.store import load

HELP = (
    "torchvision:NAME, timm:NAME, upscale:digits, package.module:callable (called without "
    "arguments; the current directory is searched first), or a file that `upscale prune` wrote"
)


class SourceError(UpscaleError):
    """A model, its weights or a function cannot be had from where the user says."""


def find_model(source: str, weights: Path | None) -> nn.Module:
    """The model that a source names, in evaluation mode, with weights from a file if given."""
    library, colon, name = source.partition(":")
    if not colon:
        if not Path(source).is_file():
            raise SourceError(f"{source!r} is no file, and no source: give {HELP}")
        model: nn.Module = load(source)
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
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(f"{path} cannot be imported: {error}") from error
    return found


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
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("state_dict", "model"):
            if isinstance(state, dict) and isinstance(state.get(key), dict):
                state = state[key]
        if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
            raise SourceError(f"{path} holds no weights by name")
        model.load_state_dict(state)
    except SourceError:
        raise
    except (OSError, RuntimeError, SafetensorError, ValueError, EOFError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceError(f"{path} does not fit: {' '.join(first[:2])}") from error
    except Exception as error:  # torch.load raises what pickle does
        raise SourceError(f"{path} is no checkpoint of weights alone: {error}") from error
