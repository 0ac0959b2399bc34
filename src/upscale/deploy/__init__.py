"""Deployment: an exported model in the formats that runtimes read, one file each."""

from upscale.deploy.exported import to_exported
from upscale.deploy.onnx import to_onnx
from upscale.deploy.torchscript import to_torchscript

__all__ = ["to_exported", "to_onnx", "to_torchscript"]
