"""An environment for one cell: made from the registry, used, and removed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.matrix.cells import Cell

# Folders to look for interpreters in before those of PATH, named like those of PATH.
PYTHONS = "UPSCALE_PYTHONS"
# What tests need, besides what the cell names: those of `dev` in pyproject.toml that no linter is,
# and what fine-tuning goes by.
NEEDED = (
    *("hypothesis", "onnx", "onnxruntime", "onnxscript", "pillow", "pytest", "pyyaml"),
    *("scikit-learn", "setuptools", "safetensors", "accelerate"),
)
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "--no-cache-dir", "install")
VERSIONS = """
import importlib.metadata, json, platform
found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
import torch
print(json.dumps({**found, "torch": torch.__version__, "python": platform.python_version()}))
"""


class NoEnvironment(Exception):
    """A cell's environment cannot be made."""


def interpreter(version: str, environ: Mapping[str, str]) -> str:
    """The interpreter of a version of Python, from where a variable says or from PATH."""
    places = os.pathsep.join(filter(None, (environ.get(PYTHONS), environ.get("PATH"))))
    found = shutil.which(f"python{version}", path=places)
    if found is None:
        raise NoEnvironment(
            f"no python{version} on PATH; install it, or name the folder it is in: {PYTHONS}=FOLDER"
        )
    return found


@contextlib.contextmanager
def environment(cell: Cell, folder: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """An interpreter with a cell's packages, and their versions; all of it goes after use.

    torch comes first, with the CUDA packages that the registry's builds for Linux will not load
    without; torchvision last and without what it asks for, so that none chooses another torch.
    """
    python = interpreter(cell.python, os.environ)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(python, "-m", "venv", str(folder))
        own = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        torch, numpy = f"torch=={cell.torch}.*", f"numpy=={cell.numpy}.*"
        _run(own, *PIP, torch, numpy)
        _run(own, *PIP, torch, numpy, f"transformers=={cell.transformers}.*", *NEEDED)
        _run(own, *PIP, "--no-deps", f"torchvision{cell.torchvision}")
        versions: dict[str, str] = json.loads(_run(own, "-c", VERSIONS).splitlines()[-1])
        yield own, versions
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoEnvironment(f"{' '.join(map(str, command))}: {done.stderr.strip()[-2000:]}")
    return done.stdout
