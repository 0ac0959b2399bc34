"""Consecutive ones: which orders keep every admitted set side by side.

A PQ-tree holds all such orders at once. This one is persistent: `admit` returns a new tree
that shares what did not change and leaves the old one alone, so a refused set costs nothing
and a search may keep as many trees as it likes. Sets are bit masks over `0..n-1`.

Elements that no admitted set tells apart lie loose in a node instead of having leaves of their
own. So the tree has a handful of nodes per admitted set, however many elements there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple, TypeAlias

# Elements in a row, in stretches that stay together.
Pieces: TypeAlias = list[list[int]]


class Node(NamedTuple):
    """Orders of `mask`: `loose` elements and `children` in any order, or `children` as they
    are, forwards or backwards, where `fixed`.

    A named tuple, because a search makes many thousands and frozen dataclasses are slow to make.
    """

    mask: int
    loose: int
    children: tuple[Node, ...]
    fixed: bool


def loose(mask: int) -> Node:
    """The tree that allows every order of the elements in `mask`.

    >>> loose(0b1011).children
    ()
    """
    return Node(mask, mask, (), False)


def admit(tree: Node, members: int) -> Node | None:
    """The orders of `tree` in which `members` lie side by side, or `None` if there are none.

    >>> tree = admit(loose(0b111), 0b101)
    >>> tree = admit(tree, 0b110)
    >>> [bin(child.mask) for child in tree.children], tree.fixed
    (['0b1', '0b100', '0b10'], True)
    >>> admit(tree, 0b011) is None
    True
    """
    members &= tree.mask
    if members & (members - 1) == 0:
        return tree
    above: list[tuple[Node, int]] = []
    node = tree
    while (inside := _child_with(node, members)) is not None:
        above.append((node, inside))
        node = node.children[inside]
    if members == node.mask:
        return tree
    narrowed = _admit_fixed(node, members) if node.fixed else _admit_free(node, members)
    if narrowed is None:
        return None
    for parent, at in reversed(above):
        children = (*parent.children[:at], narrowed, *parent.children[at + 1 :])
        narrowed = Node(parent.mask, parent.loose, children, parent.fixed)
    return narrowed


def _child_with(node: Node, members: int) -> int | None:
    """The place of the child that holds all the members, if one does."""
    for at, child in enumerate(node.children):
        shared = child.mask & members
        if shared == members:
            return at
        if shared:
            return None
    return None


def admit_all(tree: Node, family: Iterable[int]) -> Node | None:
    """The orders of `tree` in which each of the sets lies side by side, or `None`."""
    for members in family:
        admitted = admit(tree, members)
        if admitted is None:
            return None
        tree = admitted
    return tree


def _admit_free(tree: Node, members: int) -> Node | None:
    empty, partial, full = _sort(tree.children, members)
    if len(partial) > 2:
        return None
    core = _group(tree.loose & members, full)
    if partial:
        middle = _facing(partial[0], members)
        if middle is None:
            return None
        if core is not None:
            middle.append(core)
        if len(partial) == 2:
            closing = _facing(partial[1], members)
            if closing is None:
                return None
            middle.extend(reversed(closing))
        core = _sequence(middle)
    assert core is not None  # members is not empty
    rest = tree.loose & ~members
    return Node(tree.mask, rest, (*empty, core), False) if rest or empty else core


def _admit_fixed(tree: Node, members: int) -> Node | None:
    children: list[Node] = []
    stage = 0  # 0 before, 1 inside, 2 behind the members
    for child in tree.children:
        shared = child.mask & members
        if not shared:
            if stage == 1:
                stage = 2
            children.append(child)
        elif stage == 2:
            return None
        elif shared == child.mask:
            stage = 1
            children.append(child)
        else:
            faces = _facing(child, members)
            if faces is None:
                return None
            children.extend(faces if stage == 0 else reversed(faces))
            stage += 1
    return Node(tree.mask, 0, tuple(children), True)


def _facing(tree: Node, members: int) -> list[Node] | None:
    """Split a partial tree in a row: without members first, with members last."""
    before: list[Node] = []
    behind: list[Node] = []  # from the end inwards
    node: Node | None = tree
    while node is not None:
        if node.fixed:
            row = node.children
            first, last = row[0].mask & members, row[-1].mask & members
            if first == row[0].mask or (first and not last):
                row = row[::-1]
            empty, partial, full = _sort(row, members)
            if row != (*empty, *partial, *full):
                return None
            before += empty
            behind += reversed(full)
        else:
            empty, partial, full = _sort(node.children, members)
            outside = _group(node.loose & ~members, empty)
            inside = _group(node.loose & members, full)
            if outside is not None:
                before.append(outside)
            if inside is not None:
                behind.append(inside)
        if len(partial) > 1:
            return None
        node = partial[0] if partial else None
    return before + behind[::-1]


def _sort(children: tuple[Node, ...], members: int) -> tuple[list[Node], list[Node], list[Node]]:
    empty: list[Node] = []
    partial: list[Node] = []
    full: list[Node] = []
    for child in children:
        shared = child.mask & members
        kind = empty if not shared else full if shared == child.mask else partial
        kind.append(child)
    return empty, partial, full


def _group(elements: int, children: list[Node]) -> Node | None:
    if not children:
        return loose(elements) if elements else None
    if len(children) == 1 and not elements:
        return children[0]
    mask = elements | union(child.mask for child in children)
    return Node(mask, elements, tuple(children), False)


def _sequence(row: list[Node]) -> Node:
    return Node(union(child.mask for child in row), 0, tuple(row), len(row) > 2)


def arrange(tree: Node) -> list[int]:
    """The order closest to the natural one: pieces by their first element, smaller end first.

    >>> arrange(admit_all(loose(0b11111), [0b10100, 0b10001]))
    [0, 4, 2, 1, 3]
    """
    return in_a_row(tree, _lower_end_first, sorted)


def _lower_end_first(pieces: Pieces) -> Pieces:
    return pieces[::-1] if pieces[-1][0] < pieces[0][0] else pieces


def in_a_row(
    tree: Node, turn: Callable[[Pieces], Pieces], link: Callable[[Pieces], Pieces]
) -> list[int]:
    """Put each node's pieces in a row: `turn` those of fixed order, `link` all others."""
    rows: dict[int, list[int]] = {}
    for node in _bottom_up(tree):
        pieces = [rows.pop(child.mask) for child in node.children]
        pieces.extend([element] for element in elements(node.loose))
        pieces = turn(pieces) if node.fixed else link(pieces)
        rows[node.mask] = [element for piece in pieces for element in piece]
    return rows[tree.mask]


def _bottom_up(tree: Node) -> list[Node]:
    """All nodes, children before parents; a loop, because chains of sets make deep trees."""
    nodes = [tree]
    for node in nodes:
        nodes.extend(node.children)
    return nodes[::-1]


def union(masks: Iterable[int]) -> int:
    """The elements of any of several masks.

    >>> bin(union([0b001, 0b101]))
    '0b101'
    """
    return reduce(or_, masks, 0)


def elements(mask: int) -> Iterator[int]:
    """The elements of a bit mask, ascending.

    >>> list(elements(0b10110))
    [1, 2, 4]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
