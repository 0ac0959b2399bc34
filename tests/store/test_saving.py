"""What `save` refuses to lose, and what it leaves as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import fx

import upscale
from tests.store.files import assert_same, pruned_net
from upscale.tools.atomic import replacing

HOOKS: dict[str, Callable[[fx.GraphModule], Any]] = {
    "before": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "after": lambda m: m.register_forward_hook(lambda *_: None),
    "backward": lambda m: m.register_full_backward_hook(lambda *_: None),
    "state": lambda m: m.register_load_state_dict_post_hook(lambda *_: None),
    "gradient": lambda m: next(m.parameters()).register_hook(lambda grad: grad),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_on_the_export_itself_are_refused(kind: str, tmp_path: Path) -> None:
    pruned, inputs = pruned_net("Plain")
    hook, path = HOOKS[kind](pruned), tmp_path / "model.safetensors"
    with pytest.raises(upscale.StoreError, match="has hooks"):
        upscale.save(pruned, path)
    assert list(tmp_path.iterdir()) == []
    hook.remove()
    upscale.save(pruned, path)
    assert_same(upscale.load(path), pruned, inputs)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_file_that_is_replaced_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("old")
    path.chmod(mode)
    pruned, inputs = pruned_net("Plain")
    upscale.save(pruned, path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert_same(upscale.load(path), pruned, inputs)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_permissions_of_any_new_file(mask: int, tmp_path: Path) -> None:
    path, before = tmp_path / "model.safetensors", os.umask(mask)
    try:
        upscale.save(pruned_net("Plain")[0], path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name in ("pipe", "a", "."):
        with (
            pytest.raises(upscale.StoreError, match="cannot be written"),
            replacing(tmp_path / name),
        ):
            pass
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
