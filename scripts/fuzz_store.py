"""Mutate saved files thousands of times: each loads to the same output, or gives our own error.

    python -m scripts.fuzz_store --count 10000

Half of the mutations damage a file: bits, lengths, headers, the graph's table. The digest must
find them all, or the model must compute what it did. The other half edit the document and seal it
anew, as a forger would; there no digest helps. Such a file may load to another model, but it must
not raise anything else, run anything, or take more time or memory than its size explains.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the models are the tests' own

import upscale  # noqa: E402
from upscale.capture import Example  # noqa: E402
from upscale.store.container import LENGTH, METADATA, seal  # noqa: E402

MODELS = (
    *("Residual", "Dense", "Shuffle", "TransformerBlock", "WeightNormed", "TiedAutoencoder"),
    *("WrappedSplit", "WrappedWindows", "OneChannel", "AsksOfAConcatenation"),
)
MOST_SECONDS = 5.0
MOST_MEMORY = 2 * 2**30
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**62, 2**63, 10**30, 1.5, 1e308, "", "x", [], {}, [[]], {"": 0}),
    *("__import__('os').system('true')", "x); __import__('os').system('true'); (x", "\n", "\x00"),
    *("x'+__import__('os').system('true')+'", 'a"]+[__import__("os").system("true")]+["', "lambda"),
    *("__class__", "__class__.__init__", "to_folder", "forward", "graph", "self", "training", "é"),
    *("os.system", "torch.load", "builtins.eval", "builtins.exec", "torch.ops.load_library"),
    *("backward", "register_hook", "apply_", "share_memory_", "numpy", "__reduce__", "data_ptr"),
    *({"node": "nobody"}, {"device": "cuda:0;"}, {"constant": "torch.load"}, {"tuple": {}}),
    *({"class": "nn.Module", "arguments": {}}, {"class": "nn.Linear", "arguments": {}}),
    *({"dict": [["a", 1]]}, {"slice": [1]}, {"named": ["torchvision.stochastic_depth", 1]}),
    [[[[[[[[[[]]]]]]]]]],
)


DEEP = "stands for lists in lists"
DEPTH = 100_000


@dataclass(frozen=True, slots=True)
class Original:
    """A saved model: its file, taken apart, and what it computes."""

    name: str
    content: bytes
    document: Any
    entries: Any
    data: bytes
    inputs: Any
    outputs: list[Any]


def originals(names: tuple[str, ...], place: Path) -> list[Original]:
    """Small models of every kind, pruned and saved."""
    return [_original(name, place / f"{name}.safetensors") for name in names]


def _original(name: str, path: Path) -> Original:
    nets, masks = (importlib.import_module(f"tests.{module}") for module in ("nets", "masks"))
    torch.manual_seed(0)
    make, example = nets.NETS[name]
    model, inputs = masks.calm(make()), example(2, 16)
    selection = masks.random_selection(model, 0.4, seed=1)
    pruned = upscale.export(model, upscale.plan(model, inputs, selection))
    upscale.save(pruned, path)
    content = path.read_bytes()
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    entries = json.loads(content[LENGTH.size : end])
    document = json.loads(entries.pop(METADATA)["upscale"])
    return Original(name, content, document, entries, content[end:], inputs, run(pruned, inputs))


def run(model: torch.nn.Module, inputs: Any) -> list[Any]:
    """Every output of a model."""
    given = Example.of(inputs).copied()
    with torch.no_grad():
        return list(tree_leaves(model(*given.args, **given.kwargs)))


# Damage: the digest is not made anew.


def flip_bits(original: Original, rng: random.Random) -> bytes:
    """A few bits turned anywhere, or in the header alone."""
    content = bytearray(original.content)
    end = len(content) if rng.random() < 0.5 else len(content) - len(original.data)
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(content)


def cut_off(original: Original, rng: random.Random) -> bytes:
    """An end that is missing, or one too many."""
    content = original.content
    if rng.random() < 0.2:
        return content + rng.randbytes(rng.randint(1, 64))
    return content[: rng.randrange(len(content))]


def edit_length(original: Original, rng: random.Random) -> bytes:
    """Another length of the header."""
    length = rng.choice([0, 1, 2**31, 2**62, 2**64 - 1, rng.randrange(2 * len(original.content))])
    return LENGTH.pack(length) + original.content[LENGTH.size :]


def edit_header(original: Original, rng: random.Random) -> bytes:
    """Another JSON header: other offsets, shapes, dtypes, names; the document as it was."""
    content = original.content
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    header = json.loads(content[LENGTH.size : end])
    mutate(header, rng)
    text = text_of(header).encode()
    return LENGTH.pack(len(text)) + text + original.data


def edit_unsealed(original: Original, rng: random.Random) -> bytes:
    """Another document under the old digest."""
    content = original.content
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    header = json.loads(content[LENGTH.size : end])
    document = copy.deepcopy(original.document)
    mutate(document, rng)
    header[METADATA]["upscale"] = text_of(document)
    text = text_of(header).encode()
    return LENGTH.pack(len(text)) + text + original.data


# Forgery: the digest fits.


def edit_sealed(original: Original, rng: random.Random) -> bytes:
    """Another document, sealed anew."""
    document = copy.deepcopy(original.document)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        mutate(document[rng.choice(list(document))] if rng.random() < 0.7 else document, rng)
    return b"".join(seal(text_of(document), original.entries, original.data))


def edit_node(original: Original, rng: random.Random) -> bytes:
    """One node of the table with another field, sealed anew."""
    document = copy.deepcopy(original.document)
    node = rng.choice(document["graph"]["nodes"])
    other = rng.choice(document["graph"]["nodes"])
    field = rng.choice(list(node))
    node[field] = rng.choice(HOSTILE) if rng.random() < 0.7 else other.get(field)
    return b"".join(seal(text_of(document), original.entries, original.data))


def edit_tensors(original: Original, rng: random.Random) -> bytes:
    """Other descriptions of the tensors, sealed anew."""
    entries = copy.deepcopy(original.entries)
    mutate(entries, rng)
    return b"".join(seal(text_of(original.document), entries, original.data))


DAMAGE = (flip_bits, cut_off, edit_length, edit_header, edit_unsealed)
FORGERY = (edit_sealed, edit_node, edit_tensors)


def mutate(tree: Any, rng: random.Random) -> None:
    """Change one thing somewhere in a tree of JSON."""
    spots = [(holder, key) for holder in _holders(tree) for key in _keys(holder)]
    if not spots:
        return
    holder, key = rng.choice(spots)
    choice = rng.random()
    if choice < 0.15:
        del holder[key]
    elif choice < 0.3:
        other, at = rng.choice(spots)
        holder[key] = copy.deepcopy(other[at])
    elif choice < 0.4 and isinstance(holder, dict):
        name = rng.choice(HOSTILE)
        holder[name if isinstance(name, str) else "more"] = holder.pop(key)
    elif choice < 0.45:
        holder[key] = DEEP
    else:
        holder[key] = copy.deepcopy(rng.choice(HOSTILE))


def text_of(tree: Any) -> str:
    """A tree as JSON, with lists in lists where they are stood for."""
    return json.dumps(tree).replace(json.dumps(DEEP), "[" * DEPTH + "]" * DEPTH)


def _holders(tree: Any) -> list[Any]:
    found, waiting = [], [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (dict, list)):
            found.append(item)
            waiting.extend(item.values() if isinstance(item, dict) else item)
    return found


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


class Watch:
    """Listens to what Python does while a file loads: files written, processes, connections."""

    def __init__(self) -> None:
        self.on = False
        self.heard: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        outside = event.startswith(
            ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "socket.")
        )
        if (
            writes
            or outside
            or event in ("subprocess.Popen", "os.remove", "os.rename", "pickle.find_class")
        ):
            self.heard.append(f"{event} {args!r:.200}")


def outcome(original: Original, content: bytes, path: Path, watch: Watch, *, forged: bool) -> str:
    """What became of a mutated file: `refused`, `same`, `another` (of forged ones), or a fault."""
    path.write_bytes(content)
    watch.heard, watch.on = [], True
    began = time.perf_counter()
    try:
        loaded = upscale.load(path)
    except upscale.StoreError:
        result = "refused"
    except Exception as error:
        result = f"fault: {type(error).__name__}: {error!s:.200}"
    else:
        result = "another" if forged else _compared(original, loaded)
    finally:
        watch.on = False
    if watch.heard:
        return f"fault: {watch.heard[0]}"
    seconds = time.perf_counter() - began
    return f"fault: {seconds:.1f} s" if seconds > MOST_SECONDS else result


def _compared(original: Original, loaded: torch.nn.Module) -> str:
    found = run(loaded, original.inputs)
    same = len(found) == len(original.outputs) and all(
        torch.equal(one, other) for one, other in zip(found, original.outputs, strict=True)
    )
    return "same" if same else "fault: it loads to another output"


def fuzz(
    count: int, seed: int, names: tuple[str, ...] = MODELS, *, say: Callable[[str], None] = print
) -> Counter[str]:
    """Mutate files so many times; how often each kind of mutation came to what."""
    rng, watch, tally = random.Random(seed), Watch(), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        files = originals(names, place)
        for number in range(count):
            original = rng.choice(files)
            forged = number % 2 == 1
            how = rng.choice(FORGERY if forged else DAMAGE)
            content = how(original, rng)
            result = outcome(original, content, place / "mutated", watch, forged=forged)
            tally[f"{how.__name__}: {result}"] += 1
            if result.startswith("fault"):
                say(f"{number} {original.name} {how.__name__} {result}")
    return tally


def main() -> None:
    """Fuzz with a bound on memory; exit with 1 on any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    began = time.perf_counter()
    tally = fuzz(arguments.count, arguments.seed)
    for kind, times in sorted(tally.items()):
        print(f"{times:7,}  {kind}")
    faults = sum(times for kind, times in tally.items() if ": fault" in kind)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{arguments.count:,} files in {time.perf_counter() - began:.0f} s, {faults} faults, "
        f"peak {peak:,.0f} MiB"
    )
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
