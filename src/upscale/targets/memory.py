"""Memory: how much a call holds at once of what it makes itself."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that the tensors which a call makes hold at once.

    What TorchScript runs is not seen; `profiled_peak_bytes` sees it.

    >>> peak_bytes(lambda: torch.ones(1000) + 1)
    8000
    """
    memory = _Memory()
    with memory:
        call()
    return memory.most


def profiled_peak_bytes(call: Callable[[], object]) -> int:
    """The same by PyTorch's profiler: all that is allocated, workspaces of operations included.

    >>> profiled_peak_bytes(lambda: torch.ones(1000)) >= 4000
    True
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it tells on stderr of every start and stop
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    most: int = max(accumulate((size for _, size in changes), initial=0))
    return most


class _Memory(TorchDispatchMode):
    """Watches tensors come and go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.held: int = 0
        self.most: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in given | self._known:
                self._meet(tensor.untyped_storage())
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        size, address = storage.nbytes(), storage.data_ptr()
        self._known.add(address)
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._leave, size, address)

    def _leave(self, size: int, address: int) -> None:
        self.held -= size
        self._known.discard(address)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
