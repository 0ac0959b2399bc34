"""Files: a pruned model as one safetensors file that holds no code, and back."""

from upscale.store.loading import load
from upscale.store.saving import save

__all__ = ["load", "save"]
