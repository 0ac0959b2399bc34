"""Fine-tuning of masked models with Hugging Face Accelerate: one process or many, resumable.

Nothing else in the package needs it: `pip install upscale[tune]`. Started by `accelerate launch` or
by `torchrun`, every process calls `tune` alike. A batch is divided among them, so that their number
changes how fast it goes and, to rounding, not what is learned. BatchNorms are the exception: they
look at their own process's part alone, so keep the parts large, or use `SyncBatchNorm` on GPUs.
"""

from upscale.lab.tuning.recipes import Epoch, Recipe, TuningError
from upscale.lab.tuning.teaching import Teacher
from upscale.lab.tuning.training import batches, tune

__all__ = ["Epoch", "Recipe", "Teacher", "TuningError", "batches", "tune"]
