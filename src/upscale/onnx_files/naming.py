"""Names: layers and parameters are called what the file calls their constants.

initialiser                 layer                  parameter
layer1.0.conv.weight        layer1.0.conv          layer1.0.conv.weight
conv2d_12.w_0               conv2d_12.w_0          conv2d_12.w_0.weight
onnx::Conv_193              onnx::Conv_193         onnx::Conv_193.weight
pos_embed                                          pos_embed
"""

from __future__ import annotations

from torch import nn

# What every module has already, of its own or as a graph.
TAKEN = frozenset(dir(nn.Module())) | {"graph", "code", "meta", "print_readable", "weight", "bias"}


class Names:
    """Paths of modules and tensors, each given once."""

    def __init__(self) -> None:
        self._leaves: set[str] = set()
        self._inner: set[str] = set()

    def layer(self, constant: str) -> str:
        """The path of a layer whose weight is a constant of the file.

        >>> Names().layer("features.0.weight"), Names().layer("conv_1.w_0")
        ('features.0', 'conv_1.w_0')
        """
        return self._free(constant.removesuffix(".weight") or "layer")

    def tensor(self, constant: str) -> str:
        """The path of a parameter or buffer that stands alone."""
        return self._free(constant or "constant")

    def _free(self, wanted: str) -> str:
        parts = wanted.split(".")
        path = wanted if all(parts) else "_".join(part for part in parts if part) or "layer"
        if any(part in TAKEN for part in path.split(".")):
            path = ".".join(f"{part}_" if part in TAKEN else part for part in path.split("."))
        if self._clashes(path):
            path = path.replace(".", "_")
        while self._clashes(path):
            path += "_"
        self._leaves.add(path)
        parts = path.split(".")
        self._inner |= {".".join(parts[:end]) for end in range(1, len(parts))}
        return path

    def _clashes(self, path: str) -> bool:
        """Whether a path is taken, or leads through a layer, or is on the way to one."""
        parts = path.split(".")
        through = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        return path in self._inner or not self._leaves.isdisjoint(through)
