"""What differs between versions of torch, and nothing else asks which one there is.

The rest of the package calls what stands here. A name that only some versions have is looked for
once, where this file is loaded, so the name itself is asked for and no number compared: a build
from between two releases, or a patched one, is then known by what it can do.
"""

from __future__ import annotations

from torch.utils._pytree import TreeSpec


def tree_children(spec: TreeSpec) -> list[TreeSpec]:
    """What a packed value is made of, one level below; torch 2.9 made it a method."""
    if hasattr(spec, "children"):
        return list(spec.children())
    return list(spec.children_specs)  # type: ignore[attr-defined,unused-ignore]
