"""The shelf: values of a run, kept until their last reader; beyond a limit they lie on disk.

A value of a node is whatever the node made of one batch: a tensor, a tuple of them, a size.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Key = tuple[str, str, int]
# Bytes of values that are held in memory if nobody says.
MEMORY = 2 << 30


class Shelf:
    """Values by key; those put down first go to disk first when there are too many bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._held = limit_bytes, 0
        self._values: OrderedDict[Key, Any] = OrderedDict()
        self._spilled: dict[Key, Path] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0

    def __enter__(self) -> Shelf:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._values.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def put(self, key: Key, value: Any) -> None:
        """Keep a value; what was there of this key goes."""
        self.drop(key)
        self._values[key] = value
        self._held += _size(value)
        while self._held > self._limit and self._spill():
            pass

    def get(self, key: Key) -> Any:
        """The value of a key."""
        if key in self._spilled:
            tensors = load_file(self._spilled[key])
            found = iter(range(len(tensors)))
            return tree_map_only(Tensor, lambda _: tensors[str(next(found))], self._values[key])
        return self._values[key]

    def drop(self, key: Key) -> None:
        """Forget a value, if there is one."""
        if key in self._spilled:
            path = self._spilled.pop(key)
            with contextlib.suppress(PermissionError):  # where it is still mapped it goes later
                path.unlink()
            del self._values[key]
        elif key in self._values:
            self._held -= _size(self._values.pop(key))

    def _spill(self) -> bool:
        """Put the value that has been there the longest on disk; false if there is none to put."""
        for key, value in self._values.items():
            size = _size(value)
            if key in self._spilled or size == 0:
                continue
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(
                    prefix="upscale-", ignore_cleanup_errors=True
                )
            path = Path(self._folder.name) / f"{self._files}.safetensors"
            self._files += 1
            leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            save_file({str(at): leaf.contiguous() for at, leaf in enumerate(leaves)}, path)
            self._spilled[key] = path
            self._values[key] = tree_map_only(Tensor, lambda leaf: leaf.new_empty(0), value)
            self._held -= size
            return True
        return False


def _size(value: Any) -> int:
    """The bytes of a value's tensors; those that the model owns are not counted."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    if any(isinstance(leaf, nn.Parameter) for leaf in leaves):
        return 0
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)
