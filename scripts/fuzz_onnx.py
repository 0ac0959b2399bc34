"""Mutate ONNX files thousands of times: each is read, or gives our own error, and soon.

    python -m scripts.fuzz_onnx --count 5000 model.onnx other.onnx

A file is cut short, or some of its bytes are changed, or a part of it is copied over another.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import upscale

SLOW_S = 10.0


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A file with something wrong in it."""
    own = bytearray(content)
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(own[: rng.randrange(len(own))])
    if kind == 1:
        for _ in range(rng.randint(1, 8)):
            own[rng.randrange(len(own))] = rng.randrange(256)
    elif kind == 2:  # what is not weights is short, and lies at both ends
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(min(2000, len(own)))
            own[place if rng.random() < 0.5 else -1 - place] ^= 1 << rng.randrange(8)
    else:
        length = rng.randint(1, max(1, len(own) // 20))
        one, other = (rng.randrange(len(own) - length + 1) for _ in range(2))
        own[one : one + length] = own[other : other + length]
    return bytes(own)


def outcome(content: bytes, path: Path) -> str:
    """What became of a file: `read`, `refused`, or a fault."""
    path.write_bytes(content)
    start = time.perf_counter()
    try:
        upscale.from_onnx(path)
        found = "read"
    except upscale.UpscaleError:
        found = "refused"
    except Exception as error:
        return f"fault: {type(error).__name__}: {error!s:.200}"
    taken = time.perf_counter() - start
    return found if taken < SLOW_S else f"fault: it took {taken:.0f} s"


def main() -> int:
    """Say what became of all files; the status is 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, found = random.Random(arguments.seed), Counter[str]()
    contents = [path.read_bytes() for path in arguments.files]
    with tempfile.TemporaryDirectory() as place:
        for _ in range(arguments.count):
            found[outcome(mutated(rng.choice(contents), rng), Path(place, "made.onnx"))] += 1
    for said, count in found.most_common():
        print(f"{count:6} {said}")
    return int(any(said.startswith("fault") for said in found))


if __name__ == "__main__":
    sys.exit(main())
