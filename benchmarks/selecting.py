"""Seconds to select channels by weight alone: `python benchmarks/selecting.py [MODEL ...]`.

On one core, `upscale.select(model, x, amount=0.3)` from model to selection, capture included, for
every criterion that looks at weights. Processor time, the median and the least of several calls
after a first one. The program fails if a median of resnet50 is above half a second.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

import upscale
from upscale.zoo import torchvision_model

CRITERIA = ("l1", "l2", "lamp", "fpgm", "bn", "random")
ASKED, ASKED_OF = 0.5, "resnet50"
CALLS = 7


def seconds(name: str, importance: str) -> list[float]:
    """What each call took."""
    model, example = torchvision_model(name), torch.zeros(1, 3, 224, 224)
    taken = []
    for _ in range(CALLS + 1):
        start = time.process_time()
        upscale.select(model, example, amount=0.3, importance=importance)
        taken.append(time.process_time() - start)
    return taken[1:]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=[ASKED_OF], metavar="MODEL")
    torch.set_num_threads(1)
    held = True
    for name in parser.parse_args().models:
        for importance in CRITERIA:
            taken = seconds(name, importance)
            held &= name != ASKED_OF or median(taken) <= ASKED
            print(f"{name:20} {importance:8} {median(taken):.2f} s, least {min(taken):.2f}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
