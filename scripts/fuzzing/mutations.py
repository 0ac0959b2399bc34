"""Mutations: of whole files, of their documents, and of any tree of JSON."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from scripts.fuzzing.subjects import Subject
from upscale.store.container import LENGTH, METADATA, seal

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


# Damage: the digest is not made anew.


def flip_bits(subject: Subject, rng: random.Random) -> bytes:
    """A few bits turned anywhere, or in the header alone."""
    content = bytearray(subject.content)
    end = len(content) if rng.random() < 0.5 else len(content) - len(subject.data)
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(content)


def cut_off(subject: Subject, rng: random.Random) -> bytes:
    """An end that is missing, or one too many."""
    content = subject.content
    if rng.random() < 0.2:
        return content + rng.randbytes(rng.randint(1, 64))
    return content[: rng.randrange(len(content))]


def edit_length(subject: Subject, rng: random.Random) -> bytes:
    """Another length of the header."""
    length = rng.choice([0, 1, 2**31, 2**62, 2**64 - 1, rng.randrange(2 * len(subject.content))])
    return LENGTH.pack(length) + subject.content[LENGTH.size :]


def edit_header(subject: Subject, rng: random.Random) -> bytes:
    """Another JSON header: other offsets, shapes, dtypes, names; the document as it was."""
    content = subject.content
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    header = json.loads(content[LENGTH.size : end])
    mutate(header, rng)
    text = text_of(header).encode()
    return LENGTH.pack(len(text)) + text + subject.data


def edit_unsealed(subject: Subject, rng: random.Random) -> bytes:
    """Another document under the old digest."""
    content = subject.content
    end = LENGTH.size + LENGTH.unpack_from(content)[0]
    header = json.loads(content[LENGTH.size : end])
    document = copy.deepcopy(subject.document)
    mutate(document, rng)
    header[METADATA]["upscale"] = text_of(document)
    text = text_of(header).encode()
    return LENGTH.pack(len(text)) + text + subject.data


# Forgery: the digest fits.


def edit_sealed(subject: Subject, rng: random.Random) -> bytes:
    """Another document, sealed anew."""
    document = copy.deepcopy(subject.document)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        mutate(document[rng.choice(list(document))] if rng.random() < 0.7 else document, rng)
    return b"".join(seal(text_of(document), subject.entries, subject.data))


def edit_node(subject: Subject, rng: random.Random) -> bytes:
    """One node of the table with another field, sealed anew."""
    document = copy.deepcopy(subject.document)
    node = rng.choice(document["graph"]["nodes"])
    other = rng.choice(document["graph"]["nodes"])
    field = rng.choice(list(node))
    node[field] = rng.choice(HOSTILE) if rng.random() < 0.7 else other.get(field)
    return b"".join(seal(text_of(document), subject.entries, subject.data))


def edit_tensors(subject: Subject, rng: random.Random) -> bytes:
    """Other descriptions of the tensors, sealed anew."""
    entries = copy.deepcopy(subject.entries)
    mutate(entries, rng)
    return b"".join(seal(text_of(subject.document), entries, subject.data))


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


def nudge(tree: Any, rng: random.Random) -> None:
    """Change one thing a little, so that the tree still looks like one that was meant."""
    lists = [holder for holder in _holders(tree) if isinstance(holder, list) and len(holder) > 1]
    numbers = [
        (holder, key)
        for holder in _holders(tree)
        for key in _keys(holder)
        if type(holder[key]) in (int, bool)
    ]
    if lists and (not numbers or rng.random() < 0.5):
        items = rng.choice(lists)
        one, other = rng.sample(range(len(items)), 2)
        change = rng.choice(("swap", "repeat", "drop"))
        if change == "swap":
            items[one], items[other] = items[other], items[one]
        elif change == "repeat":
            items[one] = copy.deepcopy(items[other])
        else:
            del items[one]
    elif numbers:
        holder, key = rng.choice(numbers)
        value = holder[key]
        holder[key] = not value if isinstance(value, bool) else value + rng.choice((-1, 1, 2))


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
