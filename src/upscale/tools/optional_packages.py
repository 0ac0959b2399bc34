"""Packages that not everybody has, and how torchvision is imported beside any torch."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

import torch

from upscale.errors import UpscaleError


class MissingPackageError(UpscaleError, ImportError):
    """Something asked for needs a package that is not installed."""


# torchvision's binary extension may be built for another torch than the one installed (a CUDA
# wheel beside a CPU torch, say). Its operators are then missing, and `import torchvision` fails
# while attaching shape functions to two of them. Declaring their schemas lets the import finish.
# They still have no implementation: classifiers never call them, detectors would fail clearly.
_MISSING_OPERATOR = re.compile(r"operator torchvision::\w+ does not exist")
_OPERATOR_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a Library takes its operators with it when freed


def import_optional(name: str, otherwise: str) -> Any:
    """A module that not everybody has; where it is missing, the error says what to do."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackageError(otherwise) from error


def import_torchvision() -> ModuleType:
    """Return the torchvision module, importable even where its compiled operators are not.

    Import through this function before anything that imports torchvision itself, such as timm.
    """
    try:
        return importlib.import_module("torchvision")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"torchvision or a package it needs is missing ({error}): pip install torchvision"
        ) from error
    except RuntimeError as error:
        if _declared or not _MISSING_OPERATOR.search(str(error)):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _OPERATOR_SCHEMAS:
        library.define(schema)
    _declared.append(library)
    return importlib.import_module("torchvision")


def import_pillow() -> Any:
    """Return Pillow's `Image` module, which decodes images."""
    try:
        return importlib.import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"reading images needs pillow ({error}): pip install upscale[images]"
        ) from error
