"""Draw thousands of random networks and check every export against its masked model.

The same property as `tests/verbs/test_random_networks.py`, with a seed and without an end in
sight, for masks on what layers read, on what they make, or on both.
With `--recover` each network is first refitted on random inputs, with all that its plan reads, and
the export held against the refitted model.
With `--costly` the plans are those that prices speak against, which small networks never meet.
Prints how many were wrong, crashed or were refused, and for each kind of failure the smallest
network that shows it, as code. Run it with `make random`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # so that `trials` is found, wherever the script is started

from trials.drafts import whatever_it_costs  # noqa: E402
from trials.networks import (  # noqa: E402
    EXPECTED_REFUSAL,
    SIDES,
    Network,
    assert_exports_exactly,
    assert_recovers_exactly,
    networks,
)
from upscale import UpscaleError  # noqa: E402

# How many failures of one kind are shrunk, and how long each may take; the rest are counted.
SHRUNK = 3
SHRINK_SECONDS = 40


class Failure(Exception):
    """Tells hypothesis to shrink what it has just tried."""


class TimeUp(KeyboardInterrupt):
    """Tells hypothesis to stop shrinking: of all exceptions it lets only this kind through."""


@dataclass
class Tally:
    """What happened so far. `smallest` holds shrunk networks by kind of failure."""

    total: int
    check: Callable[[Network], None] = assert_exports_exactly
    began: float = field(default_factory=time.perf_counter)
    tried: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    smallest: dict[str, list[str]] = field(default_factory=dict)
    shrinking: str | None = None
    until: float = 0.0
    latest: tuple[str, str] = ("", "")

    def fails(self, network: Network) -> bool:
        """Try a network; whether it fails in a way to be shrunk, or as the one being shrunk."""
        code = repr(network)
        if self.shrinking is not None:
            return self._fails_too(network, code)
        kind, detail = outcome(network, self.check)
        self.tried += 1
        if self.tried % 100 == 0:
            print(self, flush=True)
        if not kind:
            return False
        self.kinds[kind] += 1
        if len(self.smallest.get(kind, ())) >= SHRUNK or EXPECTED_REFUSAL in detail:
            return False
        self.shrinking, self.latest = kind, (code, detail)
        self.until = time.perf_counter() + SHRINK_SECONDS
        return True

    def _fails_too(self, network: Network, code: str) -> bool:
        if time.perf_counter() > self.until:
            raise TimeUp
        kind, detail = outcome(network, self.check)
        if kind == self.shrinking:
            self.latest = (code, detail)
        return kind == self.shrinking

    def shrunk(self) -> str:
        """Take note of the smallest network that fails as the latest did; its code."""
        assert self.shrinking is not None
        text = "\n\n".join(self.latest)
        self.smallest.setdefault(self.shrinking, []).append(text)
        text = f"# {self.shrinking}\n{text}\n"
        self.shrinking = None
        return text

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{self.tried:,} of {self.total:,} networks, {seconds:.0f} s: {found or 'all exact'}"


def outcome(network: Network, check: Callable[[Network], None]) -> tuple[str, str]:
    """The kind of failure, and what there is to say about it; two empty texts if exact."""
    try:
        check(network)
    except AssertionError as error:
        if not str(error).startswith(("relative", "the ")):
            return crash(error)
        return "wrong", str(error)
    except UpscaleError as error:
        return f"refused: {type(error).__name__}", str(error)
    except Exception as error:  # whatever else comes out of the library is a crash
        return crash(error)
    return "", ""


def crash(error: Exception) -> tuple[str, str]:
    """A crash is told from others by its type, its place in the library and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "upscale" in Path(frame.filename).parts]
    last = ours[-1] if ours else frames[-1]
    place = f"{Path(last.filename).name}:{last.name}"
    said = re.sub(r"\W*\d[\W\d]*", " ", str(error).partition("\n")[0])[:60]
    kind = f"crashed: {type(error).__name__} in {place}, {said}"
    return kind, "".join(traceback.format_exception(error))


def run(
    total: int, first_seed: int, sides: tuple[str, ...], check: Callable[[Network], None]
) -> Tally:
    """Try networks until there are enough; each failure ends a round and starts another."""
    tally = Tally(total, check)
    rounds = 0
    while tally.tried < total:
        try:
            one_round(tally, first_seed + rounds, sides)()
        except (Failure, TimeUp):
            print(tally.shrunk(), flush=True)
        rounds += 1
    return tally


def one_round(tally: Tally, number: int, sides: tuple[str, ...]) -> Callable[[], None]:
    """A hypothesis test of all networks that are left to try."""

    @seed(number)
    @settings(
        max_examples=tally.total - tally.tried,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(networks(sides))
    def exports_are_exact(network: Network) -> None:
        if tally.fails(network):  # at one place: hypothesis tells failures apart by line
            raise Failure

    test: Callable[[], None] = exports_are_exact
    return test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=SIDES, help="where masks are (default: any)"
    )
    parser.add_argument("--costly", action="store_true", help="plans take every other draft")
    parser.add_argument("--recover", action="store_true", help="refit each network first")
    options = parser.parse_args()
    check = assert_recovers_exactly if options.recover else assert_exports_exactly
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with whatever_it_costs() if options.costly else nullcontext():
        tally = run(options.count, options.seed, tuple(options.sides), check)
    print(tally)
    for kind, count in sorted(tally.kinds.items()):
        print(f"  {kind}: {count}")
    bad = [kind for kind in tally.kinds if not kind.startswith("refused")]
    print(f"{sum(tally.kinds[kind] for kind in bad)} wrong or crashed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
