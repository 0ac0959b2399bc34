"""Settings every test runs under: one thread, no denormals, examples that repeat."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)
torch.set_flush_denormal(True)

# Timings are no part of what the tests prove, and the machine may be busy: no deadlines.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
