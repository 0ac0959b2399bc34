"""Prune in four threads while two others serve models; print failures and growth of memory.

    python -m scripts.threads [--prunes 200] [--inferences 2000]

Of five prunes four are captured by torch.fx and one by torch.export. One of the served models is
among those that are pruned. Every answer must be the very bits that were given before. Every prune
is verified, and its export must answer as the first one did. Memory is read between rounds, with
all threads at rest; what the second round left is the base. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor, nn

import upscale

ROUNDS = 5
PRUNERS = 4
GROWTH_MB = 24.0  # what may be added over the last three rounds: allocators do not repack


class Branches(nn.Module):
    """Branches, a sum and a concatenation, which torch.fx traces."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.left, self.right = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        left, right = self.left(x).relu(), self.right(x)
        made: Tensor = self.head(torch.cat([left + right, right], dim=1).mean(dim=(2, 3)))
        return made


class Deciding(Branches):
    """The same behind a decision on a size, which only torch.export captures."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            x = nn.functional.pad(x, (0, 1))
        return super().forward(x)


class Server:
    """A thread that runs a model over and over, and counts answers that are not as before."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x = model, x
        with torch.no_grad():
            self.expected = model(x)
        self.answers = 0
        self.failures: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with torch.no_grad():
            while not self._over.is_set():
                self.answers += 1
                try:
                    if not torch.equal(self.model(self.x), self.expected):
                        self.failures.append("another answer")
                except Exception as error:  # whatever it is, it is counted
                    self.failures.append(f"{type(error).__name__}: {error}")
                time.sleep(0)  # there are more threads than cores

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def pruner(model: nn.Module, x: Tensor) -> Callable[[int], str | None]:
    """Prunes a model; returns what went wrong, if anything did."""
    with torch.no_grad():
        expected = upscale.prune(model, x, amount=0.3)(x)

    def prune(_: int) -> str | None:
        try:
            with torch.no_grad():
                same = torch.equal(upscale.prune(model, x, amount=0.3)(x), expected)
        except Exception as error:  # whatever it is, it is counted
            return f"{type(error).__name__}: {error}"
        return None if same else "another export"

    return prune


def megabytes() -> float:
    """What the process holds, once garbage is gone."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def settings() -> tuple[object, ...]:
    """All that is the process's, and that pruning must leave alone."""
    return (
        list(warnings.filters),
        gc.isenabled(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled(),
        torch.compiler.is_compiling(),
        nn.Module.__call__,
        nn.Module.__getattr__,
    )


def rounds(prunes: int, work: list[Callable[[int], str | None]]) -> Iterator[list[str]]:
    """What went wrong in each round of prunes, four at a time."""
    for at in range(ROUNDS):
        numbers = range(prunes * at // ROUNDS, prunes * (at + 1) // ROUNDS)
        with ThreadPoolExecutor(PRUNERS) as pool:
            jobs = [pool.submit(work[n % len(work)], n) for n in numbers]
            yield [wrong for job in jobs if (wrong := job.result()) is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prunes", type=int, default=200)
    parser.add_argument("--inferences", type=int, default=2000, help="at least so many")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2, 3, 16, 16)
    traced = [Branches().eval() for _ in range(4)]
    work = [pruner(model, x) for model in (*traced, Deciding().eval())]
    other = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    before, began = settings(), time.perf_counter()
    held, wrong, answers, refused = [], [], 0, []
    for number, found in enumerate(rounds_served(asked.prunes, work, traced[0], other, x), 1):
        failed, servers = found
        wrong += failed
        answers += sum(server.answers for server in servers)
        refused += [failure for server in servers for failure in server.failures]
        held.append(megabytes())
        print(f"round {number}: {held[-1]:.1f} MB, {answers} answers so far", flush=True)
    grown = held[-1] - held[1]
    unlike = [n for n, (a, b) in enumerate(zip(before, settings(), strict=True)) if a != b]
    print(
        f"{asked.prunes} prunes, {len(wrong)} failed {wrong[:3]}; "
        f"{answers} inferences beside them, {len(refused)} failed {refused[:3]}; "
        f"settings changed: {unlike or 'none'}; memory grew by {grown:.1f} MB since round 2 "
        f"(at most {GROWTH_MB:.0f}); {time.perf_counter() - began:.0f} s"
    )
    good = not (wrong or refused or unlike) and grown <= GROWTH_MB
    return 0 if good and answers >= asked.inferences else 1


def rounds_served(
    prunes: int,
    work: list[Callable[[int], str | None]],
    pruned: nn.Module,
    other: nn.Module,
    x: Tensor,
) -> Iterator[tuple[list[str], list[Server]]]:
    """Rounds of prunes, each with servers of its own beside it."""
    going = rounds(prunes, work)
    for _ in range(ROUNDS):
        with Server(pruned, x) as one, Server(other, torch.ones(2, 5, 16)) as two:
            failed = next(going)
        yield failed, [one, two]


if __name__ == "__main__":
    sys.exit(main())
