"""Mutate saved files and plans thousands of times: each is the same, or gives our own error.

    python -m scripts.fuzz_store --count 10000 --plans 2000

Half of the mutations damage a file: bits, lengths, headers, the graph's table. The digest must
find them all, or the model must compute what it did. The other half edit the document and seal it
anew, as a forger would; there no digest helps. Such a file may load to another model, which is
run; what it raises then is its own affair, as it is of any model, but the process must live. Each
file is loaded without and with the model it was saved from; with it, nothing but modes and
tensors can be another.

Of the plan documents half are sealed anew. What a plan that is read exports must be what it says.

Nothing may raise anything else, run anything, take more than 5 s, or more memory than ten times
its size and 200 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

import upscale
from scripts.fuzzing import plans
from scripts.fuzzing.mutations import DAMAGE, FORGERY
from scripts.fuzzing.subjects import MODELS, Subject, run, same, subjects
from scripts.fuzzing.watching import MEGABYTE, Watch, memory

# What a forged model may take when it runs: that is not for a reader of files to bound.
MOST_ADDRESSES = 4 * 2**30
# torch.fx tells of errors of its modules on stderr, before they are caught: that is kept quiet.
Say = Callable[[str], None]


def outcome(subject: Subject, content: bytes, path: Path, watch: Watch, *, forged: bool) -> str:
    """What became of a mutated file: `refused`, `same`, `another` (of forged ones), or a fault."""
    path.write_bytes(content)
    found = []
    for model in (None, subject.model):
        try:
            loaded, wrong = watch.during(partial(_load, path, model), len(content))
        except Exception as error:
            given = "with a model: " if model is not None else ""
            return f"fault: {given}{type(error).__name__}: {error!s:.200}"
        if wrong is not None:
            return f"fault: {wrong}"
        found.append(loaded)
    alone, applied = found
    if alone is None:
        return "refused" if applied is None else "fault: it loads with a model only"
    result = _ran(subject, alone)
    if result != "same" and not forged:
        return "fault: it loads to another output"
    if applied is None:
        return f"{result}; refused with the model"
    again = _ran(subject, applied)
    return result if again == result else f"fault: with the model it is {again}, without {result}"


def _load(path: Path, model: nn.Module | None) -> nn.Module | None:
    try:
        return upscale.load(path, model)
    except upscale.StoreError:
        return None


def _ran(subject: Subject, loaded: nn.Module) -> str:
    """What a model that was loaded does: the same as ever, something else, or nothing."""
    torch.manual_seed(0)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            outputs = run(loaded, subject.inputs)
        return "same" if same(outputs, subject.outputs) else "another"
    except Exception:  # a forged model is a model, and may raise what models raise
        return "another, which fails"


def fuzz(
    count: int,
    seed: int,
    names: tuple[str, ...] = MODELS,
    *,
    documents: int = 0,
    say: Say = print,
    watch: Watch | None = None,
) -> Counter[str]:
    """Mutate files and plan documents so many times; how often each mutation came to what."""
    rng, tally = random.Random(seed), Counter[str]()
    watch = watch or Watch()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        found = subjects(names, place)
        for number in range(count + documents):
            subject, forged = rng.choice(found), number % 2 == 1
            if number < count:
                how = rng.choice(FORGERY if forged else DAMAGE)
                content = how(subject, rng)
                result = outcome(subject, content, place / "mutated", watch, forged=forged)
                kind = how.__name__
            else:
                kind = "forged plan" if forged else "edited plan"
                text = (plans.forged if forged else plans.edited)(subject, rng)
                with contextlib.redirect_stderr(io.StringIO()):
                    result = plans.outcome(subject, text, watch)
                if result == "another that it says" and not forged:
                    result = "fault: an edited plan is read"
            tally[f"{kind}: {result}"] += 1
            if result.startswith("fault"):
                say(f"{number} {subject.name} {kind} {result}")
    return tally


def main() -> None:
    """Fuzz with a bound on memory; exit with 1 on any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="files")
    parser.add_argument("--plans", type=int, default=2_000, help="plan documents")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    most = memory("VmSize") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    began, watch = time.perf_counter(), Watch()
    tally = fuzz(arguments.count, arguments.seed, documents=arguments.plans, watch=watch)
    for kind, times in sorted(tally.items()):
        print(f"{times:7,}  {kind}")
    faults = sum(times for kind, times in tally.items() if ": fault" in kind)
    print(
        f"{arguments.count:,} files and {arguments.plans:,} plans in "
        f"{time.perf_counter() - began:.0f} s, {faults} faults; the longest took "
        f"{watch.most_seconds:.1f} s, the largest {watch.most_taken / MEGABYTE:,.0f} MiB"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
