"""Texts of generated code let go: torch.fx keeps that of every graph module for good.

Whoever prunes again and again would keep the text of every model that was ever exported, copied
or captured. Here a text goes when the code that was compiled from it does: nobody can ask for it
then. And texts are put down one at a time: two threads must not get one number for two of them.
"""

from __future__ import annotations

import functools
import linecache
import threading
import weakref
from types import FunctionType
from typing import Any

from torch.fx import graph_module

NUMBERED = "<eval_with_key>"  # other names were given by somebody, maybe to several texts
_lock = threading.RLock()


def let_texts_go() -> None:
    """From now on torch.fx keeps the text of generated code as long as the code."""
    compiled = graph_module._exec_with_source

    @functools.wraps(compiled)
    def compiled_and_watched(src: str, globals: dict[str, Any], *more: Any, **named: Any) -> None:
        with _lock:
            compiled(src, globals, *more, **named)
        codes = {made.__code__ for made in globals.values() if isinstance(made, FunctionType)}
        for code in codes:
            if code.co_filename.startswith(NUMBERED):
                weakref.finalize(code, _forget, code.co_filename).atexit = False

    graph_module._exec_with_source = compiled_and_watched


def _forget(name: str) -> None:
    graph_module._loader.eval_cache.pop(name, None)
    linecache.cache.pop(name, None)
