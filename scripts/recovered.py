"""Refit torchvision classifiers and hold each export against the refitted model, in float64.

    python scripts/recovered.py                    # twenty families
    python scripts/recovered.py resnet18 vgg11     # some

Every layer drops a quarter of its columns at random, and is refitted on a few random images with
all that the plan reads. The export may differ by rounding alone, 1e-10 of the largest output; the
refitted model must be what `upscale.mask` makes of it.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that `trials` is found, wherever the script is started

import upscale  # noqa: E402
from trials.comparing import error_between, relative_error, wide_outputs  # noqa: E402
from trials.lively import images, make_lively  # noqa: E402
from trials.masks import random_selection  # noqa: E402
from upscale.verify import TOLERANCE  # noqa: E402
from upscale.zoo import torchvision_model  # noqa: E402

MODELS = (
    *("squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "mobilenet_v3_small", "mobilenet_v2"),
    *("regnet_y_400mf", "regnet_x_400mf", "resnet18", "efficientnet_b0", "mobilenet_v3_large"),
    *("googlenet", "densenet121", "resnet50", "alexnet", "efficientnet_v2_s", "resnext50_32x4d"),
    *("swin_t", "convnext_tiny", "vit_b_16", "vgg11_bn"),
)
# Side of the images; models that take no other have their own.
SIDE, SIDES = 64, {"vit_b_16": 224, "googlenet": 96}
SHARE, BATCH, BATCHES = 0.25, 6, 2


def tried(name: str, seed: int) -> tuple[float, float, int, int]:
    """The errors of the export and of the masks; how many layers were refitted, how many not."""
    side = SIDES.get(name, SIDE)
    lively = make_lively(
        lambda: _made(name, seed),
        lambda model: (random_selection(model, SHARE, seed, even=True, empty=False),),
        (BATCH, 3, side, side),
    )
    model, selection = lively.model.double(), lively.selections
    draws = [images((BATCH, 3, side, side)).double() for _ in range(BATCHES + 1)]
    plan = upscale.plan(model, draws[0][:1], selection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", upscale.RecoveryWarning)  # few rows are enough here
        recovered = upscale.recover(model, selection, draws[:BATCHES], plan=plan)
    told = upscale.Recovery.of(recovered)
    assert told is not None
    assert told.plan is not None
    exported = upscale.export(recovered, told.plan)
    expected = wide_outputs(recovered, draws[-1])
    error = error_between(wide_outputs(exported, draws[-1]), expected)
    held = relative_error(recovered, upscale.mask(recovered, told.selections), draws[-1])
    return error, held, len(told.refits), len(told.left)


def _made(name: str, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torchvision_model(name).eval()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    bad = 0
    for name in options.models:
        began = time.perf_counter()
        error, held, refitted, left = tried(name, options.seed)
        exact = error <= TOLERANCE and held == 0
        bad += not exact
        seconds = time.perf_counter() - began
        print(
            f"{name:20} {'exact' if exact else 'WRONG'}  error {error:.1e}, masks {held:.1e}, "
            f"{refitted} refitted, {left} left, {seconds:.0f} s",
            flush=True,
        )
    print(f"{bad} of {len(options.models)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
