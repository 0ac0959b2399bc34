"""Classes by the names of folders."""

from __future__ import annotations

from collections.abc import Sequence


def classes_of(names: Sequence[str], outputs: int) -> list[int] | None:
    """The class that each name stands for, if a model of so many outputs has such classes.

    Names that are numbers say it themselves. Others, if there are as many as outputs, are numbered
    in their order, as torchvision's `ImageFolder` does.

    >>> classes_of(["7", "3", "7"], 10), classes_of(["dog", "cat", "dog"], 2)
    ([7, 3, 7], [1, 0, 1])
    >>> classes_of(["dog", "cat"], 10), classes_of(["1", "10"], 10)
    (None, None)
    """
    if all(name.isascii() and name.isdecimal() for name in names):
        numbers = [int(name) for name in names]
        # Numbers beyond the outputs may begin at one, or be sorted as text: nobody knows.
        return numbers if max(numbers, default=0) < outputs else None
    known = {name: number for number, name in enumerate(sorted(set(names)))}
    return [known[name] for name in names] if len(known) == outputs else None
