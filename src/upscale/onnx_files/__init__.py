"""ONNX in and out: a module made from a file, and the file edited as the module was pruned."""

from upscale.onnx_files.importing import from_onnx

__all__ = ["from_onnx"]
