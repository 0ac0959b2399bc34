"""Channel flow: the steps of a captured model, the classes that its lines' positions are of, and
what is known of every line. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from upscale.channels import Parameter, Positions
from upscale.flow.lines import HeadGrid, Line
from upscale.flow.relations import Carry, Fold, Pass, Reduce, Relation, Select


@dataclass(frozen=True, slots=True)
class Frozen:
    """Why something stays whole: the layer or node, the operation, the reason, the source."""

    layer: str
    operation: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one node of the graph does to lines.

    `reads` are the values it is given, `makes` those it returns. An executed step runs in the
    exported model; the others (selects, aliases) are looked through. `module` is the module a
    node calls. `resize` names the lines whose size stands among a reshape's arguments. A step
    that `keeps` writes what later calls read: it runs whoever wants its result. A step that
    lowering inserted runs `at` a node of the graph.
    """

    node: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    relations: tuple[Relation, ...]
    executed: bool
    module: str | None = None
    frozen: Frozen | None = None
    resize: tuple[Line, ...] = ()
    shape_only: bool = False
    keeps: bool = False
    at: str | None = None


class Classes:
    """Classes of positions under merging: a union-find that works on whole lines at once.

    >>> classes = Classes()
    >>> a, b = classes.fresh(2), classes.fresh(2)
    >>> classes.merge(a, b)
    >>> classes.find(b).tolist()
    [0, 1]
    """

    def __init__(self) -> None:
        self._parent = np.arange(1024)
        self._count = 0

    def fresh(self, size: int) -> Positions:
        """Classes nobody has yet, one for each of `size` positions."""
        start, self._count = self._count, self._count + size
        while self._count > len(self._parent):
            self._parent = np.concatenate(
                (self._parent, np.arange(len(self._parent), 2 * len(self._parent)))
            )
        return np.arange(start, self._count)

    def find(self, classes: Positions) -> Positions:
        """The representative of each class: its smallest member."""
        roots = self._parent[classes]
        while (higher := self._parent[roots]) is not None and (higher != roots).any():
            roots = higher
        self._parent[classes] = roots
        return roots

    def merge(self, one: Positions, other: Positions) -> None:
        """Make positions that meet members of one class."""
        a, b = self.find(one), self.find(other)
        low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]
        while len(high):
            # Where several pairs give one class a parent, the last wins; the rest go again.
            self._parent[high] = low
            again = self._parent[high] != low
            a, b = self.find(low[again]), self.find(high[again])
            low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]


class _Sizes(dict[Line, int]):
    """The sizes of lines; of an axis that is none, by its value's shape."""

    def __init__(self, flow: ChannelFlow) -> None:
        super().__init__((line, len(classes)) for line, classes in flow.classes.items())
        self._shapes = flow.shapes

    def __missing__(self, line: Line) -> int:
        self[line] = self._shapes[line.value][line.axis]
        return self[line]


@dataclass(frozen=True)
class ChannelFlow:
    """How channels run through a captured model.

    `grids` are lines spread over several axes; `blocks` those lines whose tensors need equally
    many channels in each of that many blocks, of which those that are `loose` may do without whole
    blocks; `nbytes` what values weigh on the example. What
    follows from these is found when it is first asked for.
    """

    steps: tuple[Step, ...]
    classes: Mapping[Line, Positions]
    grids: Mapping[Line, HeadGrid]
    blocks: Mapping[Line, int]
    shapes: Mapping[str, tuple[int, ...]]
    nbytes: Mapping[str, int]
    loose: frozenset[Line] = frozenset()

    @cached_property
    def sizes(self) -> Mapping[Line, int]:
        """The size of every line, and of every other axis, in the unpruned model."""
        return _Sizes(self)

    @cached_property
    def lines(self) -> Mapping[str, tuple[Line, ...]]:
        """The lines of each value."""
        lines: dict[str, list[Line]] = defaultdict(list)
        for line in sorted(self.classes):
            lines[line.value].append(line)
        return {value: tuple(of_value) for value, of_value in lines.items()}

    @cached_property
    def layers(self) -> tuple[tuple[Step, Reduce], ...]:
        """What layers contract, each with its step."""
        return tuple((s, r) for s in self.steps for r in s.relations if isinstance(r, Reduce))

    @cached_property
    def passes(self) -> tuple[tuple[Step, Pass], ...]:
        """What elementwise operations hand on, each with its step."""
        return tuple((s, r) for s in self.steps for r in s.relations if isinstance(r, Pass))

    @cached_property
    def selects(self) -> tuple[tuple[Step, Select], ...]:
        """What is taken from elsewhere, each with its step."""
        return tuple((s, r) for s in self.steps for r in s.relations if isinstance(r, Select))

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """How many steps read each value that is read."""
        return Counter(value for step in self.steps for value in step.reads)

    @cached_property
    def made(self) -> frozenset[str]:
        """The values that steps hand to others."""
        return frozenset(value for step in self.steps for value in step.makes)

    @cached_property
    def nested(self) -> frozenset[Line]:
        """The lines whose parts are read side by side."""
        folds = (r for s in self.steps for r in s.relations if isinstance(r, Fold))
        return frozenset(fold.read for fold in folds if fold.nested)

    @cached_property
    def class_count(self) -> int:
        """How many numbers classes have."""
        return 1 + max((int(c.max()) for c in self.classes.values() if len(c)), default=0)

    @cached_property
    def unrelated(self) -> Mapping[str, tuple[Line, ...]]:
        """The lines each step is given that none of its relations reads: it needs them whole."""
        found = {}
        for step in self.steps:
            related = {line for relation in step.relations for line in relation.reads}
            given = (line for value in step.reads for line in self.lines.get(value, ()))
            found[step.node] = tuple(line for line in given if line not in related)
        return found

    @cached_property
    def tied(self) -> tuple[tuple[Line, ...], ...]:
        """Lines that need one layout: they cut one parameter's axis, one node makes them at once,
        or their channels stay spread over the same axes."""
        users: dict[object, list[Line]] = defaultdict(list)
        for step in self.steps:
            for relation in step.relations:
                if relation.out is not None:
                    for line in relation.cuts:
                        users[line].append(relation.out)
            for relation in step.relations if step.executed else ():
                if isinstance(relation, Pass):
                    computed = [r for r in relation.reads if not isinstance(r.value, Parameter)]
                    lead = (computed or relation.reads)[0]
                    if lead in self.blocks:
                        users[step.node, lead].append(lead)
                    users[step.node, lead].append(relation.out)
        groups = (tuple(dict.fromkeys(outs)) for outs in users.values())
        return tuple(group for group in groups if len(group) > 1)

    @cached_property
    def carried(self) -> Mapping[int, int]:
        """The class of the channel that each merged feature's class is part of."""
        carried: dict[int, int] = {}
        for step in self.steps:
            for relation in step.relations:
                if isinstance(relation, Carry):
                    _, channels = relation.moved(self.sizes)
                    sources = self.classes[relation.read][channels].tolist()
                    features = self.classes[relation.out].tolist()
                    for feature, source in zip(features, sources, strict=True):
                        carried[feature] = carried.get(source, source)
        return carried
