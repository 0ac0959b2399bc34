"""ONNX in and out: a module made from a file, and the file edited as the module was pruned."""

from upscale.onnx_files.importing import from_onnx
from upscale.onnx_files.pruning import by_layer, example_of, prune_onnx, write_onnx

__all__ = ["by_layer", "example_of", "from_onnx", "prune_onnx", "write_onnx"]
